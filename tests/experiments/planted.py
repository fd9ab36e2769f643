"""Runs of a comparison with accuracies of our choice, made without a model: grades and losses as an
evaluation leaves them.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from experiments.harness.sweep import Sweep, Trial
from lark.pool.hashing import hash64
from lark.store.store import Artifact
from lark.work.operation import Step

Ability = Callable[[Trial], float]
"""The chance that a run's answers are right, in logits, before the problem's difficulty."""


def build(
    sweep: Sweep,
    trial: Trial,
    ability: Ability,
    steps: int = 100,
    correct: Callable[[Trial, int, int], bool] | None = None,
) -> None:
    """Finish all artifacts of a run. `steps`: of training. `correct`: decides, of the trained student, which
    samples of which problems are, instead of chance.
    """
    for step in trial.steps:
        decides = correct if step.model == "trained" else None
        sweep.store.ensure(
            step.artifacts,
            lambda folders, step=step, decides=decides: _write(  # type: ignore[misc]
                sweep, trial, step, folders, ability, steps, decides
            ),
        )


def _write(
    sweep: Sweep,
    trial: Trial,
    step: Step,
    folders: list[Path],
    ability: Ability,
    steps: int,
    correct: Callable[[Trial, int, int], bool] | None,
) -> list[dict[str, int]]:
    by_folder = {sweep.store.path(artifact): artifact for artifact in step.artifacts}
    for folder in folders:
        chance = ability(trial) if step.model != "base" else -2.0
        _write_one(trial, by_folder[folder], folder, chance, correct)
    return [{"questions": 1, "steps": steps} for _ in folders]


def _write_one(
    trial: Trial,
    artifact: Artifact,
    folder: Path,
    ability: float,
    correct: Callable[[Trial, int, int], bool] | None,
) -> None:
    rng = np.random.default_rng(hash64(artifact.fingerprint) % 2**32)
    if artifact.kind.name == "metrics":
        seeds, samples = trial.config.benchmark.decoding.seeds, trial.config.benchmark.decoding.samples
        difficulty = np.random.default_rng(7).normal(0, 1.2, 80)
        rows = [
            {"problem": f"p{p:03d}", "seed": seed, "sample": k, "paper": right, "verify": right}
            for p in range(80)
            for seed in seeds
            for k in range(samples)
            for right in [
                bool(rng.random() < 1 / (1 + np.exp(-(ability + difficulty[p]))))
                if correct is None
                else correct(trial, p, k)
            ]
        ]
        (folder / "grades.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "metrics.json").write_text("{}")
    elif artifact.kind.name == "checkpoint":
        measured = [
            json.loads(line)
            for line in Path(str(trial.config.training.held_out.path)).read_text().splitlines()
        ]
        names = [f"{row['question_id']}/{row['candidate_id']}" for row in measured]
        lines = []
        for name in names:
            loss = 2.0 - 0.3 * ability + rng.normal(0, 0.05)
            lines.append({"trajectory": name, "loss": loss, "token_accuracy": 1.2 - 0.35 * loss})
        (folder / "held_out.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        (folder / (artifact.kind.file or "data")).write_text("planted")
    if artifact.kind.name == "selection":
        (folder / "train.jsonl").write_text("planted")
