"""A run of millions of trajectories on 1 to 512 GPUs that fail: the planner's formulas against a simulation
of the real queue.

Run as: python -m experiments.bench.cluster                        10 million trajectories, Qwen-2.5-7B, A100s
        python -m experiments.bench.cluster --quick                fewer trajectories and GPUs
        python -m experiments.bench.cluster --trajectories 1000000 --failures 0.02
Writes cluster.png, cluster.pdf and cluster.csv to outputs/bench.

The simulation is in _cluster_simulation.py. The shards of the scoring pass are cut by
`lark.scoring.shards.cut` from drawn lengths, and each takes the time of its own FLOPs.
"""

import argparse
import logging
import tempfile
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.bench._cluster_simulation import Simulated, simulate
from experiments.bench._output import command_line
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
from lark.planner.scale import Part, expected, stops_falling
from lark.planner.scale_report import COUNTS
from lark.printing import log_to, text_table
from lark.scoring.shards import cost, cut
from lark.store.store import Checksums
from lark.work.entry import run_main
from lark.work.operation import Step

log = logging.getLogger(__name__)
SETTINGS = ["student=qwen7b", "hardware=a100x8", "budget=1"]
RATE = "failures_per_gpu_hour"
BY_LENGTH = ("score", "lengths")
"""Operations whose shards differ by the lengths of their trajectories."""
HEADER = (
    "failures per GPU-hour",
    "GPUs",
    "planner",
    "simulation",
    "ratio",
    "lost GPU-hours, planner",
    "simulation",
)


def piece_seconds(
    part: Part, config: Config, lengths: PoolLengths, trajectories: int, random: np.random.Generator
) -> np.ndarray:
    """The seconds of each piece of a part, on one GPU."""
    if part.divided != "shards" or part.pieces < 2 or part.name not in BY_LENGTH:
        return np.full(part.pieces, part.work / part.pieces)
    drawn = random.integers(len(lengths.total), size=trajectories)
    total = lengths.total[drawn]
    if part.name == "lengths":
        row_groups = np.array_split(total, part.pieces)
        work = np.array([group.sum() for group in row_groups])
    else:
        flops = trajectory_flops(config, lengths)[drawn]
        ends = np.concatenate([[0.0], np.cumsum(flops)])
        shards = cut(cost(total), config.scoring.shard_tokens)
        work = np.array([ends[rows.stop] - ends[rows.start] for rows in shards])
    return work / work.sum() * part.work


def trajectory_flops(config: Config, lengths: PoolLengths) -> np.ndarray:
    """FLOPs of each trajectory's forward pass."""
    shape = shape_of(config.student)
    assert shape is not None
    flops = []
    for tokens, response in zip(lengths.total, lengths.response, strict=True):
        flops.append(forward_flops(shape, np.array([tokens]), np.array([response])).forward)
    return np.array(flops)


def compare(
    config: Config,
    steps: Sequence[Step],
    trajectories: int,
    counts: Sequence[int],
    failures: Sequence[float],
    repeats: int,
) -> pd.DataFrame:
    """Hours by the formulas and by simulation, one row per number of GPUs, rate of failures and step."""
    lengths = pool_lengths(config)
    random = np.random.default_rng(0)
    pieces: dict[str, np.ndarray] = {}
    rows = []
    for gpus in counts:
        for part in parts(config, steps, Workload(trajectories, gpus), lengths):
            if part.name not in pieces:
                pieces[part.name] = piece_seconds(part, config, lengths, trajectories, random)
            costs = pieces[part.name] * (part.work / max(pieces[part.name].sum(), 1e-9))
            for rate in failures:
                planned = expected(part, gpus, rate)
                runs = [Simulated(inf, inf)]
                if planned.seconds < inf:
                    runs = simulations(part, costs, gpus, rate, repeats, random)
                rows.append(
                    {
                        "gpus": gpus,
                        RATE: rate,
                        "step": part.name,
                        "planned_hours": planned.seconds / 3600,
                        "simulated_hours": float(np.mean([run.seconds for run in runs])) / 3600,
                        "planned_lost": planned.lost / 3600,
                        "simulated_lost": float(np.mean([run.lost for run in runs])) / 3600,
                    }
                )
    return pd.DataFrame(rows)


def simulations(
    part: Part, costs: np.ndarray, gpus: int, rate: float, repeats: int, random: np.random.Generator
) -> list[Simulated]:
    """Several simulations of a part; one of a part that cannot fail."""
    many = part.divided == "shards" and part.name not in BY_LENGTH
    if not rate:
        repeats = 1
    elif part.divided == "together":
        # A training that seldom gets to its next checkpoint varies most, and is quick to simulate.
        repeats *= 100
    seconds = costs.tolist()
    return [simulate(part, seconds, gpus, rate, random, many) for _ in range(repeats)]


def totals(table: pd.DataFrame) -> pd.DataFrame:
    """Hours of the whole run, by rate of failures and number of GPUs."""
    columns = ["planned_hours", "simulated_hours", "planned_lost", "simulated_lost"]
    return table.groupby([RATE, "gpus"], as_index=False)[columns].sum()


@styled
def draw(table: pd.DataFrame, trajectories: int) -> Figure:
    """Left: hours of the run. Right: which steps they consist of."""
    figure, (left, right) = panels(2, width=4.8)
    hours = totals(table)
    _draw_hours(left, hours)
    left.set_title(f"{trajectories:,} trajectories")
    finished = hours[hours["planned_hours"] < inf]
    rates = sorted((finished if len(finished) else hours)[RATE].unique())
    # The lowest rate is often 0. The next one shows what failures change.
    rate = rates[:2][-1] if len(finished) else rates[0]
    _draw_shares(right, table[table[RATE] == rate])
    right.set_title(f"which step takes it, at {rate:g} failures")
    return figure


def _draw_hours(axes: Axes, hours: pd.DataFrame) -> None:
    for number, (rate, rows) in enumerate(hours.groupby(RATE)):
        colour = OKABE_ITO[number]
        ends = "" if rows["planned_hours"].min() < inf else " (does not finish)"
        label = f"{rate:g} failures per GPU-hour{ends}"
        axes.plot(rows["gpus"], rows["planned_hours"], color=colour, label=label)
        axes.plot(rows["gpus"], rows["simulated_hours"], MARKERS[number], color=colour, markersize=4.5)
    first = hours[hours[RATE] == hours[RATE].min()]
    ideal = first["planned_hours"].iloc[0] * first["gpus"].iloc[0] / first["gpus"]
    axes.plot(first["gpus"], ideal, ":", color=GREY, label="in proportion to GPUs")
    axes.plot([], [], "-o", color=GREY, markersize=4.5, label="line: planner, marker: simulation")
    axes.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="hours")
    counts = sorted(hours["gpus"].unique())
    axes.set_xticks(counts, list(map(str, counts)))
    axes.minorticks_off()
    axes.legend(loc="lower left")


def _draw_shares(axes: Axes, rows: pd.DataFrame) -> None:
    """Bars of the steps' shares of the time, one per number of GPUs."""
    shares = rows.pivot_table(index="gpus", columns="step", values="simulated_hours", sort=False)
    shares = shares.div(shares.sum(axis=1), axis=0).fillna(0.0)
    places = range(len(shares))
    bottom = np.zeros(len(shares))
    for number, step in enumerate(shares.columns):
        values = shares[step].to_numpy()
        colour = OKABE_ITO[number % len(OKABE_ITO)]
        axes.bar(places, values, bottom=bottom, color=colour, label=step, width=0.8)
        bottom += values
    axes.set_xticks(places, list(map(str, shares.index)))
    axes.set(xlabel="GPUs", ylabel="share of the time", ylim=(0, 1))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def with_defaults(settings: Sequence[str]) -> list[str]:
    """The user's settings, and the defaults of this program that they do not replace."""
    keys = {_key(setting) for setting in settings}
    return [*(setting for setting in SETTINGS if _key(setting) not in keys), *settings]


def _key(setting: str) -> str:
    return setting.partition("=")[0]


def _within(key: str, kind: type[int] | type[float]) -> Callable[[str], float]:
    """A number of the command line, within the planner's limits."""
    least = 1 if kind is int else 0

    def read(text: str) -> float:
        value = kind(text)
        if not least <= value <= LIMITS[key]:
            raise argparse.ArgumentTypeError(f"{text}: must be a number from {least} to {LIMITS[key]:,}")
        return value

    return read


def report(hours: pd.DataFrame) -> None:
    """Print the totals, and from which number of GPUs on more of them help little."""
    rows = []
    for rate, gpus, planned, simulated, planned_lost, simulated_lost in hours.itertuples(index=False):
        row = [f"{rate:g}", f"{gpus:.0f}", duration(planned * 3600)]
        if planned < inf:
            row += [duration(simulated * 3600), f"{planned / simulated:.3f}"]
            row += [f"{planned_lost:,.1f}", f"{simulated_lost:,.1f}"]
        else:
            row += ["not simulated", "", "", ""]
        rows.append(row)
    log.info("%s", text_table(HEADER, rows))
    for rate, part in hours.groupby(RATE):
        count = stops_falling(dict(zip(part["gpus"], part["simulated_hours"], strict=True)))
        if count is not None:
            log.info(
                "%g failures per GPU-hour: beyond %d GPUs, twice as many save less than a tenth of the time",
                rate,
                count,
            )


def main() -> None:
    log_to()
    parser = command_line(__doc__, "100,000 trajectories on up to 64 GPUs")
    parser.add_argument("--trajectories", type=_within("trajectories", int), help="10,000,000 unless --quick")
    parser.add_argument(
        "--failures", type=_within(RATE, float), nargs="+", default=[0.0, 0.002, 0.02], help="per GPU-hour"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="simulations with failures; 100 times as many of training"
    )
    parser.add_argument("--outputs", type=Path, help="the same as the setting outputs=")
    parser.add_argument("settings", nargs="*", help=f"settings of run.py, added to {' '.join(SETTINGS)}")
    arguments = parser.parse_args()
    trajectories = arguments.trajectories or (100_000 if arguments.quick else 10_000_000)
    counts = COUNTS[:7] if arguments.quick else COUNTS
    config = composed(with_defaults(arguments.settings))
    require_gpus(config)
    with tempfile.TemporaryDirectory() as temporary:
        steps = wanted(make_plan(config, Checksums(Path(temporary)), elsewhere=True), config.stages)
    table = compare(config, steps, trajectories, counts, arguments.failures, arguments.repeats)
    hours = totals(table)
    report(hours)
    folder = (arguments.outputs or config.outputs_path) / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / "cluster.csv", index=False)
    if hours["planned_hours"].min() == inf:
        log.info("At these rates nothing finishes: there is no figure. %s", folder / "cluster.csv")
        return
    save(draw(table, trajectories), folder / "cluster")
    log.info("%s", folder / "cluster.png")


if __name__ == "__main__":
    run_main(main)
