"""What a sweep would do: its jobs, what is there already, and what the rest costs. Nothing runs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from experiments.harness.sweep import Job, Sweep, counted, published_value
from lark.config import STAGES
from lark.planner.estimates import Estimate
from lark.planner.report import every_estimate, size
from lark.report.tables import text_table
from lark.runtime.plan import Step
from lark.runtime.store import Artifact

PAPER_HOURS = published_value("cost", "total_hours")
"""A100-hours of all the paper's training (App. C.3)."""
ORDER = ("student", *STAGES)
"""Of a plan's steps: a student that comes in a package is converted before anything else."""


@dataclass(frozen=True)
class Planned:
    """A step that the sweep needs; steps that jobs share are planned once."""

    step: Step
    job: Job
    """The first that needs it."""
    pending: tuple[Artifact, ...]
    """What of it is not finished."""


def planned(sweep: Sweep) -> list[Planned]:
    """Every distinct step of the sweep, in order."""
    seen: dict[tuple[str, ...], Planned] = {}
    for job in sweep.jobs:
        for step in job.steps:
            key = (step.task, *(artifact.fingerprint for artifact in step.artifacts))
            if key not in seen:
                pending = tuple(a for a in step.artifacts if sweep.store.state(a) != "finished")
                seen[key] = Planned(step, job, pending)
    return list(seen.values())


def kind(step: Step) -> str:
    """What a step is called in a plan; evaluating the base model is not evaluating a trained student."""
    if step.task not in ("generate", "grade"):
        return step.task
    generations = step.artifacts[0] if step.task == "generate" else step.artifacts[0].inputs["generations"]
    return step.task if "checkpoint" in generations.inputs else f"{step.task} (base model)"


def describe(sweep: Sweep) -> str:
    """The plan as text."""
    steps = planned(sweep)
    hours = [device_hours(p) for p in steps]
    known = any(hour is not None for hour in hours)
    rows = []
    for name in dict.fromkeys(kind(p.step) for p in sorted(steps, key=lambda p: ORDER.index(p.step.stage))):
        own = [(p, hour or 0.0) for p, hour in zip(steps, hours, strict=True) if kind(p.step) == name]
        todo = [(p, hour) for p, hour in own if p.pending]
        cost = [f"{sum(h for _, h in own):,.1f}", f"{sum(h for _, h in todo):,.1f}"] if known else []
        rows.append([name, str(len(own)), str(len(own) - len(todo)), str(len(todo)), *cost])
    total = Counter(kind(p.step) for p in steps)
    jobs = [[str(number), " ".join(job.overrides), _state(sweep, job)] for number, job in enumerate(sweep.jobs)]
    unit = ["device-hours", "to do"] if known else []
    parts = [
        f"{sweep.title} at scale {sweep.scale}: {counted(len(sweep.jobs), 'job')}, "
        f"{counted(total['train'], 'training')}, {counted(total['generate (base model)'], 'base evaluation')}",
        text_table(["job", "settings", "to do"], jobs, right=3),
        text_table(["step", "in all", "reused", "to do", *unit], rows),
    ]
    if known:
        parts.append(_total(sweep, steps, hours))
    return "\n\n".join(parts)


def device_hours(planned: Planned) -> float | None:
    """What the planner says of a step; None for steps that cost next to nothing, or that it does not know."""
    same = [e for e in _estimates(planned.job) if e.task == planned.step.task]
    if not same:
        return None
    base = kind(planned.step).endswith("(base model)")
    share = len(planned.pending or planned.step.artifacts) / len(planned.step.artifacts)
    return float((same[0] if base else same[-1]).device_hours) * share


@cache
def _estimates(job: Job) -> tuple[Estimate, ...]:
    return tuple(every_estimate(replace(job.config, stages=list(STAGES))))


def _total(sweep: Sweep, steps: Sequence[Planned], hours: Sequence[float | None]) -> str:
    """All of it, against what the paper says of its own cost."""
    every = sum(hour or 0.0 for hour in hours)
    todo = sum(hour or 0.0 for p, hour in zip(steps, hours, strict=True) if p.pending)
    training = [(p, hour or 0.0) for p, hour in zip(steps, hours, strict=True) if p.step.task == "train"]
    hardware = sweep.jobs[0].config.hardware
    lines = [f"Estimated: {every:,.1f} device-hours in all ({hardware.name}), {todo:,.1f} of them to do."]
    left = [next(e for e in _estimates(p.job) if e.task == "train") for p, _ in training if p.pending]
    if left:
        kept, passing = sum(e.kept_gib for e in left), max(e.resume_gib for e in left)
        lines.append(f"On disk: {size(kept)} of trained students, snapshots included; {size(passing)} more during a training.")
    if sweep.scale == "paper" and training:
        low, high = (published_value("cost", f"train_hours_{end}") for end in ("low", "high"))
        runs = sum((p.job.config.pool.questions or 5000) * p.job.config.budget.size / 5000 for p, _ in training)
        spent = sum(hour for _, hour in training)
        lines += [
            f"Training alone: {spent:,.0f} device-hours, {spent / PAPER_HOURS:.0%} of the paper's about {PAPER_HOURS:,.0f} "
            "A100-hours for all of its training (App. C.3).",
            f"By the paper's own {low:g} to {high:g} hours on 8 A100s for 5,000 trajectories, these trainings would take "
            f"{8 * low * runs:,.0f} to {8 * high * runs:,.0f} A100-hours.",
        ]
    return "\n".join(lines)


def _state(sweep: Sweep, job: Job) -> str:
    """What of a job is left to do, by task."""
    left = Counter(
        step.task for step in job.steps if any(sweep.store.state(artifact) != "finished" for artifact in step.artifacts)
    )
    return ", ".join(left) if left else "nothing: all is reused"
