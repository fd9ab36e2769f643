"""GPUs and cores of each step of a sweep, and how long it takes with them by the planner's estimate."""

from dataclasses import dataclass, replace

from experiments.harness.lanes import SMALL
from experiments.harness.sweep import Trial
from experiments.submission.graph import Node
from lark.config import Config
from lark.errors import LarkError
from lark.models.shapes import shape_of
from lark.planner.estimates import Estimate, planner_of
from lark.planner.lengths import PoolLengths, lengths_of
from lark.planner.throughput import throughput
from lark.store.store import Store
from lark.work.machine import Machine
from lark.work.operation import Step

EFFICIENCY = 0.7
"""A step gets more GPUs while at least this share of their time is used: start-up and loading take as long
on many as on one.
"""


@dataclass(frozen=True)
class Share:
    """What a step gets of one machine."""

    gpus: int
    """0: it needs none."""
    cpus: int
    seconds: float | None
    """Estimated time; None if it is negligible or unknown."""


class Shares:
    """The shares of a sweep's steps. `machine` is the node that a step runs on, with all of its GPUs or
    cores.
    """

    def __init__(self, machine: Machine, store: Store) -> None:
        self.machine, self.store = machine, store
        self.lengths: dict[str, PoolLengths] = {}

    def share(self, node: Node, trial: Trial) -> Share:
        """As many GPUs as a step can use well, of those that one node has; none for a step that runs on
        CPU.
        """
        step, machine = node.step, self.machine
        threads = self._threads(trial.config)
        if machine.device == "cpu" or not needs_gpu(step):
            alone = replace(
                machine, device="cpu", processes=1, nodes=1, threads=threads, workers=0, cluster=""
            )
            found = (
                self._estimate(step, trial, alone)
                if machine.device == "cpu" or step.operation.on_cpu
                else None
            )
            return Share(0, threads, None if found is None else found.seconds)
        tried = [
            (gpus, self._estimate(step, trial, self._with(gpus))) for gpus in self._counts(step, trial.config)
        ]
        known = [(gpus, found) for gpus, found in tried if found is not None]
        if not known:
            return Share(tried[-1][0], tried[-1][0] * threads, None)
        fitting = [(gpus, found) for gpus, found in known if found.fits]
        if not fitting:
            gpus, most = known[-1]
            raise LarkError(
                f"{step.title} of trial {' '.join(trial.overrides)} needs {most.memory_gib:.0f} GiB on each"
                f" of {gpus} GPUs, which have {most.limit_gib:.0f}: `python run.py` with these settings and"
                " dry_run=true says what would help."
            )
        least = min(found.seconds * gpus for gpus, found in fitting)
        chosen = max(gpus for gpus, found in fitting if found.seconds * gpus * EFFICIENCY <= least)
        return Share(chosen, chosen * threads, dict(fitting)[chosen].seconds)

    def _counts(self, step: Step, config: Config) -> list[int]:
        """Numbers of GPUs to choose from: those that divide a node, in whole processes and groups of
        processes.
        """
        most, each = self.machine.processes, max(1, step.operation.gpus(config))
        if step.operation.processes == "one":
            return [min(each, most)]
        together = config.hardware.sequence_parallel if step.operation.gpus(config) == 0 else each
        return [n for n in range(1, most + 1) if most % n == 0 and n % together == 0] or [most]

    def _with(self, gpus: int) -> Machine:
        return replace(self.machine, processes=gpus, nodes=1, workers=0, cluster="")

    def _threads(self, config: Config) -> int:
        """Cores per process. A small student cannot use several cores well."""
        if config.hardware.threads or self.machine.device == "cuda":
            return config.hardware.threads or self.machine.threads
        shape = shape_of(config.student)
        return 1 if shape is not None and shape.parameters <= SMALL else self.machine.threads

    def _estimate(self, step: Step, trial: Trial, machine: Machine) -> Estimate | None:
        config = trial.config
        key = repr((config.pool, config.student.max_length, config.student.path))
        if key not in self.lengths:
            self.lengths[key] = lengths_of(config, trial.plan, self.store)
        planner = planner_of(config, throughput(config, machine), self.lengths[key])
        return None if planner is None else planner.estimate(step)


def needs_gpu(step: Step) -> bool:
    """Whether a step uses a GPU where there is one. What runs in the pipeline's own process needs none."""
    return isinstance(step.operation.run, str) and not step.operation.on_cpu
