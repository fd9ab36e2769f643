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
from math import ceil, inf
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from lark import config as conf
from lark.config.cli import CONF, as_hydra_reads, outputs_typed
from lark.config.hydra_errors import sentence
from lark.errors import LarkError
from lark.pipeline.plan import make_plan, wanted
from lark.planner.division import Scale, disk_gib, parts
from lark.planner.report import duration, size
from lark.planner.scale import Expected, Part, expected, stops_falling
from lark.printing import counted, log_to, text_table
from lark.store.store import Checksums
from lark.work.entry import run_main
from lark.work.machine import resolve
from lark.work.operation import Step

log = logging.getLogger("lark")

LIMITS = {"trajectories": 10**12, "gpus": 65536, "failures_per_gpu_hour": 10**12, "per_node": 65536}
MOST_CHECKPOINTS = 100_000
"""More are not suggested."""
COUNTS = tuple(2**power for power in range(10))
"""1 to 512 GPUs."""


def main(arguments: Sequence[str]) -> str | None:
    if not arguments or {"-h", "--help"} & set(arguments):
        log.info("%s", __doc__)
        return None
    scale, failures, rest = numbers(arguments)
    config = composed(rest)
    require_gpus(config)
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
        whole = key != "failures_per_gpu_hour"
        if not whole <= values[key] <= LIMITS[key] or (whole and values[key] % 1):
            raise LarkError(
                f"{argument}: must be a {'whole ' * whole}number from {int(whole)} to {LIMITS[key]:,}."
            )
    for key in ("trajectories", "gpus"):
        if not values[key]:
            raise LarkError(f"Give {key}=<number>, for example trajectories=10000000 gpus=64.")
    return (
        Scale(*(int(values[key]) for key in ("trajectories", "gpus", "per_node"))),
        values["failures_per_gpu_hour"],
        rest,
    )


def composed(arguments: Sequence[str]) -> conf.Config:
    """The configuration, as run.py would compose it."""
    conf.register()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return conf.load(compose("config", overrides=as_hydra_reads(list(arguments))))
    except (HydraException, OmegaConfBaseException) as error:
        raise LarkError(sentence(error)) from error


def require_gpus(config: conf.Config) -> None:
    """Refuse hardware without GPUs: rates of this machine's cores are not those of a GPU."""
    if resolve(config.hardware, here=False).device != "cuda":
        raise LarkError(
            "This plan is for GPUs, and the hardware has none: name a machine with GPUs, such as"
            " hardware=a100x8. For other GPUs, add hardware.tflops=<TFLOP/s> and hardware.bandwidth=<GB/s>."
        )


def describe(config: conf.Config, steps: Sequence[Step], scale: Scale, failures: float) -> str:
    """The plan as text."""
    trajectories = "1 trajectory" if scale.trajectories == 1 else f"{scale.trajectories:,} trajectories"
    listed = parts(config, steps, scale)
    found = [expected(part, scale.gpus, failures) for part in listed]
    total = sum(e.seconds for e in found)
    rows = [_row(part, e, total) for part, e in zip(listed, found, strict=True)]
    rows.append(["all", "", "", duration(total), "", _hours(sum(e.lost for e in found)), ""])
    disk = disk_gib(config, steps, scale)
    times = {
        count: parts_seconds(config, steps, Scale(scale.trajectories, count, scale.per_node), failures)
        for count in COUNTS
    }
    return "\n".join(
        [
            f"{trajectories} on {counted(scale.gpus, 'GPU')}, failures per GPU-hour: {failures:g}",
            "",
            text_table(
                ["step", "divided into", "GPUs", "time", "share", "lost GPU-hours", "one process"],
                rows,
                right=3,
            ),
            "",
            *_limits(listed, found, failures / 3600, scale.gpus),
            f"disk        {size(sum(disk.values()))}: "
            + ", ".join(f"{name} {size(gib)}" for name, gib in disk.items()),
            "",
            text_table(["GPUs", *map(str, COUNTS)], [["time", *map(duration, times.values())]], right=1),
            _stop(times),
        ]
    )


def _limits(listed: Sequence[Part], found: Sequence[Expected], rate: float, gpus: int) -> list[str]:
    """What limits the speed, or prevents the end. `rate`: failures per GPU-second."""
    total = sum(e.seconds for e in found)
    if total == inf:
        endless = [part for part, e in zip(listed, found, strict=True) if e.seconds == inf]
        return [
            f"bottleneck  {part.name} does not finish at this failure rate: {_remedy(part, rate)}"
            for part in endless
        ]
    part, slowest = max(zip(listed, found, strict=True), key=lambda pair: pair[1].seconds)
    one = part.whole > slowest.seconds / 2
    why = {
        "shards": (
            "one process does most of it"
            if one
            else (
                "more GPUs shorten it"
                if slowest.gpus < part.pieces
                else f"it has only {counted(part.pieces, 'shard')}"
            )
        ),
        "together": f"it uses at most {counted(part.most, 'GPU')}",
        "not": "GPUs do not shorten it",
    }
    return [
        f"bottleneck  {slowest.name}: {slowest.seconds / total:.0%} of the time; {why[part.divided]}",
        f"failures    {rate * gpus * total:,.0f} expected",
    ]


def _remedy(part: Part, rate: float) -> str:
    """What helps a part that does not finish: pieces of which each has about one failure."""
    if part.divided == "shards":
        return (
            "a GPU fails before a shard is done. Use smaller shards (scoring.shard_tokens), or GPUs that fail"
            " less often."
        )
    if (checkpoints := ceil(rate * part.work)) > MOST_CHECKPOINTS:
        return "a GPU fails before the next checkpoint. Use GPUs that fail less often."
    return f"a GPU fails before the next checkpoint. Raise training.checkpoints to {checkpoints:,} or more."


def _row(part: Part, e: Expected, total: float) -> list[str]:
    pieces = {
        "shards": counted(part.pieces, "shard"),
        "together": counted(part.pieces, "checkpoint"),
        "not": "one process",
    }
    merging = duration(part.whole) if part.whole else ""
    share = f"{e.seconds / total:.0%}" if total < inf else ""
    return [
        part.name,
        pieces[part.divided],
        f"{e.gpus:,}",
        duration(e.seconds),
        share,
        _hours(e.lost),
        merging,
    ]


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f}" if seconds < inf else ""


def parts_seconds(config: conf.Config, steps: Sequence[Step], scale: Scale, failures: float) -> float:
    """The expected time of a run."""
    return sum(expected(part, scale.gpus, failures).seconds for part in parts(config, steps, scale))


def _stop(times: dict[int, float]) -> str:
    count = stops_falling(times)
    return (
        ""
        if count is None
        else f"Beyond {counted(count, 'GPU')}, twice as many save less than a tenth of the time."
    )


if __name__ == "__main__":
    log_to(sys.stdout)
    run_main(lambda: main(sys.argv[1:]), outputs_typed(sys.argv[1:]))
