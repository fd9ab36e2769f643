"""Submit a sweep as a user does, and look at what became of it."""

import subprocess
import sys
import time

from experiments.submission.record import Submission
from experiments.submission.status import describe, situations, timeline
from tests.conftest import ROOT

ARGUMENTS = [
    "table1",
    "method=lark,grape",
    "budget=1",
    "stages=[select]",
    "pool.questions=3",
    "tracking=none",
]


def experiments(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "experiments", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_until(submission: Submission, *states: str, seconds: float = 120) -> None:
    """Wait until every step is in one of these states."""
    deadline = time.time() + seconds
    while {s.state for s in situations(submission)} - set(states):
        assert time.time() < deadline, describe(submission)
        time.sleep(0.2)


def wait_for_conductor(submission: Submission, seconds: float = 30) -> None:
    """Wait until the conductor has ended, which it does when everything is done."""
    deadline = time.time() + seconds
    while submission.conductor() is not None:
        assert time.time() < deadline
        time.sleep(0.1)


def check_shared(submission: Submission, title: str) -> None:
    """A step was made once for both trials, and no step started before its inputs were finished."""
    deadline = time.time() + 60
    while not all(any(e.ended for e in submission.events(s.step)) for s in situations(submission)):
        assert time.time() < deadline, "a process records its end after its artifacts are finished"
        time.sleep(0.1)
    found = {s.step.name: s for s in situations(submission)}
    (shared,) = [s for s in found.values() if s.step.title == title]
    assert shared.step.trials == (0, 1)
    assert all(
        len([e for e in submission.events(s.step) if not e.error and e.ended]) == 1 for s in found.values()
    )
    for s in found.values():
        for name in s.step.after:
            assert s.started is not None and found[name].ended is not None and found[name].ended <= s.started
    logs = "".join(
        file.read_text() for file in (submission.folder / "logs").iterdir() if file.suffix != ".pkl"
    )
    assert "waiting for another run" not in logs  # no step held its cores while another made what it needs
    assert shared.step.name in timeline(submission)
