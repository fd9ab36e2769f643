"""Time and memory of the statistics, relative to the forward pass that they need anyway, compared with the
usual ways.

Run as: python -m experiments.bench.scoring [--quick] [--threads 1] Time: about 10 minutes on 2 idle cores,
1 minute with --quick. On a busy machine use --threads 1: it then measures the processor time of one thread,
which other jobs disturb less, and takes twice as long. Expect: `ours` at most 1.00 times the bare forward
pass to logits (1.25 without a compiler), and under 256 MiB; the selection from 5,000 questions with 33
candidates each in under 1 s, for every method and weighting. Writes outputs/bench/scoring.csv, scoring.png
and selection.csv.

Models. Random weights in fp32, in the shapes of SmolLM2-135M (V = 49,152) and Qwen2.5-0.5B (V = 151,936)
with all their layers, so that the ratio is the one that users see: with fewer layers, the head and any
change to it have more weight. Time. Every variant needs the same backbone. So each round runs the backbone
once, and then every variant's head on its output, in rotating order; a variant's ratio is (backbone + its
head) / (backbone + bare head) within the round, and the median over rounds is reported. To check that
adding the times is valid, the model's own forward pass and ours also run end to end at the smallest size
and are compared. Memory. The rise of the resident set while a head runs, from the kernel's high-water mark
(VmHWM). Beforehand, free memory is returned (malloc_trim) and the mark is reset (5 to
/proc/self/clear_refs), so no earlier variant's memory counts.
"""

import argparse
import csv
import ctypes
import gc
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import matplotlib as mpl
import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from lark.models.head import Head, last_hidden_state
from lark.printing import log_to, text_table
from lark.scoring.methods import METHODS
from lark.scoring.statistics import detailed_statistics, token_statistics
from lark.scoring.tokens import ALTERNATIVES
from lark.selection.character import character
from lark.selection.rules import WEIGHTINGS, select
from lark.work.entry import run_main

log = logging.getLogger("bench.scoring")
FOLDER = Path("outputs/bench")
BACKBONE, BARE, OURS, UNCOMPILED = "backbone only", "bare logits", "ours, all statistics", "ours, uncompiled"
DETAILED = "ours, with entropy and top 5"
BARE_WHOLE, OURS_WHOLE = "bare logits, end to end", "ours, end to end"
R = TypeVar("R")
Work = Callable[[Tensor, Tensor, Head], object]


@dataclass(frozen=True)
class Size:
    """One measurement: a model's shape, the length of its input, and the number of rounds."""

    shape: str
    vocabulary: int
    tokens: int
    rounds: int
    layers: int | None = None
    end_to_end: bool = False

    @property
    def label(self) -> tuple[str, str, str]:
        return self.shape, f"{self.vocabulary:,}", f"{self.tokens:,}"


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


@dataclass(frozen=True)
class SelectionResult:
    """Scores from statistics, ranking, weights and character of a whole pool, from memory to memory."""

    method: str
    weighting: str
    questions: int
    candidates: int
    seconds: float
    lowest: float
    highest: float


FULL = [
    Size("SmolLM2-135M", 49_152, 2048, rounds=5, end_to_end=True),
    Size("SmolLM2-135M", 49_152, 8192, rounds=2),
    Size("Qwen2.5-0.5B", 151_936, 2048, rounds=3),
    Size("Qwen2.5-0.5B", 151_936, 8192, rounds=1),
]
QUICK = [
    Size("SmolLM2-135M", 49_152, 1024, rounds=3, layers=6, end_to_end=True),
    Size("SmolLM2-135M", 49_152, 2048, rounds=3, layers=6),
]


def bare_logits(hidden: Tensor, targets: Tensor, head: Head) -> Tensor:
    return functional.linear(hidden, head.weight)


def nll(hidden: Tensor, targets: Tensor, head: Head) -> tuple[Tensor, Tensor]:
    logits = bare_logits(hidden, targets, head)
    return logits, functional.cross_entropy(logits, targets, reduction="none")


def nll_and_top_50_residual(hidden: Tensor, targets: Tensor, head: Head) -> tuple[Tensor, Tensor]:
    """Brier over the 50 largest logits, renormalised, as the authors' released code does: an approximation."""
    logits, loss = nll(hidden, targets, head)
    values, words = logits.topk(50, dim=-1)
    gap = values.softmax(-1) - (words == targets[:, None]).float()
    return loss, gap.square().sum(-1)


def nll_and_top_100_rank(hidden: Tensor, targets: Tensor, head: Head) -> tuple[Tensor, Tensor]:
    """The rank clipped at 100, from the 100 largest logits, as RSR's code does."""
    logits, loss = nll(hidden, targets, head)
    found = logits.topk(100, dim=-1).indices == targets[:, None]
    return loss, torch.where(found.any(-1), found.int().argmax(-1) + 1, 100)


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


def random_student(size: Size) -> PreTrainedModel:
    """A model of the named shape with random weights."""
    torch.manual_seed(0)
    common: dict[str, Any] = {
        "vocab_size": size.vocabulary,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32_768,
    }
    if size.shape == "SmolLM2-135M":
        heads: dict[str, Any] = {"num_attention_heads": 9, "num_key_value_heads": 3}
        llama = LlamaConfig(
            hidden_size=576, intermediate_size=1536, num_hidden_layers=size.layers or 30, **heads, **common
        )
        return LlamaForCausalLM(llama).eval()
    heads = {"num_attention_heads": 14, "num_key_value_heads": 2}
    qwen = Qwen2Config(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=size.layers or 24, **heads, **common
    )
    return Qwen2ForCausalLM(qwen).eval()


def process_status(field: str) -> int:
    """A size in bytes from /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def measure(work: Callable[[], R]) -> tuple[float, float, R]:
    """Seconds and peak MiB of one call, and its result."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = process_status("VmRSS")
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    result = work()
    seconds = clock() - start
    return seconds, (process_status("VmHWM") - before) / 2**20, result


def fits(variant: str, size: Size) -> bool:
    """Whether a variant's logits, with a tenth to spare, fit into free memory."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return LOGIT_COPIES.get(variant, 0) * 4 * size.vocabulary * size.tokens * 1.1 < free


def measure_size(size: Size) -> list[ScoringResult]:
    """Measure all variants that fit into memory at one size, and at the smallest size two of them end to
    end.
    """
    model = random_student(size)
    head = Head.of(model)
    ids = torch.randint(0, size.vocabulary, (1, size.tokens + 1))
    inputs, targets = ids[:, :-1], ids[0, 1:]
    heads = {name: work for name, work in VARIANTS.items() if fits(name, size)}
    for work in heads.values():  # compile, and touch everything once
        work(last_hidden_state(model, inputs[:, :64])[0], targets[:64], head)
    seconds: dict[str, list[float]] = defaultdict(list)
    peaks: dict[str, float] = {}
    for turn in range(size.rounds):
        backbone, peaks[BACKBONE], output = measure(lambda: last_hidden_state(model, inputs))
        seconds[BACKBONE].append(backbone)
        names = list(heads)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            extra, peaks[name] = measure(partial(heads[name], output[0], targets, head))[:2]
            seconds[name].append(backbone + extra)
        del output
        if size.end_to_end:
            for name, whole in (
                (BARE_WHOLE, lambda: model(input_ids=inputs, use_cache=False).logits),
                (OURS_WHOLE, lambda: heads[OURS](last_hidden_state(model, inputs)[0], targets, head)),
            ):
                total, peaks[name] = measure(whole)[:2]
                seconds[name].append(total)
        log.info("%s, V = %s, T = %s: round %d of %d", *size.label, turn + 1, size.rounds)
    return [
        summary(size, name, seconds, peaks)
        for name in [BACKBONE, *heads, *([BARE_WHOLE, OURS_WHOLE] * size.end_to_end)]
    ]


def summary(size: Size, name: str, seconds: dict[str, list[float]], peaks: dict[str, float]) -> ScoringResult:
    """One row of the table. Ratios are within a round; NaN if the bare logits, the reference, did not fit
    into memory.
    """
    yardstick = seconds[BARE_WHOLE if name == OURS_WHOLE else BARE] or [float("nan")] * size.rounds
    ratios = [mine / bare for mine, bare in zip(seconds[name], yardstick, strict=True)]
    return ScoringResult(
        *(size.shape, size.vocabulary, size.tokens, name, median(seconds[name])),
        *(median(ratios), min(ratios), max(ratios), peaks[name]),
    )


def draw(results: list[ScoringResult], path: Path) -> None:
    """Draw time and memory of every variant, one group of bars per size."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 (the backend has to be chosen first)

    sizes = list(dict.fromkeys((r.vocabulary, r.tokens) for r in results))
    names = [BACKBONE, *VARIANTS]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12, 0.55 * len(sizes) * len(names) ** 0.5 + 2.6), layout="constrained"
    )
    for i, name in enumerate(names):
        rows = {(r.vocabulary, r.tokens): r for r in results if r.variant == name}
        where = [
            j + (i - len(names) / 2) / (len(names) + 1.5) for j, size in enumerate(sizes) if size in rows
        ]
        colour = "#c0392b" if name.startswith("ours") else str(0.25 + 0.1 * i)
        hatch = {UNCOMPILED: "///", DETAILED: "..."}.get(name)
        style = {
            "height": 1 / (len(names) + 1.5),
            "color": colour,
            "label": name,
            "hatch": hatch,
            "edgecolor": "white",
        }
        left.barh(where, [r.ratio for r in rows.values()], **style)
        right.barh(where, [max(r.peak_mib, 1) for r in rows.values()], **style)
        for axis, texts in (
            (left, [f"{r.ratio:.2f}" for r in rows.values()]),
            (right, [f"{r.peak_mib:,.0f}" for r in rows.values()]),
        ):
            axis.bar_label(axis.containers[-1], texts, padding=2, fontsize=7)
    left.axvline(1, color="black", linewidth=0.8)
    left.margins(x=0.08)
    left.set_xlabel("time / bare forward pass to logits")
    right.axvline(256, color="black", linewidth=0.8, linestyle="--")
    right.set_xscale("log")
    right.set_xlabel("peak memory beyond model and hidden states, MiB (dashed: 256)")
    for axis in (left, right):
        axis.set_yticks(range(len(sizes)), [f"V = {v:,}\nT = {t:,}" for v, t in sizes])
        axis.invert_yaxis()
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def measure_selection(questions: int = 5000, candidates: int = 33, rounds: int = 5) -> list[SelectionResult]:
    """Measure every method that reads the pass's statistics, and LARK with every weighting, at the paper's
    scale.
    """
    rng, rows = np.random.default_rng(0), questions * candidates
    n_tokens = rng.integers(500, 30_000, rows)
    nll = n_tokens * rng.gamma(4, 0.1, rows)
    pool = pd.DataFrame(
        {
            "question_id": np.repeat([f"question-{n}" for n in range(questions)], candidates),
            "candidate_id": np.tile([f"teacher-{n}" for n in range(candidates)], questions),
            "n_tokens": n_tokens,
            "nll": nll,
            "brier": nll * rng.uniform(0.2, 0.7, rows),
            "rank_sum": n_tokens * rng.uniform(1, 20, rows),
        }
    ).sample(frac=1, random_state=0)
    cases = [(name, "uniform") for name, method in METHODS.items() if method.needs == {"statistics"}]
    results = []
    for name, weighting in [
        *cases,
        *(("lark", weighting) for weighting in WEIGHTINGS if weighting != "uniform"),
    ]:
        method, seconds = METHODS[name], []
        for _ in range(rounds):
            start = time.perf_counter()
            score = method.score(pool)
            made = select(
                score,
                pool["question_id"],
                pool["candidate_id"],
                3,
                weighting,
                higher_is_better=method.higher_is_better,
            )
            character(score if method.higher_is_better else -score, pool, made.row)
            seconds.append(time.perf_counter() - start)
        results.append(
            SelectionResult(
                name, weighting, questions, candidates, median(seconds), min(seconds), max(seconds)
            )
        )
    return results


def verdicts(results: list[ScoringResult]) -> list[str]:
    """Targets and measurements, two lines per size."""
    lines = []
    for size in dict.fromkeys((r.vocabulary, r.tokens) for r in results):
        found = {r.variant: r for r in results if (r.vocabulary, r.tokens) == size}
        for name, limit in ((OURS, 1.00), (UNCOMPILED, 1.25)):
            reached = (
                "reached" if found[name].ratio <= limit and found[name].peak_mib < 256 else "NOT reached"
            )
            time_and_memory = (
                f"{found[name].ratio:.3f} (at most {limit:.2f}), {found[name].peak_mib:.0f} MiB (under 256)"
            )
            lines.append(f"V = {size[0]:,}, T = {size[1]:,}, {name}: {time_and_memory}: {reached}")
    return lines


def write(results: Sequence[ScoringResult] | Sequence[SelectionResult], path: Path) -> None:
    """Write the table as CSV."""
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, [field.name for field in fields(results[0])])
        writer.writeheader()
        writer.writerows(map(asdict, results))


@torch.no_grad()
def main() -> None:
    log_to()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a model of six layers: ratios are less realistic"
    )
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="1: measure processor time"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    FOLDER.mkdir(parents=True, exist_ok=True)
    results: list[ScoringResult] = []
    for size in QUICK if arguments.quick else FULL:
        results += measure_size(size)
        write(
            results, FOLDER / "scoring.csv"
        )  # after each size, so that an interrupted run leaves what it has
        draw(results, FOLDER / "scoring.png")
    rows = [
        [r.shape, f"{r.vocabulary:,}", f"{r.tokens:,}", r.variant, f"{r.seconds:.2f}", f"{r.ratio:.3f}",
         f"{r.lowest:.3f}-{r.highest:.3f}", f"{r.peak_mib:,.0f}"]
        for r in results
    ]  # fmt: skip
    log.info(
        "\n%s\n",
        text_table(
            ["shape", "V", "T", "variant", "seconds", "ratio", "lowest-highest", "MiB"], rows, right=4
        ),
    )
    log.info("\n".join(verdicts(results)))
    selection = measure_selection()
    write(selection, FOLDER / "selection.csv")
    rows = [[s.method, s.weighting, f"{s.seconds:.3f}", f"{s.lowest:.3f}-{s.highest:.3f}"] for s in selection]
    header = ["method", "weighting", "seconds", "lowest-highest"]
    log.info(
        "\n3 of 33 candidates for each of 5,000 questions (under 1 s):\n\n%s",
        text_table(header, rows, right=2),
    )


if __name__ == "__main__":
    run_main(main)
