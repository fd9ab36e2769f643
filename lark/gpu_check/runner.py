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
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from lark.gpu_check.check import Check, CheckPlace, Measurements
from lark.gpu_check.child import RESULT
from lark.printing import text_table
from lark.work.launch import ROOT, die_with_parent

LONGEST_DETAIL = 240
"""Characters of an error in the table."""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    check: Check
    status: Literal["pass", "FAIL", "skipped"]
    detail: str
    """The measurements, the error, or the reason why it was skipped."""
    seconds: float = 0.0
    where: str = "–"
    measured: Measurements = field(default_factory=lambda: Measurements(""))


def run_checks(
    checks: Sequence[Check],
    gpus: int,
    folder: Path,
    log: Path,
    limit: int | None = None,
    announce: Callable[[Check], None] = lambda check: None,
) -> list[CheckResult]:
    """Run the checks that a machine with this many GPUs can run. `limit`: seconds, for every check."""
    results = []
    for check in checks:
        place = check.place(gpus, folder / check.name)
        if place is None:
            results.append(CheckResult(check, "skipped", check.requirement))
            continue
        announce(check)
        shutil.rmtree(place.folder, ignore_errors=True)
        place.folder.mkdir(parents=True)
        with log.open("a", encoding="utf-8") as output:
            output.write(f"\n=== {check.name}: {check.claim}\n")
            output.flush()  # the check's process writes to the same file
            result = _run(check, place, output, limit or check.limit)
        results.append(result)
        if result.status == "pass":  # the files of a failed check help to find out why
            shutil.rmtree(place.folder, ignore_errors=True)
    return results


def _run(check: Check, place: CheckPlace, output: IO[str], limit: int) -> CheckResult:
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
    seconds = time.monotonic() - start
    error, measured = _read(process.returncode, place.folder / RESULT)
    if late:
        error = f"no result after {limit} s"
    detail = textwrap.shorten(error or measured.text, LONGEST_DETAIL, placeholder=" …")
    where = place.device if place.processes == 1 else f"{place.processes} x {place.device}"
    return CheckResult(check, "FAIL" if error else "pass", detail, seconds, where, measured)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a check's process with everything that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(code: int, path: Path) -> tuple[str, Measurements]:
    """The error and the measurements of a process that has ended; one of them is empty."""
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        result = {}
    if "error" in result:
        return result["error"], Measurements("")
    if code == 0 and result:
        return "", Measurements(**result)
    ending = f"exit code {code}"
    if -code in set(signal.Signals):
        ending = signal.Signals(-code).name
    return f"the process crashed ({ending})", Measurements("")


def table(results: Sequence[CheckResult]) -> str:
    """One line per check."""
    rows = []
    for result in results:
        seconds = f"{result.seconds:.0f} s" if result.seconds else "–"
        check = result.check
        rows.append([check.name, result.status, result.where, seconds, result.detail, check.claim])
    return text_table(["check", "result", "on", "time", "figure", "expectation"], rows, right=6)


def verdict(results: Sequence[CheckResult], gpus: int) -> str:
    """The last line: how many checks passed, failed and were skipped, and which failed."""
    counts = Counter(result.status for result in results)
    numbers = f"{counts['pass']} passed, {counts['FAIL']} failed, {counts['skipped']} skipped"
    failed = [result.check.name for result in results if result.status == "FAIL"]
    if failed:
        return f"FAILED: {numbers}. Failed: {', '.join(failed)}."
    if not gpus:
        return f"OK on CPU: {numbers}. This machine has no GPU, so the GPU code was not checked."
    return f"OK: {numbers}."
