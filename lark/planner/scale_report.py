"""The report of `python -m lark.planner`: the expected time of each part, what limits the speed, and the disk
space.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, inf

from lark.config import Config
from lark.planner.division import Workload, disk_gib, parts
from lark.planner.measured import measured
from lark.planner.report import duration, size
from lark.planner.scale import Expected, Part, expected, stops_falling
from lark.printing import counted, text_table
from lark.work.operation import Step

MOST_CHECKPOINTS = 100_000
"""More are not suggested."""
COUNTS = tuple(2**power for power in range(10))
"""1 to 512 GPUs."""
HEADER = ["step", "divided into", "GPUs", "time", "share", "lost GPU-hours", "one process"]


def describe(config: Config, steps: Sequence[Step], workload: Workload, failures: float) -> str:
    """The plan as text. `failures`: per GPU-hour."""
    noun = "trajectory" if workload.trajectories == 1 else "trajectories"
    planned = parts(config, steps, workload)
    times = [expected(part, workload.gpus, failures) for part in planned]
    disk = disk_gib(config, steps, workload)
    disk_by_step = ", ".join(f"{name} {size(gib)}" for name, gib in disk.items())
    pool = f"{workload.trajectories:,} {noun}"
    by_gpus = {}
    for gpus in COUNTS:
        by_gpus[gpus] = run_seconds(config, steps, replace(workload, gpus=gpus), failures)
    return "\n".join(
        [
            f"{pool} on {counted(workload.gpus, 'GPU')}, failures per GPU-hour: {failures:g}",
            "",
            _table(planned, times),
            "",
            *_limits(planned, times, failures / 3600, workload.gpus),
            f"disk        {size(sum(disk.values()))}: {disk_by_step}",
            *_rates(config),
            "",
            text_table(["GPUs", *map(str, COUNTS)], [["time", *map(duration, by_gpus.values())]], right=1),
            _stop(by_gpus),
        ]
    )


def _rates(config: Config) -> list[str]:
    """The line that says where the rates come from, if they are measured."""
    rates = measured(config)
    return [] if rates is None else [f"rates       {rates.note}"]


def run_seconds(config: Config, steps: Sequence[Step], workload: Workload, failures: float) -> float:
    """The expected time of a run."""
    planned = parts(config, steps, workload)
    return sum(expected(part, workload.gpus, failures).seconds for part in planned)


def _table(planned: Sequence[Part], times: Sequence[Expected]) -> str:
    total = sum(time.seconds for time in times)
    lost = sum(time.lost for time in times)
    rows = [_row(part, time, total) for part, time in zip(planned, times, strict=True)]
    rows.append(["all", "", "", duration(total), "", _hours(lost), ""])
    return text_table(HEADER, rows, right=3)


def _row(part: Part, time: Expected, total: float) -> list[str]:
    pieces = {
        "shards": counted(part.pieces, "shard"),
        "together": counted(part.pieces, "checkpoint"),
        "not": "one process",
    }
    share = f"{time.seconds / total:.0%}" if total < inf else ""
    serial = duration(part.serial) if part.serial else ""
    return [
        part.name,
        pieces[part.divided],
        f"{time.gpus:,}",
        duration(time.seconds),
        share,
        _hours(time.lost),
        serial,
    ]


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f}" if seconds < inf else ""


def _limits(planned: Sequence[Part], times: Sequence[Expected], rate: float, gpus: int) -> list[str]:
    """The bottleneck, or the parts that never end. `rate`: failures per GPU-second."""
    pairs = list(zip(planned, times, strict=True))
    endless = [part for part, time in pairs if time.seconds == inf]
    if endless:
        return [
            f"bottleneck  {part.name} does not finish at this failure rate: {_remedy(part, rate)}"
            for part in endless
        ]
    total = sum(time.seconds for time in times)
    part, slowest = max(pairs, key=lambda pair: pair[1].seconds)
    return [
        f"bottleneck  {part.name}: {slowest.seconds / total:.0%} of the time; {_bottleneck(part, slowest)}",
        f"failures    {rate * gpus * total:,.0f} expected",
    ]


def _bottleneck(part: Part, time: Expected) -> str:
    """Why the slowest part is not faster, or what makes it faster."""
    if part.divided == "not":
        return "GPUs do not shorten it"
    if part.divided == "together":
        return f"it uses at most {counted(part.most, 'GPU')}"
    if part.serial > time.seconds / 2:
        return "one process does most of it"
    if time.gpus < part.pieces:
        return "more GPUs shorten it"
    return f"it has only {counted(part.pieces, 'shard')}"


def _remedy(part: Part, rate: float) -> str:
    """Advice for a part that does not finish: pieces of which each has about one failure."""
    if part.divided == "shards":
        return (
            "a GPU fails before a shard is done. Use smaller shards (scoring.shard_tokens), or GPUs that fail"
            " less often."
        )
    checkpoints = ceil(rate * part.work)
    if checkpoints > MOST_CHECKPOINTS:
        return "a GPU fails before the next checkpoint. Use GPUs that fail less often."
    return f"a GPU fails before the next checkpoint. Raise training.checkpoints to {checkpoints:,} or more."


def _stop(by_gpus: Mapping[int, float]) -> str:
    count = stops_falling(by_gpus)
    if count is None:
        return ""
    return f"Beyond {counted(count, 'GPU')}, twice as many save less than a tenth of the time."
