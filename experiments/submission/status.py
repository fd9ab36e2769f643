"""`python -m experiments status`: what is done, running, waiting and failed, and how much is left.

The store says what became of a step: its artifacts' manifests have the status, the error and the time, and
the process that makes an artifact holds its lock.
"""

import shlex
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from experiments.submission.graph import SweepStep, remaining
from experiments.submission.record import DRIVER, Submission
from experiments.submission.slurm_jobs import active_jobs
from lark.errors import LarkError
from lark.printing import counted, text_table

State = Literal["done", "running", "waiting", "failed"]
STATES: tuple[State, ...] = ("done", "running", "waiting", "failed")


@dataclass(frozen=True)
class Situation:
    """A step now. Times are those of the file system."""

    step: SweepStep
    state: State
    note: str = ""
    """Why it failed, or the log of a step that is running."""
    started: float | None = None
    ended: float | None = None

    @property
    def device_hours_left(self) -> float:
        if self.state == "done":
            return 0.0
        return (self.step.seconds or 0.0) * max(1, self.step.gpus) / 3600


def situations(submission: Submission) -> list[Situation]:
    """The state of every step."""
    jobs, _ = _jobs(submission)
    return [_situation(submission, step, jobs) for step in submission.steps.values()]


def _jobs(submission: Submission) -> tuple[Collection[str], str]:
    """Steps with a SLURM job that is waiting or running, and a note. If SLURM does not answer: all jobs."""
    try:
        return active_jobs(submission), ""
    except LarkError as error:
        return submission.jobs, f"{error} Until then, its jobs are assumed to be waiting or running."


def _situation(submission: Submission, step: SweepStep, jobs: Collection[str]) -> Situation:
    attempts = submission.attempts(step)
    started = min((written - manifest.seconds for manifest, written in attempts), default=None)
    ended = max((written for _, written in attempts), default=None)
    if submission.finished(step):
        return Situation(step, "done", "", started, ended)
    if submission.maker(step) is not None:
        return Situation(step, "running", str(submission.log_file(step)), started)
    error = submission.error(step)
    if step.name in jobs or _is_with_driver(submission, None if error is None else ended):
        return Situation(step, "waiting")
    loss = error or _loss(submission, step, bool(attempts))
    return Situation(step, "failed" if loss else "waiting", loss, started, ended)


def _is_with_driver(submission: Submission, failed: float | None) -> bool:
    """True if a driver works that has not tried the step yet: it tries a step once, so a failure from before
    its start is that of an earlier driver.
    """
    if submission.driver is None:
        return False
    return failed is None or failed < (submission.folder / DRIVER).stat().st_mtime


def _loss(submission: Submission, step: SweepStep, begun: bool) -> str:
    """Why a step that nobody makes and that has not failed has no result. Empty: it was not started."""
    job = submission.jobs.get(step.name)
    if submission.place == "slurm" and job is not None and submission.has_inputs(step):
        return f"SLURM job {job} has ended without a result: `sacct -j {job}` may say why"
    if begun or submission.log_file(step).exists():
        return "its process was lost, or its result was removed or damaged; `submit` makes it again"
    return ""


def describe(submission: Submission) -> str:
    """The status as text."""
    jobs, note = _jobs(submission)
    steps = [_situation(submission, step, jobs) for step in submission.steps.values()]
    is_under_way = bool(jobs) or submission.driver is not None
    trials = counted(len(submission.trials), "trial")
    parts = [
        f"{submission.title} ({submission.folder.name}), {trials}, on {submission.place}",
        _table(steps),
        _time_left(steps),
        note,
        "\n".join(f"{s.state}: {s.step.name}: {s.note}" for s in steps if s.note),
        _advice(submission, steps, is_under_way),
    ]
    return "\n\n".join(filter(None, parts))


def _in_state(steps: Sequence[Situation], state: State) -> list[Situation]:
    return [s for s in steps if s.state == state]


def _table(steps: Sequence[Situation]) -> str:
    """Numbers of steps by operation and state."""
    by_title: dict[str, list[Situation]] = defaultdict(list)
    for s in steps:
        by_title[s.step.title].append(s)
    rows = []
    for title, same in {**by_title, "all": steps}.items():
        counts = [str(len(_in_state(same, state))) for state in STATES]
        hours = sum(s.device_hours_left for s in same)
        rows.append([title, *counts, f"{hours:,.2f}"])
    return text_table(["step", *STATES, "device-hours left"], rows)


def _time_left(steps: Sequence[Situation]) -> str:
    left = [s for s in steps if s.state != "done"]
    if not left:
        return ""
    chain = max(remaining([s.step for s in left]).values())
    total = sum(s.device_hours_left for s in left)
    least = f"at least {chain / 3600:,.2f} hours, the longest chain of steps"
    return f"left: {total:,.2f} device-hours by the planner's estimate; {least}"


def _advice(submission: Submission, steps: Sequence[Situation], is_under_way: bool) -> str:
    """What the user can do next."""
    words = shlex.join([submission.title, *submission.arguments])
    if len(_in_state(steps, "done")) == len(steps):
        return f"Everything is done: python -m experiments render {words}"
    failed = len(_in_state(steps, "failed"))
    if not failed and (is_under_way or _in_state(steps, "running")):
        return ""
    reason = f"{counted(failed, 'step')} failed" if failed else "Nothing is being carried out"
    return f"{reason}. To continue, submit again: python -m experiments submit {words}"


def timeline(submission: Submission) -> str:
    """When each step could start, started and ended, in seconds since the first start, and what it held."""
    steps = {s.step.name: s for s in situations(submission)}
    begun = [s for s in steps.values() if s.started is not None]
    zero = min((s.started or 0.0 for s in begun), default=0.0)
    rows = []
    for s in sorted(begun, key=lambda s: s.started or zero):
        start = s.started or zero
        ready = max((steps[name].ended or zero for name in s.step.after), default=zero)
        ended = "" if s.ended is None else f"{s.ended - zero:.1f}"
        held = counted(s.step.gpus, "GPU") if s.step.gpus else counted(s.step.cpus, "CPU")
        times = [f"{min(ready, start) - zero:.1f}", f"{start - zero:.1f}", ended]
        rows.append([s.step.name, *times, held, s.state])
    header = ["step", "inputs ready", "started", "ended", "held", "state"]
    return text_table(header, rows, right=1) if rows else ""
