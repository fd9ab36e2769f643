"""Plan for N trajectories on G GPUs that fail at some rate: hours, lost work, disk, and what limits the speed.

Run as: python -m lark.planner trajectories=10000000 gpus=64 failures_per_gpu_hour=0.002 student=qwen7b hardware=a100x8

Takes the settings of run.py and these: trajectories (of the pool), gpus (of the whole cluster), failures_per_gpu_hour (0.002 is one
failure in 500 hours of a GPU; preemptible ones fail more often) and per_node (GPUs per node, 8). Runs nothing.
"""

import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from lark import config as conf
from lark.config.cli import CONF, as_hydra_reads, outputs_typed, sentence
from lark.errors import LarkError
from lark.planner.division import Scale, disk_gib, parts
from lark.planner.report import duration, size
from lark.planner.scale import Expected, Part, expected, stops_falling
from lark.printing import log_to
from lark.report.tables import text_table
from lark.runtime.entry import run_main
from lark.runtime.operation import Step
from lark.runtime.plan import make_plan, wanted
from lark.runtime.store import Checksums

log = logging.getLogger("lark")

COUNTS = tuple(2**power for power in range(10))
"""1 to 512 GPUs."""


def main(arguments: Sequence[str]) -> str | None:
    if not arguments or {"-h", "--help"} & set(arguments):
        log.info("%s", __doc__)
        return None
    scale, failures, rest = numbers(arguments)
    config = composed(rest)
    with tempfile.TemporaryDirectory() as folder:
        steps = wanted(make_plan(config, Checksums(Path(folder)), elsewhere=True), config.stages)
    log.info("%s", describe(config, steps, scale, failures))
    return None


def numbers(arguments: Sequence[str]) -> tuple[Scale, float, list[str]]:
    """The numbers of this command, and the other arguments."""
    values = {"trajectories": 0.0, "gpus": 0.0, "failures_per_gpu_hour": 0.0, "per_node": 8.0}
    rest = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in values:
            rest.append(argument)
            continue
        try:
            values[key] = float(value.replace("_", ""))
        except ValueError as error:
            raise LarkError(f"{argument}: must be a number.") from error
        if not 0 <= values[key] < 1e12 or (key != "failures_per_gpu_hour" and (values[key] < 1 or values[key] % 1)):
            least = "at least 0" if key == "failures_per_gpu_hour" else "a whole number, at least 1"
            raise LarkError(f"{argument}: must be {least}.")
    for key in ("trajectories", "gpus"):
        if not values[key]:
            raise LarkError(f"Give {key}=<number>, for example trajectories=10000000 gpus=64.")
    if values["gpus"] > 65536:
        raise LarkError("gpus: at most 65536.")
    return Scale(*(int(values[key]) for key in ("trajectories", "gpus", "per_node"))), values["failures_per_gpu_hour"], rest


def composed(arguments: Sequence[str]) -> conf.Config:
    """The configuration, as run.py would compose it."""
    conf.register()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return conf.load(compose("config", overrides=as_hydra_reads(list(arguments))))
    except (HydraException, OmegaConfBaseException) as error:
        raise LarkError(sentence(error)) from error


def describe(config: conf.Config, steps: Sequence[Step], scale: Scale, failures: float) -> str:
    """The plan as text."""
    listed = parts(config, steps, scale)
    found = [expected(part, scale.gpus, failures) for part in listed]
    total = sum(e.seconds for e in found)
    rows = [_row(part, e, total) for part, e in zip(listed, found, strict=True)]
    rows.append(["all", "", "", duration(total), "", f"{sum(e.lost for e in found) / 3600:,.1f}", ""])
    slowest = max(zip(found, listed, strict=True), key=lambda pair: pair[0].seconds)
    disk = disk_gib(config, steps, scale)
    times = {
        count: parts_seconds(config, steps, Scale(scale.trajectories, count, scale.per_node), failures) for count in COUNTS
    }
    why = {
        "shards": "more GPUs shorten it",
        "together": f"it uses at most {slowest[1].most:,} GPUs",
        "not": "GPUs do not shorten it",
    }
    return "\n".join([
        f"{scale.trajectories:,} trajectories on {scale.gpus:,} GPUs, {failures:g} failures per GPU-hour",
        "",
        text_table(["step", "divided into", "GPUs", "time", "share", "lost GPU-hours", "one process"], rows, right=3),
        "",
        f"bottleneck  {slowest[0].name}: {slowest[0].seconds / total:.0%} of the time; {why[slowest[1].divided]}",
        f"failures    {failures * scale.gpus * total / 3600:,.0f} expected",
        f"disk        {size(sum(disk.values()))}: " + ", ".join(f"{name} {size(gib)}" for name, gib in disk.items()),
        "",
        text_table(["GPUs", *map(str, COUNTS)], [["time", *map(duration, times.values())]], right=1),
        _stop(times),
    ])  # fmt: skip


def _row(part: Part, e: Expected, total: float) -> list[str]:
    pieces = {"shards": f"{part.pieces:,} shards", "together": f"{part.pieces} checkpoints", "not": "one process"}
    merging = duration(part.whole) if part.whole else ""
    lost = f"{e.lost / 3600:,.1f}"
    return [part.name, pieces[part.divided], f"{e.gpus:,}", duration(e.seconds), f"{e.seconds / total:.0%}", lost, merging]


def parts_seconds(config: conf.Config, steps: Sequence[Step], scale: Scale, failures: float) -> float:
    """The expected time of a run."""
    return sum(expected(part, scale.gpus, failures).seconds for part in parts(config, steps, scale))


def _stop(times: dict[int, float]) -> str:
    count = stops_falling(times)
    return "" if count is None else f"Beyond {count} GPUs, twice as many save less than a tenth of the time."


if __name__ == "__main__":
    log_to(sys.stdout)
    run_main(lambda: main(sys.argv[1:]), outputs_typed(sys.argv[1:]))
