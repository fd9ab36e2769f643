"""Plan for N trajectories on G GPUs that fail at some rate: hours, lost work, disk, and what limits the
speed.

Run as: python -m lark.planner trajectories=10000000 gpus=64 failures_per_gpu_hour=0.002 student=qwen7b
hardware=a100x8

Takes the settings of run.py and these: trajectories (of the pool), gpus (of the whole cluster),
failures_per_gpu_hour (0.002 is one failure in 500 hours of a GPU; preemptible ones fail more often) and
per_node (GPUs per node, 8). Runs nothing.
"""

import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lark.config.cli import outputs_typed
from lark.config.composed import composed
from lark.pipeline.plan import make_plan, wanted
from lark.planner.checks import number, require_count, require_gpus, require_rate, require_setting
from lark.planner.division import Workload
from lark.planner.scale_report import describe
from lark.printing import log_to
from lark.store.store import Checksums
from lark.work.entry import run_main

log = logging.getLogger("lark")

RATE = "failures_per_gpu_hour"
LIMITS = {"trajectories": 10**12, "gpus": 65536, RATE: 10**12, "per_node": 65536}


def main(arguments: Sequence[str]) -> str | None:
    if not arguments or {"-h", "--help"} & set(arguments):
        log.info("%s", __doc__)
        return None
    workload, failures, settings = numbers(arguments)
    config = composed(settings)
    require_gpus(config)
    with tempfile.TemporaryDirectory() as folder:
        steps = wanted(make_plan(config, Checksums(Path(folder)), elsewhere=True), config.stages)
    log.info("%s", describe(config, steps, workload, failures))
    return None


def numbers(arguments: Sequence[str]) -> tuple[Workload, float, list[str]]:
    """The numbers of this command, and the other arguments, which are settings of run.py."""
    values = {"trajectories": 0.0, "gpus": 0.0, RATE: 0.0, "per_node": 8.0}
    settings = []
    for argument in arguments:
        key, _, text = argument.partition("=")
        if key not in values:
            settings.append(argument)
            continue
        values[key] = number(argument, text)
        require = require_rate if key == RATE else require_count
        require(argument, values[key], LIMITS[key])
    for key in ("trajectories", "gpus"):
        require_setting(key, values[key])
    workload = Workload(int(values["trajectories"]), int(values["gpus"]), int(values["per_node"]))
    return workload, values[RATE], settings


if __name__ == "__main__":
    log_to(sys.stdout)
    run_main(lambda: main(sys.argv[1:]), outputs_typed(sys.argv[1:]))
