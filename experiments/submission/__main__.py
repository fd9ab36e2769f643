"""The processes of a submitted sweep. Users call `python -m experiments submit`, which starts them.

Run as: python -m experiments.submission drive <folder of the sweep>          give its steps to Ray
        python -m experiments.submission step <folder of the sweep> <name>    make one step
"""

import sys
from collections.abc import Callable
from pathlib import Path

from experiments.submission.ray_tasks import drive
from experiments.submission.record import SWEEPS
from experiments.submission.step_job import run_step
from lark.printing import log_to
from lark.work.entry import run_main

COMMANDS: dict[str, Callable[..., str | None]] = {"drive": drive, "step": run_step}

if __name__ == "__main__":
    command, place, *names = sys.argv[1:]
    folder = Path(place)
    log_to(form="%(asctime)s %(message)s")
    run_main(lambda: COMMANDS[command](folder, *names), folder.parents[len(SWEEPS.parts)])
