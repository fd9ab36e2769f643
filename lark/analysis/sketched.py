"""Analyses that sketch gradients as scoring does (lark/scoring/gradient_sketches.py): how well a sketched
g* agrees with the exact one, gradients of each teacher's trajectories for GRACE, and the quick mode of
`analysis.name=gradients`.

A `Measure` is the work of a process on one question, with a loaded student. worker.py divides the questions.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch

from lark import config
from lark.analysis.grace import DIMENSION
from lark.analysis.gradients import Gram
from lark.errors import LarkError
from lark.models.chat import Encoded
from lark.scoring.checks import check_finite
from lark.scoring.forward import LoadedStudent, batches
from lark.scoring.gradient_sketches import BackwardSketcher, Sketcher, TrajectoryGradient
from lark.scoring.gradient_worker import Candidates, backward_sketcher, feature, forward_sketcher
from lark.scoring.pass_sizes import job_tokens
from lark.scoring.sketches import Fold
from lark.work.devices import start_torch
from lark.work.operation import Job

log = logging.getLogger(__name__)

Trajectories: TypeAlias = Sequence[tuple[Mapping[str, Any], Encoded]]
"""The rows of a question in the pool, with their tokens."""
Advance: TypeAlias = Callable[[float], object]
"""Reports progress; the parts of a question add up to 1."""
Measure: TypeAlias = Callable[[str, Trajectories, Advance], pd.DataFrame]
"""Maps a question's name and trajectories to its table."""


def student_settings(job: Job) -> config.Student:
    """The student in `analysis.dtype`, regardless of student.dtype."""
    student = replace(job.config.student, dtype=job.config.analysis.dtype)
    if student.dtype == "float32" and student.half_only:
        return replace(student, attention="sdpa")
    return student


def load_student(job: Job) -> LoadedStudent:
    return LoadedStudent.load(job.weights, student_settings(job), start_torch(job), gradients=True)


def sketched(sketcher: Sketcher, encoded: Sequence[Encoded], job: Job) -> list[TrajectoryGradient]:
    """The gradients of some trajectories, in their order, in batches that fit."""
    backward = isinstance(sketcher, BackwardSketcher)
    budget = job.config.hardware.train_tokens if backward else job_tokens(job, student_settings(job))
    lengths = [len(e.ids) for e in encoded]
    gradients: dict[int, TrajectoryGradient] = {}
    for batch in batches(lengths, budget, padded=not sketcher.student.packs):
        gradients |= zip(batch, sketcher([encoded[i] for i in batch]), strict=True)
    return [gradients[i] for i in range(len(encoded))]


def quick_gram(sketcher: Sketcher, encoded: Sequence[Encoded], job: Job) -> Gram:
    """The Gram matrix of sketched gradients: those of output projections and head, not of all parameters."""
    candidates = Candidates.of(sketched(sketcher, encoded, job))
    return Gram(candidates.layers, candidates.head, np.zeros_like(candidates.head))


def estimates(job: Job) -> Measure:
    """g* of each trajectory of a question from both kinds of sketches."""
    student = load_student(job)
    sketchers: dict[str, Sketcher] = {}
    try:
        sketchers["g_gram"] = forward_sketcher(student, job.config)
    except LarkError as error:
        log.warning("Without lark_gram: %s", error)
    sketchers["g_exact"] = backward_sketcher(student, job.config)

    def measured(name: str, rows: Trajectories, advance: Advance) -> pd.DataFrame:
        encoded = [e for _, e in rows]
        table = _ids(name, rows).assign(g_gram=np.nan)  # if the student has no forward sketches
        for column, sketcher in sketchers.items():
            table[column] = Candidates.of(sketched(sketcher, encoded, job)).g_star
        advance(1)
        return table

    return measured


def teacher_gradients(job: Job) -> Measure:
    """Direction and norm of each trajectory's gradient, with its teacher (lark/analysis/grace.py)."""
    sketcher = backward_sketcher(load_student(job), job.config)
    device = sketcher.student.head.weight.device
    fold = Fold.of(job.config.sketch.seed, "grace", sketcher.numbers, DIMENSION, device)

    def measured(name: str, rows: Trajectories, advance: Advance) -> pd.DataFrame:
        gradients = sketched(sketcher, [e for _, e in rows], job)
        norms = [float(torch.cat([g.layers, g.head]).double().norm()) for g in gradients]
        check_finite(name, norms)
        table = _ids(name, rows).assign(
            teacher=[row["teacher"] for row, _ in rows],
            n_tokens=[g.n_tokens for g in gradients],
            gradient_norm=norms,
            feature=[feature(g, fold) for g in gradients],
        )
        advance(1)
        return table

    return measured


def _ids(name: str, rows: Trajectories) -> pd.DataFrame:
    return pd.DataFrame({"question_id": name, "candidate_id": [row["candidate_id"] for row, _ in rows]})
