"""The analysis stage's processes: exact gradients, Jacobians, and the decay rate along a training run.

There is one shard per question (or snapshot): a killed process loses at most one.
"""

import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from lark.analysis import parts, sketched
from lark.analysis.gradients import Anchor, Gram, corpus_rate, gram_matrix, passes
from lark.analysis.jacobian import ANOTHER, head_norm, jacobian_norm2
from lark.analysis.kinds import GRADIENTS_TABLE
from lark.analysis.questions import Question
from lark.errors import LarkError
from lark.models.chat import Encoded
from lark.models.head import Head
from lark.models.load import load_chat, load_model
from lark.models.weights import displacement
from lark.pool import trajectories as pools
from lark.scoring.gradient_worker import backward_sketcher
from lark.scoring.statistics import token_statistics
from lark.selection.write import TRAINING_SET
from lark.store.integrity import verify
from lark.training.checkpoints import CURVE
from lark.training.curves import flow_times
from lark.training.worker import read_examples
from lark.work.devices import start_torch
from lark.work.operation import Counts, Job
from lark.work.sharding import Do, Progress, Shard, Work, in_shards

log = logging.getLogger(__name__)

TEXT = [*pools.TEXT_COLUMNS, "teacher"]
SNAPSHOTS = "snapshots/step-*"
"""The student during training, in a checkpoint that was trained with training.snapshots."""


@in_shards
def gradients(job: Job) -> Work:
    """Gram matrix, losses and statistics of the trajectories of a sample of questions: one shard per
    question.
    """
    if job.config.analysis.quick:
        return _each_question(job, lambda: _quick(job), "sketched gradients")
    chosen = sample(job.inputs["pool"] / pools.FILE, job.config.analysis.questions, job.config.analysis.seed)
    memory = int(job.config.hardware.gradient_gib * 2**30)
    folder = job.config.hardware.gradient_scratch
    scratch = Path(folder).expanduser() / f"lark-gradients-{job.folder.name}-{job.writer}" if folder else None

    @contextlib.contextmanager
    def load() -> Iterator[Do]:
        anchor = load_anchor(job, job.weights)

        def do(some: Sequence[Shard], progress: Progress) -> None:
            rows = read_questions(job, [chosen[int(shard.name)] for shard in some])
            for shard in some:
                name = chosen[int(shard.name)]
                each = 1 / passes(anchor, len(rows[name]), memory)
                question = measure(
                    anchor,
                    name,
                    rows[name],
                    memory,
                    lambda n=1, each=each: progress.update(n * each),
                    scratch,
                )
                parts.write(question.rows(), job.folder, int(shard.name))

        yield do

    return _work(job, chosen, "question_id", load, {"questions": len(chosen)}, "exact gradients", "question")


@in_shards
def estimates(job: Job) -> Work:
    """g* of the same questions from sketched gradients, to compare them with the exact ones: one shard per
    question.
    """
    return _each_question(job, lambda: sketched.estimates(job), "sketched gradients")


@in_shards
def teacher_gradients(job: Job) -> Work:
    """Short vectors of gradients with their teachers, for GRACE: one shard per question."""
    return _each_question(job, lambda: sketched.teacher_gradients(job), "gradients of teachers")


def _quick(job: Job) -> sketched.Measure:
    """What `gradients` measures, from sketched gradients (`analysis.quick`): one pass for each trajectory,
    whatever the memory.
    """
    student = sketched.load_student(job)
    sketcher, anchor = backward_sketcher(student, job.config), Anchor(student.model)

    def measured(name: str, rows: sketched.Trajectories) -> pd.DataFrame:
        gram = sketched.quick_gram(sketcher, [encoded for _, encoded in rows], job)
        return _question(anchor, name, rows, gram).rows()

    return measured


def _each_question(job: Job, start: Callable[[], sketched.Measure], label: str) -> Work:
    """A table for each question of the sample. `start` loads the student."""
    chosen = sample(job.inputs["pool"] / pools.FILE, job.config.analysis.questions, job.config.analysis.seed)

    @contextlib.contextmanager
    def load() -> Iterator[Do]:
        measured = start()

        def do(some: Sequence[Shard], progress: Progress) -> None:
            rows = read_questions(job, [chosen[int(shard.name)] for shard in some])
            for shard in some:
                name = chosen[int(shard.name)]
                parts.write(measured(name, rows[name]), job.folder, int(shard.name))
                progress.update(1)

        yield do

    return _work(job, chosen, "question_id", load, {"questions": len(chosen)}, label, "question")


@in_shards
def jacobians(job: Job) -> Work:
    """λ_max(J_H J_Hᵀ) of the trajectories of the first questions that have exact gradients, and ||W_out||."""
    table = pd.read_parquet(
        job.inputs["gradients"] / GRADIENTS_TABLE.file, columns=["question_id", "candidate_id"]
    )
    chosen = list(dict.fromkeys(table["question_id"]))[: job.config.analysis.jacobians]

    @contextlib.contextmanager
    def load() -> Iterator[Do]:
        anchor = load_anchor(job, job.weights)
        if anchor.bias is not None or anchor.rule.softcap is not None or anchor.rule.scale != 1.0:
            raise LarkError(
                "The theory of App. B assumes logits z = W_out h, but this student adds a bias, a scale or a"
                f" soft cap: {ANOTHER}"
            )
        norm = head_norm(anchor)

        def do(some: Sequence[Shard], progress: Progress) -> None:
            rows = read_questions(job, [chosen[int(shard.name)] for shard in some])
            for shard in some:
                found, own = [], rows[chosen[int(shard.name)]]
                for row, encoded in own:
                    eigenvalue = jacobian_norm2(
                        anchor, encoded, job.config.analysis.iterations, job.config.analysis.seed
                    )
                    found.append(
                        {
                            "question_id": row["question_id"],
                            "candidate_id": row["candidate_id"],
                            "jacobian": eigenvalue.value,
                            "iterations": eigenvalue.iterations,
                            "change": eigenvalue.change,
                            "head_norm": norm,
                        }
                    )
                    progress.update(1 / len(own))
                parts.write(pd.DataFrame(found), job.folder, int(shard.name))

        yield do

    return _work(job, chosen, "question_id", load, {"questions": len(chosen)}, "Jacobians", "question")


@in_shards
def kappa(job: Job) -> Work:
    """ρ_t of the weighted training set at each snapshot of the training run (paper, App. A.3), with the
    distance that the weights have moved (Assumption A.1) and the time of gradient flow (Proposition 1): one
    shard per snapshot.
    """
    snapshots = sorted(job.inputs["checkpoint"].glob(SNAPSHOTS))
    if len(snapshots) < 2:
        raise LarkError(
            f"{job.inputs['checkpoint']} has no snapshots of its training run: add training.snapshots=11 (or"
            " another number) to the command, which trains it again with snapshots."
        )
    chat = load_chat(job.weights, job.config.student)
    path = job.inputs["selection"] / TRAINING_SET
    examples = read_examples(path, chat, job.config.student.max_length)
    weights = corpus_weights(
        [example.question_id for example in examples], [example.weight for example in examples]
    )
    encoded = [example.encoded for example in examples]
    tokens = sum(len(e.ids) for e in encoded)
    steps = [int(snapshot.name.rsplit("-", 1)[1]) for snapshot in snapshots]
    times = flow_times(job.inputs["checkpoint"] / CURVE, steps)

    def do(some: Sequence[Shard], progress: Progress) -> None:
        for number in (int(shard.name) for shard in some):
            verify(
                job.inputs["checkpoint"],
                under=snapshots[number].relative_to(job.inputs["checkpoint"]).as_posix(),
            )
            anchor = load_anchor(job, str(snapshots[number]))
            advance = lambda n: progress.update(n / tokens)  # noqa: E731
            found = corpus_rate(anchor, encoded, weights, job.config.hardware.train_tokens, advance)
            moved = displacement(snapshots[number], snapshots[0])
            row = {
                "step": steps[number],
                "time": times[number],
                "loss": found.loss,
                "gradient_norm2": found.gradient_norm2,
                "rate": found.rate,
                "distance": moved.distance,
                "start_norm": moved.start_norm,
            }
            parts.write(pd.DataFrame([row]), job.folder, number)
            del anchor

    counts = {"snapshots": len(snapshots), "trajectories": len(encoded), "budget": job.config.budget.identity}
    return _work(job, steps, "step", lambda: contextlib.nullcontext(do), counts, "decay rates", "snapshot")


def _work(
    job: Job,
    names: Sequence[object],
    column: str,
    load: Callable[[], contextlib.AbstractContextManager[Do]],
    counts: Counts,
    label: str,
    what: str,
) -> Work:
    """One shard per question or snapshot. `names`: theirs, in `column`. `what`: what a shard is."""

    def missing(some: Sequence[Shard]) -> list[Shard]:
        return [s for s in some if not parts.is_done(job.folder, int(s.name), column, names[int(s.name)])]

    listed = [Shard(str(number)) for number in range(len(names))]
    return Work(
        listed, missing, load, lambda done: counts, lambda s: f"{what} {names[int(s.name)]}", label, what
    )


def corpus_weights(questions: Sequence[str], training_weights: Sequence[float]) -> list[float]:
    """The q of L_total = 1/N Σ_n Σ_k q_nk ℓ_nk from training weights w = B_n q_nk (decision 3)."""
    sizes = Counter(questions)
    return [
        weight / sizes[name] / len(sizes) for name, weight in zip(questions, training_weights, strict=True)
    ]


def sample(pool: Path, questions: int, seed: int) -> list[str]:
    """The questions with the smallest hashes, among those with at least 2 candidates; all of them if the
    pool has no more.
    """
    sizes = Counter(row["question_id"] for row in pools.iterate(pool, columns=["question_id"]))
    usable = [question for question, size in sizes.items() if size >= 2]
    if not usable:
        raise LarkError("No question of the pool has two candidates: there is nothing to select from.")
    return sorted(usable, key=lambda question: hashlib.sha256(f"{seed}\x1f{question}".encode()).digest())[
        :questions
    ]


def read_questions(job: Job, names: Sequence[str]) -> dict[str, list[tuple[dict[str, Any], Encoded]]]:
    """The trajectories of some questions as the student sees them, by candidate_id, without those truncated
    to no response.
    """
    chat = load_chat(job.weights, job.config.student)
    wanted = set(names)
    rows = [
        row
        for row in pools.iterate(job.inputs["pool"] / pools.FILE, columns=TEXT)
        if row["question_id"] in wanted
    ]
    rows.sort(key=lambda row: row["candidate_id"])
    found: dict[str, list[tuple[dict[str, Any], Encoded]]] = {name: [] for name in names}
    for row, encoded in zip(rows, chat.encode_many(rows, job.config.student.max_length), strict=True):
        if encoded.n_response > 0:
            found[row["question_id"]].append((row, encoded))
    for name, trajectories in found.items():
        if len(trajectories) < 2:
            raise LarkError(
                f"Question {name} has fewer than two trajectories within student.max_length: raise it."
            )
    return found


def measure(
    anchor: Anchor,
    name: str,
    rows: sketched.Trajectories,
    memory: int,
    advance: Callable[..., object],
    scratch: Path | None = None,
) -> Question:
    """All exact quantities of one question's trajectories."""
    return _question(
        anchor, name, rows, gram_matrix(anchor, [encoded for _, encoded in rows], memory, advance, scratch)
    )


def _question(anchor: Anchor, name: str, rows: sketched.Trajectories, gram: Gram) -> Question:
    table = pd.DataFrame(_statistics(anchor, Head.of(anchor.model), rows))
    if not all(np.isfinite(part).all() for part in (gram.rest, gram.head, gram.cross)):
        raise LarkError(f"A gradient of question {name} is not finite: check the student's weights.")
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
    """The weights at `path` in `analysis.dtype`, regardless of student.dtype. On a GPU, activations are
    recomputed.
    """
    device = start_torch(job)
    student = replace(job.config.student, dtype=job.config.analysis.dtype)
    if student.dtype == "float32" and student.half_only:
        student = replace(student, attention="sdpa")
    return Anchor(load_model(path, student, device), checkpointing=device != "cpu")
