"""The processes that train together on a Ray cluster with GPUs. Ray is real; a stand-in takes the place of
CUDA and records what PyTorch would find in the environment.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lark.work import launch
from lark.work.machine import Machine
from lark.work.operation import EXPANDABLE
from lark.work.sharding import TIMEOUT
from tests.cluster.ray_cluster import NODE, Nodes, nodes
from tests.conftest import composed, job_of

STAND_IN = Path(__file__).parent / "cuda_stand_in"
CALLS = ["connect with nccl", "set_device"]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cuda") / "calls.jsonl"


@pytest.fixture(scope="module")
def gpus(calls: Path) -> Iterator[Nodes]:
    """A cluster with a node that has two GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(STAND_IN))
        patch.setenv("CUDA_CALLS", str(calls))
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            patch.delenv(name, raising=False)
        with nodes(0) as running:
            node = {**NODE, "num_cpus": 3, "num_gpus": 2}
            running.nodes.append(running.cluster.add_node(**node))
            running.cluster.wait_for_nodes()
            yield running


def trained(folder: Path, started: Nodes) -> dict[str, object]:
    """The result of a job of two processes with a GPU each."""
    machine = Machine("cuda", 2, 1, 1, started.address)
    job = job_of(composed(), folder, machine=machine, gpus=0, allocator=EXPANDABLE)
    return launch.run_worker(job, "tests.cluster.ray_work:exchange")


def recorded(calls: Path) -> dict[int, list[dict[str, object]]]:
    """The calls of each process, in their order."""
    by_process: dict[int, list[dict[str, object]]] = {}
    for line in calls.read_text(encoding="utf-8").splitlines():
        call = json.loads(line)
        by_process.setdefault(call["process"], []).append(call)
    calls.unlink()
    return by_process


def test_the_allocators_settings_are_there_before_cuda_starts(
    gpus: Nodes, calls: Path, tmp_path: Path
) -> None:
    """PyTorch reads them once: when NCCL is set up, or else when a GPU is chosen. Ray Train does both before
    it calls our function.
    """
    result = trained(tmp_path, gpus)
    processes = recorded(calls)
    assert len(processes) == 2
    for process in processes.values():
        assert [call["call"] for call in process] == CALLS
        assert [call["settings"] for call in process] == [{"PYTORCH_ALLOC_CONF": EXPANDABLE}] * 2
    assert result["sum"] == 3
    assert result["timeout"] == TIMEOUT.total_seconds()


def test_the_users_allocator_counts_on_every_node(
    gpus: Nodes, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:native")  # the older name
    trained(tmp_path, gpus)
    settings = [call["settings"] for process in recorded(calls).values() for call in process]
    assert settings == [{"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}] * 4
