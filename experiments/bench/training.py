"""The benefit of packing and of the chunked loss, measured on this machine.

Run as: python -m experiments.bench.training [--quick] Time: about 12 minutes of one core, 1 minute with
--quick (smaller parts (ii) and (iii)). Times are processor time of one thread. Expect: at 5,000 log-normal
lengths at least 99% of the slots used in under 1 s (next-fit: about 86%); the loss needs a small fraction
of the memory of full logits. On one core packs are as fast as trajectories one by one, and nearly three
times as fast as padded batches in the order of the shuffle (measured: 4,910, 5,069 and 1,779 tokens/s): one
trajectory keeps a core busy, so packing only saves padding there. Writes outputs/bench/training.csv and
training.png.
"""

import argparse
import csv
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median

import matplotlib as mpl
import numpy as np
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from lark.models.attention import assert_packing_separates, separate_segments
from lark.models.chat import Encoded
from lark.printing import log_to
from lark.training.loss import weighted_loss
from lark.training.packing import MicroBatch, collate_packed, collate_padded, pack, plan_batches, utilisation
from lark.work.entry import run_main

log = logging.getLogger("bench.training")
FOLDER = Path("outputs/bench")
CAPACITY = 32_768
HEAD_BYTES_LEFT = 1.3
"""Full logits are measured only if this many times their expected memory is free; otherwise extrapolated
and marked as such.
"""


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
        for name, rule in (("best-fit decreasing", pack), ("next-fit", next_fit)):
            packs, seconds = rule(lengths, CAPACITY), min(time_once(rule, lengths) for _ in range(3))
            case = f"{name}, {count} sequences"
            results.append(
                TrainingResult(
                    "packing", case, "slots used", 100 * utilisation(packs, lengths, CAPACITY), "%"
                )
            )
            results.append(TrainingResult("packing", case, "time", 1000 * seconds, "ms"))
    for processes in (1, 8):
        for packed in (True, False):
            busy = 100 * processes_busy(lengths, processes, packed)
            case = (
                f"global batches of 64, {processes} process(es), {'packed' if packed else 'padded, 1 each'}"
            )
            results.append(
                TrainingResult("plan", case, "useful tokens while the slowest process works", busy, "%")
            )
    return results


def time_once(rule: Callable[[Sequence[int], int], object], lengths: Sequence[int]) -> float:
    start = time.process_time()
    rule(lengths, CAPACITY)
    return time.process_time() - start


def processes_busy(lengths: Sequence[int], processes: int, packed: bool) -> float:
    """Tokens relative to what all processes could have processed, if they wait for each other at every
    micro-step.
    """
    waited = 0
    for step in plan_batches(
        lengths, global_batch=64, processes=processes, capacity=CAPACITY, seed=0, epoch=0, packed=packed
    ):
        loads = [[sum(lengths[i] for i in micro) for micro in rank] for rank in step.micro]
        waited += processes * sum(max(together) for together in zip(*loads, strict=True))
    return sum(lengths) / waited


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
    lengths = log_normal(64, capacity // 8, capacity)
    encoded = [Encoded(torch.randint(2048, (n,)).tolist(), max(1, n // 8), False) for n in lengths]
    cases = {
        "packed, a kernel call per trajectory": ("sdpa_segments", True, 1),
        "packed, masked": ("sdpa", True, 1),
        "padded, 8 of similar length": ("sdpa", False, 8),
        "padded, 1 each": ("sdpa", False, 1),
    }
    batches = {
        case: arranged(lengths, encoded, capacity, packed, micro_batch)
        for case, (_, packed, micro_batch) in cases.items()
    }
    batches["padded, 8 in order of the shuffle"] = [
        collate_padded(encoded[start : start + 8], [1.0] * 8) for start in range(0, 64, 8)
    ]
    seconds: dict[str, list[float]] = {case: [] for case in batches}
    for repeat in range(repeats + 1):
        for case, micro in batches.items():
            model.set_attn_implementation("sdpa")
            if cases.get(case, ("",))[0] == "sdpa_segments":
                separate_segments(model)
            if repeat == 0:
                assert_packing_separates(model)
            start = time.process_time()
            for batch in micro:
                step(model, batch)
            seconds[case] += [time.process_time() - start] if repeat else []
    rate = {case: sum(lengths) / median(times) for case, times in seconds.items()}
    return [
        TrainingResult("training", case, "speed", value, "tokens/s, one core") for case, value in rate.items()
    ]


def arranged(
    lengths: Sequence[int], encoded: Sequence[Encoded], capacity: int, packed: bool, micro_batch: int
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


def step(model: LlamaForCausalLM, batch: MicroBatch) -> None:
    packed = {} if batch.segments is None else batch.segments.arguments(model.model)
    output = model.model(
        input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, **packed
    )
    flat = (batch.targets.flatten(), batch.segment.flatten(), batch.weights, batch.lengths)
    loss, _ = weighted_loss(output.last_hidden_state.flatten(0, 1), model.lm_head.weight, *flat, 64)
    loss.backward()
    model.zero_grad()


def measure_memory(quick: bool) -> list[TrainingResult]:
    """Part (iii): forward and backward of the head alone, each in a separate process."""
    tokens, vocabulary = (1024, 32_000) if quick else (8192, 151_936)
    ours, seconds = in_process("ours", tokens, vocabulary)
    case = f"{tokens} tokens, {vocabulary} words"
    results = [
        TrainingResult("memory", f"chunked, {case}", "peak", ours, "MiB"),
        TrainingResult("memory", f"chunked, {case}", "time", seconds, "s"),
    ]
    small = {part: in_process("full", tokens // part, vocabulary) for part in (8, 4)}
    slope = (small[4][0] - small[8][0]) / (tokens // 4 - tokens // 8)
    expected = small[4][0] + slope * (tokens - tokens // 4)
    kind = "extrapolated from 1/8 and 1/4"
    if expected * HEAD_BYTES_LEFT < free_memory():
        expected, seconds = in_process("full", tokens, vocabulary)
        kind = "measured"
        results.append(TrainingResult("memory", f"full logits, {case}", "time", seconds, "s"))
    results.append(TrainingResult("memory", f"full logits, {case} ({kind})", "peak", expected, "MiB"))
    return results


def in_process(kind: str, tokens: int, vocabulary: int) -> tuple[float, float]:
    """(MiB beyond hidden states and head, seconds) of one forward and backward pass."""
    command = [
        sys.executable,
        "-m",
        "experiments.bench.training",
        "--child",
        kind,
        str(tokens),
        str(vocabulary),
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    mebibytes, seconds = json.loads(output.splitlines()[-1])
    return mebibytes, seconds


def child(kind: str, tokens: int, vocabulary: int, dim: int = 896) -> None:
    """Measure everything that forward and backward add to hidden states and head, including gradients."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, dim, requires_grad=True)
    head = torch.randn(vocabulary, dim).mul_(0.02).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,))
    Path("/proc/self/clear_refs").write_text(
        "5", encoding="ascii"
    )  # forgets the peak so far, which imports have raised
    before = own_memory("VmRSS")
    start = time.process_time()
    if kind == "full":
        loss = functional.cross_entropy(functional.linear(hidden, head), targets)
    else:
        one = (torch.zeros(tokens, dtype=torch.long), torch.ones(1), torch.tensor([tokens]), 1)
        loss, _ = weighted_loss(hidden, head, targets, *one)
    loss.backward()
    seconds = time.process_time() - start
    sys.stdout.write(json.dumps([own_memory("VmHWM") - before, seconds]) + "\n")


def own_memory(field: str) -> float:
    """Memory of this process in MiB. Not `ru_maxrss`, which a child inherits from its parent."""
    return _kernel_says("/proc/self/status", field)


def free_memory() -> float:
    return _kernel_says("/proc/meminfo", "MemAvailable")


def _kernel_says(path: str, field: str) -> float:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def draw(results: Sequence[TrainingResult], path: Path) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the backend is chosen

    shown = [("packing", "slots used"), ("training", "speed"), ("memory", "peak")]
    figure, axes = plt.subplots(len(shown), 1, figsize=(9, 7), constrained_layout=True)
    for axis, (part, quantity) in zip(axes, shown, strict=True):
        chosen = [r for r in results if (r.part, r.quantity) == (part, quantity)]
        bars = axis.barh([r.case for r in chosen], [r.value for r in chosen], color="#4878a8")
        axis.bar_label(
            bars, [f"{r.value:,.4g}" if r.value < 1000 else f"{r.value:,.0f}" for r in chosen], padding=3
        )
        axis.set_title(f"{part}: {quantity} ({chosen[0].unit})", loc="left")
        axis.margins(x=0.12)
        axis.invert_yaxis()
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    log_to()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller parts (ii) and (iii)")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(
        1
    )  # with one thread, processor time is what an idle core would take, even on a busy machine
    if arguments.child:
        kind, tokens, vocabulary = arguments.child
        child(kind, int(tokens), int(vocabulary))
        return
    results = [*measure_packing(), *measure_training(arguments.quick), *measure_memory(arguments.quick)]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "training.csv").open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(field.name for field in fields(TrainingResult))
        writer.writerows(map(astuple, results))
    draw(results, FOLDER / "training.png")
    for r in results:
        log.info("%-9s %-72s %-46s %10s %s", r.part, r.case, r.quantity, f"{r.value:,.1f}", r.unit)


if __name__ == "__main__":
    run_main(main)
