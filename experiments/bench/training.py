"""The benefit of packing and of the chunked loss, measured on this machine.

Run as: python -m experiments.bench.training [--quick]
Time: about 12 minutes of one core, 1 minute with --quick (smaller parts (ii) and (iii)). Times are processor
time of one thread.
Expect: at 5,000 log-normal lengths at least 99% of the slots used in under 1 s (next-fit: about 86%); the
loss needs a small fraction of the memory of full logits. On one core packs are as fast as trajectories one by
one, and nearly three times as fast as padded batches in the order of the shuffle (measured: 4,910, 5,069 and
1,779 tokens/s): one trajectory keeps a core busy, so packing only saves padding there.
Writes training.csv and training.png to outputs/bench.
"""

import argparse
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from matplotlib.figure import Figure
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.bench._measuring import free_mib, measure, timed
from experiments.bench._output import FOLDER, command_line, write_csv
from lark.models.attention import assert_packing_separates, separate_segments
from lark.models.chat import Encoded
from lark.printing import log_to
from lark.training.grouping import pack, utilisation
from lark.training.loss import weighted_loss
from lark.training.packing import MicroBatch, collate_packed, collate_padded, plan_batches
from lark.work.entry import run_main

log = logging.getLogger("bench.training")
CAPACITY = 32_768
GLOBAL_BATCH = 64
HEAD_BYTES_LEFT = 1.3
"""Full logits are measured only if this many times their expected memory is free; otherwise extrapolated
and marked as such.
"""
Packing = Callable[[Sequence[int], int], list[list[int]]]
FIGURE = {"packing": "slots used", "training": "speed", "memory": "peak"}
"""The quantity of each part that the figure shows."""


@dataclass(frozen=True)
class TrainingResult:
    """One measured number."""

    part: str
    case: str
    quantity: str
    value: float
    unit: str


def log_normal(count: int, middle: int, longest: int, seed: int = 0) -> list[int]:
    """Lengths like those of reasoning trajectories: median `middle`, a long right tail, cut at `longest`."""
    draws = np.random.default_rng(seed).lognormal(np.log(middle), 0.8, count)
    return np.clip(draws, middle // 32 + 2, longest).astype(int).tolist()


def next_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """The simplest rule, for comparison: a new pack whenever the next sequence does not fit."""
    packs: list[list[int]] = []
    room = 0
    for index, length in enumerate(lengths):
        if length > room:
            packs.append([])
            room = capacity
        packs[-1].append(index)
        room -= length
    return packs


def measure_packing() -> list[TrainingResult]:
    """Part (i): the slots that packing uses, and its time."""
    results = []
    for count in (500, 5000):
        lengths = log_normal(count, 4000, CAPACITY)
        rules: dict[str, Packing] = {"best-fit decreasing": pack, "next-fit": next_fit}
        for name, rule in rules.items():
            case = f"{name}, {count} sequences"
            used = utilisation(rule(lengths, CAPACITY), lengths, CAPACITY)
            results.append(TrainingResult("packing", case, "slots used", 100 * used, "%"))
            seconds = min(timed(partial(rule, lengths, CAPACITY))[0] for _ in range(3))
            results.append(TrainingResult("packing", case, "time", 1000 * seconds, "ms"))
    for processes in (1, 8):
        for name, packed in (("packed", True), ("padded, 1 each", False)):
            case = f"global batches of {GLOBAL_BATCH}, {processes} process(es), {name}"
            busy = 100 * processes_busy(lengths, processes, packed)
            quantity = "useful tokens while the slowest process works"
            results.append(TrainingResult("plan", case, quantity, busy, "%"))
    return results


def processes_busy(lengths: Sequence[int], processes: int, packed: bool) -> float:
    """Tokens relative to what all processes could have processed, if they wait for each other at every
    micro-step.
    """
    steps = plan_batches(
        lengths,
        global_batch=GLOBAL_BATCH,
        processes=processes,
        capacity=CAPACITY,
        seed=0,
        epoch=0,
        packed=packed,
    )
    slots = 0
    for step in steps:
        for together in zip(*step.micro, strict=True):
            loads = [sum(lengths[i] for i in micro) for micro in together]
            slots += processes * max(loads)
    return sum(lengths) / slots


def measure_training(quick: bool) -> list[TrainingResult]:
    """Part (ii): one global batch forward and backward, arranged in different ways, interleaved and
    repeated.
    """
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048, hidden_size=128, intermediate_size=344, num_hidden_layers=4, num_attention_heads=4
    )
    config._attn_implementation = "sdpa"
    model = LlamaForCausalLM(config)
    capacity, repeats = (1024, 2) if quick else (4096, 3)
    lengths = log_normal(GLOBAL_BATCH, capacity // 8, capacity)
    encoded = [Encoded(torch.randint(2048, (n,)).tolist(), max(1, n // 8), False) for n in lengths]
    arrange = partial(arranged, lengths, encoded, capacity)
    segmented = "packed, a kernel call per trajectory"
    batches = {
        segmented: arrange(packed=True),
        "packed, masked": arrange(packed=True),
        "padded, 8 of similar length": arrange(packed=False, micro_batch=8),
        "padded, 1 each": arrange(packed=False),
        "padded, 8 in order of the shuffle": [
            collate_padded(encoded[start : start + 8], [1.0] * 8) for start in range(0, GLOBAL_BATCH, 8)
        ],
    }
    seconds: dict[str, list[float]] = {case: [] for case in batches}
    for repeat in range(repeats + 1):
        for case, micro in batches.items():
            model.set_attn_implementation("sdpa")
            if case == segmented:
                separate_segments(model)
            if repeat == 0:
                assert_packing_separates(model)
            spent, _ = timed(partial(train, model, micro))
            if repeat:  # the first one compiles, and touches everything once
                seconds[case].append(spent)
    results = []
    for case, times in seconds.items():
        speed = sum(lengths) / median(times)
        results.append(TrainingResult("training", case, "speed", speed, "tokens/s, one core"))
    return results


def arranged(
    lengths: Sequence[int], encoded: Sequence[Encoded], capacity: int, packed: bool, micro_batch: int = 1
) -> list[MicroBatch]:
    """The micro-batches of the single global batch, on one process."""
    (plan,) = plan_batches(
        lengths,
        global_batch=len(lengths),
        processes=1,
        capacity=capacity,
        seed=0,
        epoch=0,
        packed=packed,
        micro_batch=micro_batch,
    )
    collate = collate_packed if packed else collate_padded
    return [collate([encoded[i] for i in micro], [1.0] * len(micro)) for micro in plan.micro[0]]


def train(model: LlamaForCausalLM, batches: Sequence[MicroBatch]) -> None:
    """Forward and backward pass of one global batch."""
    for batch in batches:
        packed = {} if batch.segments is None else batch.segments.arguments(model.model)
        output = model.model(
            input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, **packed
        )
        loss, *_ = weighted_loss(
            output.last_hidden_state.flatten(0, 1),
            model.lm_head.weight,
            batch.targets.flatten(),
            batch.segment.flatten(),
            batch.weights,
            batch.lengths,
            GLOBAL_BATCH,
        )
        loss.backward()
        model.zero_grad()


def measure_memory(quick: bool) -> list[TrainingResult]:
    """Part (iii): forward and backward of the head alone, each in a separate process."""
    tokens, vocabulary = (1024, 32_000) if quick else (8192, 151_936)
    case = f"{tokens} tokens, {vocabulary} words"
    peak, seconds = in_process("ours", tokens, vocabulary)
    results = [
        TrainingResult("memory", f"chunked, {case}", "peak", peak, "MiB"),
        TrainingResult("memory", f"chunked, {case}", "time", seconds, "s"),
    ]
    eighth, _ = in_process("full", tokens // 8, vocabulary)
    quarter, _ = in_process("full", tokens // 4, vocabulary)
    per_token = (quarter - eighth) / (tokens // 4 - tokens // 8)
    peak = quarter + per_token * (tokens - tokens // 4)
    kind = "extrapolated from 1/8 and 1/4"
    if peak * HEAD_BYTES_LEFT < free_mib():
        peak, seconds = in_process("full", tokens, vocabulary)
        kind = "measured"
        results.append(TrainingResult("memory", f"full logits, {case}", "time", seconds, "s"))
    results.append(TrainingResult("memory", f"full logits, {case} ({kind})", "peak", peak, "MiB"))
    return results


def in_process(kind: str, tokens: int, vocabulary: int) -> tuple[float, float]:
    """(MiB beyond hidden states and head, seconds) of one forward and backward pass."""
    program = [sys.executable, "-m", "experiments.bench.training", "--child"]
    command = [*program, kind, str(tokens), str(vocabulary)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    mebibytes, seconds = json.loads(output.splitlines()[-1])
    return mebibytes, seconds


def child(kind: str, tokens: int, vocabulary: int, dim: int = 896) -> None:
    """Measure everything that forward and backward add to hidden states and head, including gradients."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, dim, requires_grad=True)
    head = torch.randn(vocabulary, dim).mul_(0.02).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,))

    def work() -> None:
        if kind == "full":
            loss = functional.cross_entropy(functional.linear(hidden, head), targets)
        else:
            segment = torch.zeros(tokens, dtype=torch.long)
            loss, *_ = weighted_loss(hidden, head, targets, segment, torch.ones(1), torch.tensor([tokens]), 1)
        loss.backward()

    seconds, mebibytes, _ = measure(work)
    sys.stdout.write(json.dumps([mebibytes, seconds]) + "\n")


def draw(results: Sequence[TrainingResult], path: Path) -> None:
    figure = Figure(figsize=(9, 7), layout="constrained")
    panels = figure.subplots(len(FIGURE), 1)
    for axes, (part, quantity) in zip(panels, FIGURE.items(), strict=True):
        shown = [r for r in results if (r.part, r.quantity) == (part, quantity)]
        bars = axes.barh([r.case for r in shown], [r.value for r in shown], color="#4878a8")
        labels = [f"{r.value:,.4g}" if r.value < 1000 else f"{r.value:,.0f}" for r in shown]
        axes.bar_label(bars, labels, padding=3)
        axes.set_title(f"{part}: {quantity} ({shown[0].unit})", loc="left")
        axes.margins(x=0.12)
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    log_to()
    parser = command_line(__doc__, "smaller parts (ii) and (iii)")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    # With one thread, processor time is what an idle core would take, even on a busy machine.
    torch.set_num_threads(1)
    if arguments.child:
        kind, tokens, vocabulary = arguments.child
        child(kind, int(tokens), int(vocabulary))
        return
    results = [*measure_packing(), *measure_training(arguments.quick), *measure_memory(arguments.quick)]
    write_csv(results, "training.csv")
    draw(results, FOLDER / "training.png")
    for r in results:
        log.info("%-9s %-72s %-46s %10s %s", r.part, r.case, r.quantity, f"{r.value:,.1f}", r.unit)


if __name__ == "__main__":
    run_main(main)
