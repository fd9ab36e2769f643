"""Starts the steps of a submitted sweep when their inputs are there, on this machine or as tasks of a Ray
cluster.

It is a process of its own that `submit` leaves behind, so it survives the shell. If it is lost, `submit`
starts another one, which continues: the artifacts record what is finished. Waiting steps have no process
and hold nothing.

Run as: python -m experiments.submission.conductor <folder of the sweep>
"""

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from experiments.submission.graph import remaining
from experiments.submission.local_place import LocalPlace
from experiments.submission.ray_place import RayPlace
from experiments.submission.record import AGAIN, Planned, Submission, conducting, is_conductor
from lark.errors import LarkError
from lark.printing import log_to
from lark.work.entry import run_main

log = logging.getLogger("experiments")


class Place(Protocol):
    """Where steps run."""

    def start(self, step: Planned) -> bool:
        """Start a step; False if there is no room for it now. A place with a queue of its own always takes
        it.
        """
        ...

    def ended(self, seconds: float) -> list[str]:
        """Names of the steps that have ended, after waiting for one for at most this time."""
        ...

    def close(self) -> None: ...


PLACES: dict[str, Callable[[Submission], Place]] = {"local": LocalPlace, "ray": RayPlace}


def conduct(submission: Submission, place: Place, poll: float = 1.0) -> dict[str, str]:
    """Start every step once those before it are finished, the longest chains first. Returns the errors of
    failed steps.
    """
    steps = submission.steps
    done = {name for name, step in steps.items() if submission.finished(step)}
    after, seconds = (
        {name: step.after for name, step in steps.items()},
        {n: submission.seconds(s) for n, s in steps.items()},
    )
    urgency = remaining(after, seconds, done)
    waiting = sorted((name for name in steps if name not in done), key=lambda name: -urgency[name])
    running: set[str] = set()
    failed: dict[str, str] = {}
    while is_conductor(submission.folder):
        if (submission.folder / AGAIN).exists():
            (submission.folder / AGAIN).unlink(missing_ok=True)
            waiting, failed = sorted([*waiting, *failed], key=lambda name: -urgency[name]), {}
        ready = [name for name in waiting if done.issuperset(after[name])]
        # Steps of an earlier conductor may still be running on other machines.
        others = {name for name in ready if submission.is_running(steps[name])}
        for name in ready:
            if name not in others and place.start(steps[name]):
                waiting.remove(name)
                running.add(name)
        if not running and not others:
            return failed
        if not running:
            time.sleep(poll)
            continue
        for name in place.ended(poll):
            running.remove(name)
            if submission.finished(steps[name]):
                done.add(name)
                log.info("%s: done (%d of %d)", name, len(done), len(steps))
            else:
                events = submission.events(steps[name])
                failed[name] = events[-1].failure if events else "its process was lost"
                log.info("%s: failed: %s", name, failed[name])
    raise LarkError(
        "The sweep was submitted again while this process was stopped. What it was making is left to its"
        " successor."
    )


def main(folder: Path) -> str | None:
    submission = Submission(folder)
    with conducting(folder):
        place = PLACES[submission.place](submission)
        try:
            failed = conduct(submission, place)
        finally:
            place.close()
    return "\n".join(f"{name}: {error}" for name, error in failed.items()) or None


if __name__ == "__main__":
    log_to(form="%(asctime)s %(message)s")
    run_main(lambda: main(Path(sys.argv[1])), Path(sys.argv[1]).parents[2])
