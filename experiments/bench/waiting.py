"""How long the processes of training wait for each other, by the plan of its batches alone. Needs no GPU.

Run as: python -m experiments.bench.waiting [--quick]
Time: 10 seconds, 3 seconds with --quick (60 global batches instead of 240).
Expect: with packs balanced by cost, waiting of at most 10% of training (7B) and 13% (1.5B) on 8 GPUs and 23%
(7B) on 16, where packs balanced by tokens wait 19%, 26% and 31%; 5 ms of processor time per batch at most.
Writes outputs/bench/waiting.csv.

With ZeRO, processes wait for the costliest pack of each micro-step. The cost of a pack is that of
lark/training/balance.py: counted from the student's shape, not measured.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.bench._output import command_line, table, verdict, write_csv
from lark.config import Student
from lark.errors import LarkError
from lark.models.shapes import shape_of
from lark.printing import log_to
from lark.training.balance import crossover, groups_cost, trajectory_cost
from lark.training.packing import TrainingStep, plan_batches
from lark.work.entry import run_main

log = logging.getLogger("bench.waiting")
GLOBAL_BATCH = 64
CAPACITY = 32_768
STUDENTS = {"7B": "Qwen/Qwen2.5-7B", "1.5B": "Qwen/Qwen2.5-1.5B"}
MOST_WAITING = {("7B", 8): 0.10, ("1.5B", 8): 0.13, ("7B", 16): 0.23}
"""The largest share of training that balanced packs may wait at CAPACITY, by student and processes."""
MOST_PLANNING_MS = 5.0


@dataclass(frozen=True)
class Waiting:
    """One row of the table."""

    student: str
    processes: int
    capacity: int
    by_tokens: float
    """Share of the time that processes wait, with packs balanced by tokens."""
    by_cost: float
    """The same with packs balanced by cost."""
    wrong_crossover: float
    """The same with packs balanced for attention that is a third cheaper than it is."""
    micro_steps: float
    """Micro-steps of a global batch, balanced by cost."""
    planning_ms: float
    """Processor time to plan a global batch by cost, median."""


COLUMNS = {
    "student": "{r.student}",
    "GPUs": "{r.processes}",
    "train_tokens": "{r.capacity:,}",
    "waiting, by tokens": "{r.by_tokens:.1%}",
    "by cost": "{r.by_cost:.1%}",
    "c 50% too large": "{r.wrong_crossover:.1%}",
    "micro-steps": "{r.micro_steps:.2f}",
    "ms per batch": "{r.planning_ms:.2f}",
}


def log_normal(count: int, median: float = 6000, sigma: float = 0.73) -> list[int]:
    """Lengths like those of reasoning trajectories, cut at the paper's maximum."""
    draws = np.random.default_rng(0).lognormal(np.log(median), sigma, count)
    return np.clip(draws, 64, CAPACITY).astype(int).tolist()


def crossover_of(student: str) -> float:
    """With gradient checkpointing and all weights trained, as in the paper."""
    shape = shape_of(Student(name=student, path=STUDENTS[student]))
    if shape is None:
        raise LarkError(
            f"{STUDENTS[student]} is not in lark/models/architectures: add its config.json there."
        )
    return crossover(shape, recompute=True, frozen=False)


def plan(
    lengths: Sequence[int], processes: int, capacity: int, balanced_for: float | None
) -> list[TrainingStep]:
    """An epoch, as training plans it."""
    return plan_batches(
        lengths,
        global_batch=GLOBAL_BATCH,
        processes=processes,
        capacity=capacity,
        seed=0,
        epoch=0,
        crossover=balanced_for,
    )


def waiting(steps: Sequence[TrainingStep], lengths: Sequence[int], crossover: float) -> float:
    """The share of all processes' time that they wait for the costliest pack of their micro-step."""
    costs = [trajectory_cost(length, crossover) for length in lengths]
    passed = 0.0
    for step in steps:
        by_micro_step = [[list(group) for group in groups] for groups in zip(*step.micro, strict=True)]
        passed += groups_cost(by_micro_step, costs)
    return 1 - sum(costs) / (passed * len(steps[0].micro))


def planning_ms(lengths: Sequence[int], processes: int, capacity: int, crossover: float) -> float:
    """Median processor time of a global batch."""
    times = []
    for start in range(0, len(lengths), GLOBAL_BATCH):
        batch = lengths[start : start + GLOBAL_BATCH]
        started = time.process_time()
        plan(batch, processes, capacity, crossover)
        times.append(1000 * (time.process_time() - started))
    return float(np.median(times))


def measure(student: str, processes: int, capacity: int, lengths: Sequence[int]) -> Waiting:
    """One row of the table."""
    c = crossover_of(student)
    steps = plan(lengths, processes, capacity, c)
    return Waiting(
        student,
        processes,
        capacity,
        by_tokens=waiting(plan(lengths, processes, capacity, None), lengths, c),
        by_cost=waiting(steps, lengths, c),
        wrong_crossover=waiting(plan(lengths, processes, capacity, 1.5 * c), lengths, c),
        micro_steps=float(np.mean([len(step.micro[0]) for step in steps])),
        planning_ms=planning_ms(lengths, processes, capacity, c),
    )


def main() -> None:
    log_to()
    arguments = command_line(__doc__, "60 global batches").parse_args()
    lengths = log_normal(GLOBAL_BATCH * (60 if arguments.quick else 240))
    results = []
    for student in STUDENTS:
        for processes in (8, 16):
            for capacity in (CAPACITY, 40_960):
                results.append(measure(student, processes, capacity, lengths))
    write_csv(results, "waiting.csv")
    log.info("%s", table(results, COLUMNS, right=1))
    for result in results:
        limit = MOST_WAITING.get((result.student, result.processes))
        if limit is None or result.capacity != CAPACITY:
            continue
        reached = verdict(result.by_cost <= limit and result.planning_ms <= MOST_PLANNING_MS)
        log.info("%s on %d GPUs: at most %.0f%%: %s", result.student, result.processes, 100 * limit, reached)


if __name__ == "__main__":
    run_main(main)
