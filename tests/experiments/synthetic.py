"""Artifacts as a finished sweep leaves them, made without a model: what renderers read, with numbers of our
choice.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.harness.sweep import Sweep, Trial
from lark.analysis.kinds import TEACHERS_TABLE
from lark.evaluation.metrics import GradedSample, benchmark_metrics
from lark.pool import trajectories as pools
from lark.pool.noise import noisy, to_damage
from lark.pool.read import read
from lark.scoring.token_files import write_pieces, write_shard
from lark.scoring.tokens import TrajectoryTokens
from lark.selection import write as selecting
from lark.store.store import Artifact
from lark.work.machine import Machine
from lark.work.operation import Job, Step

KEY = ["question_id", "candidate_id"]
Wanted = Callable[[Trial, Step], bool]


def fill(sweep: Sweep, wanted: Wanted = lambda trial, step: True) -> None:
    """Finish the artifacts of the sweep's trials that `wanted` names."""
    for trial in sweep.trials:
        for step in trial.steps:
            if wanted(trial, step):
                build = partial(_build, sweep, trial, step)
                sweep.store.ensure(step.artifacts, build)


def accuracy_of(artifact: Artifact) -> int:
    """How many of 10 problems the synthetic student solves, decided by the artifact alone."""
    return int(hashlib.sha256(artifact.fingerprint.encode()).hexdigest(), 16) % 11


def _build(sweep: Sweep, trial: Trial, step: Step, folders: list[Path]) -> Sequence[Mapping[str, Any]]:
    pending = {sweep.store.path(artifact): artifact for artifact in step.artifacts}
    for folder in folders:
        _write(sweep, trial, pending[folder], folder)
        data = folder / (pending[folder].kind.file or "data")
        if not data.exists():
            data.write_text("synthetic")
    return [{"device": "a test", "trajectories": 4, "mean_tokens": 20.0} for _ in folders]


def _write(sweep: Sweep, trial: Trial, artifact: Artifact, folder: Path) -> None:
    if artifact.kind.name == "pool":
        pool = trial.config.pool
        hit = to_damage(read(pool), pool) if pool.noise_share else set()
        pools.write(noisy(read(pool), pool, hit), folder / pools.FILE, pool)
    elif artifact.kind.name == "lengths":
        _candidates(sweep, trial).assign(n_prompt=10, n_tokens=20, truncated=False).to_parquet(
            folder / "lengths.parquet"
        )
    elif artifact.kind.name == "scores":
        _statistics(_candidates(sweep, trial)).to_parquet(folder / "scores.parquet")
    elif artifact.kind.name == "tokens":
        write_shard(folder / "tokens-00000000-00000004.parquet", _tokens(_candidates(sweep, trial)))
        write_pieces(folder, [b" "] * 5 + [b"five"], [False] * 6)
    elif artifact.kind.name == "selection":
        _select(sweep, trial, artifact, folder)
    elif artifact.kind.name == "checkpoint":
        lines = [{"step": step, "loss": 2.0 / step, "learning_rate": 1e-3} for step in range(1, 41)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif artifact.kind.name == "metrics":
        metrics = _metrics(accuracy_of(artifact)).to_dict()
        (folder / "metrics.json").write_text(json.dumps({"paper": metrics, "verify": metrics}))
        rows = [
            {
                **{"problem": f"p{problem}", "seed": seed, "sample": 0, "paper": right, "verify": right},
                **{"answer": "1", "answer_verify": "1"},
            }
            for problem in range(10)
            for seed in range(3)
            for right in [problem < accuracy_of(artifact)]
        ]
        (folder / "grades.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif artifact.kind == TEACHERS_TABLE:
        _teacher_gradients(sweep, trial).to_parquet(folder / TEACHERS_TABLE.file)
    elif artifact.kind.name == "cost":
        rows = [(m, r, t, 20, 30, s * (1 + t)) for m, s in COSTS.items() for r in range(3) for t in range(4)]
        columns = ["method", "round", "trajectory", "n_tokens", "length", "seconds"]
        pd.DataFrame(rows, columns=columns).to_parquet(folder / "cost.parquet")


COSTS = {"grape": 0.010, "lark": 0.011, "rsr": 0.025, "local_naturalness": 0.050, "statistics": 0.012}


def _candidates(sweep: Sweep, trial: Trial) -> pd.DataFrame:
    folder = sweep.folder(trial, pools.POOL_TABLE)
    assert folder is not None
    return pd.read_parquet(folder / pools.FILE, columns=KEY)


def _statistics(table: pd.DataFrame) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    nll, brier = rng.uniform(10, 60, len(table)), rng.uniform(5, 20, len(table))
    return table.assign(
        n_tokens=20, truncated=False, nll=nll, brier=brier, ties=0.0,
        rank_sum=rng.uniform(20, 200, len(table)),
        p_gold=rng.uniform(0.2, 0.8, len(table)), wrong_p2=rng.uniform(0.05, 0.4, len(table)), sum_p2=0.5,
    )  # fmt: skip


def _teacher_gradients(sweep: Sweep, trial: Trial) -> pd.DataFrame:
    folder = sweep.folder(trial, pools.POOL_TABLE)
    assert folder is not None
    table = pd.read_parquet(folder / pools.FILE, columns=[*KEY, "teacher"])
    vectors = np.random.default_rng(0).normal(size=(len(table), 16)).astype(np.float16)
    return table.assign(
        n_tokens=20, gradient_norm=1.0 + np.arange(len(table)) % 5, feature=[row.tobytes() for row in vectors]
    )


def _tokens(table: pd.DataFrame) -> list[TrajectoryTokens]:
    rng = np.random.default_rng(0)
    return [
        TrajectoryTokens(
            str(row["question_id"]), str(row["candidate_id"]), np.full(20, 5, np.int32),
            *(rng.uniform(0, 2, 20) for _ in range(2)), np.ones(20, np.int32), rng.uniform(0, 2, 20),
            np.full((20, 5), 5, np.int32), np.full((20, 5), 0.2),
        )
        for row in table.to_dict("records")
    ]  # fmt: skip


def _select(sweep: Sweep, trial: Trial, artifact: Artifact, folder: Path) -> None:
    """LARK's own rule where it is LARK's; for methods that need more than is made here, the first of each
    question.
    """
    inputs = {name: sweep.store.path(source) for name, source in artifact.inputs.items()}
    if {"scores", "lengths"} <= set(inputs):
        outputs = {artifact.kind.name: folder}
        selecting.write_selection(
            Job("select", folder, outputs, inputs, "", trial.config, Machine("cpu", 1, 1, 1))
        )
        return
    chosen = (
        _candidates(sweep, trial)
        .groupby("question_id")
        .head(trial.config.budget.size)
        .assign(teacher="someone", score=1.0)
    )
    share = 1.0 / trial.config.budget.size
    chosen = chosen.assign(
        rank=chosen.groupby("question_id").cumcount() + 1, weight=share, threshold=0.5, tau=0.1
    )
    chosen.to_parquet(folder / "selection.parquet")


def _metrics(solved: int) -> Any:
    samples = [
        GradedSample(f"p{problem}", seed, 0, correct=problem < solved, truncated=False, boxed=True)
        for problem in range(10)
        for seed in range(3)
    ]
    return benchmark_metrics(samples)
