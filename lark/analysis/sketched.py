"""Analyses that sketch gradients as scoring does (lark/scoring/gradient_sketches.py): how well a sketched
g* agrees with the exact one, gradients of each teacher's trajectories for GRACE, and the quick mode of
`analysis.name=gradients`.

A `Measure` is what a process does with one question when it has loaded the student. worker.py divides the
questions.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch

from lark.analysis.grace import DIMENSION
from lark.analysis.gradients import Gram
from lark.errors import LarkError
from lark.models.chat import Encoded
from lark.scoring.forward import LoadedStudent, batches
from lark.scoring.gradient_sketches import BackwardSketcher, Sketcher, TrajectoryGradient
from lark.scoring.gradient_worker import Candidates, backward_sketcher, feature, forward_sketcher
from lark.scoring.sketches import Fold
from lark.work.devices import start_torch
from lark.work.operation import Job

log = logging.getLogger(__name__)

Trajectories: TypeAlias = Sequence[tuple[Mapping[str, Any], Encoded]]
"""The rows of a question in the pool, with their tokens."""
Measure: TypeAlias = Callable[[str, Trajectories], pd.DataFrame]
"""Maps a question's name and trajectories to its table."""


def load_student(job: Job) -> LoadedStudent:
    """The student in `analysis.dtype`, regardless of student.dtype."""
    student = replace(job.config.student, dtype=job.config.analysis.dtype)
    if student.dtype == "float32" and student.half_only:
        student = replace(student, attention="sdpa")
    return LoadedStudent.load(job.weights, student, start_torch(job), gradients=True)


def sketched(sketcher: Sketcher, encoded: Sequence[Encoded], job: Job) -> list[TrajectoryGradient]:
    """The gradients of some trajectories, in their order, in batches that fit."""
    hardware = job.config.hardware
    budget = hardware.train_tokens if isinstance(sketcher, BackwardSketcher) else hardware.score_tokens
    found: dict[int, TrajectoryGradient] = {}
    for batch in batches([len(e.ids) for e in encoded], budget, padded=not sketcher.student.packs):
        found |= zip(batch, sketcher([encoded[i] for i in batch]), strict=True)
    return [found[i] for i in range(len(encoded))]


def quick_gram(sketcher: Sketcher, encoded: Sequence[Encoded], job: Job) -> Gram:
    """The Gram matrix of sketched gradients: of the output projections and of the head, in place of all
    parameters.
    """
    candidates = Candidates.of(sketched(sketcher, encoded, job))
    return Gram(candidates.layers, candidates.head, np.zeros_like(candidates.head))


def estimates(job: Job) -> Measure:
    """g* of each trajectory of a question from both kinds of sketches."""
    student = load_student(job)
    try:
        forward: Sketcher | None = forward_sketcher(student, job.config)
    except LarkError as error:
        log.warning("Without lark_gram: %s", error)
        forward = None
    columns = {"g_gram": forward, "g_exact": backward_sketcher(student, job.config)}

    def measured(name: str, rows: Trajectories) -> pd.DataFrame:
        encoded = [e for _, e in rows]
        values = {
            column: np.nan if sketcher is None else Candidates.of(sketched(sketcher, encoded, job)).g_star
            for column, sketcher in columns.items()
        }
        return pd.DataFrame(
            {"question_id": name, "candidate_id": [row["candidate_id"] for row, _ in rows], **values}
        )

    return measured


def teacher_gradients(job: Job) -> Measure:
    """Direction and norm of each trajectory's gradient, with its teacher (lark/analysis/grace.py)."""
    sketcher = backward_sketcher(load_student(job), job.config)
    device = sketcher.student.head.weight.device
    fold = Fold.of(job.config.sketch.seed, "grace", sketcher.numbers, DIMENSION, device)

    def measured(name: str, rows: Trajectories) -> pd.DataFrame:
        gradients = sketched(sketcher, [e for _, e in rows], job)
        norms = [float(torch.cat([g.layers, g.head]).double().norm()) for g in gradients]
        if not np.isfinite(norms).all():
            raise LarkError(f"A gradient of question {name} is not finite: check the student's weights.")
        found = {
            "question_id": name,
            "candidate_id": [row["candidate_id"] for row, _ in rows],
            "teacher": [row["teacher"] for row, _ in rows],
            "n_tokens": [g.n_tokens for g in gradients],
            "gradient_norm": norms,
            "feature": [feature(g, fold) for g in gradients],
        }
        return pd.DataFrame(found)

    return measured
