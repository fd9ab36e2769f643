"""Submit a sweep as a user does, and look at what became of it."""

import re
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
        assert time.time() < deadline, f"{describe(submission)}\n{logs(submission)}"
        time.sleep(0.2)


def logs(submission: Submission) -> str:
    """The ends of the logs of a sweep's steps and of its driver."""
    files = [*submission.folder.rglob("*.log"), *submission.folder.rglob("*.out")]
    return "\n".join(f"{file.name}:\n{file.read_text()[-1500:]}" for file in files)


def wait_for_driver(submission: Submission, seconds: float = 30) -> None:
    """Wait until the driver has ended, which it does when everything is done."""
    deadline = time.time() + seconds
    while submission.driver is not None:
        assert time.time() < deadline
        time.sleep(0.1)


def check_shared(submission: Submission, title: str) -> None:
    """A step was made once for both trials, and no step started before its inputs were finished."""
    steps = {s.step.name: s for s in situations(submission)}
    (shared,) = [s for s in steps.values() if s.step.title == title]
    assert len(submission.trials) == 2
    for s in steps.values():
        for name in s.step.after:
            ended = steps[name].ended
            assert s.started is not None and ended is not None and ended <= s.started
    files = [file for file in submission.folder.glob("logs/**/*") if file.suffix in (".log", ".out")]
    logs = "".join(file.read_text() for file in files)
    for s in steps.values():
        made = re.findall(rf"\b{re.escape(s.step.title)} +[0-9.]+ s +{re.escape(s.step.artifacts[0])}", logs)
        assert len(made) == 1, f"{s.step.name} was made {len(made)} times:\n{logs}"
    assert "waiting for another run" not in logs  # no step held its cores while another made what it needs
    assert shared.step.name in timeline(submission)
