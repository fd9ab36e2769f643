"""Checks that this machine, or its cluster, can carry out a run. They come before anything runs."""

import logging
from collections.abc import Sequence

from lark.cluster import slurm
from lark.cluster.nodes import address_of, machine_of, reach
from lark.config import Config
from lark.models.students import check_student
from lark.work.machine import Machine, missing_cores, resolve
from lark.work.operation import Step

log = logging.getLogger(__name__)


def check_machine(config: Config) -> Machine:
    """Resolve the hardware settings; refuse what this machine does not have or the student's context does
    not allow.
    """
    # Before the cluster of a SLURM job refuses a node that has too few cores.
    warning = None if config.dry_run else missing_cores()
    if warning is not None:
        log.warning("%s", warning)
    # A plan only reads the settings: it must not join a cluster, and the GPUs may be on another machine.
    machine = resolve(config.hardware, here=False) if config.dry_run else _joined(config)
    if machine.elsewhere:
        log.warning(
            "This machine has no GPU: the plan is for hardware=%s on another machine.", config.hardware.name
        )
    check_student(config.student, machine)
    return machine


def _joined(config: Config) -> Machine:
    """The machine of a run that starts now; with a cluster, all of its nodes."""
    hardware = config.hardware
    if hardware.cluster == "ray":
        cluster = reach(address_of(hardware), config.outputs_path)
    elif hardware.cluster == "slurm" and slurm.several_nodes():
        cluster = slurm.lead(config.outputs_path)
    else:
        return resolve(hardware, here=True)
    return machine_of(cluster, hardware.device, hardware.processes, hardware.threads, hardware.workers)


def check_steps(config: Config, machine: Machine, steps: Sequence[Step]) -> None:
    """Run the checks of each operation once, before anything runs."""
    for check in dict.fromkeys(step.operation.check for step in steps):
        if check is not None:
            check(config, machine)
