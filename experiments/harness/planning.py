"""The plan of a sweep: its trials, what is already finished, and what the rest costs. Runs nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from experiments.harness.sweep import Sweep, Trial, published_values
from lark.config import Config
from lark.evaluation.grade import METRICS
from lark.pipeline.registry import OPERATIONS
from lark.planner.estimates import Estimate, estimate
from lark.planner.lengths import PoolLengths, pool_lengths
from lark.planner.report import size
from lark.printing import counted, text_table
from lark.store.store import Artifact
from lark.training.checkpoints import CHECKPOINT
from lark.work.operation import Step

ORDER = tuple(dict.fromkeys(operation.stage for operation in OPERATIONS))
"""Order of the stages in the table of steps."""


@dataclass(frozen=True)
class PlannedStep:
    """A step that the sweep needs. Steps that trials share are planned once."""

    step: Step
    trial: Trial
    """The first trial that needs it."""
    pending: Sequence[Artifact]
    """Its artifacts that are not finished."""


def planned(sweep: Sweep) -> list[PlannedStep]:
    """Every distinct step of the sweep, in order."""
    seen: dict[tuple[str, ...], PlannedStep] = {}
    for trial in sweep.trials:
        for step in trial.steps:
            if step.key not in seen:
                seen[step.key] = PlannedStep(step, trial, sweep.pending(step))
    return list(seen.values())


def describe(sweep: Sweep) -> str:
    """The plan as text."""
    steps = planned(sweep)
    trainings = sum(planned.step.makes(CHECKPOINT) for planned in steps)
    bases = sum(planned.step.makes(METRICS) and planned.step.model == "base" for planned in steps)
    counts = [counted(len(sweep.trials), "trial"), counted(trainings, "training")]
    counts.append(counted(bases, "base evaluation"))
    trials = []
    for number, trial in enumerate(sweep.trials):
        trials.append([str(number), " ".join(trial.overrides), _state(sweep, trial)])
    parts = [
        f"{sweep.title} at scale {sweep.scale}: {', '.join(counts)}",
        text_table(["trial", "settings", "to do"], trials, right=3),
        _steps_table(steps),
    ]
    if _has_estimates(steps):
        parts.append(_total(sweep, steps))
    return "\n\n".join(parts)


def _has_estimates(steps: Sequence[PlannedStep]) -> bool:
    return any(device_hours(planned) is not None for planned in steps)


def _steps_table(steps: Sequence[PlannedStep]) -> str:
    """One row per kind of step, in the order of the stages."""
    header = ["step", "in all", "reused", "to do"]
    if _has_estimates(steps):
        header += ["device-hours", "to do"]
    rows = []
    ordered = sorted(steps, key=lambda planned: ORDER.index(planned.step.stage))
    for title in dict.fromkeys(planned.step.title for planned in ordered):
        same = [planned for planned in steps if planned.step.title == title]
        pending = [planned for planned in same if planned.pending]
        row = [title, str(len(same)), str(len(same) - len(pending)), str(len(pending))]
        hours = [f"{_hours(same):,.1f}", f"{_hours(pending):,.1f}"]
        rows.append([*row, *hours][: len(header)])
    return text_table(header, rows)


def _hours(steps: Sequence[PlannedStep]) -> float:
    """Device-hours of steps, without those whose cost is unknown."""
    return sum(device_hours(planned) or 0.0 for planned in steps)


def device_hours(planned: PlannedStep) -> float | None:
    """The planner's estimate for a step; None for steps whose cost is negligible or unknown."""
    estimated = _estimates(planned.trial).get(planned.step.key)
    if estimated is None:
        return None
    artifacts = planned.step.artifacts
    return estimated.device_hours * len(planned.pending or artifacts) / len(artifacts)


# A table asks for every step of a trial several times, and an estimate covers all of them.
@cache
def _estimates(trial: Trial) -> dict[tuple[str, ...], Estimate]:
    """Estimates by the key of their step."""
    config = trial.config
    lengths = _lengths(Pooled(repr((config.pool, config.student)), config))
    return {estimated.step.key: estimated for estimated in estimate(config, trial.plan, lengths)}


@dataclass(frozen=True)
class Pooled:
    """A pool and its reader. Trials with the same settings of both have the same lengths."""

    settings: str
    config: Config = field(compare=False)


# Trials of a sweep share their pool, and reading one takes seconds.
@cache
def _lengths(pooled: Pooled) -> PoolLengths:
    return pool_lengths(pooled.config)


def _total(sweep: Sweep, steps: Sequence[PlannedStep]) -> str:
    """The total cost, compared with the paper's."""
    hardware = sweep.trials[0].config.hardware
    to_do = _hours([planned for planned in steps if planned.pending])
    lines = [
        f"Estimated: {_hours(steps):,.1f} device-hours in all ({hardware.name}), {to_do:,.1f} of them to do."
    ]
    trainings = [planned for planned in steps if planned.step.makes(CHECKPOINT)]
    pending = [_estimates(p.trial)[p.step.key] for p in trainings if p.pending]
    if pending:
        kept = sum(training.kept_gib for training in pending)
        passing = max(training.resume_gib for training in pending)
        lines.append(
            f"On disk: {size(kept)} of trained students, including snapshots; {size(passing)} more during a"
            " training."
        )
    if sweep.scale == "paper" and trainings:
        lines += _beside_the_paper(trainings)
    return "\n".join(lines)


def _beside_the_paper(trainings: Sequence[PlannedStep]) -> list[str]:
    paper = published_values("cost")
    trajectories = 0
    for planned in trainings:
        config = planned.trial.config
        trajectories += (config.pool.questions or 5000) * config.budget.per_question
    runs = trajectories / 5000
    low = paper["train_hours_low"]
    high = paper["train_hours_high"]
    hours = _hours(trainings)
    return [
        (
            f"Training alone: {hours:,.0f} device-hours, {hours / paper['total_hours']:.0%} of about"
            f" {paper['total_hours']:,.0f} A100-hours for all of the paper's training (App. C.3)."
        ),
        (
            f"At the paper's {low:g} to {high:g} hours on 8 A100s for 5,000 trajectories, these trainings"
            f" would take {8 * low * runs:,.0f} to {8 * high * runs:,.0f} A100-hours."
        ),
    ]


def _state(sweep: Sweep, trial: Trial) -> str:
    """The operations of a trial that are not finished."""
    names = [step.operation.name for step in trial.steps if sweep.pending(step)]
    return ", ".join(dict.fromkeys(names)) or "nothing: all is reused"
