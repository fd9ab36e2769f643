"""Time of the sketched gradients (method=lark_gram and lark_exact) relative to the bare forward pass to
logits.

Run as: python -m experiments.bench.gradients [--quick] [--threads 1]
Time: about 10 minutes on 2 idle cores, 1 minute with --quick. On a busy machine use --threads 1: it then
measures the processor time of one thread, which other jobs disturb less, and takes twice as long.
Expect: lark_gram at most 1.25 times the bare forward pass, lark_exact at most 2.2 times at 256 tokens.
Attention grows with the length, and its backward pass costs three times its forward pass, so long responses
cost lark_exact more.
Writes outputs/bench/gradients.csv.

Models: random weights in fp32 in the shape of SmolLM2-135M with all its layers. The head is a fifth of its
forward pass, and lark_gram uses it twice; of a 7 B student it is a fourteenth (the table has the ratio by
FLOPs for it, from the planner).

Time: in each round every variant runs once on the same batch, end to end, in rotating order; a ratio is
within a round, and the median over rounds is reported. Memory is measured in a call of its own, after the
process has returned what it does not use: a call that has to get its memory again takes longer, while in a
run, batch after batch, it is there.

`ours, all statistics` is the pass of all other forward-pass methods. Our variants use the layers of `run.py`
(lark/models/cpu_linear.py), the bare forward pass those of PyTorch.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from experiments.bench._measuring import in_turns, measure, ratios, timed, with_threads
from experiments.bench._output import command_line, table, verdict, write_csv
from experiments.bench._random_student import StudentSize, random_student
from lark import config as conf
from lark.config import Sketch
from lark.models.chat import Encoded
from lark.models.cpu_linear import pack_linears
from lark.models.shapes import shape_of
from lark.planner import costs
from lark.printing import log_to
from lark.scoring.forward import LoadedStudent, response_statistics
from lark.scoring.gradient_sketches import BackwardSketcher, ForwardSketcher
from lark.scoring.inputs import Inputs
from lark.scoring.sketches import Sizes
from lark.work.entry import run_main

log = logging.getLogger("bench.gradients")
BARE = "bare forward pass to logits"
OURS = "ours, all statistics"
GRAM = "lark_gram"
EXACT = "lark_exact"
GOALS = {GRAM: 1.25, EXACT: 2.2}
SMALL = "smollm2"
LARGE = "Qwen/Qwen2.5-7B"


@dataclass(frozen=True)
class Batch:
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


COLUMNS = {
    "tokens": "{r.trajectories} × {r.tokens:,}",
    "variant": "{r.variant}",
    "seconds": "{r.seconds:.2f}",
    "ratio": "{r.ratio:.3f}",
    "lowest-highest": "{r.lowest:.3f}-{r.highest:.3f}",
    "MiB": "{r.peak_mib:,.0f}",
    "by FLOPs": "{r.flops:.2f}",
    "by FLOPs, 7 B": "{r.flops_7b:.2f}",
}
FULL = [Batch(4, 256, 7), Batch(2, 1024, 3), Batch(1, 4096, 2)]
QUICK = [Batch(4, 256, 3, layers=6)]


def variants(batch: Batch) -> dict[str, Callable[[], object]]:
    """What is measured: calls by name."""
    size = StudentSize("SmolLM2-135M", 49_152, batch.tokens, batch.rounds, batch.layers)
    plain = LoadedStudent.of(random_student(size))
    student = student_of_a_run(size)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, size.vocabulary, (batch.trajectories, batch.tokens), generator=generator).tolist()
    encoded = [Encoded(row, 1, False) for row in ids]
    sketch = Sketch()
    head = Sizes(sketch.words, sketch.states)
    gram = ForwardSketcher(student, Sizes(sketch.gram, sketch.gram), head)
    exact = BackwardSketcher(student_of_a_run(size, gradients=True), Sizes(sketch.exact, sketch.exact), head)

    def bare() -> object:
        inputs = Inputs.of(plain, encoded)
        with torch.no_grad():
            return torch.cat(inputs.predicting(inputs.run(plain))) @ plain.head.weight.T

    return {
        BARE: bare,
        OURS: lambda: list(response_statistics(student, encoded)),
        GRAM: lambda: gram(encoded),
        EXACT: lambda: exact(encoded),
    }


def student_of_a_run(size: StudentSize, gradients: bool = False) -> LoadedStudent:
    """The student as `LoadedStudent.load` prepares it."""
    model = random_student(size)
    pack_linears(model.base_model, gradients)
    return LoadedStudent.of(model)


def measure_batch(batch: Batch) -> list[GradientResult]:
    """Measure all variants on one batch."""
    work = variants(batch)
    for run in work.values():  # compile, and touch everything once
        run()
    peaks = {name: measure(run)[1] for name, run in work.items()}
    seconds: dict[str, list[float]] = defaultdict(list)
    for turn in range(batch.rounds):
        for name in in_turns(work, turn):
            seconds[name].append(timed(work[name])[0])
        log.info("%d × %d tokens: round %d of %d", batch.trajectories, batch.tokens, turn + 1, batch.rounds)
    return [result(batch, name, seconds, peaks[name]) for name in work]


def result(batch: Batch, name: str, seconds: Mapping[str, Sequence[float]], peak: float) -> GradientResult:
    measured = median(seconds[name]), *ratios(seconds[name], seconds[BARE])
    counted = by_flops(name, batch, SMALL), by_flops(name, batch, LARGE)
    return GradientResult(batch.trajectories, batch.tokens, name, *measured, peak, *counted)


def by_flops(name: str, batch: Batch, path: str) -> float:
    """The ratio that the planner counts for a student."""
    shape = shape_of(conf.Student(name="student", path=path))
    assert shape is not None
    sketch = Sketch()
    lengths = np.full(batch.trajectories, batch.tokens)
    projected = lengths - 1
    bare = costs.forward_flops(shape, lengths, projected).forward
    if name == GRAM:
        gram = costs.SketchShape.of(shape, sketch.gram, sketch.words, sketch.states)
        return costs.gram_flops(shape, lengths, projected, gram) / bare
    if name == EXACT:
        exact = costs.SketchShape.of(shape, sketch.exact, sketch.words, sketch.states)
        return costs.exact_flops(shape, lengths, projected, exact, recompute=False) / bare
    return 1.0


def verdicts(results: Sequence[GradientResult]) -> list[str]:
    """Goals and measurements."""
    lines = []
    for r in results:
        if r.variant in GOALS:
            goal = GOALS[r.variant]
            lines.append(
                f"{r.trajectories} × {r.tokens:,} tokens, {r.variant}: {r.ratio:.3f} (at most {goal:.2f}):"
                f" {verdict(r.ratio <= goal)}"
            )
    return lines


def main() -> None:
    log_to()
    parser = with_threads(command_line(__doc__, "a model of six layers: ratios are less realistic"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results: list[GradientResult] = []
    for batch in QUICK if arguments.quick else FULL:
        results += measure_batch(batch)
    write_csv(results, "gradients.csv")
    log.info("\n%s\n", table(results, COLUMNS, right=2))
    log.info("\n".join(verdicts(results)))


if __name__ == "__main__":
    run_main(main)
