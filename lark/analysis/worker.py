"""The analysis stage's processes: exact gradients, Jacobians, and the decay rate along a training run.

There is one shard per question (or snapshot): a killed process loses at most one.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from lark.analysis import checks, parts, sketched
from lark.analysis.corpus_rate import corpus_rate
from lark.analysis.gradients import Anchor, Gram, gram_matrix, passes
from lark.analysis.jacobian import head_norm, jacobian_norm2
from lark.analysis.kinds import GRADIENTS_TABLE
from lark.analysis.questions import Question
from lark.models.chat import Encoded
from lark.models.head import Head
from lark.models.load import load_chat, load_model
from lark.models.weights import displacement
from lark.pool import trajectories as pools
from lark.scoring import influence
from lark.scoring.checks import check_finite
from lark.scoring.gradient_worker import backward_sketcher
from lark.scoring.statistics import token_statistics
from lark.selection.write import TRAINING_SET
from lark.store.integrity import verify
from lark.training.checkpoints import CURVE
from lark.training.curves import flow_times
from lark.training.encoded_set import Example, read_examples
from lark.training.export import SNAPSHOTS
from lark.work.devices import start_torch
from lark.work.operation import Counts, Job
from lark.work.sharding import Do, Progress, Shard, Work, in_shards

log = logging.getLogger(__name__)

GRADIENT_COLUMNS = [*pools.TEXT_COLUMNS, "teacher"]


@in_shards
def gradients(job: Job) -> Work:
    """Gram matrix, losses and statistics of the trajectories of a sample of questions."""
    if job.config.analysis.quick:
        return _by_question(job, _sampled(job), lambda: _quick(job), "sketched gradients")
    return _by_question(job, _sampled(job), lambda: _exact(job), "exact gradients")


@in_shards
def estimates(job: Job) -> Work:
    """g* of the same questions from sketched gradients, to compare them with the exact ones."""
    return _by_question(job, _sampled(job), lambda: sketched.estimates(job), "sketched gradients")


@in_shards
def teacher_gradients(job: Job) -> Work:
    """Short vectors of gradients with their teachers, for GRACE."""
    return _by_question(job, _sampled(job), lambda: sketched.teacher_gradients(job), "gradients of teachers")


@in_shards
def jacobians(job: Job) -> Work:
    """λ_max(J_H J_Hᵀ) of the trajectories of the first questions that have exact gradients, and ||W_out||."""
    table = pd.read_parquet(job.inputs["gradients"] / GRADIENTS_TABLE.file, columns=["question_id"])
    names = list(dict.fromkeys(table["question_id"]))[: job.config.analysis.jacobians]
    return _by_question(job, names, lambda: _jacobians(job), "Jacobians")


def _exact(job: Job) -> sketched.Measure:
    anchor = load_anchor(job, job.weights)
    memory = int(job.config.hardware.gradient_gib * 2**30)
    folder = job.config.hardware.gradient_scratch
    scratch = Path(folder).expanduser() / f"lark-gradients-{job.folder.name}-{job.writer}" if folder else None

    def measured(name: str, rows: sketched.Trajectories, advance: sketched.Advance) -> pd.DataFrame:
        share = 1 / passes(anchor, len(rows), memory)
        return measure(anchor, name, rows, memory, lambda: advance(share), scratch).rows()

    return measured


def _quick(job: Job) -> sketched.Measure:
    """The same from sketched gradients (`analysis.quick`): one pass for each trajectory, with any memory."""
    student = sketched.load_student(job)
    sketcher = backward_sketcher(student, job.config)
    anchor = Anchor(student.model)

    def measured(name: str, rows: sketched.Trajectories, advance: sketched.Advance) -> pd.DataFrame:
        gram = sketched.quick_gram(sketcher, [encoded for _, encoded in rows], job)
        advance(1)
        return _question(anchor, name, rows, gram).rows()

    return measured


def _jacobians(job: Job) -> sketched.Measure:
    anchor = load_anchor(job, job.weights)
    checks.check_linear_head(anchor.bias is not None, anchor.rule.softcap, anchor.rule.scale)
    norm = head_norm(anchor)
    settings = job.config.analysis

    def measured(name: str, rows: sketched.Trajectories, advance: sketched.Advance) -> pd.DataFrame:
        table = []
        for row, encoded in rows:
            eigenvalue = jacobian_norm2(anchor, encoded, settings.iterations, settings.seed)
            table.append(
                {
                    "question_id": name,
                    "candidate_id": row["candidate_id"],
                    "jacobian": eigenvalue.value,
                    "iterations": eigenvalue.iterations,
                    "change": eigenvalue.change,
                    "head_norm": norm,
                }
            )
            advance(1 / len(rows))
        return pd.DataFrame(table)

    return measured


def _by_question(job: Job, names: Sequence[str], start: Callable[[], sketched.Measure], label: str) -> Work:
    """A table for each of these questions. `start` loads the student."""

    @contextlib.contextmanager
    def load() -> Iterator[Do]:
        measured = start()

        def do(shards: Sequence[Shard], progress: Progress) -> None:
            numbers = [int(shard.name) for shard in shards]
            rows = read_questions(job, [names[number] for number in numbers])
            for number in numbers:
                name = names[number]
                parts.write(measured(name, rows[name], progress.update), job.folder, number)

        yield do

    return _work(job, names, "question_id", load, {"questions": len(names)}, label, "question")


@in_shards
def kappa(job: Job) -> Work:
    """ρ_t of the weighted training set at each snapshot of the training run (paper, App. A.3), with the
    distance that the weights have moved (Assumption A.1) and the time of gradient flow (Proposition 1).
    """
    checkpoint = job.inputs["checkpoint"]
    snapshots = sorted(checkpoint.glob(f"{SNAPSHOTS}/step-*"))
    checks.check_snapshots(checkpoint, len(snapshots))
    chat = load_chat(job.weights, job.config.student)
    examples = read_examples(job.inputs["selection"] / TRAINING_SET, chat, job.config.student.max_length)
    tokens = sum(len(example.encoded.ids) for example in examples)
    steps = [int(snapshot.name.rsplit("-", 1)[1]) for snapshot in snapshots]
    times = flow_times(checkpoint / CURVE, steps)

    def do(shards: Sequence[Shard], progress: Progress) -> None:
        for number in (int(shard.name) for shard in shards):
            snapshot = snapshots[number]
            # Nobody may have read this snapshot since it was written.
            verify(checkpoint, under=snapshot.relative_to(checkpoint).as_posix())
            values = _snapshot_rate(job, snapshot, examples, lambda n: progress.update(n / tokens))
            moved = displacement(snapshot, snapshots[0])
            position = {"step": steps[number], "time": times[number]}
            distance = {"distance": moved.distance, "start_norm": moved.start_norm}
            parts.write(pd.DataFrame([{**position, **values, **distance}]), job.folder, number)

    counts = {
        "snapshots": len(snapshots),
        "trajectories": len(examples),
        "budget": job.config.budget.identity,
    }
    return _work(job, steps, "step", lambda: contextlib.nullcontext(do), counts, "decay rates", "snapshot")


def _snapshot_rate(
    job: Job, snapshot: Path, examples: Sequence[Example], advance: Callable[[int], object]
) -> dict[str, float]:
    """ρ of the training set with a snapshot's weights. The model is released before the next is loaded."""
    anchor = load_anchor(job, str(snapshot))
    weights = corpus_weights([e.question_id for e in examples], [e.weight for e in examples])
    encoded = [example.encoded for example in examples]
    corpus = corpus_rate(anchor, encoded, weights, job.config.hardware.train_tokens, advance)
    return {"loss": corpus.loss, "gradient_norm2": corpus.gradient_norm2, "rate": corpus.rate}


def _work(
    job: Job,
    names: Sequence[object],
    column: str,
    load: Callable[[], contextlib.AbstractContextManager[Do]],
    counts: Counts,
    label: str,
    noun: str,
) -> Work:
    """One shard per question or snapshot (`noun`), which has its name in `column`."""

    def missing(shards: Sequence[Shard]) -> list[Shard]:
        return [s for s in shards if not parts.is_done(job.folder, int(s.name), column, names[int(s.name)])]

    def described(shard: Shard) -> str:
        return f"{noun} {names[int(shard.name)]}"

    shards = [Shard(str(number)) for number in range(len(names))]
    return Work(shards, missing, load, lambda done: counts, described, label, noun)


def corpus_weights(questions: Sequence[str], training_weights: Sequence[float]) -> list[float]:
    """The q of L_total = 1/N Σ_n Σ_k q_nk ℓ_nk from training weights w = B_n q_nk (decision 3)."""
    sizes = Counter(questions)
    return [
        weight / sizes[name] / len(sizes) for name, weight in zip(questions, training_weights, strict=True)
    ]


def _sampled(job: Job) -> list[str]:
    settings = job.config.analysis
    return sample(job.inputs["pool"] / pools.FILE, settings.questions, settings.seed)


def sample(pool: Path, questions: int, seed: int) -> list[str]:
    """A sample of the questions with at least 2 candidates; all if there are fewer."""
    sizes = Counter(row["question_id"] for row in pools.iterate(pool, columns=["question_id"]))
    usable = [question for question, size in sizes.items() if size >= 2]
    checks.check_sampled(usable)
    return influence.sample(usable, questions, seed)


def read_questions(job: Job, names: Sequence[str]) -> dict[str, list[tuple[dict[str, Any], Encoded]]]:
    """The trajectories of some questions as the student sees them, by candidate_id.

    Without those of which student.max_length leaves no response.
    """
    chat = load_chat(job.weights, job.config.student)
    questions: dict[str, list[tuple[dict[str, Any], Encoded]]] = {name: [] for name in names}
    pool = job.inputs["pool"] / pools.FILE
    rows = [row for row in pools.iterate(pool, columns=GRADIENT_COLUMNS) if row["question_id"] in questions]
    rows.sort(key=lambda row: row["candidate_id"])
    for row, encoded in zip(rows, chat.encode_many(rows, job.config.student.max_length), strict=True):
        if encoded.n_response > 0:
            questions[row["question_id"]].append((row, encoded))
    for name, trajectories in questions.items():
        checks.check_trajectories(name, len(trajectories))
    return questions


def measure(
    anchor: Anchor,
    name: str,
    rows: sketched.Trajectories,
    memory: int,
    advance: Callable[[], object],
    scratch: Path | None = None,
) -> Question:
    """All exact quantities of one question's trajectories."""
    gram = gram_matrix(anchor, [encoded for _, encoded in rows], memory, advance, scratch)
    return _question(anchor, name, rows, gram)


def _question(anchor: Anchor, name: str, rows: sketched.Trajectories, gram: Gram) -> Question:
    table = pd.DataFrame(_statistics(anchor, Head.of(anchor.model), rows))
    check_finite(name, gram.rest, gram.head, gram.cross)
    return Question(name, table, gram, tied=anchor.tied is not None)


@torch.no_grad()
def _statistics(anchor: Anchor, head: Head, rows: sketched.Trajectories) -> Iterator[dict[str, Any]]:
    """The part from the forward pass: `questions.SCALARS` of each trajectory, summed in float64."""
    for row, encoded in rows:
        hidden, targets = anchor.hidden(encoded)
        tokens = token_statistics(hidden, targets, head)
        norms = hidden.double().norm(dim=1)
        yield {
            "candidate_id": row["candidate_id"],
            "teacher": row["teacher"],
            "n_tokens": len(targets),
            "nll": float(tokens.surprisal.double().sum()),
            "brier": float(tokens.residual.double().sum()),
            "hidden_min": float(norms.min()),
            "hidden_max": float(norms.max()),
            "hidden_square_sum": float(norms.square().sum()),
            "surprisal_min": float(tokens.surprisal.min()),
            "surprisal_max": float(tokens.surprisal.max()),
        }


def load_anchor(job: Job, path: str) -> Anchor:
    """The weights at `path` in `analysis.dtype`. On a GPU, activations are recomputed."""
    device = start_torch(job)
    model = load_model(path, sketched.student_settings(job), device)
    return Anchor(model, checkpointing=device != "cpu")
