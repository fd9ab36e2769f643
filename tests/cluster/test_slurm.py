"""A SLURM job of several nodes becomes a Ray cluster. SLURM is represented by its environment variables,
Ray is real.
"""

import getpass
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from submitit.slurm.slurm import _make_sbatch_string

from lark import config as schema
from lark.cluster import slurm
from lark.cluster.nodes import Cluster, Node, machine_of
from lark.errors import LarkError
from lark.pipeline.machine_check import check_machine
from lark.planner.throughput import throughput
from lark.work.machine import resolve
from tests.conftest import ROOT, composed, run_program, start_program


def test_two_nodes_of_a_job_form_a_cluster_and_leave_it_at_the_end(tmp_path: Path) -> None:
    temporary = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's paths are too long for sockets
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "127.0.0.2"}
    job |= {"TMPDIR": str(temporary), "RAY_TMPDIR": str(temporary)}
    arguments = [
        "hardware=slurm",
        "hardware.device=cpu",
        "hardware.processes=1",
        "hardware.threads=1",
        "pool.questions=2",
        "method=token_length",
        "stages=[select]",
        "tracking=none",
    ]
    processes = []
    for node in (1, 0):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**job, "SLURM_NODEID": str(node)}.items():
                patch.setenv(name, value)
            processes.append(start_program(*arguments, outputs=tmp_path))
    wait_for_folders(temporary, 2)
    assert {folder.stat().st_mode & 0o777 for folder in temporary.glob("lark-ray-*")} == {0o700}
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert "Ray on 2 nodes of SLURM job" in said[1]
    assert len(list(tmp_path.glob("selection/*/selection.parquet"))) == 1
    assert not list(tmp_path.glob(".locks/*.token"))
    assert not {path.name for path in temporary.iterdir()} - {
        f"torchinductor_{getpass.getuser()}"
    }  # of Ray, nothing
    shutil.rmtree(temporary)


def wait_for_folders(parent: Path, count: int) -> None:
    """Wait until each node has made the folder of its part of the cluster."""
    deadline = time.monotonic() + 120
    while len(list(parent.glob("lark-ray-*"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_job_without_a_node_number_says_how_to_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    monkeypatch.delenv("SLURM_NODEID", raising=False)
    with pytest.raises(LarkError, match="start the command with srun, once per node"):
        slurm.is_follower()


def test_a_plan_takes_the_nodes_that_the_launcher_would_ask_for_or_says_that_it_knows_none(
    tmp_path: Path,
) -> None:
    asked = [
        "dry_run=true",
        "hardware=slurm",
        "student=qwen7b",
        "stages=[train]",
        "method=random",
        "pool=demo",
    ]
    code, said = run_program(*asked, "hydra.launcher.nodes=2", outputs=tmp_path)
    assert code == 0, said
    assert "16 GPUs (cuda) on 2 nodes" in said
    config = composed(*asked)  # as in a program that Hydra did not start
    assert any("planned for 1 node" in note for note in throughput(config).notes)
    assert not throughput(composed("hardware=a100x8")).notes


def test_a_cluster_can_be_planned_for_without_being_there() -> None:
    planned = resolve(
        composed(
            "hardware=ray", "hardware.device=cuda", "hardware.processes=8", "hardware.workers=64"
        ).hardware,
        here=False,
    )
    assert (planned.world, planned.nodes) == (64, 8)


@pytest.mark.parametrize(
    ("nodes", "device", "settings", "expected"),
    [
        ([Node(96, 8), Node(96, 8), Node(4, 0)], "auto", (0, 0, 0), ("cuda", 8, 2, 12, 16)),
        ([Node(0, 0), Node(8, 0), Node(4, 0)], "auto", (0, 0, 0), ("cpu", 1, 2, 4, 2)),
        ([Node(8, 0), Node(8, 0)], "cpu", (0, 2, 0), ("cpu", 4, 2, 2, 8)),
        ([Node(96, 8)], "cuda", (4, 0, 0), ("cuda", 4, 1, 24, 4)),
        ([Node(96, 8)], "cuda", (0, 0, 64), ("cuda", 8, 1, 12, 64)),
    ],
)
def test_a_cluster_is_as_large_as_its_nodes(nodes, device, settings, expected) -> None:
    machine = machine_of(Cluster("a:1", tuple(nodes)), device, *settings)
    assert (machine.device, machine.processes, machine.nodes, machine.threads, machine.world) == expected


def test_a_cluster_without_gpus_has_none() -> None:
    with pytest.raises(LarkError, match=r"hardware\.device=cuda: no node of the Ray cluster at a:1 has one"):
        machine_of(Cluster("a:1", (Node(8, 0),)), "cuda", 0, 0, 0)


@pytest.mark.parametrize(
    ("nodes", "settings", "said"),
    [
        (
            [Node(2, 0)],
            (0, 1, 3),
            r"hardware\.workers=3: .* room for 2 of 3 processes, with 1 CPU each, and no node can join",
        ),
        ([Node(2, 0)], (0, 4, 0), r"room for 0 of 1 processes, with 4 CPUs each"),
        ([Node(96, 8), Node(96, 8)], (0, 0, 17), r"room for 16 of 17 processes, with 12 CPUs and a GPU each"),
        ([Node(16, 4)], (8, 0, 0), r"hardware\.processes=8: "),
    ],
)
def test_a_cluster_that_cannot_grow_refuses_more_processes_than_it_has_room_for(
    nodes, settings, said
) -> None:
    """Training would wait for other nodes forever."""
    machine_of(
        Cluster("a:1", tuple(nodes)), "auto", *settings
    )  # others may join a cluster that is there anyway
    with pytest.raises(LarkError, match=said):
        machine_of(Cluster("a:1", tuple(nodes), own=True), "auto", *settings)
    machine_of(Cluster("a:1", tuple(nodes), own=True), "auto", 0, 0, 0)


def job_script(folder: Path) -> str:
    """The script that Hydra's launcher gives to sbatch with hardware=slurm."""
    schema.register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        launcher = compose("config", ["hardware=slurm"], return_hydra_config=True).hydra.launcher
    return _make_sbatch_string(
        "python job.py", folder, setup=list(launcher.setup), cpus_per_task=launcher.cpus_per_task
    )


@pytest.mark.parametrize(("granted", "passed_on"), [("32", "32"), (None, "unset")])
def test_srun_gets_the_cores_that_slurm_has_granted(
    granted: str | None, passed_on: str, tmp_path: Path
) -> None:
    """Not all of its versions inherit them. The variable is unset where the job asks for cores per GPU."""
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\necho "cores: ${SRUN_CPUS_PER_TASK-unset}"\n')
    srun.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    if granted is not None:
        variables["SLURM_CPUS_PER_TASK"] = granted
    script = job_script(tmp_path)
    done = subprocess.run(
        ["bash", "-e"], input=script, env=variables, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"cores: {passed_on}\n"


@pytest.mark.parametrize(("granted", "cores", "warns"), [("32", 1, True), ("2", 2, False), ("", 1, False)])
def test_a_run_with_fewer_cores_than_slurm_granted_warns(
    granted: str,
    cores: int,
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", granted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    check_machine(composed("hardware=cpu"))
    assert ("SLURM has granted 32 cores to this task" in caplog.text) == warns
    assert ("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK" in caplog.text) == warns
    caplog.clear()
    check_machine(composed("hardware=cpu", "dry_run=true"))  # a plan may be made anywhere
    assert caplog.text == ""
