"""Run checks one after the other, each in a process of its own with a time limit, and report on them."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from lark.gpu_check.check import Check, Place
from lark.gpu_check.child import RESULT
from lark.printing import text_table
from lark.work.launch import ROOT, die_with_parent

WIDEST = 240
"""Characters of an error in the table."""


@dataclass(frozen=True)
class Outcome:
    """The result of one check."""

    check: Check
    status: Literal["pass", "FAIL", "skipped"]
    said: str
    """What was measured, the error, or what the machine lacks."""
    seconds: float = 0.0
    where: str = "–"


def run_checks(
    checks: Sequence[Check], gpus: int, folder: Path, log: Path, limit: int | None = None,
    announce: Callable[[Check], None] = lambda check: None,
) -> list[Outcome]:  # fmt: skip
    """Run the checks that a machine with this many GPUs can run. `limit`: seconds, instead of each check's
    own.
    """
    outcomes = []
    for check in checks:
        place = check.place(gpus, folder / check.name)
        if place is None:
            outcomes.append(Outcome(check, "skipped", check.needs))
            continue
        announce(check)
        shutil.rmtree(place.folder, ignore_errors=True)
        place.folder.mkdir(parents=True)
        with log.open("a", encoding="utf-8") as output:
            output.write(f"\n=== {check.name}: {check.claim}\n")
            output.flush()
            outcomes.append(_run(check, place, output, limit or check.limit))
        if outcomes[-1].status == "pass":
            shutil.rmtree(place.folder, ignore_errors=True)
    return outcomes


def _run(check: Check, place: Place, output: IO[str], limit: int) -> Outcome:
    arguments = [check.run, place.device, str(place.processes), str(place.folder)]
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "lark.gpu_check.child", *arguments],
        cwd=ROOT,
        env=check.environment(place),
        stdout=output,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509  # the child only calls prctl
    )
    late = False
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        _end(process)
    where = place.device if place.processes == 1 else f"{place.processes} x {place.device}"
    error, measured = _read(process.returncode, place.folder / RESULT)
    error = f"no result after {limit} s" if late else error
    taken = time.monotonic() - start
    return Outcome(
        check,
        "FAIL" if error else "pass",
        textwrap.shorten(error or measured, WIDEST, placeholder=" …"),
        taken,
        where,
    )


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a check's process with everything that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(code: int, path: Path) -> tuple[str, str]:
    """(error, what was measured) of a process that has ended; one of them is empty."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        result = {}
    if "error" in result:
        return result["error"], ""
    if code == 0 and "measured" in result:
        return "", result["measured"]
    name = signal.Signals(-code).name if -code in set(signal.Signals) else ""
    return f"the process crashed ({name or f'exit code {code}'})", ""


def table(outcomes: Sequence[Outcome]) -> str:
    """One line per check."""
    rows = [
        [o.check.name, o.check.claim, o.status, o.where, f"{o.seconds:.0f} s" if o.seconds else "–", o.said]
        for o in outcomes
    ]
    return text_table(["check", "claim", "result", "on", "time", "measured"], rows, right=6)


def verdict(outcomes: Sequence[Outcome], gpus: int) -> str:
    """The last line: how many checks passed, failed and were skipped, and which failed."""
    count = {status: sum(o.status == status for o in outcomes) for status in ("pass", "FAIL", "skipped")}
    failed = [o.check.name for o in outcomes if o.status == "FAIL"]
    numbers = f"{count['pass']} passed, {count['FAIL']} failed, {count['skipped']} skipped"
    if failed:
        return f"FAILED: {numbers}. Failed: {', '.join(failed)}."
    if not gpus:
        return f"OK on CPU: {numbers}. This machine has no GPU, so the GPU code was not checked."
    return f"OK: {numbers}."
