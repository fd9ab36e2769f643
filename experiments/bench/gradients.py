"""Time of the sketched gradients (method=lark_gram and lark_exact) relative to the bare forward pass to
logits.

Run as: python -m experiments.bench.gradients [--quick] [--threads 1] Time: about 10 minutes on 2 idle
cores, 1 minute with --quick. On a busy machine use --threads 1: it then measures the processor time of one
thread, which other jobs disturb less, and takes twice as long. Expect: lark_gram at most 1.25 times the
bare forward pass, lark_exact at most 2.2 times at 256 tokens. Attention grows with the length, and its
backward pass costs three times its forward pass, so long responses cost lark_exact more. Writes
outputs/bench/gradients.csv.

Models. Random weights in fp32 in the shape of SmolLM2-135M with all its layers. The head is a fifth of its
forward pass, and lark_gram uses it twice; of a 7 B student it is a fourteenth (the table has the ratio by
FLOPs for it, from the planner). Time. In each round every variant runs once on the same batch, end to end,
in rotating order; a ratio is within a round, and the median over rounds is reported. Memory is measured in
a call of its own, after the process has returned what it does not use: a call that has to get its memory
again takes longer, while in a run, batch after batch, it is there. `ours, all statistics` is the pass of
all other forward-pass methods. Our variants use the layers of `run.py` (lark/models/cpu_linear.py), the
bare forward pass those of PyTorch.
"""

import argparse
import csv
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from statistics import median

import numpy as np
import torch

from experiments.bench.scoring import FOLDER, Size, measure, random_student
from lark import config as conf
from lark.config import Sketch
from lark.models.chat import Encoded
from lark.models.cpu_linear import pack_linears
from lark.models.shapes import shape_of
from lark.planner import costs
from lark.printing import log_to, text_table
from lark.scoring.forward import LoadedStudent, response_statistics
from lark.scoring.gradient_sketches import BackwardSketcher, ForwardSketcher
from lark.scoring.inputs import Inputs
from lark.scoring.sketches import Sizes
from lark.work.entry import run_main

log = logging.getLogger("bench.gradients")
BARE, OURS, GRAM, EXACT = "bare forward pass to logits", "ours, all statistics", "lark_gram", "lark_exact"
GOALS = {GRAM: 1.25, EXACT: 2.2}
LARGE = "Qwen/Qwen2.5-7B"


@dataclass(frozen=True)
class Workload:
    """One measurement: trajectories of equal length, all of whose tokens but the first are responses."""

    trajectories: int
    tokens: int
    rounds: int
    layers: int | None = None


@dataclass(frozen=True)
class GradientResult:
    """One row of the table. `flops` is the same ratio, counted, for this student; `flops_7b` for one of 7 B
    parameters.
    """

    trajectories: int
    tokens: int
    variant: str
    seconds: float
    ratio: float
    lowest: float
    highest: float
    peak_mib: float
    flops: float
    flops_7b: float


FULL = [Workload(4, 256, 7), Workload(2, 1024, 3), Workload(1, 4096, 2)]
QUICK = [Workload(4, 256, 3, layers=6)]


def measure_batch(batch: Workload) -> list[GradientResult]:
    """Measure all variants on one batch."""
    size = Size("SmolLM2-135M", 49_152, batch.tokens, batch.rounds, batch.layers)
    plain, student = LoadedStudent.of(random_student(size)), student_of_a_run(size)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 49_152, (batch.trajectories, batch.tokens), generator=generator).tolist()
    encoded = [Encoded(row, 1, False) for row in ids]
    sketch = Sketch()
    head = Sizes(sketch.words, sketch.states)
    gram = ForwardSketcher(student, Sizes(sketch.gram, sketch.gram), head)
    exact = BackwardSketcher(student_of_a_run(size, gradients=True), Sizes(sketch.exact, sketch.exact), head)

    def bare() -> object:
        inputs = Inputs.of(plain, encoded)
        with torch.no_grad():
            return torch.cat(inputs.predicting(inputs.run(plain))) @ plain.head.weight.T

    work: dict[str, Callable[[], object]] = {
        BARE: bare,
        OURS: lambda: list(response_statistics(student, encoded)),
        GRAM: lambda: gram(encoded),
        EXACT: lambda: exact(encoded),
    }
    for one in work.values():  # compile, and touch everything once
        one()
    peaks = {name: measure(one)[1] for name, one in work.items()}
    seconds: dict[str, list[float]] = defaultdict(list)
    names = list(work)
    for turn in range(batch.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[name].append(timed(work[name]))
        log.info("%d × %d tokens: round %d of %d", batch.trajectories, batch.tokens, turn + 1, batch.rounds)
    return [_result(batch, name, seconds, peaks[name]) for name in names]


def student_of_a_run(size: Size, gradients: bool = False) -> LoadedStudent:
    """The student as `LoadedStudent.load` prepares it."""
    model = random_student(size)
    pack_linears(model.base_model, gradients)
    return LoadedStudent.of(model)


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    work()
    return clock() - start


def _result(batch: Workload, name: str, seconds: dict[str, list[float]], peak: float) -> GradientResult:
    ratios = [mine / bare for mine, bare in zip(seconds[name], seconds[BARE], strict=True)]
    counted = (by_flops(name, batch, path) for path in ("smollm2", LARGE))
    size = (batch.trajectories, batch.tokens, name)
    return GradientResult(
        *size, median(seconds[name]), median(ratios), min(ratios), max(ratios), peak, *counted
    )


def by_flops(name: str, batch: Workload, path: str) -> float:
    """The ratio that the planner counts for a student."""
    shape = shape_of(conf.Student(name="student", path=path))
    assert shape is not None
    sketch = Sketch()
    gram, exact = (
        costs.SketchShape.of(shape, size, sketch.words, sketch.states) for size in (sketch.gram, sketch.exact)
    )
    lengths, projected = (
        np.full(batch.trajectories, batch.tokens),
        np.full(batch.trajectories, batch.tokens - 1),
    )
    bare = costs.forward_flops(shape, lengths, projected).forward
    if name == GRAM:
        return costs.gram_flops(shape, lengths, projected, gram) / bare
    return (
        costs.exact_flops(shape, lengths, projected, exact, recompute=False) / bare if name == EXACT else 1.0
    )


def verdicts(results: list[GradientResult]) -> list[str]:
    """Goals and measurements."""
    return [
        f"{r.trajectories} × {r.tokens:,} tokens, {r.variant}: {r.ratio:.3f} (at most"
        f" {GOALS[r.variant]:.2f}): {'reached' if r.ratio <= GOALS[r.variant] else 'NOT reached'}"
        for r in results
        if r.variant in GOALS
    ]


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
    results = [result for batch in (QUICK if arguments.quick else FULL) for result in measure_batch(batch)]
    with (FOLDER / "gradients.csv").open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, [field.name for field in fields(GradientResult)])
        writer.writeheader()
        writer.writerows(map(asdict, results))
    rows = [
        [
            f"{r.trajectories} × {r.tokens:,}",
            r.variant,
            f"{r.seconds:.2f}",
            f"{r.ratio:.3f}",
            f"{r.lowest:.3f}-{r.highest:.3f}",
            f"{r.peak_mib:,.0f}",
            f"{r.flops:.2f}",
            f"{r.flops_7b:.2f}",
        ]
        for r in results
    ]
    header = ["tokens", "variant", "seconds", "ratio", "lowest-highest", "MiB", "by FLOPs", "by FLOPs, 7 B"]
    log.info("\n%s\n", text_table(header, rows, right=2))
    log.info("\n".join(verdicts(results)))


if __name__ == "__main__":
    run_main(main)
