"""Check this machine: kernels, several processes, DeepSpeed, vLLM and resuming, each on a small example.

Run as: python -m lark.gpu_check                          (or `make gpu-check`)
        python -m lark.gpu_check --only kernel,loss
Prints versions and a table to paste into a bug report, and a line of JSON for `planner.measured`. The exit
code is 0 only if no check failed. Without GPUs, the checks that need none run on the CPU.
"""

import argparse
import logging
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from lark.config.checks import user_path
from lark.errors import LarkError
from lark.gpu_check.check import CHECKS, STUDENTS, Check
from lark.gpu_check.measurements import core_rate, record, write
from lark.gpu_check.runner import run_checks, table, verdict
from lark.gpu_check.versions import versions
from lark.printing import log_to
from lark.processors import visible_gpus
from lark.store.disk import disk_errors
from lark.work.entry import run_main

log = logging.getLogger("lark.gpu_check")

CHECK_LOG = "log.txt"


def main(arguments: Sequence[str] | None = None, checks: Sequence[Check] = CHECKS) -> int:
    """Run the checks, print the report, and return the exit code."""
    options = _parser(checks).parse_args(arguments)
    chosen = _chosen(options.only, checks)
    _check_limit(options.limit)
    folder = user_path("--outputs", options.outputs).absolute() / "gpu_check"
    path = folder / CHECK_LOG
    gpus = visible_gpus()
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
        described = versions()
        _print(path, "\n".join(f"{name:<14} {value}" for name, value in described))
        if not gpus:
            _print(path, "\nThis machine has no GPU: running on the CPU what can run there.")
        core = core_rate(gpus)
        results = run_checks(chosen, gpus, folder, path, options.limit, _announce)
        shutil.rmtree(folder / STUDENTS, ignore_errors=True)
        values = record(results, gpus, described, core)
        measured, line = write(folder, values)
        _print(path, f"\n{table(results)}\n\n{line}\n")
        hint = f"For plans with these rates: planner.measured={measured}\n" if values["rates"] else ""
        _print(path, f"{hint}Full output: {path}\n{verdict(results, gpus)}")
    return int(any(result.status == "FAIL" for result in results))


def _announce(check: Check) -> None:
    log.info("running %s: %s …", check.name, check.claim)


def _print(path: Path, text: str) -> None:
    """Print, and write to the log at `path`."""
    log.info(text)
    with path.open("a", encoding="utf-8") as handle:
        handle.write(text + "\n")


def _chosen(names: str | None, checks: Sequence[Check]) -> list[Check]:
    """The checks of `--only`; all if it is not given."""
    if names is None:
        return list(checks)
    by_name = {check.name: check for check in checks}
    chosen = [name.strip() for name in names.split(",")]
    unknown = [name for name in chosen if name not in by_name]
    if unknown:
        raise LarkError(
            f"--only {names}: there is no check {unknown[0]!r}. The checks are {', '.join(by_name)}."
        )
    return [by_name[name] for name in chosen]


def _check_limit(seconds: int | None) -> None:
    if seconds is not None and seconds < 1:
        raise LarkError(f"--limit {seconds}: give a number of seconds, 1 or more.")


def _parser(checks: Sequence[Check]) -> argparse.ArgumentParser:
    names = ", ".join(check.name for check in checks)
    limit = "seconds per check (default: 120 to 900, depending on the check)"
    parser = argparse.ArgumentParser(
        "python -m lark.gpu_check", description="Check this machine's GPUs and packages."
    )
    parser.add_argument("--only", help=f"checks to run, separated by commas: {names}")
    parser.add_argument("--limit", type=int, help=limit)
    parser.add_argument("--outputs", default="outputs", help="where the log is written (default: outputs)")
    return parser


if __name__ == "__main__":
    log_to(sys.stdout)
    run_main(main)
