"""GPUs and cores of each step of a sweep, and how long it takes with them by the planner's estimate."""

from dataclasses import replace

from experiments.harness.lanes import SMALL
from experiments.harness.sweep import Trial
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
Share = tuple[int, int, float | None]
"""GPUs (0: it needs none), cores, and the estimated seconds (None: negligible or unknown)."""


class Shares:
    """The shares of a sweep's steps. `machine` is the node that a step runs on, with all of its GPUs or
    cores.
    """

    def __init__(self, machine: Machine, store: Store) -> None:
        self.machine = replace(machine, nodes=1, workers=0, cluster="")
        self.store = store
        self.lengths: dict[str, PoolLengths] = {}

    def share(self, step: Step, trial: Trial) -> Share:
        """As many GPUs as a step can use well, of those that one node has; none for a step that runs on
        CPU.
        """
        threads = self._threads(trial.config)
        in_this_process = not isinstance(step.operation.run, str)
        if self.machine.device == "cpu" or step.operation.on_cpu or in_this_process:
            on_cpu = replace(self.machine, device="cpu", processes=1, threads=threads)
            cost = self._estimate(step, trial, on_cpu)
            return 0, threads, None if cost is None else cost.seconds
        counts = self._counts(step, trial.config)
        estimates = {}
        for gpus in counts:
            cost = self._estimate(step, trial, replace(self.machine, processes=gpus))
            if cost is not None:
                estimates[gpus] = cost
        if not estimates:
            return counts[-1], counts[-1] * threads, None
        seconds = {gpus: cost.seconds for gpus, cost in estimates.items() if cost.fits}
        if not seconds:
            raise _too_large(step, trial, max(estimates), estimates[max(estimates)])
        least = min(gpus * seconds[gpus] for gpus in seconds)
        most = max(gpus for gpus in seconds if gpus * seconds[gpus] * EFFICIENCY <= least)
        return most, most * threads, seconds[most]

    def _counts(self, step: Step, config: Config) -> list[int]:
        """Numbers of GPUs to choose from: those that divide a node, in whole processes and groups of
        processes.
        """
        most = self.machine.processes
        per_process = step.operation.gpus(config)
        if step.operation.processes == "one":
            return [min(max(1, per_process), most)]
        together = per_process or config.hardware.sequence_parallel
        return [n for n in range(1, most + 1) if most % n == 0 and n % together == 0] or [most]

    def _threads(self, config: Config) -> int:
        """Cores per process. A small student cannot use several cores well."""
        if config.hardware.threads or self.machine.device == "cuda":
            return config.hardware.threads or self.machine.threads
        shape = shape_of(config.student)
        is_small = shape is not None and shape.parameters <= SMALL
        return 1 if is_small else self.machine.threads

    def _estimate(self, step: Step, trial: Trial, machine: Machine) -> Estimate | None:
        config = trial.config
        key = repr((config.pool, config.student.max_length, config.student.path))
        if key not in self.lengths:
            self.lengths[key] = lengths_of(config, trial.plan, self.store)
        planner = planner_of(config, throughput(config, machine), self.lengths[key])
        return None if planner is None else planner.estimate(step)


def _too_large(step: Step, trial: Trial, gpus: int, cost: Estimate) -> LarkError:
    """`cost`: with as many GPUs as a node has."""
    return LarkError(
        f"{step.title} of trial {' '.join(trial.overrides)} needs {cost.memory_gib:.0f} GiB on each of {gpus}"
        f" GPUs, which have {cost.limit_gib:.0f}: `python run.py` with these settings and dry_run=true says"
        " what would help."
    )
