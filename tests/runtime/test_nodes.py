"""Several nodes: their roles, what happens when one fails, and that two of them give the scores and the weights of one."""

import contextlib
import shutil
import socket
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from lark.errors import LarkError
from lark.planner.throughput import throughput
from lark.runtime import launch, nodes
from lark.runtime import machine as hardware
from lark.runtime.machine import Machine, first_host, resolve
from tests.conftest import composed, run_program, start_program


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def machine(node: int, address: str, processes: int = 1) -> Machine:
    return Machine("cpu", processes, 2, 1, node, address)


def meet(address: str, processes: int = 1) -> tuple[nodes.Leader, nodes.Line]:
    joined: list[nodes.Line] = []
    thread = threading.Thread(target=lambda: joined.append(nodes.join(machine(1, address, processes))))
    thread.start()
    leader = nodes.Leader(machine(0, address), patience=20)
    thread.join()
    return leader, joined[0]


def test_nodes_find_each_other_whoever_comes_first() -> None:
    leader, line = meet(free_address())
    endpoint = leader.start(Path("/somewhere"), 4)
    assert line.receive() == {"run": "/somewhere", "endpoint": endpoint, "processes": 4, "gpus": 1}
    leader.close()
    assert line.receive() == {"end": "finished"}
    assert line.receive() is None


def test_a_node_that_does_not_come_is_named() -> None:
    with pytest.raises(LarkError, match=r"Node 1 of hardware\.nodes=2 did not connect within"):
        nodes.Leader(machine(0, free_address()), patience=0.3)


def test_a_stranger_on_the_port_is_sent_away() -> None:
    address = free_address()

    def call() -> None:
        nodes.join(machine(7, address))  # a node that this run does not have
        nodes.join(machine(1, address))

    thread = threading.Thread(target=call)
    thread.start()
    leader = nodes.Leader(machine(0, address), patience=20)
    thread.join()
    assert list(leader.followers) == [1]
    leader.close()


STRANGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"5\n",
    b"[]\n",
    b"[" * 100_000 + b"\n",
    b"\xff\xfe\n",
    b'{"node": [1]}\n',
    b"x" * (3 << 20),
    b"",
]


@pytest.mark.parametrize("data", STRANGE, ids=lambda data: repr(data[:12]))
def test_whatever_a_stranger_sends_is_not_a_message(data: bytes) -> None:
    address = free_address()

    def call() -> None:
        host, port = nodes.host_and_port(address)
        for _ in range(100):
            with contextlib.suppress(ConnectionError), socket.create_connection((host, port), timeout=10) as connection:
                connection.sendall(data)
                break
            time.sleep(0.1)
        nodes.join(machine(1, address))

    thread = threading.Thread(target=call)
    thread.start()
    leader = nodes.Leader(machine(0, address), patience=30)
    thread.join()
    assert list(leader.followers) == [1]
    leader.close()


def test_nodes_must_have_the_same_number_of_processes() -> None:
    address = free_address()
    thread = threading.Thread(target=lambda: nodes.join(machine(1, address, processes=4)))
    thread.start()
    with pytest.raises(LarkError, match=r"Node 1 has 4 processes, this node 1: set the same"):
        nodes.Leader(machine(0, address), patience=20)
    thread.join()


def test_a_node_that_is_lost_ends_the_stage_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, line = meet(free_address())
    monkeypatch.setattr(launch, "command", lambda *_, **__: ["sleep", "60"])
    threading.Timer(0.3, line.close).start()
    with pytest.raises(LarkError, match="Node 1 has disconnected"):
        launch._lead(tmp_path, leader.machine, None, leader)


def test_a_failure_elsewhere_ends_the_stage_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, line = meet(free_address())
    monkeypatch.setattr(launch, "command", lambda *_, **__: ["sleep", "60"])
    threading.Timer(0.3, lambda: line.send({"code": 3})).start()
    assert launch._lead(tmp_path, leader.machine, None, leader) != 0
    assert [line.receive(), line.receive()][1] == {"stop": True}
    leader.close(failed=True)


def test_a_failure_here_ends_the_stage_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = free_address()
    commands = iter([["sleep", "60"], ["false"]])
    monkeypatch.setattr(launch, "command", lambda *_, **__: next(commands))
    said: list[str] = []

    def other() -> None:
        try:
            launch.follow(machine(1, address))
        except LarkError as error:
            said.append(str(error))

    thread = threading.Thread(target=other)
    thread.start()
    leader = nodes.Leader(machine(0, address), patience=20)
    assert launch._lead(tmp_path, leader.machine, None, leader) != 0
    leader.close(failed=True)
    thread.join(20)
    assert not thread.is_alive()
    assert "see the error on node 0" in said[0]


def test_the_command_of_each_node_names_its_rank(tmp_path: Path) -> None:
    command = launch.command(tmp_path, machine(1, "head:29500", processes=8), endpoint="head:4000")
    assert {"--nnodes=2", "--node_rank=1", "--nproc_per_node=8", "--rdzv_endpoint=head:4000"} <= set(command)
    assert "--standalone" not in command


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("gpu[03-07,12],big1", "gpu03"),
        ("node7", "node7"),
        ("a1,a2", "a1"),
        ("rack2-n[1,4]", "rack2-n1"),
        ("n[001-128]-ib", "n001-ib"),
    ],
)
def test_the_first_node_of_a_slurm_job_is_found(nodelist: str, first: str) -> None:
    assert first_host(nodelist) == first


def test_a_slurm_job_needs_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_JOB_NUM_NODES": "4", "SLURM_NODEID": "2", "SLURM_JOB_NODELIST": "gpu[11-14]",
                        "SLURM_JOB_ID": "1234567", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(hardware, "_present_gpus", lambda: 8)
    hardware.visible_gpus.cache_clear()
    found = resolve(composed("hardware=slurm").hardware)
    hardware.visible_gpus.cache_clear()
    assert (found.nodes, found.node, found.processes, found.rendezvous) == (4, 2, 8, "gpu11:24567")


def test_outside_slurm_a_node_needs_its_own_number() -> None:
    with pytest.raises(LarkError, match=r"hardware\.node=0 to 1"):
        resolve(composed("hardware=cpu", "hardware.nodes=2", "hardware.rendezvous=a:1").hardware)
    with pytest.raises(LarkError, match="host:port"):
        composed("hardware.nodes=2", "hardware.rendezvous=a")
    with pytest.raises(
        LarkError, match=r"hardware\.nodes=2, but hardware\.rendezvous has no value and this is not a SLURM job"
    ):
        resolve(composed("hardware=cpu", "hardware.nodes=2", "hardware.node=0").hardware)


def test_nodes_can_be_planned_for_without_a_place_to_meet() -> None:
    planned = resolve(composed("hardware=a100x8", "hardware.nodes=2").hardware, here=False)
    assert (planned.world, planned.node) == (16, 0)
    assert "--nnodes=2" in launch.command(Path("x"), planned, endpoint=planned.rendezvous)


def test_a_plan_takes_the_nodes_that_the_launcher_would_ask_for_or_says_that_it_knows_none(tmp_path: Path) -> None:
    asked = ["dry_run=true", "hardware=slurm", "student=qwen7b", "stages=[train]", "method=random", "pool=demo"]
    code, said = run_program(*asked, "hydra.launcher.nodes=2", outputs=tmp_path)
    assert code == 0, said
    assert "16 GPUs (cuda) on 2 nodes" in said
    config = composed(*asked)  # as in a program that Hydra did not start
    assert any("planned for 1 node" in note for note in throughput(config).notes)
    assert not throughput(composed("hardware=a100x8")).notes


RUN = ["pool.questions=4", "training.epochs=1", "training.global_batch=4", "stages=[train]", "tracking=none", "hardware=cpu",
       "hardware.threads=1"]  # fmt: skip


def test_two_nodes_give_the_scores_and_the_weights_of_one(tmp_path: Path) -> None:
    """Real torchrun on two loopback nodes: bit for bit the scores of one process, and its weights except for the order in which
    gradients are added."""
    code, text = run_program(*RUN, outputs=tmp_path / "one")
    assert code == 0, text
    for stage in ("pool", "lengths"):  # the same either way, and not what is compared
        shutil.copytree(tmp_path / "one" / stage, tmp_path / "nodes" / stage)
    address = free_address()
    two = [
        start_program(
            *RUN, "hardware.nodes=2", f"hardware.rendezvous={address}", f"hardware.node={node}", outputs=tmp_path / "nodes"
        )
        for node in (0, 1)
    ]
    said = [node.communicate()[0] for node in two]
    assert [node.returncode for node in two] == [0, 0], said

    def made(name: str) -> tuple[pd.DataFrame, dict[str, torch.Tensor]]:
        (scores,) = (tmp_path / name).glob("scores/*/scores.parquet")
        (weights,) = (tmp_path / name).glob("checkpoint/*/model.safetensors")
        return pd.read_parquet(scores), load_file(weights)

    (scores, weights), (one_scores, one_weights) = made("nodes"), made("one")
    pd.testing.assert_frame_equal(scores, one_scores)
    for key, value in weights.items():
        torch.testing.assert_close(value, one_weights[key], rtol=0, atol=2e-6)
    assert (next((tmp_path / "nodes").glob("scores/*/log-node1.txt"))).exists()
