"""Run, submit, plan or render the paper's experiments.

Run as: python -m experiments run table1 [scale=paper] [key=value ...]      run the sweep, then render
        python -m experiments plan table1 [scale=paper] [key=value ...]     show what it would do and cost
        python -m experiments render table1 [scale=paper] [key=value ...]   render finished results only
        python -m experiments submit table1 hardware=ray|slurm [...]        run it on a cluster, each step once
        python -m experiments status [table1] [timeline] [outputs=...]      done, running, waiting, failed, left
        python -m experiments run all                                       run every experiment of the paper
"""

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.harness import lanes
from experiments.harness import report as reports
from experiments.harness.pages import write_pages
from experiments.harness.planning import describe
from experiments.harness.report import Report
from experiments.harness.sweep import BEYOND, ROOT, Sweep, available, compose_sweep, dashed, find
from experiments.submission.record import Submission, submitted
from experiments.submission.status import describe as describe_status
from experiments.submission.status import timeline
from experiments.submission.submit import submit as submit_sweep
from lark.config.cli import outputs_typed
from lark.errors import LarkError, first_line
from lark.printing import counted, log_to
from lark.work.entry import run_main

log = logging.getLogger("experiments")


def main(arguments: Sequence[str]) -> str | None:
    """Carry out the command line; return the errors, or None."""
    commands = {"run": run, "submit": submit, "plan": plan, "render": render}
    if {"--help", "-h"} & set(arguments):
        log.info("%s\n\nExperiments: %s", __doc__.strip(), ", ".join(map(dashed, available())))
        return None
    if arguments and arguments[0] == "status":
        return status(list(arguments[1:]))
    if len(arguments) < 2 or arguments[0] not in commands:
        return __doc__.strip().split("\n\n")[1]
    names = (
        [name for name in available() if name not in BEYOND]
        if arguments[1] == "all"
        else [find(arguments[1])]
    )
    problems = []
    for name in names:
        try:
            problems += commands[arguments[0]](name, list(arguments[2:]))
        except LarkError as error:
            if len(names) == 1:
                raise
            problems.append(f"{dashed(name)}: {error}")  # continue with the others
    if arguments[0] == "run" and arguments[1] == "all":
        problems += write_pages(outputs_typed(list(arguments[2:])))
    return "\n".join(problems) or None


def run(name: str, arguments: list[str]) -> list[str]:
    """Run the whole sweep, even if trials fail, and then write its report. Return the failures."""
    sweep = compose_sweep(name, arguments, starts=True)
    draw(sweep)  # with partial or no results: a sweep that cannot be drawn fails before hours of work
    conduct = getattr(_module(sweep), "conduct", None)
    if conduct is not None:  # which trials run depends on the results of others
        errors: list[str] = conduct(sweep)
        _write(sweep)
        return errors
    number = lanes.lanes(trial.config for trial in sweep.trials)
    log.info(
        "%s at scale %s: %s%s",
        sweep.title,
        sweep.scale,
        counted(len(sweep.trials), "trial"),
        lanes.described(number),
    )
    code = lanes.run([sys.executable, str(ROOT / "run.py"), f"experiment={name}", *arguments], number)
    _write(sweep)
    failed = [
        f"{sweep.title}: trial {' '.join(trial.overrides)}: {why}" for trial, why in reports.unfinished(sweep)
    ]
    if code < 0 or (code and not failed):
        failed.append(
            f"{sweep.title}: the sweep exited with code {code}; run the same command again to resume."
        )
    return failed


def submit(name: str, arguments: list[str]) -> list[str]:
    """Submit the sweep's steps, each once, and return. What is finished or under way is left alone."""
    sweep = compose_sweep(name, arguments, starts=True)
    draw(sweep)
    if hasattr(_module(sweep), "conduct"):
        raise LarkError(
            f"{sweep.title} decides at run time which trials to run, so it cannot be submitted: use `python -m"
            " experiments run`."
        )
    submission = submit_sweep(sweep)
    log.info("python -m experiments status %s outputs=%s", sweep.title, submission.outputs)
    return []


def status(arguments: list[str]) -> str | None:
    """Print the state of submitted sweeps."""
    words = [word for word in arguments if not word.startswith("outputs=")]
    name = find(words.pop(0)) if words and words[0] != "timeline" else None
    if words not in ([], ["timeline"]):
        return f"{' '.join(words)}: expected `status [experiment] [timeline] [outputs=<folder>]`."
    folders = submitted(
        Path(os.path.realpath(outputs_typed(arguments))), None if name is None else dashed(name)
    )
    if not folders:
        return (
            f"No sweep{'' if name is None else f' of {dashed(name)}'} has been submitted to"
            f" {outputs_typed(arguments)}."
        )
    problems = []
    for folder in folders:
        try:
            submission = Submission(folder)
            log.info("%s\n", describe_status(submission))
            if words:
                log.info("%s\n", timeline(submission))
        except LarkError as error:
            problems.append(str(error))
    return "\n".join(problems) or None


def plan(name: str, arguments: list[str]) -> list[str]:
    """Show what the sweep would do and cost; at the paper's scale on the paper's machine, unless
    hardware=... is given.
    """
    if "scale=paper" in arguments and not any(argument.startswith("hardware=") for argument in arguments):
        arguments = [*arguments, "hardware=a100x8"]
    sweep = compose_sweep(name, arguments)
    log.info("%s", getattr(_module(sweep), "describe", describe)(sweep))
    return []


def render(name: str, arguments: list[str]) -> list[str]:
    """Write the report from finished results."""
    _write(compose_sweep(name, arguments))
    return []


def _write(sweep: Sweep) -> None:
    report = draw(sweep)
    files = reports.write(sweep, report)
    if report.summary:
        log.info("%s", report.summary)
    log.info("%s: %s", sweep.title, ", ".join(str(path) for path in files))


def _module(sweep: Sweep) -> Any:
    """experiments/<name>.py."""
    return importlib.import_module(f"experiments.{sweep.name}")


def draw(sweep: Sweep) -> Report:
    """Render the sweep with experiments/<name>.py."""
    try:
        report: Report = _module(sweep).render(sweep)
    except LarkError:
        raise
    except Exception as error:
        log.debug("%s", sweep.title, exc_info=True)
        typed = " ".join(sweep.overrides) or "its default settings"
        raise LarkError(
            f"{sweep.title} cannot be drawn with {typed} ({type(error).__name__}: {first_line(error)}). It"
            f" draws the sweep of conf/experiment/{sweep.name}.yaml: change single values, and do not sweep"
            " over anything else."
        ) from error
    return report


if __name__ == "__main__":
    log_to(sys.stdout)
    run_main(lambda: main(sys.argv[1:]), outputs_typed(sys.argv[1:]))
