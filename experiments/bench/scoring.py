"""Time and memory of the statistics, relative to the forward pass that they need anyway, compared with the
usual ways.

Run as: python -m experiments.bench.scoring [--quick] [--threads 1]
Time: about 10 minutes on 2 idle cores, 1 minute with --quick. On a busy machine use --threads 1: it then
measures the processor time of one thread, which other jobs disturb less, and takes twice as long.
Expect: `ours` at most 1.00 times the bare forward pass to logits (1.25 without a compiler), under 256 MiB.
Writes scoring.csv and scoring.png to outputs/bench.

Models: random weights in fp32, in the shapes of SmolLM2-135M (V = 49,152) and Qwen2.5-0.5B (V = 151,936) with
all their layers, so that the ratio is the one that users see: with fewer layers, the head and any change to
it have more weight.

Time: every variant needs the same backbone. So each round runs the backbone once, and then every variant's
head on its output, in rotating order; a variant's ratio is (backbone + its head) / (backbone + bare head)
within the round, and the median over rounds is reported. To check that adding the times is valid, the model's
own forward pass and ours also run end to end at the smallest size and are compared.

Memory: the rise of the resident set while a head runs, from the kernel's high-water mark (VmHWM).
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional

from experiments.bench._measuring import free_mib, in_turns, measure, ratios, with_threads
from experiments.bench._output import FOLDER, command_line, table, verdict, write_csv
from experiments.bench._random_student import StudentSize, random_student
from lark.models.head import Head, last_hidden_state
from lark.printing import log_to
from lark.scoring.statistics import detailed_statistics, token_statistics
from lark.scoring.tokens import ALTERNATIVES
from lark.work.entry import run_main

log = logging.getLogger("bench.scoring")
BACKBONE = "backbone only"
BARE = "bare logits"
OURS = "ours, all statistics"
UNCOMPILED = "ours, uncompiled"
DETAILED = "ours, with entropy and top 5"
BARE_WHOLE = "bare logits, end to end"
OURS_WHOLE = "ours, end to end"
GOALS = {OURS: 1.00, UNCOMPILED: 1.25}
GOAL_MIB = 256
Work = Callable[[Tensor, Tensor, Head], object]


@dataclass(frozen=True)
class ScoringResult:
    """One row of the table. `ratio` is relative to the bare forward pass to logits. `peak_mib` excludes
    what the work starts with: the model, and for a head the hidden states.
    """

    shape: str
    vocabulary: int
    tokens: int
    variant: str
    seconds: float
    ratio: float
    lowest: float
    highest: float
    peak_mib: float

    @property
    def size(self) -> tuple[int, int]:
        return self.vocabulary, self.tokens


COLUMNS = {
    "shape": "{r.shape}",
    "V": "{r.vocabulary:,}",
    "T": "{r.tokens:,}",
    "variant": "{r.variant}",
    "seconds": "{r.seconds:.2f}",
    "ratio": "{r.ratio:.3f}",
    "lowest-highest": "{r.lowest:.3f}-{r.highest:.3f}",
    "MiB": "{r.peak_mib:,.0f}",
}
FULL = [
    StudentSize("SmolLM2-135M", 49_152, 2048, rounds=5, end_to_end=True),
    StudentSize("SmolLM2-135M", 49_152, 8192, rounds=2),
    StudentSize("Qwen2.5-0.5B", 151_936, 2048, rounds=3),
    StudentSize("Qwen2.5-0.5B", 151_936, 8192, rounds=1),
]
QUICK = [
    StudentSize("SmolLM2-135M", 49_152, 1024, rounds=3, layers=6, end_to_end=True),
    StudentSize("SmolLM2-135M", 49_152, 2048, rounds=3, layers=6),
]


def bare_logits(hidden: Tensor, targets: Tensor, head: Head) -> Tensor:
    return functional.linear(hidden, head.weight)


def nll(hidden: Tensor, targets: Tensor, head: Head) -> tuple[Tensor, Tensor]:
    logits = bare_logits(hidden, targets, head)
    return logits, functional.cross_entropy(logits, targets, reduction="none")


def nll_and_top_50_residual(hidden: Tensor, targets: Tensor, head: Head) -> tuple[Tensor, Tensor]:
    """Brier over the 50 largest logits, renormalised as in the authors' released code: an approximation."""
    logits, loss = nll(hidden, targets, head)
    values, words = logits.topk(50, dim=-1)
    gap = values.softmax(-1) - (words == targets[:, None]).float()
    return loss, gap.square().sum(-1)


def nll_and_top_100_rank(hidden: Tensor, targets: Tensor, head: Head) -> tuple[Tensor, Tensor]:
    """The rank clipped at 100, from the 100 largest logits, as RSR's code does."""
    logits, loss = nll(hidden, targets, head)
    is_target = logits.topk(100, dim=-1).indices == targets[:, None]
    rank = is_target.int().argmax(-1) + 1
    return loss, torch.where(is_target.any(-1), rank, 100)


VARIANTS: dict[str, Work] = {
    BARE: bare_logits,
    "NLL": nll,
    "NLL + top-50 residual": nll_and_top_50_residual,
    "NLL + top-100 rank": nll_and_top_100_rank,
    OURS: lambda hidden, targets, head: token_statistics(hidden, targets, head, "torch"),
    DETAILED: lambda hidden, targets, head: detailed_statistics(hidden, targets, head, ALTERNATIVES, "torch"),
    UNCOMPILED: lambda hidden, targets, head: token_statistics(hidden, targets, head, "eager"),
}
LOGIT_COPIES = {BARE: 1, "NLL": 2, "NLL + top-50 residual": 2, "NLL + top-100 rank": 2}
"""Tensors of all logits that a variant holds at once. It is skipped if they do not fit into free memory."""


def fits(variant: str, size: StudentSize) -> bool:
    """True if a variant's logits, with a tenth to spare, fit into free memory."""
    logits = 4 * size.vocabulary * size.tokens
    return LOGIT_COPIES.get(variant, 0) * logits * 1.1 < free_mib() * 2**20


def measure_size(size: StudentSize) -> list[ScoringResult]:
    """Measure all variants that fit into memory at one size, and at the smallest size two of them end to
    end.
    """
    model = random_student(size)
    head = Head.of(model)
    ids = torch.randint(0, size.vocabulary, (1, size.tokens + 1))
    inputs = ids[:, :-1]
    targets = ids[0, 1:]
    heads = {name: work for name, work in VARIANTS.items() if fits(name, size)}
    for work in heads.values():  # compile, and touch everything once
        work(last_hidden_state(model, inputs[:, :64])[0], targets[:64], head)
    whole: dict[str, Callable[[], object]] = {}
    if size.end_to_end:
        whole[BARE_WHOLE] = lambda: model(input_ids=inputs, use_cache=False).logits
        whole[OURS_WHOLE] = lambda: heads[OURS](last_hidden_state(model, inputs)[0], targets, head)
    seconds: dict[str, list[float]] = defaultdict(list)
    peaks: dict[str, float] = {}
    for turn in range(size.rounds):
        backbone, peaks[BACKBONE], output = measure(lambda: last_hidden_state(model, inputs))
        seconds[BACKBONE].append(backbone)
        # Results are not kept: their memory would count as the next variant's.
        for name in in_turns(heads, turn):
            extra, peaks[name] = measure(partial(heads[name], output[0], targets, head))[:2]
            seconds[name].append(backbone + extra)
        del output
        for name, run in whole.items():
            total, peaks[name] = measure(run)[:2]
            seconds[name].append(total)
        log.info(
            "%s, V = %s, T = %s: round %d of %d",
            size.shape, f"{size.vocabulary:,}", f"{size.tokens:,}", turn + 1, size.rounds,
        )  # fmt: skip
    return [result(size, name, seconds, peaks[name]) for name in (BACKBONE, *heads, *whole)]


def result(
    size: StudentSize, name: str, seconds: Mapping[str, Sequence[float]], peak: float
) -> ScoringResult:
    """One row of the table. Its ratios are NaN if the bare logits, the reference, did not fit into memory."""
    reference = seconds[BARE_WHOLE if name == OURS_WHOLE else BARE] or [float("nan")] * size.rounds
    measured = median(seconds[name]), *ratios(seconds[name], reference)
    return ScoringResult(size.shape, size.vocabulary, size.tokens, name, *measured, peak)


def draw(results: Sequence[ScoringResult], path: Path) -> None:
    """Draw time and memory of every variant, one group of bars per size."""
    sizes = list(dict.fromkeys(r.size for r in results))
    names = [BACKBONE, *VARIANTS]
    height = 0.55 * len(sizes) * len(names) ** 0.5 + 2.6
    figure = Figure(figsize=(12, height), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, name in enumerate(names):
        rows = [r for r in results if r.variant == name]
        width = 1 / (len(names) + 1.5)
        offset = (number - len(names) / 2) * width
        style = {
            "y": [sizes.index(r.size) + offset for r in rows],
            "height": width,
            "color": "#c0392b" if name.startswith("ours") else str(0.25 + 0.1 * number),
            "label": name,
            "hatch": {UNCOMPILED: "///", DETAILED: "..."}.get(name),
            "edgecolor": "white",
        }
        bars = left.barh(width=[r.ratio for r in rows], **style)
        left.bar_label(bars, [f"{r.ratio:.2f}" for r in rows], padding=2, fontsize=7)
        bars = right.barh(width=[max(r.peak_mib, 1) for r in rows], **style)
        right.bar_label(bars, [f"{r.peak_mib:,.0f}" for r in rows], padding=2, fontsize=7)
    left.axvline(1, color="black", linewidth=0.8)
    left.margins(x=0.08)
    left.set_xlabel("time / bare forward pass to logits")
    right.axvline(GOAL_MIB, color="black", linewidth=0.8, linestyle="--")
    right.set_xscale("log")
    right.set_xlabel(f"peak memory beyond model and hidden states, MiB (dashed: {GOAL_MIB})")
    for axes in (left, right):
        _name_sizes(axes, sizes)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=150)


def _name_sizes(axes: Axes, sizes: Sequence[tuple[int, int]]) -> None:
    axes.set_yticks(range(len(sizes)), [f"V = {v:,}\nT = {t:,}" for v, t in sizes])
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def verdicts(results: Sequence[ScoringResult]) -> list[str]:
    """Goals and measurements, two lines per size."""
    lines = []
    for r in results:
        if r.variant in GOALS:
            goal = GOALS[r.variant]
            is_reached = r.ratio <= goal and r.peak_mib < GOAL_MIB
            lines.append(
                f"V = {r.vocabulary:,}, T = {r.tokens:,}, {r.variant}: {r.ratio:.3f} (at most {goal:.2f}),"
                f" {r.peak_mib:.0f} MiB (under {GOAL_MIB}): {verdict(is_reached)}"
            )
    return lines


@torch.no_grad()
def main() -> None:
    log_to()
    parser = with_threads(command_line(__doc__, "a model of six layers: ratios are less realistic"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results: list[ScoringResult] = []
    for size in QUICK if arguments.quick else FULL:
        results += measure_size(size)
        # After each size, so that an interrupted run leaves what it has.
        write_csv(results, "scoring.csv")
        draw(results, FOLDER / "scoring.png")
    log.info("\n%s\n", table(results, COLUMNS, right=4))
    log.info("\n".join(verdicts(results)))


if __name__ == "__main__":
    run_main(main)
