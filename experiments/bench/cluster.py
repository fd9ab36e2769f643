"""A run of millions of trajectories on 1 to 512 GPUs that fail: the planner's formulas against a simulation
of the real queue.

Run as: python -m experiments.bench.cluster                        10 million trajectories, Qwen-2.5-7B, A100s
        python -m experiments.bench.cluster --quick                fewer trajectories and GPUs
        python -m experiments.bench.cluster --trajectories 1000000 --failures 0.02

The simulation gives shards to workers with `lark.cluster.dispatch.Dispatch`, the queue that a Ray cluster
uses. The shards of the scoring pass are cut by `lark.scoring.shards.cut` from drawn lengths, and each takes
the time of its own FLOPs. Workers fail at random, lose the shard they are at, and are replaced. Training
starts again from its last checkpoint when one of its GPUs fails. Writes cluster.png, cluster.pdf and
cluster.csv to outputs/bench.
"""

import argparse
import heapq
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lark.cluster.dispatch import Dispatch
from lark.config import Config
from lark.models.shapes import shape_of
from lark.output.style import GREY, MARKERS, OKABE_ITO, panels, save, styled
from lark.pipeline.plan import make_plan, wanted
from lark.planner.__main__ import LIMITS, composed
from lark.planner.checks import require_gpus
from lark.planner.costs import forward_flops
from lark.planner.division import Workload, parts
from lark.planner.lengths import PoolLengths, pool_lengths
from lark.planner.report import duration
from lark.planner.scale import DETECTION, REPLACEMENT, Part, expected, stops_falling
from lark.planner.scale_report import COUNTS
from lark.printing import log_to, text_table
from lark.scoring.shards import cost, cut
from lark.store.store import Checksums
from lark.work.entry import run_main
from lark.work.operation import Step
from lark.work.sharding import Shard

log = logging.getLogger(__name__)
SETTINGS = ["student=qwen7b", "hardware=a100x8", "budget=1"]


@dataclass(frozen=True)
class Simulated:
    """What happened to a part."""

    seconds: float
    lost: float
    """GPU-seconds of work that was done again, and of starting again."""


def simulate(
    part: Part,
    costs: Sequence[float],
    gpus: int,
    failures: float,
    random: np.random.Generator,
    many: bool = False,
) -> Simulated:
    """Carry out a part once. `costs`: seconds of its shards, or of its intervals between checkpoints on one
    GPU.
    """
    used = max(1, min(gpus, part.most))
    if part.divided == "not":
        return Simulated(part.start + part.work + part.serial, 0.0)
    if part.divided == "together":
        return _together(part, [cost / used for cost in costs], used, failures / 3600, random)
    return _shards(part, costs, min(used, len(costs)), failures / 3600, random, many)


def _together(
    part: Part, intervals: Sequence[float], used: int, rate: float, random: np.random.Generator
) -> Simulated:
    """Processes that need each other: one failure costs the interval of all."""
    now, again, lost = part.start, DETECTION + REPLACEMENT + part.start, 0.0
    for interval in intervals:
        while rate and (until := random.exponential(1 / (rate * used))) < interval:
            now += until + again
            lost += (until + again) * used
        now += interval
    return Simulated(now + part.serial, lost)


def _shards(
    part: Part, costs: Sequence[float], workers: int, rate: float, random: np.random.Generator, many: bool
) -> Simulated:
    """Workers that take shards from the real queue. An event is the end of a take, a failure, or a worker
    that is ready.
    """
    by_name = {f"{number}": float(cost) for number, cost in enumerate(costs)}
    queue = Dispatch([Shard(name, cost=cost) for name, cost in by_name.items()], many)
    events: list[tuple[float, int, str, list[Shard]]] = []
    order = iter(range(2**62))

    def at(time: float, what: str, shards: list[Shard]) -> None:
        heapq.heappush(events, (time, next(order), what, shards))

    for _ in range(workers):
        at(part.start, "ready", [])
    left, idle, lost, now = len(by_name), 0, 0.0, 0.0
    while left:
        now, _, what, shards = heapq.heappop(events)
        if what == "done":
            left -= len(shards)
        elif what == "lost":
            queue.lost(shards)
            for _ in range(min(idle, len(queue))):
                idle -= 1
                at(now, "ready", [])
            continue
        if not queue:
            idle += 1
            continue
        taken = queue.take(workers)
        seconds = sum(by_name[shard.name] for shard in taken)
        until = random.exponential(1 / rate) if rate else np.inf
        if until >= seconds:
            at(now + seconds, "done", taken)
            continue
        kept, undone = _split(taken, by_name, until)
        left -= len(kept)
        lost += until - sum(by_name[shard.name] for shard in kept) + DETECTION + REPLACEMENT + part.start
        at(now + until + DETECTION, "lost", undone)
        at(now + until + DETECTION + REPLACEMENT + part.start, "ready", [])
    return Simulated(now + part.serial, lost)


def _split(
    taken: Sequence[Shard], seconds: dict[str, float], until: float
) -> tuple[list[Shard], list[Shard]]:
    """The shards of a take that were finished before a failure, and the others."""
    ends = np.cumsum([seconds[shard.name] for shard in taken])
    done = int(np.searchsorted(ends, until, side="right"))
    return list(taken[:done]), list(taken[done:])


def shard_seconds(
    part: Part, config: Config, lengths: PoolLengths, trajectories: int, random: np.random.Generator
) -> np.ndarray:
    """The seconds of each piece of a part, on one GPU."""
    if part.divided != "shards" or part.pieces < 2 or part.name not in ("score", "lengths"):
        return np.full(part.pieces, part.work / part.pieces)
    drawn = random.integers(len(lengths.total), size=trajectories)
    total = lengths.total[drawn]
    if part.name == "lengths":  # a row group
        groups = np.array_split(total, part.pieces)
        work = np.array([group.sum() for group in groups])
    else:
        shape = shape_of(config.student)
        assert shape is not None
        pairs = zip(lengths.total, lengths.response, strict=True)
        flops = np.array(
            [forward_flops(shape, np.array([tokens]), np.array([out])).forward for tokens, out in pairs]
        )[drawn]
        ends = np.concatenate([[0.0], np.cumsum(flops)])
        work = np.array(
            [ends[rows.stop] - ends[rows.start] for rows in cut(cost(total), config.scoring.shard_tokens)]
        )
    return work / work.sum() * part.work


def compare(
    config: Config,
    steps: Sequence[Step],
    trajectories: int,
    counts: Sequence[int],
    failures: Sequence[float],
    repeats: int,
) -> pd.DataFrame:
    """Hours by the formulas and by simulation, one row per number of GPUs, rate of failures and step."""
    return pd.DataFrame(_compare(config, steps, trajectories, counts, failures, repeats))


def _compare(
    config: Config,
    steps: Sequence[Step],
    trajectories: int,
    counts: Sequence[int],
    failures: Sequence[float],
    repeats: int,
) -> Iterator[dict[str, object]]:
    lengths, random = pool_lengths(config), np.random.default_rng(0)
    known: dict[str, np.ndarray] = {}
    for gpus in counts:
        for part in parts(config, steps, Workload(trajectories, gpus), lengths):
            if part.name not in known:
                known[part.name] = shard_seconds(part, config, lengths, trajectories, random)
            costs = known[part.name] * (part.work / max(known[part.name].sum(), 1e-9))
            many = part.divided == "shards" and part.name not in ("score", "lengths")
            for rate in failures:
                # A training that seldom gets to its next checkpoint varies most, and is quick to simulate.
                count = (repeats * 100 if part.divided == "together" else repeats) if rate else 1
                planned = expected(part, gpus, rate)
                ends = planned.seconds < inf
                runs = (
                    [simulate(part, costs, gpus, rate, random, many) for _ in range(count)]
                    if ends
                    else [Simulated(inf, inf)]
                )
                yield {
                    "gpus": gpus,
                    "failures_per_gpu_hour": rate,
                    "step": part.name,
                    "planned_hours": planned.seconds / 3600,
                    "simulated_hours": float(np.mean([run.seconds for run in runs])) / 3600,
                    "planned_lost": planned.lost / 3600,
                    "simulated_lost": float(np.mean([run.lost for run in runs])) / 3600,
                }


def totals(table: pd.DataFrame) -> pd.DataFrame:
    """Hours of the whole run, by rate of failures and number of GPUs."""
    columns = ["planned_hours", "simulated_hours", "planned_lost", "simulated_lost"]
    return table.groupby(["failures_per_gpu_hour", "gpus"], as_index=False)[columns].sum()


@styled
def draw(table: pd.DataFrame, trajectories: int) -> Figure:
    """Left: hours of the run. Right: which steps they consist of."""
    figure, (left, right) = panels(2, width=4.8)
    found = totals(table)
    for number, (rate, rows) in enumerate(found.groupby("failures_per_gpu_hour")):
        colour, ends = OKABE_ITO[number], "" if rows["planned_hours"].min() < inf else " (does not finish)"
        left.plot(
            rows["gpus"], rows["planned_hours"], color=colour, label=f"{rate:g} failures per GPU-hour{ends}"
        )
        left.plot(rows["gpus"], rows["simulated_hours"], MARKERS[number], color=colour, markersize=4.5)
    first = found[found["failures_per_gpu_hour"] == found["failures_per_gpu_hour"].min()]
    ideal = first["planned_hours"].iloc[0] * first["gpus"].iloc[0] / first["gpus"]
    left.plot(first["gpus"], ideal, ":", color=GREY, label="in proportion to GPUs")
    left.plot([], [], "-o", color=GREY, markersize=4.5, label="line: planner, marker: simulation")
    left.set(
        xscale="log", yscale="log", xlabel="GPUs", ylabel="hours", title=f"{trajectories:,} trajectories"
    )
    counts = sorted(table["gpus"].unique())
    left.set_xticks(counts, [str(count) for count in counts])
    left.minorticks_off()
    left.legend(loc="lower left")
    finished = found[found["planned_hours"] < inf]["failures_per_gpu_hour"]
    chosen = sorted(finished.unique())[:2][-1] if len(finished) else found["failures_per_gpu_hour"].min()
    own = table[table["failures_per_gpu_hour"] == chosen]
    shares = own.pivot_table(index="gpus", columns="step", values="simulated_hours", sort=False)
    shares = shares.div(shares.sum(axis=1), axis=0)
    bottom = np.zeros(len(shares))
    for number, step in enumerate(shares.columns):
        values = shares[step].fillna(0.0).to_numpy()
        right.bar(
            range(len(shares)),
            values,
            bottom=bottom,
            color=OKABE_ITO[number % len(OKABE_ITO)],
            label=step,
            width=0.8,
        )
        bottom += values
    right.set_xticks(range(len(shares)), [str(count) for count in shares.index])
    right.set(
        xlabel="GPUs",
        ylabel="share of the time",
        title=f"which step takes it, at {chosen:g} failures",
        ylim=(0, 1),
    )
    right.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def with_defaults(settings: Sequence[str]) -> list[str]:
    """The user's settings, and the defaults of this program that they do not replace."""
    given = {setting.partition("=")[0] for setting in settings}
    return [*(setting for setting in SETTINGS if setting.partition("=")[0] not in given), *settings]


def _within(key: str, kind: type[int] | type[float]) -> Callable[[str], float]:
    """A number of the command line, within the planner's limits."""

    def read(text: str) -> float:
        value = kind(text)
        if not (kind is int) <= value <= LIMITS[key]:
            raise argparse.ArgumentTypeError(
                f"{text}: must be a number from {int(kind is int)} to {LIMITS[key]:,}"
            )
        return value

    return read


def main() -> None:
    log_to()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="100,000 trajectories on up to 64 GPUs")
    parser.add_argument("--trajectories", type=_within("trajectories", int), help="10,000,000 unless --quick")
    parser.add_argument(
        "--failures",
        type=_within("failures_per_gpu_hour", float),
        nargs="+",
        default=[0.0, 0.002, 0.02],
        help="per GPU-hour",
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="simulations with failures; 100 times as many of training"
    )
    parser.add_argument("--outputs", type=Path, help="the same as the setting outputs=")
    parser.add_argument("settings", nargs="*", help=f"settings of run.py, added to {' '.join(SETTINGS)}")
    given = parser.parse_args()
    trajectories = given.trajectories or (100_000 if given.quick else 10_000_000)
    counts = COUNTS[:7] if given.quick else COUNTS
    config = composed(with_defaults(given.settings))
    require_gpus(config)
    with tempfile.TemporaryDirectory() as folder:
        steps = wanted(make_plan(config, Checksums(Path(folder)), elsewhere=True), config.stages)
    table = compare(config, steps, trajectories, counts, given.failures, given.repeats)
    found = totals(table)
    rows = []
    for values in found.to_dict("records"):
        r = {str(name): float(value) for name, value in values.items()}
        ends = r["planned_hours"] < inf
        times = [
            duration(r["planned_hours"] * 3600),
            duration(r["simulated_hours"] * 3600) if ends else "not simulated",
        ]
        ratio = f"{r['planned_hours'] / r['simulated_hours']:.3f}" if ends else ""
        lost = [f"{r[f'{who}_lost']:,.1f}" if ends else "" for who in ("planned", "simulated")]
        rows.append([f"{r['failures_per_gpu_hour']:g}", f"{r['gpus']:.0f}", *times, ratio, *lost])
    header = [
        "failures per GPU-hour",
        "GPUs",
        "planner",
        "simulation",
        "ratio",
        "lost GPU-hours, planner",
        "simulation",
    ]
    log.info("%s", text_table(header, rows))
    for rate, part in found.groupby("failures_per_gpu_hour"):
        count = stops_falling(dict(zip(part["gpus"], part["simulated_hours"], strict=True)))
        if count is not None:
            log.info(
                "%g failures per GPU-hour: beyond %d GPUs, twice as many save less than a tenth of the time",
                rate,
                count,
            )
    folder_ = (given.outputs or config.outputs_path) / "bench"
    folder_.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder_ / "cluster.csv", index=False)
    if found["planned_hours"].min() == inf:
        log.info("At these rates nothing finishes: there is no figure. %s", folder_ / "cluster.csv")
        return
    save(draw(table, trajectories), folder_ / "cluster")
    log.info("%s", folder_ / "cluster.png")


if __name__ == "__main__":
    run_main(main)
