"""Where a submitted sweep is under way. A sweep is carried out in one place at a time, so that no step is
started twice.
"""

from collections.abc import Sequence
from pathlib import Path

from experiments.submission.record import GRAPH, JOBS, Submission, conductor_of, jobs_of
from experiments.submission.slurm_jobs import queued
from lark.errors import LarkError
from lark.printing import counted

SHOWN = 20
"""How many SLURM jobs a message lists."""


def where(place: str, address: str | None) -> str:
    """A place, for messages."""
    if place == "ray":
        return f"the Ray cluster at {address}" if address else "a Ray cluster of its own"
    return {"local": "one machine, without a cluster", "slurm": "SLURM"}[place]


def active_jobs(submission: Submission) -> dict[str, str]:
    """The SLURM jobs of unfinished steps that are waiting or running, by step."""
    jobs = submission.jobs()
    unfinished = {
        name: jobs[name]
        for name, step in submission.steps.items()
        if name in jobs and not submission.finished(step)
    }
    active = queued() if unfinished else set()
    return {name: job for name, job in unfinished.items() if job in active}


def refuse_second_place(submission: Submission, place: str, address: str | None) -> None:
    """Raise an error if a sweep is under way, and not in this place. `submission`: as it was submitted
    before.
    """
    if (process := submission.conductor()) is not None:
        if (submission.place, submission.address) != (place, address):
            there = where(submission.place, submission.address)
            raise LarkError(
                f"{submission.folder.name} is being carried out on {there} ({process}). Submit it with the"
                " same hardware, or wait until it is done. To move it, end that process first; finished"
                " steps are kept."
            )
        return
    if place == "slurm":
        _refuse_running(submission)
        return
    try:
        jobs = active_jobs(submission)
    except LarkError as error:
        raise LarkError(
            f"{submission.folder.name} was submitted to SLURM, and may have jobs there. {error} If none of"
            f" its jobs is left, remove {submission.folder / JOBS}."
        ) from error
    if jobs:
        listed = _listed(list(jobs.values()))
        raise LarkError(
            f"{submission.folder.name} is being carried out on SLURM ({counted(len(jobs), 'job')}: {listed})."
            " Submit it with hardware=slurm, or wait until it is done. To move it, cancel the jobs first"
            f" (`scancel {listed}`); finished steps are kept."
        )


def refuse_unreadable(folder: Path) -> None:
    """Raise an error if a sweep is under way whose graph cannot be read."""
    why = f"{folder / GRAPH} is damaged or of another version."
    if (process := conductor_of(folder)) is not None:
        raise LarkError(
            f"{why} Its steps are being carried out ({process}). End that process, then submit again."
        )
    if not (jobs := set(jobs_of(folder).values())):
        return
    try:
        active = sorted(jobs & queued())
    except LarkError as error:
        raise LarkError(
            f"{why} It may have SLURM jobs. {error} If none is left, remove {folder / JOBS}."
        ) from error
    if active:
        listed = _listed(active)
        raise LarkError(
            f"{why} It has {counted(len(active), 'SLURM job')} ({listed}). Cancel them (`scancel {listed}`),"
            " then submit again."
        )


def _listed(jobs: Sequence[str]) -> str:
    return " ".join([*jobs[:SHOWN], *(["…"] if len(jobs) > SHOWN else [])])


def _refuse_running(submission: Submission) -> None:
    """Raise an error if a step runs without a job: its conductor has ended, and its process has not yet."""
    running = [step for step in submission.steps.values() if submission.is_running(step)]
    jobs = active_jobs(submission) if running else {}
    for step in running:
        if step.name not in jobs:
            event = submission.events(step)[-1]
            raise LarkError(
                f"{step.name} is still running (process {event.process} on {event.host}), and is not a SLURM"
                " job. Submit the sweep again when it has ended."
            )
