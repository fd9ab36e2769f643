"""Training on a Ray cluster, through Ray Train: the same function in every process, as torchrun calls it on
one machine.

Ray Train places the processes, connects them (PyTorch's process group) and starts all of them again if one
is lost. They resume from the newest complete checkpoint in the job's folder, which is on the shared disk.
With hardware.elastic they continue with as many processes as are left. The global batch does not depend on
their number, so only rounding does.
"""

import json
import logging
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from lark.cluster.checks import without_result
from lark.cluster.relay import Relay
from lark.cluster.watch import GangWatch
from lark.printing import log_to
from lark.store.store import write_text
from lark.work.devices import ALLOCATOR, for_allocator
from lark.work.entry import prepare
from lark.work.failures import RemoteError, WorkerFailure, failure_of
from lark.work.heartbeat import REMOTE, start_remote
from lark.work.launch import JOB, read_job
from lark.work.operation import Counts, Job, imported
from lark.work.process import ROOT, for_actor
from lark.work.sharding import TIMEOUT

log = logging.getLogger(__name__)

RESTARTS = 20
"""How often the processes are started again after losses."""
FAILED = ".gang-error.json"
FINISHED = ".gang-result.json"


def run_together(ray: Any, job: Job, target: str) -> Counts:
    """Run the job's function in processes on the cluster; return its result."""
    _clear(job.folder)
    fewest = least(job) if job.config.hardware.elastic else job.machine.world
    trainer = _trainer(job)
    try:
        with GangWatch(ray, job, fewest):
            trainer.fit()
    except Exception as error:  # Ray Train's own types differ between its versions
        described = _read(job.folder / FAILED)
        if described is None:
            raise
        raise RemoteError(WorkerFailure(**described)) from error
    else:
        return _result(job.folder)
    finally:
        shutil.rmtree(job.folder / ".ray", ignore_errors=True)
        _clear(job.folder)


def _clear(folder: Path) -> None:
    for file in (FAILED, FINISHED):
        (folder / file).unlink(missing_ok=True)


def _trainer(job: Job) -> Any:
    """Ray's trainer, which places the processes and starts them again after losses."""
    from ray import train  # noqa: PLC0415  # an optional package
    from ray.train import torch  # noqa: PLC0415

    machine = job.machine
    has_gpu = machine.device == "cuda"
    resources = {"CPU": float(machine.threads)}
    if has_gpu:
        resources["GPU"] = 1.0
    workers = (least(job), machine.world) if job.config.hardware.elastic else machine.world
    return torch.TorchTrainer(
        _process,
        train_loop_config={"folder": str(job.folder)},
        torch_config=torch.TorchConfig(
            backend="nccl" if has_gpu else "gloo", timeout_s=int(TIMEOUT.total_seconds())
        ),
        scaling_config=train.ScalingConfig(
            num_workers=workers, use_gpu=has_gpu, resources_per_worker=resources
        ),
        run_config=train.RunConfig(
            name="ray",
            storage_path=str(job.folder / ".ray"),
            failure_config=train.FailureConfig(max_failures=RESTARTS),
            worker_runtime_env={"env_vars": _before_torch(job)},
        ),
    )


def _before_torch(job: Job) -> dict[str, str]:
    """Variables of the processes that `_process` would set too late: PyTorch reads its allocator's settings
    once, when Ray Train connects the processes and chooses their GPUs.

    What the user has set for the run counts on all nodes.
    """
    if job.machine.device == "cpu":
        return {}
    chosen = {name: os.environ[name] for name in ALLOCATOR if name in os.environ}
    return chosen | for_allocator(job.allocator, chosen)


def _result(folder: Path) -> Counts:
    """The result that the processes have left. After a final error they end without one."""
    counts = _read(folder / FINISHED)
    if counts is not None:
        return counts
    described = _read(folder / FAILED)
    raise without_result(folder) if described is None else RemoteError(WorkerFailure(**described))


def least(job: Job) -> int:
    """The fewest processes that training may continue with."""
    return max(1, job.config.hardware.sequence_parallel)


def _process(config: dict[str, str]) -> None:
    """One process of the gang. Ray Train has set the process group and the variables that torchrun would
    set.
    """
    from ray import train  # noqa: PLC0415

    folder = Path(config["folder"])
    prepare()
    log_to(level=logging.WARNING)
    job, target = read_job(folder / JOB)
    os.environ.update(for_actor(job.machine, job.allocator, job.on_cpu))
    sys.path[:0] = [str(ROOT)] * (str(ROOT) not in sys.path)
    context = train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(context.get_local_rank())}
    if _is_final(_read(folder / FAILED)):  # it would occur again: the run ends with this error
        return
    # Training runs in a thread, so the main thread always waits; PyTorch's own limit ends an exchange that
    # hangs.
    start_remote(folder, str(rank), job.config.hardware.silence, busy=lambda: False)
    if rank == 0:
        for file in folder.glob(f"{REMOTE}*"):  # of an earlier start with more processes
            if int(file.name.removeprefix(REMOTE)) >= world:
                file.unlink(missing_ok=True)
        logging.getLogger().addHandler(Relay(folder))
        logging.getLogger("lark").setLevel(logging.INFO)
        log.info("training runs in %d process%s", world, "" if world == 1 else "es")
    try:
        counts = imported(target)(replace(job, rank=rank, world=world))
    except Exception as error:
        # When one process fails, the others fail because they lose it.
        if not _is_final(_read(folder / FAILED)):
            write_text(folder / FAILED, json.dumps(failure_of(error, folder).to_dict()))
        raise
    if rank == 0:
        write_text(folder / FINISHED, json.dumps(dict(counts), default=str))


def _is_final(failure: dict[str, Any] | None) -> bool:
    """True if an error would occur again, unlike the loss of a process."""
    return failure is not None and (failure["expected"] or failure["memory"] is not None)


def _read(path: Path) -> dict[str, Any] | None:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
