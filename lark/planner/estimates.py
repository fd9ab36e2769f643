"""How long each step of a plan takes and whether it fits, from the cost function of its operation
(`Operation.cost`).

Estimates are made for the plan's own steps, so a plan and its estimate cannot disagree.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from lark.config import Config
from lark.models.shapes import Shape, shape_of
from lark.planner import remedies
from lark.planner.checks import unknown_size
from lark.planner.lengths import PoolLengths, pool_lengths
from lark.planner.throughput import LOAD_BYTES, START_SECONDS, Throughput, throughput
from lark.scoring.take_over import new_rows
from lark.work.machine import RESERVED_GIB, usable_cores
from lark.work.operation import Settings, Step

PAPER_STUDENTS = ("qwen7b", "qwen1.5b", "llama3b")


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of one step of the plan."""

    step: Step
    work: str
    """Description of the work."""
    flops: float
    seconds: float
    device_hours: float
    """Total over all devices: seconds x devices / 3,600."""
    memory_gib: float
    """Peak memory on one device."""
    certain_gib: float
    """The part of it that does not depend on any assumption: weights, gradients, optimizer."""
    limit_gib: float
    """Memory of one device. Processes on CPU share the machine's: it is one's part."""
    remedy: str | None = None
    """If it does not fit: the setting that would make it fit."""
    paper: str = ""
    """The paper's own figure, if it gives one."""
    kept_gib: float = 0.0
    """Disk space that stays in use, if it is not negligible: a trained student and its snapshots."""
    resume_gib: float = 0.0
    """Additional disk space until it is finished."""
    shards: int = 0
    """Parts that can be done independently of each other. 0: it is not divided."""
    sharing: int = 1
    """Processes on CPU that share the machine's memory."""
    reused: bool = False
    """Whether it is already finished and costs nothing."""

    @property
    def name(self) -> str:
        return self.step.operation.name

    @property
    def fits(self) -> bool:
        return self.memory_gib <= self.limit_gib


def estimate(
    config: Config,
    steps: Sequence[Step],
    lengths: PoolLengths | None = None,
    hardware: Throughput | None = None,
    finished: Collection[tuple[str, ...]] = (),
) -> list[Estimate]:
    """Estimate the steps of a plan that have a cost. `finished`: keys of the steps that need not run.

    `lengths` comes from `lengths.pool_lengths`; if it is omitted, the lengths are read or assumed.
    """
    planner = planner_of(config, hardware or throughput(config), lengths or pool_lengths(config))
    if planner is None:
        raise unknown_size(config)
    estimates = []
    for step in steps:
        is_finished = step.key in finished
        part = planner if is_finished else planner.for_new_rows(step)
        cost = part.estimate(step)
        if cost is not None:
            estimates.append(_reused(cost) if is_finished else part.with_remedy(cost))
    return estimates


def _reused(cost: Estimate) -> Estimate:
    """The estimate of a step that is already finished."""
    return Estimate(cost.step, cost.work, 0.0, 0.0, 0.0, 0.0, 0.0, cost.limit_gib, reused=True)


@dataclass(frozen=True)
class Planner:
    """The input of the cost functions of operations."""

    config: Config
    shape: Shape
    """Shape of the student."""
    hardware: Throughput
    lengths: PoolLengths

    @property
    def selected(self) -> int:
        """Number of trajectories that the budget selects, at most. Selected trajectories are assumed to
        have the mean length.
        """
        budget = self.config.budget
        pool = self.lengths
        most = pool.trajectories
        if budget.size is not None:
            most = min(budget.size, pool.candidates) * pool.questions
        if budget.limit is None:
            return most
        trajectory_cost = 1.0 if budget.tokens is None else float(pool.response.mean())
        return max(1, min(most, int(budget.limit / trajectory_cost)))

    def for_new_rows(self, step: Step) -> "Planner":
        """The planner for the part of the pool that a step computes: other rows are taken over from finished
        artifacts (lark/scoring/take_over.py).
        """
        if step.heat:
            return replace(self, lengths=self.lengths.of_heat(self.config, step.heat))
        rows = self.lengths.rows
        if rows is None or step.operation.prepare is None or step.operation.cost is None:
            return self
        new = new_rows(step.artifacts, self.config, rows)
        return self if new is None else replace(self, lengths=self.lengths.only(new))

    def estimate(self, step: Step) -> Estimate | None:
        if step.operation.cost is None:
            return None
        if self.lengths.trajectories == 0:
            start = START_SECONDS["cpu"]
            return self.made(step, self.lengths.described, 0.0, start, 0.0, 0.0, devices=1)
        return step.operation.cost(self, step)

    def with_remedy(self, cost: Estimate) -> Estimate:
        """The estimate; if the step does not fit, with a setting that makes it fit."""
        if cost.fits:
            return cost
        return replace(cost, remedy=_fewer_processes(cost) or self.remedy(cost, cost.limit_gib))

    def remedy(self, cost: Estimate, most_gib: float) -> str:
        """A setting with which a step needs at most `most_gib` on a device. Settings are tried, not
        guessed.
        """
        machine = self.hardware.machine
        operation = cost.step.operation
        candidates: Iterable[Settings] = ()
        if operation.remedies is not None:
            candidates = operation.remedies(self.config, machine, int(self.lengths.total.max()))

        def fits(settings: Settings) -> bool:
            cost_with = self._with(settings).estimate(cost.step)
            return cost_with is None or cost_with.memory_gib <= most_gib

        model = "judge" if operation.reads("method.judge") else "student"
        otherwise = remedies.last_resort(machine, cost.memory_gib, operation.processes == "sharing", model)
        return remedies.remedy(candidates, fits, otherwise)

    def _with(self, settings: Settings) -> "Planner":
        config = remedies.applied(self.config, settings)
        return replace(self, config=config, lengths=self.lengths.cut(config.student.max_length))

    def made(
        self,
        step: Step,
        work: str,
        flops: float,
        seconds: float,
        memory: float,
        certain: float,
        paper: str = "",
        devices: int | None = None,
    ) -> Estimate:
        """An estimate from its figures; `memory` and `certain` in GiB, on `devices` (None: all of the
        machine's).

        Both are the memory of tensors. What a process on a GPU needs in addition is added here.
        """
        machine = self.hardware.machine
        if step.operation.processes != "one":
            memory += RESERVED_GIB[machine.device]
        return Estimate(
            step,
            work,
            flops,
            seconds,
            device_hours=seconds * (devices or machine.world) / 3600,
            memory_gib=memory,
            certain_gib=certain,
            limit_gib=self.hardware.memory_gib,
            paper=paper,
            sharing=self._sharing,
        )

    @property
    def _sharing(self) -> int:
        """Processes that share the memory of this machine. A limit in the settings is that of each."""
        machine = self.hardware.machine
        return machine.processes if machine.device == "cpu" and not self.config.hardware.memory_gib else 1

    def seconds(self, kind: str, flops: float, load: float, half: bool | None = None) -> float:
        """Time for `flops` operations on all devices, including the start of a process and loading `load`
        bytes. `half`: whether they are in bfloat16; None: as the student is.
        """
        start = START_SECONDS[self.hardware.machine.device]
        if half is None:
            half = self.config.student.dtype != "float32"
        return start + load / LOAD_BYTES + flops / self.hardware.rate(kind, self.shape, half=half)

    @property
    def is_papers(self) -> bool:
        return is_papers(self.config, self.hardware)


def _fewer_processes(cost: Estimate) -> str | None:
    """The number of processes on CPU with which a step fits, or None if even one process does not."""
    most = int(cost.limit_gib * cost.sharing / cost.memory_gib)
    if cost.sharing == 1 or most < 1:
        return None
    return f"hardware.processes={min(most, usable_cores())}"


def planner_of(config: Config, hardware: Throughput, lengths: PoolLengths) -> Planner | None:
    """The planner of a run, or None if the student's shape is unknown."""
    shape = shape_of(config.student)
    return None if shape is None else Planner(config, shape, hardware, lengths)


def is_papers(config: Config, hardware: Throughput) -> bool:
    """True for the paper's students with the paper's pool on the paper's node: 8 A100."""
    machine = hardware.machine
    papers = config.student.name in PAPER_STUDENTS and config.pool.format == "rsr"
    return papers and (machine.device, machine.world, hardware.tflops) == ("cuda", 8, 312.0)


def precision_bytes(dtype: str) -> int:
    """Bytes of one number."""
    return 4 if dtype == "float32" else 2
