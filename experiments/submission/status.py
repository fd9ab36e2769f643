"""`python -m experiments status`: what is done, running, waiting and failed, and how much is left.

The store says what became of a step: its artifacts' manifests have the status, the error and the time, and
the process that makes an artifact holds its lock.
"""

import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from experiments.submission.graph import remaining
from experiments.submission.record import DRIVER, Attempt, Submission, SweepStep
from experiments.submission.slurm_jobs import queued
from lark.errors import LarkError
from lark.planner.report import duration
from lark.printing import counted, text_table

State = Literal["done", "running", "waiting", "failed"]
STATES: tuple[State, ...] = ("done", "running", "waiting", "failed")


@dataclass(frozen=True)
class Situation:
    """A step now."""

    step: SweepStep
    state: State
    reason: str = ""
    started: float | None = None
    ended: float | None = None

    @property
    def device_hours_left(self) -> float:
        if self.state == "done":
            return 0.0
        return (self.step.seconds or 0.0) * max(1, self.step.gpus) / 3600


def situations(submission: Submission, queue: Collection[str] | None = None) -> list[Situation]:
    """The state of every step. `queue`: SLURM's jobs; None: it is asked for them."""
    if queue is None and submission.place == "slurm":
        queue = queued()
    return [_situation(submission, step, queue) for step in submission.steps.values()]


def _situation(submission: Submission, step: SweepStep, queue: Collection[str] | None) -> Situation:
    attempts = submission.attempts(step)
    started = min((attempt.started for attempt in attempts), default=None)
    ended = max((attempt.ended for attempt in attempts), default=None)
    if submission.finished(step):
        return Situation(step, "done", "", started, ended)
    if submission.maker(step) is not None:
        return Situation(step, "running", "", started)
    if _is_coming(submission, step, attempts, queue):
        return Situation(step, "waiting")
    reason = _failure(submission, step, attempts)
    return Situation(step, "failed" if reason else "waiting", reason, started, ended)


def _is_coming(
    submission: Submission, step: SweepStep, attempts: Sequence[Attempt], queue: Collection[str] | None
) -> bool:
    """True if Ray or SLURM will start a step, or start it again."""
    if queue is not None:
        return submission.jobs.get(step.name) in queue
    if submission.driver is None:
        return False
    # A driver tries a step once: a failure from before its start is that of an earlier driver.
    driver_started = (submission.folder / DRIVER).stat().st_mtime
    return not any(attempt.failed and attempt.ended >= driver_started for attempt in attempts)


def _failure(submission: Submission, step: SweepStep, attempts: Sequence[Attempt]) -> str:
    """Why a step that nobody makes has no result. Empty: it was not started."""
    for attempt in attempts:
        if attempt.failed:
            return attempt.manifest.error or "the reason is unknown"
    if any(attempt.manifest.finished for attempt in attempts):
        return "its result has been removed or damaged; `submit` makes it again"
    if attempts:
        return "its process was lost"
    job = submission.jobs.get(step.name)
    if submission.place == "slurm" and job is not None and submission.has_inputs(step):
        return f"SLURM job {job} has ended without a result: `sacct -j {job}` may say why"
    if submission.log_file(step).exists():
        return "its process was lost, or its result was removed; `submit` makes it again"
    return ""


def describe(submission: Submission) -> str:
    """The status as text."""
    note = ""
    queue: Collection[str] = ()
    if submission.place == "slurm":
        try:
            queue = queued()
        except LarkError as error:
            queue = submission.jobs.values()
            note = f"{error} Its jobs are assumed to be waiting or running."
    steps = situations(submission, queue if submission.place == "slurm" else None)
    trials = counted(len(submission.trials), "trial")
    failed = [f"failed: {s.step.name}: {s.reason}" for s in steps if s.state == "failed"]
    parts = [
        f"{submission.title} ({submission.folder.name}), {trials}, on {submission.place}",
        _table(steps),
        _time_left(steps),
        note,
        _running(submission, steps),
        "\n".join(failed),
        _advice(submission, steps, queue),
    ]
    return "\n\n".join(filter(None, parts))


def _table(steps: Sequence[Situation]) -> str:
    """Numbers of steps by operation and state."""
    by_title: dict[str, list[Situation]] = defaultdict(list)
    for s in steps:
        by_title[s.step.title].append(s)
    rows = []
    for title, same in by_title.items():
        gpus = sorted({s.step.gpus for s in same})
        least_and_most = dict.fromkeys((str(gpus[0]), str(gpus[-1])))
        rows.append(_row(title, same, "-".join(least_and_most)))
    rows.append(_row("all", steps, ""))
    return text_table(["step", *STATES, "GPUs", "device-hours left"], rows)


def _row(title: str, steps: Sequence[Situation], gpus: str) -> list[str]:
    counts = Counter(s.state for s in steps)
    hours = sum(s.device_hours_left for s in steps)
    return [title, *(str(counts[state]) for state in STATES), gpus, f"{hours:,.2f}"]


def _running(submission: Submission, steps: Sequence[Situation]) -> str:
    now = time.time()
    rows = []
    for s in steps:
        if s.state == "running":
            # The clock of the file system may be ahead.
            seconds = max(0.0, now - (s.started or now))
            rows.append([s.step.name, duration(seconds), str(submission.log_file(s.step))])
    return text_table(["running", "for", "log"], rows, right=3) if rows else ""


def _time_left(steps: Sequence[Situation]) -> str:
    done = [s.step.name for s in steps if s.state == "done"]
    if len(done) == len(steps):
        return ""
    after = {s.step.name: s.step.after for s in steps}
    seconds = {s.step.name: s.step.seconds or 0.0 for s in steps}
    chain = max(remaining(after, seconds, done).values())
    total = sum(s.device_hours_left for s in steps)
    least = f"at least {chain / 3600:,.2f} hours, the longest chain of steps"
    return f"left: {total:,.2f} device-hours by the planner's estimate; {least}"


def _advice(submission: Submission, steps: Sequence[Situation], queue: Collection[str]) -> str:
    """What the user can do next."""
    words = shlex.join([submission.title, *submission.arguments])
    counts = Counter(s.state for s in steps)
    if counts["done"] == len(steps):
        return f"Everything is done: python -m experiments render {words}"
    if counts["failed"]:
        reason = f"{counted(counts['failed'], 'step')} failed"
    elif counts["running"] or submission.driver is not None or set(queue) & set(submission.jobs.values()):
        return ""
    else:
        reason = "Nothing is being carried out"
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
        trials = ",".join(map(str, s.step.trials))
        times = [f"{min(ready, start) - zero:.1f}", f"{start - zero:.1f}", ended]
        rows.append([s.step.name, trials, *times, held, s.state])
    header = ["step", "trials", "inputs ready", "started", "ended", "held", "state"]
    return text_table(header, rows, right=2) if rows else ""
