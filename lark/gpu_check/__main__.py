"""Check this machine: kernels, several processes, DeepSpeed, vLLM and resuming, each on a small example.

Run as: python -m lark.gpu_check                          (or `make gpu-check`)
        python -m lark.gpu_check --only kernel,loss
Prints versions and a table to paste into a bug report. The exit code is 0 only if no check failed. Without GPUs, it runs what
can run on the CPU and skips the rest.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from lark.config.checks import user_path
from lark.errors import LarkError
from lark.gpu_check.check import CHECKS, Check
from lark.gpu_check.runner import run_checks, table, verdict
from lark.gpu_check.versions import versions
from lark.printing import log_to
from lark.store.disk import disk_errors
from lark.work.entry import run_main
from lark.work.machine import visible_gpus

log = logging.getLogger("lark.gpu_check")

LOG = "log.txt"


def main(arguments: Sequence[str] | None = None, checks: Sequence[Check] = CHECKS) -> int:
    """Run the checks, print the report, and return the exit code."""
    options = _parser(checks).parse_args(arguments)
    chosen = _chosen(options.only, checks)
    if options.limit is not None and options.limit < 1:
        raise LarkError(f"--limit {options.limit}: give a number of seconds, 1 or more.")
    folder = user_path("--outputs", options.outputs).absolute() / "gpu_check"
    gpus = visible_gpus()
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG).write_text("", encoding="utf-8")
        _say(folder, "\n".join(f"{name:<14} {value}" for name, value in versions()))
        if not gpus:
            _say(folder, "\nThis machine has no GPU: running on the CPU what can run there.")
        outcomes = run_checks(
            chosen,
            gpus,
            folder,
            folder / LOG,
            options.limit,
            lambda c: log.info("running %s: %s …", c.name, c.claim),
        )
        _say(folder, f"\n{table(outcomes)}\n\nFull output: {folder / LOG}\n{verdict(outcomes, gpus)}")
    return int(any(o.status == "FAIL" for o in outcomes))


def _say(folder: Path, text: str) -> None:
    """Print, and write to the log."""
    log.info(text)
    with (folder / LOG).open("a", encoding="utf-8") as handle:
        handle.write(text + "\n")


def _chosen(names: str | None, checks: Sequence[Check]) -> list[Check]:
    known = {check.name: check for check in checks}
    wanted = list(known) if names is None else [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in known]:
        raise LarkError(
            f"--only {names}: there is no check {unknown[0]!r}. The checks are {', '.join(known)}."
        )
    return [known[name] for name in wanted]


def _parser(checks: Sequence[Check]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m lark.gpu_check", description="Check this machine's GPUs and packages."
    )
    parser.add_argument(
        "--only", help=f"checks to run, separated by commas: {', '.join(check.name for check in checks)}"
    )
    parser.add_argument(
        "--limit", type=int, help="seconds per check (default: 120 to 900, depending on the check)"
    )
    parser.add_argument("--outputs", default="outputs", help="where the log is written (default: outputs)")
    return parser


if __name__ == "__main__":
    log_to(sys.stdout)
    run_main(main)
