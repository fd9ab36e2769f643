"""What a sweep would do: its trials, what is already finished, and what the rest costs. Runs nothing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from experiments.harness.sweep import Sweep, Trial, published_value
from lark.evaluation.grade import METRICS
from lark.pipeline.registry import OPERATIONS
from lark.planner.estimates import Estimate, estimate
from lark.planner.report import size
from lark.printing import counted, text_table
from lark.store.store import Artifact
from lark.training.checkpoints import CHECKPOINT
from lark.work.operation import Step

PAPER_HOURS = published_value("cost", "total_hours")
"""A100-hours of all the paper's training (App. C.3)."""
ORDER = tuple(dict.fromkeys(operation.stage for operation in OPERATIONS))
"""Order of the stages in the table of steps."""


@dataclass(frozen=True)
class Planned:
    """A step that the sweep needs. Steps that trials share are planned once."""

    step: Step
    trial: Trial
    """The first trial that needs it."""
    pending: tuple[Artifact, ...]
    """Its artifacts that are not finished."""


def planned(sweep: Sweep) -> list[Planned]:
    """Every distinct step of the sweep, in order."""
    seen: dict[tuple[str, ...], Planned] = {}
    for trial in sweep.trials:
        for step in trial.steps:
            if step.key not in seen:
                pending = tuple(a for a in step.artifacts if sweep.store.state(a) != "finished")
                seen[step.key] = Planned(step, trial, pending)
    return list(seen.values())


def describe(sweep: Sweep) -> str:
    """The plan as text."""
    steps = planned(sweep)
    hours = [device_hours(p) for p in steps]
    known = any(hour is not None for hour in hours)
    rows = []
    for name in dict.fromkeys(p.step.title for p in sorted(steps, key=lambda p: ORDER.index(p.step.stage))):
        own = [(p, hour or 0.0) for p, hour in zip(steps, hours, strict=True) if p.step.title == name]
        todo = [(p, hour) for p, hour in own if p.pending]
        cost = [f"{sum(h for _, h in own):,.1f}", f"{sum(h for _, h in todo):,.1f}"] if known else []
        rows.append([name, str(len(own)), str(len(own) - len(todo)), str(len(todo)), *cost])
    trainings = sum(p.step.makes(CHECKPOINT) for p in steps)
    bases = sum(p.step.makes(METRICS) and p.step.model == "base" for p in steps)
    trials = [
        [str(number), " ".join(trial.overrides), _state(sweep, trial)]
        for number, trial in enumerate(sweep.trials)
    ]
    unit = ["device-hours", "to do"] if known else []
    parts = [
        (
            f"{sweep.title} at scale {sweep.scale}: {counted(len(sweep.trials), 'trial')}, "
            f"{counted(trainings, 'training')}, {counted(bases, 'base evaluation')}"
        ),
        text_table(["trial", "settings", "to do"], trials, right=3),
        text_table(["step", "in all", "reused", "to do", *unit], rows),
    ]
    if known:
        parts.append(_total(sweep, steps, hours))
    return "\n\n".join(parts)


def device_hours(planned: Planned) -> float | None:
    """The planner's estimate for a step; None for steps whose cost is negligible or unknown."""
    found = _estimates(planned.trial).get(planned.step.key)
    if found is None:
        return None
    return found.device_hours * len(planned.pending or planned.step.artifacts) / len(planned.step.artifacts)


@cache
def _estimates(trial: Trial) -> dict[tuple[str, ...], Estimate]:
    """Estimates by the key of their step."""
    return {e.step.key: e for e in estimate(trial.config, trial.plan)}


def _total(sweep: Sweep, steps: Sequence[Planned], hours: Sequence[float | None]) -> str:
    """The total cost, compared with the paper's."""
    every = sum(hour or 0.0 for hour in hours)
    todo = sum(hour or 0.0 for p, hour in zip(steps, hours, strict=True) if p.pending)
    training = [(p, hour or 0.0) for p, hour in zip(steps, hours, strict=True) if p.step.makes(CHECKPOINT)]
    hardware = sweep.trials[0].config.hardware
    lines = [f"Estimated: {every:,.1f} device-hours in all ({hardware.name}), {todo:,.1f} of them to do."]
    left = [_estimates(p.trial)[p.step.key] for p, _ in training if p.pending]
    if left:
        kept, passing = sum(e.kept_gib for e in left), max(e.resume_gib for e in left)
        lines.append(
            f"On disk: {size(kept)} of trained students, including snapshots; {size(passing)} more during a"
            " training."
        )
    if sweep.scale == "paper" and training:
        low, high = (published_value("cost", f"train_hours_{end}") for end in ("low", "high"))
        runs = sum(
            (p.trial.config.pool.questions or 5000) * p.trial.config.budget.per_question / 5000
            for p, _ in training
        )
        spent = sum(hour for _, hour in training)
        lines += [
            (
                f"Training alone: {spent:,.0f} device-hours, {spent / PAPER_HOURS:.0%} of about"
                f" {PAPER_HOURS:,.0f} A100-hours for all of the paper's training (App. C.3)."
            ),
            (
                f"At the paper's {low:g} to {high:g} hours on 8 A100s for 5,000 trajectories, these trainings"
                f" would take {8 * low * runs:,.0f} to {8 * high * runs:,.0f} A100-hours."
            ),
        ]
    return "\n".join(lines)


def _state(sweep: Sweep, trial: Trial) -> str:
    """The operations of a trial that are not finished."""
    left = Counter(
        step.operation.name
        for step in trial.steps
        if any(sweep.store.state(artifact) != "finished" for artifact in step.artifacts)
    )
    return ", ".join(left) if left else "nothing: all is reused"
