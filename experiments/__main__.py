"""Run, submit, plan or render the paper's experiments.

Run as: python -m experiments run table1 [scale=paper] [key=value ...]      run the sweep, then render
        python -m experiments plan table1 [scale=paper] [key=value ...]     show what it would do and cost
        python -m experiments render table1 [scale=paper] [key=value ...]   render finished results only
        python -m experiments record table1 [scale=paper] [key=value ...]   add finished results to the code's
        python -m experiments submit table1 hardware=ray|slurm [...]        on a cluster, each step once
        python -m experiments status [table1] [timeline] [outputs=...]      done, running, waiting, failed
        python -m experiments run all                                       run every experiment of the paper
"""

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.harness import evidence, lanes
from experiments.harness import report as reports
from experiments.harness.checks import can_be_drawn, has_easy_tasks, has_fixed_trials
from experiments.harness.pages import write_pages
from experiments.harness.planning import describe
from experiments.harness.report import Report
from experiments.harness.sweep import BEYOND, ROOT, Sweep, available, compose_sweep, dashed, find
from experiments.submission.record import Submission, submitted
from experiments.submission.status import describe as describe_status
from experiments.submission.status import timeline
from experiments.submission.submit import submit as submit_sweep
from lark.config.cli import outputs_typed
from lark.errors import LarkError
from lark.printing import counted, log_to
from lark.work.entry import run_main

log = logging.getLogger("experiments")


def main(arguments: Sequence[str]) -> str | None:
    """Carry out the command line; return the errors, or None."""
    commands = {"run": run, "submit": submit, "plan": plan, "render": render, "record": record}
    if {"--help", "-h"} & set(arguments):
        log.info("%s\n\nExperiments: %s", __doc__.strip(), ", ".join(map(dashed, available())))
        return None
    if arguments and arguments[0] == "status":
        return status(list(arguments[1:]))
    if len(arguments) < 2 or arguments[0] not in commands:
        return __doc__.strip().split("\n\n")[1]
    command, name, *settings = arguments
    if name != "all":
        return "\n".join(commands[command](find(name), settings)) or None
    problems = []
    for experiment in available():
        if experiment in BEYOND:
            continue
        try:
            problems += commands[command](experiment, settings)
        except LarkError as error:
            problems.append(f"{dashed(experiment)}: {error}")  # continue with the others
    if command == "run":
        problems += write_pages(outputs_typed(settings))
    return "\n".join(problems) or None


def run(name: str, arguments: list[str]) -> list[str]:
    """Run the whole sweep, even if trials fail, and then write its report. Return the failures."""
    sweep = compose_sweep(name, arguments, starts=True)
    _require_data(sweep)
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
    failed = []
    for trial, why in reports.unfinished(sweep):
        failed.append(f"{sweep.title}: trial {' '.join(trial.overrides)}: {why}")
    if code < 0 or (code and not failed):
        failed.append(
            f"{sweep.title}: the sweep exited with code {code}; run the same command again to resume."
        )
    return failed


def submit(name: str, arguments: list[str]) -> list[str]:
    """Submit the sweep's steps, each once, and return. What is finished or under way is left alone."""
    sweep = compose_sweep(name, arguments, starts=True)
    _require_data(sweep)
    draw(sweep)
    has_fixed_trials(sweep.title, not hasattr(_module(sweep), "conduct"))
    submission = submit_sweep(sweep)
    log.info("python -m experiments status %s outputs=%s", sweep.title, submission.outputs)
    return []


def status(arguments: list[str]) -> str | None:
    """Print the state of submitted sweeps."""
    words = [word for word in arguments if not word.startswith("outputs=")]
    name = None
    if words and words[0] != "timeline":
        name = dashed(find(words.pop(0)))
    if words not in ([], ["timeline"]):
        return f"{' '.join(words)}: expected `status [experiment] [timeline] [outputs=<folder>]`."
    outputs = outputs_typed(arguments)
    folders = submitted(Path(os.path.realpath(outputs)), name)
    if not folders:
        which = "" if name is None else f" of {name}"
        return f"No sweep{which} has been submitted to {outputs}."
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
    _require_data(sweep)
    log.info("%s", getattr(_module(sweep), "describe", describe)(sweep))
    return []


def _require_data(sweep: Sweep) -> None:
    """Say how to get the files of SCALE=smollm2, if they are not here."""
    paths = {trial.config.pool.path for trial in sweep.trials}
    if not hasattr(_module(sweep), "conduct"):  # others hold out a part of the pool
        for trial in sweep.trials:
            paths.update(task.path for task in trial.config.benchmark.tasks.values())
    has_easy_tasks(paths)


def render(name: str, arguments: list[str]) -> list[str]:
    """Write the report from finished results."""
    _write(compose_sweep(name, arguments))
    return []


def record(name: str, arguments: list[str]) -> list[str]:
    """Add finished runs to experiments/results, and write the table of all runs there."""
    paths = evidence.record(compose_sweep(name, arguments))
    log.info("%s", ", ".join(str(path) for path in paths))
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
    except Exception as error:
        log.debug("%s", sweep.title, exc_info=True)
        can_be_drawn(error, sweep)
        raise
    return report


if __name__ == "__main__":
    log_to(sys.stdout)
    run_main(lambda: main(sys.argv[1:]), outputs_typed(sys.argv[1:]))
