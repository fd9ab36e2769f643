"""Kill a run at random moments, start it again, and compare the result with that of an undisturbed run,
byte by byte.

Run as: python -m tests.fuzz.kills --kills 30 --seed 0 --minutes 20 [--workers 0.3]
"""

import argparse
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import ROOT, SMALL, start_program

log = logging.getLogger(__name__)

SETTINGS = [*SMALL, "scoring.shard_tokens=2000", "training.checkpoints=4"]
"""A whole run that takes seconds, with several shards and checkpoints."""
VARYING = ("metrics.jsonl", "manifest.json", "job.json", "log.txt", "summary.json", "steps.jsonl")
"""Files with times and speeds, which differ between any two runs."""
STAGES = ("pool", "lengths", "scores", "selection", "checkpoint", "generations", "metrics")
"""Kinds of artifacts, in the order in which they are made."""
KILLS_PER_RUN = 6
PATIENCE = 4.0
"""Seconds until a kill, at most, after its step has started."""
LONGEST = 900.0
"""Seconds after which an undisturbed run counts as stuck."""


@dataclass
class Outcome:
    """What was done, and what went wrong."""

    seed: int
    runs: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    """By the stage that was running, and by what was killed."""
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        done = ", ".join(f"{what} {count}" for what, count in sorted(self.kills.items()))
        state = "; ".join(self.failures) or "every run ended with the same table and the same bytes"
        return f"seed {self.seed}: {self.kills.total()} kills in {self.runs} runs ({done}): {state}"


def data(outputs: Path) -> dict[str, bytes]:
    """All files of a run that must be the same in every run."""
    files = [path for path in outputs.rglob("*") if path.is_file() and path.name not in VARYING]
    kept = [
        path
        for path in files
        if not path.relative_to(outputs).parts[0].startswith(".") and ".hydra" not in path.parts
    ]
    return {path.relative_to(outputs).as_posix(): path.read_bytes() for path in kept if path.suffix != ".log"}


def finish(outputs: Path) -> tuple[int, str]:
    """Run to the end; the exit code and what the program said."""
    process = start_program(*SETTINGS, outputs=outputs, start_new_session=True)
    try:
        said, _ = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        return -1, f"{said}\nstuck for {LONGEST:.0f} s"
    return process.returncode, said


def stage_of(outputs: Path) -> str:
    """The step that is being made: its manifest says so."""
    started = [
        path
        for path in outputs.glob("*/*/manifest.json")
        if '"status": "started"' in path.read_text(encoding="utf-8")
    ]
    return (
        max(started, key=lambda path: path.stat().st_mtime).parent.parent.name if started else "between steps"
    )


def children(pid: int) -> list[int]:
    """All processes below one, from the kernel's own lists."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            own = [int(child) for child in path.read_text().split()]
        except OSError:
            continue
        found += [*own, *(grandchild for child in own for grandchild in children(child))]
    return found


def has_started(outputs: Path, stage: str) -> bool:
    """Whether a step of this stage, or of a later one, is being made."""
    now = stage_of(outputs)
    return now in STAGES and STAGES.index(now) >= STAGES.index(stage)


def disturb(outputs: Path, stage: str, rng: random.Random, workers: float) -> str | None:
    """Start the program and kill it, or one of its workers, during a stage. Returns what was killed; None
    if it was over.
    """
    delay, kill_worker = PATIENCE * rng.random() ** 2, rng.random() < workers
    before = {path: path.stat().st_mtime_ns for path in outputs.glob("*/*/manifest.json")}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "run.py"), f"outputs={outputs}", *SETTINGS], cwd=ROOT, stdout=said,
            stderr=said,
            start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + LONGEST
        while process.poll() is None and time.monotonic() < deadline:
            works = any(
                before.get(path) != path.stat().st_mtime_ns for path in outputs.glob("*/*/manifest.json")
            )
            if works and has_started(outputs, stage):
                break
            time.sleep(0.01)
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            pass
        else:
            return None
        where, below = stage_of(outputs), children(process.pid)
        victim = rng.choice(below) if kill_worker and below else process.pid
        what = "run" if victim == process.pid else "worker"
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            what = "nothing"
        process.wait(LONGEST)  # after the death of a worker, the program ends by itself
        said.seek(0)
        traceback = " (with a traceback)" if "Traceback" in said.read() else ""
    return f"{where}/{what}{traceback}"


def fuzz(kills: int, seed: int, minutes: float, folder: Path, workers: float) -> Outcome:
    """Kill runs, or with probability `workers` one of their workers, at random moments until there were
    `kills` of them or the time is over.
    """
    rng, outcome, end = random.Random(seed), Outcome(seed), time.monotonic() + 60 * minutes
    code, said = finish(folder / "undisturbed")
    if code != 0:
        outcome.failures.append(f"the undisturbed run failed: {said[-2000:]}")
        return outcome
    expected = data(folder / "undisturbed")
    while outcome.kills.total() < kills and time.monotonic() < end and not outcome.failures:
        outcome.runs += 1
        outputs = folder / f"run-{outcome.runs}"
        for stage in sorted(rng.choices(STAGES, k=rng.randint(2, KILLS_PER_RUN)), key=STAGES.index):
            killed = disturb(outputs, stage, rng, workers)
            if killed is None:
                break
            outcome.kills[killed] += 1
            log.info("run %d: killed %s", outcome.runs, killed)
            if "traceback" in killed:
                outcome.failures.append(f"run {outcome.runs}: {killed}")
            if outcome.kills.total() >= kills:
                break
        code, said = finish(outputs)
        found = data(outputs)
        differ = sorted(
            name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
        )
        if code != 0 or "Traceback" in said:
            outcome.failures.append(f"run {outcome.runs} ended with {code}: {said[-2000:]}")
        elif differ:
            outcome.failures.append(
                f"run {outcome.runs}: {len(differ)} files differ, e.g. {differ[:3]} in {outputs}"
            )
        else:
            shutil.rmtree(outputs)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.fuzz.kills", description="Kill runs at random moments.")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=20.0, help="start no further run after this time")
    parser.add_argument(
        "--folder", type=Path, help="where the runs' outputs go (default: a temporary folder)"
    )
    parser.add_argument(
        "--workers", type=float, default=0.3, help="share of kills that end a worker instead of the run"
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with tempfile.TemporaryDirectory() as scratch:
        outcome = fuzz(
            options.kills, options.seed, options.minutes, options.folder or Path(scratch), options.workers
        )
    log.info("%s", outcome)
    sys.exit(1 if outcome.failures else 0)


if __name__ == "__main__":
    main()
