"""`python -m experiments status`: what is done, running, waiting and failed, and how much is left."""

import shlex
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from experiments.submission.graph import remaining
from experiments.submission.record import Planned, Submission
from experiments.submission.slurm_jobs import queued
from lark.errors import LarkError
from lark.planner.report import duration
from lark.printing import counted, text_table

State = Literal["done", "running", "waiting", "failed"]
STATES: tuple[State, ...] = ("done", "running", "waiting", "failed")


@dataclass(frozen=True)
class Situation:
    """A step now."""

    step: Planned
    state: State
    error: str = ""
    started: float | None = None
    ended: float | None = None


def situations(submission: Submission, active: Collection[str] | None = None) -> list[Situation]:
    """The state of every step. `active`: the jobs in SLURM's queue; None: they are looked up."""
    active = _active(submission) if active is None else active
    return [_situation(submission, step, active) for step in submission.steps.values()]


def _situation(submission: Submission, step: Planned, active: Collection[str] | None) -> Situation:
    events = submission.events(step)
    times = (events[-1].started, events[-1].ended) if events else (None, None)
    if submission.finished(step):
        return Situation(step, "done", "", *times)
    if submission.is_running(step):
        return Situation(step, "running", "", *times)
    if events and events[-1].error:
        again = active is not None and submission.jobs().get(step.name) in active
        return Situation(step, "waiting" if again else "failed", events[-1].error, *times)
    if not _carried_out(submission, step, active):
        if events:
            return Situation(step, "failed", events[-1].failure, *times)
        job = submission.jobs().get(step.name)
        if job is not None and all(submission.finished(submission.steps[name]) for name in step.after):
            return Situation(
                step, "failed", f"SLURM job {job} has ended without a result: `sacct -j {job}` may say why"
            )
    return Situation(step, "waiting")


def _carried_out(submission: Submission, step: Planned, active: Collection[str] | None) -> bool:
    """Whether somebody will start a step: its SLURM job is in the queue, or there is a conductor."""
    return (
        submission.jobs().get(step.name) in active
        if active is not None
        else submission.conductor() is not None
    )


def _active(submission: Submission) -> Collection[str] | None:
    """The user's jobs in SLURM's queue. None: the sweep is not on SLURM."""
    return queued() if submission.place == "slurm" else None


def describe(submission: Submission) -> str:
    """The status as text."""
    note = ""
    try:
        active = _active(submission)
    except LarkError as error:
        active, note = (
            set(submission.jobs().values()),
            f"{error} Its jobs are assumed to be waiting or running.",
        )
    found = situations(submission, active)
    states = Counter(s.state for s in found)
    rows = []
    for title in dict.fromkeys(s.step.title for s in found):
        own = [s for s in found if s.step.title == title]
        hours = sum(_device_hours(s.step) for s in own if s.state != "done")
        gpus = sorted({s.step.gpus for s in own})
        counts = [str(sum(s.state == state for s in own)) for state in STATES]
        rows.append([title, *counts, "-".join(map(str, gpus[:1] + gpus[1:][-1:])), f"{hours:,.2f}"])
    total = sum(_device_hours(s.step) for s in found if s.state != "done")
    rows.append(["all", *(str(states[state]) for state in STATES), "", f"{total:,.2f}"])
    parts = [
        (
            f"{submission.title} ({submission.folder.name}), {counted(len(submission.trials), 'trial')}, on"
            f" {submission.place}"
        ),
        text_table(["step", *STATES, "GPUs", "device-hours left"], rows),
        _left(submission, found),
        note,
    ]
    if running := [s for s in found if s.state == "running"]:
        now = time.time()
        lines = [
            [s.step.name, duration(now - (s.started or now)), str(_log_file(submission, s.step))]
            for s in running
        ]
        parts.append(text_table(["running", "for", "log"], lines, right=3))
    if failed := [s for s in found if s.state == "failed"]:
        parts.append("\n".join(f"failed: {s.step.name}: {s.error}" for s in failed))
    parts.append(_advice(submission, found, active))
    return "\n\n".join(filter(None, parts))


def _log_file(submission: Submission, step: Planned) -> Path:
    """Where a running step writes its output. A SLURM job writes to submitit's file."""
    job = submission.jobs().get(step.name) if submission.place == "slurm" else None
    return (
        submission.log_file(step.name).with_name(f"{job}_0_log.out")
        if job
        else submission.log_file(step.name)
    )


def timeline(submission: Submission) -> str:
    """When each step could start, started and ended, in seconds since the first start; and what it held in
    between.
    """
    found = {s.step.name: s for s in situations(submission)}
    ran = sorted((s for s in found.values() if s.started is not None), key=lambda s: s.started or 0.0)
    if not ran:
        return ""
    zero = min(s.started or 0.0 for s in ran)
    rows = []
    for s in ran:
        ready = max((found[name].ended or 0.0 for name in s.step.after), default=zero)
        times = [max(min(ready, s.started or ready), zero), s.started, s.ended]
        seconds = ["" if value is None else f"{value - zero:.1f}" for value in times]
        held = counted(s.step.gpus, "GPU") if s.step.gpus else counted(s.step.cpus, "CPU")
        rows.append([s.step.name, ",".join(map(str, s.step.trials)), *seconds, held, s.state])
    return text_table(["step", "trials", "inputs ready", "started", "ended", "held", "state"], rows, right=2)


def _device_hours(step: Planned) -> float:
    return (step.seconds or 0.0) * max(1, step.gpus) / 3600


def _left(submission: Submission, found: Collection[Situation]) -> str:
    done = {s.step.name for s in found if s.state == "done"}
    if len(done) == len(found):
        return ""
    after = {s.step.name: s.step.after for s in found}
    chain = max(remaining(after, {s.step.name: submission.seconds(s.step) for s in found}, done).values())
    total = sum(_device_hours(s.step) for s in found if s.state != "done")
    least = f"at least {chain / 3600:,.2f} hours, the longest chain of steps"
    return f"left: {total:,.2f} device-hours by the planner's estimate; {least}"


def _advice(submission: Submission, found: Collection[Situation], active: Collection[str] | None) -> str:
    """What the user can do next."""
    words = shlex.join([submission.title, *submission.arguments])
    if all(s.state == "done" for s in found):
        return f"Everything is done: python -m experiments render {words}"
    idle = not any(s.state == "running" for s in found) and not any(
        _carried_out(submission, s.step, active) for s in found if s.state == "waiting"
    )
    failed = sum(s.state == "failed" for s in found)
    if idle or failed:
        why = f"{counted(failed, 'step')} failed" if failed else "Nothing is being carried out"
        return f"{why}. To continue, submit again: python -m experiments submit {words}"
    return ""
