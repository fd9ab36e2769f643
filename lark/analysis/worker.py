"""The analysis stage's processes: exact gradients, Jacobians, and the decay rate along a training run.

There is one shard per question (or snapshot), dealt to the processes in turn: a killed process loses at most one.
"""

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
from tqdm import tqdm

from lark.analysis import parts, sketched
from lark.analysis.gradients import Anchor, Gram, corpus_rate, gram_matrix, passes
from lark.analysis.jacobian import ANOTHER, head_norm, jacobian_norm2
from lark.analysis.kinds import GRADIENTS_TABLE
from lark.analysis.questions import Question
from lark.errors import LarkError
from lark.models.chat import Encoded
from lark.models.head import Head
from lark.models.load import load_chat, load_model
from lark.pool import trajectories as pools
from lark.runtime.devices import start_torch
from lark.runtime.integrity import verify
from lark.runtime.operation import Job
from lark.scoring.gradient_worker import backward_sketcher
from lark.scoring.statistics import token_statistics
from lark.selection.write import TRAINING_SET
from lark.training.worker import read_examples

log = logging.getLogger(__name__)

Questions = dict[str, list[tuple[dict[str, Any], Encoded]]]
"""Rows of the pool by question, with their tokens."""
TEXT = [*pools.TEXT, "teacher"]
SNAPSHOTS = "snapshots/step-*"
"""The student during training, in a checkpoint that was trained with training.snapshots."""


def gradients(job: Job) -> dict[str, Any]:
    """Gram matrix, losses and statistics of the trajectories of a sample of questions: one shard per question."""
    chosen = sample(job.inputs["pool"] / pools.FILE, job.config.analysis.questions, job.config.analysis.seed)
    missing = _mine(job, chosen, "question_id")
    if not missing:
        return {"questions": len(chosen)}
    if job.config.analysis.quick:
        _quick_gradients(job, chosen, missing)
        return {"questions": len(chosen)}
    anchor = load_anchor(job, job.weights)
    memory = int(job.config.hardware.gradient_gib * 2**30)
    folder = job.config.hardware.gradient_scratch
    scratch = Path(folder).expanduser() / f"lark-gradients-{job.folder.name}-{job.rank}" if folder else None
    rows = read_questions(job, [chosen[number] for number in missing])
    total = sum(passes(anchor, len(rows[chosen[n]]), memory) for n in missing)
    with tqdm(total=total, desc="exact gradients", unit="pass", disable=not job.is_main) as bar:
        for number in missing:
            question = measure(anchor, chosen[number], rows[chosen[number]], memory, bar, scratch)
            parts.write(question.rows(), job.folder, number)
    return {"questions": len(chosen)}


def _quick_gradients(job: Job, chosen: Sequence[str], missing: Sequence[int]) -> None:
    """The same from sketched gradients (`analysis.quick`): one pass for each trajectory, whatever the memory."""
    student = sketched.load_student(job)
    sketcher, anchor = backward_sketcher(student, job.config), Anchor(student.model)
    rows = read_questions(job, [chosen[number] for number in missing])
    with tqdm(total=len(missing), desc="sketched gradients", unit="question", disable=not job.is_main) as bar:
        for number in missing:
            name = chosen[number]
            gram = sketched.quick_gram(sketcher, [encoded for _, encoded in rows[name]], job)
            parts.write(_question(anchor, name, rows[name], gram).rows(), job.folder, number)
            bar.update()


def estimates(job: Job) -> dict[str, Any]:
    """g* of the same questions from sketched gradients, to compare them with the exact ones: one shard per question."""
    return _each_question(job, sketched.estimates)


def teacher_gradients(job: Job) -> dict[str, Any]:
    """Short vectors of gradients with their teachers, for GRACE: one shard per question."""
    return _each_question(job, sketched.teacher_gradients)


def _each_question(job: Job, work: Callable[[Job, Questions, dict[int, str]], None]) -> dict[str, Any]:
    chosen = sample(job.inputs["pool"] / pools.FILE, job.config.analysis.questions, job.config.analysis.seed)
    missing = {number: chosen[number] for number in _mine(job, chosen, "question_id")}
    if missing:
        work(job, read_questions(job, list(missing.values())), missing)
    return {"questions": len(chosen)}


def jacobians(job: Job) -> dict[str, Any]:
    """λ_max(J_H J_Hᵀ) of the trajectories of the first questions that have exact gradients, and ||W_out||."""
    table = pd.read_parquet(job.inputs["gradients"] / GRADIENTS_TABLE.file, columns=["question_id", "candidate_id"])
    chosen = list(dict.fromkeys(table["question_id"]))[: job.config.analysis.jacobians]
    missing = _mine(job, chosen, "question_id")
    if not missing:
        return {"questions": len(chosen)}
    anchor = load_anchor(job, job.weights)
    if anchor.bias is not None or anchor.rule.softcap is not None or anchor.rule.scale != 1.0:
        raise LarkError(
            f"The theory of App. B assumes logits z = W_out h, but this student adds a bias, a scale or a soft cap: {ANOTHER}"
        )
    norm = head_norm(anchor)
    rows = read_questions(job, [chosen[number] for number in missing])
    total = sum(len(rows[chosen[number]]) for number in missing)
    with tqdm(total=total, desc="Jacobians", unit="traj", disable=not job.is_main) as bar:
        for number in missing:
            found = []
            for row, encoded in rows[chosen[number]]:
                eigenvalue = jacobian_norm2(anchor, encoded, job.config.analysis.iterations, job.config.analysis.seed)
                found.append({
                    "question_id": row["question_id"], "candidate_id": row["candidate_id"], "jacobian": eigenvalue.value,
                    "iterations": eigenvalue.iterations, "change": eigenvalue.change, "head_norm": norm,
                })  # fmt: skip
                bar.update()
            parts.write(pd.DataFrame(found), job.folder, number)
    return {"questions": len(chosen)}


def kappa(job: Job) -> dict[str, Any]:
    """ρ_t of the weighted training set at each snapshot of the training run (paper, App. A.3): one shard per snapshot."""
    snapshots = sorted(job.inputs["checkpoint"].glob(SNAPSHOTS))
    if len(snapshots) < 2:
        raise LarkError(
            f"{job.inputs['checkpoint']} has no snapshots of its training run: add training.snapshots=11 (or another number) "
            "to the command, which trains it again with snapshots."
        )
    chat = load_chat(job.weights, job.config.student)
    path = job.inputs["selection"] / TRAINING_SET
    examples = read_examples(path, chat, job.config.student.max_length)
    weights = corpus_weights([example.question_id for example in examples], [example.weight for example in examples])
    encoded = [example.encoded for example in examples]
    steps = [int(snapshot.name.rsplit("-", 1)[1]) for snapshot in snapshots]
    missing = _mine(job, steps, "step")
    total = len(missing) * sum(len(e.ids) for e in encoded)
    with tqdm(total=total, desc="decay rates", unit="tok", unit_scale=True, disable=not job.is_main) as bar:
        for number in missing:
            verify(job.inputs["checkpoint"], under=snapshots[number].relative_to(job.inputs["checkpoint"]).as_posix())
            anchor = load_anchor(job, str(snapshots[number]))
            found = corpus_rate(anchor, encoded, weights, job.config.hardware.train_tokens, bar.update)
            row = {"step": steps[number], "loss": found.loss, "gradient_norm2": found.gradient_norm2, "rate": found.rate}
            parts.write(pd.DataFrame([row]), job.folder, number)
            del anchor
    return {"snapshots": len(snapshots), "trajectories": len(encoded), "budget": job.config.budget.identity}


def corpus_weights(questions: Sequence[str], training_weights: Sequence[float]) -> list[float]:
    """The q of L_total = 1/N Σ_n Σ_k q_nk ℓ_nk from training weights w = B_n q_nk (decision 3)."""
    sizes = Counter(questions)
    return [weight / sizes[name] / len(sizes) for name, weight in zip(questions, training_weights, strict=True)]


def sample(pool: Path, questions: int, seed: int) -> list[str]:
    """The questions with the smallest hashes, among those with at least 2 candidates; all of them if the pool has no more."""
    sizes = Counter(row["question_id"] for row in pools.iterate(pool, columns=["question_id"]))
    usable = [question for question, size in sizes.items() if size >= 2]
    if not usable:
        raise LarkError("No question of the pool has two candidates: there is nothing to select from.")
    return sorted(usable, key=lambda question: hashlib.sha256(f"{seed}\x1f{question}".encode()).digest())[:questions]


def read_questions(job: Job, names: Sequence[str]) -> Questions:
    """The trajectories of some questions as the student sees them, by candidate_id, without those truncated to no response."""
    chat = load_chat(job.weights, job.config.student)
    wanted = set(names)
    rows = [row for row in pools.iterate(job.inputs["pool"] / pools.FILE, columns=TEXT) if row["question_id"] in wanted]
    rows.sort(key=lambda row: row["candidate_id"])
    found: Questions = {name: [] for name in names}
    for row, encoded in zip(rows, chat.encode_many(rows, job.config.student.max_length), strict=True):
        if encoded.n_response > 0:
            found[row["question_id"]].append((row, encoded))
    for name, trajectories in found.items():
        if len(trajectories) < 2:
            raise LarkError(f"Question {name} has fewer than two trajectories within student.max_length: raise it.")
    return found


def measure(
    anchor: Anchor,
    name: str,
    rows: Sequence[tuple[dict[str, Any], Encoded]],
    memory: int,
    bar: tqdm,
    scratch: Path | None = None,
) -> Question:
    """All exact quantities of one question's trajectories."""
    return _question(anchor, name, rows, gram_matrix(anchor, [encoded for _, encoded in rows], memory, bar.update, scratch))


def _question(anchor: Anchor, name: str, rows: Sequence[tuple[dict[str, Any], Encoded]], gram: Gram) -> Question:
    table = pd.DataFrame(_statistics(anchor, Head.of(anchor.model), rows))
    if not all(np.isfinite(part).all() for part in (gram.rest, gram.head, gram.cross)):
        raise LarkError(f"A gradient of question {name} is not finite: check the student's weights.")
    return Question(name, table, gram, tied=anchor.tied is not None)


@torch.no_grad()
def _statistics(anchor: Anchor, head: Head, rows: Sequence[tuple[dict[str, Any], Encoded]]) -> Iterator[dict[str, Any]]:
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
    """The weights at `path` in `analysis.dtype`, regardless of student.dtype. On a GPU, activations are recomputed."""
    device = start_torch(job)
    student = replace(job.config.student, dtype=job.config.analysis.dtype)
    if student.dtype == "float32" and student.half_only:
        student = replace(student, attention="sdpa")
    return Anchor(load_model(path, student, device), checkpointing=device != "cpu")


def _mine(job: Job, names: Sequence[object], column: str) -> list[int]:
    """The shards that this process still has to compute. `names`: of the question or snapshot of each, in `column`."""
    mine = range(job.rank, len(names), job.world)
    return [number for number in mine if not parts.is_done(job.folder, number, column, names[number])]
