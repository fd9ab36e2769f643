"""A cluster gives the files of one machine, whatever happens to its nodes. Real Ray, on loopback."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from experiments.submission.record import Submission, submitted
from experiments.submission.status import situations
from lark.cluster import nodes as cluster
from lark.cluster.dispatch import SHARD_ATTEMPTS
from lark.errors import LarkError
from lark.evaluation.generate import generate
from lark.evaluation.grade import collect
from lark.evaluation.shards import GENERATIONS
from lark.pipeline.operations.evaluate import GENERATE
from lark.work import launch
from lark.work.machine import Machine
from tests.cluster.ray_cluster import Nodes, nodes
from tests.cluster.ray_work import COUNT
from tests.conftest import ROOT, composed, job_of, run_program, start_program
from tests.experiments.submitted import ARGUMENTS, check_shared, experiments, wait_for_driver, wait_until

RUN = [
    *("pool.questions=4", "training.epochs=16", "training.checkpoints=16", "training.global_batch=6"),
    *("stages=[train]", "tracking=none", "hardware.threads=1", "scoring.shard_tokens=300"),
]
"""Training with many checkpoints takes long enough to lose a node between the first and the last of them."""


@pytest.fixture(scope="module")
def started() -> Iterator[Nodes]:
    """The cluster of all tests in this file. Nothing of it is left afterwards."""
    with nodes(2) as running:
        session = running.cluster.head_node.get_session_dir_path()
        yield running
    deadline = time.time() + 30
    while time.time() < deadline and (left := _of_ray(session)):
        time.sleep(0.5)
    assert not left


def _of_ray(session: str) -> list[str]:
    """Processes of a cluster, which have the folder of its logs or sockets on their command lines."""
    lines = (" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
    return [line[:200] for line in lines if session in line]


def run(folder: Path, started: Nodes, target: str = "work", *settings: str) -> dict[str, object]:
    """Do the work in `folder` on the cluster."""
    return work_at(folder, started.address, target, *settings)


def work_at(folder: Path, address: str, target: str = "work", *settings: str) -> dict[str, object]:
    folder.mkdir(exist_ok=True)
    machine = Machine("cpu", 1, 2, 1, address)
    return launch.run_worker(
        job_of(composed(*settings), folder, machine=machine), f"tests.cluster.ray_work:{target}"
    )


def logged(folder: Path) -> str:
    return (folder / launch.LOG).read_text()


def tried(folder: Path) -> Counter[str]:
    return Counter((folder / "tried.txt").read_text().split())


def test_a_shard_that_fails_three_times_is_named_and_the_others_are_kept(
    tmp_path: Path, started: Nodes
) -> None:
    (tmp_path / "bad-s03").touch()
    (tmp_path / "deadly-s05").touch()
    with pytest.raises(
        LarkError,
        match=r"s03 cannot be done This occurred 3 times in trajectory s03\. Finished shards are kept",
    ):
        run(tmp_path, started)
    assert tried(tmp_path)["s03"] == SHARD_ATTEMPTS
    (tmp_path / "bad-s03").unlink()
    before = tried(tmp_path)
    done = {path.stem for path in tmp_path.glob("*.done")}
    run(tmp_path, started)
    again = tried(tmp_path) - before
    assert set(again) == {f"s{number:02d}" for number in range(COUNT)} - done
    assert len(list(tmp_path.glob("*.done"))) == COUNT
    assert before["s05"] + again["s05"] == 2  # its process was killed once
    assert run(tmp_path, started) == {"done": 0.0}


def test_a_node_that_joins_takes_work_and_a_lost_node_costs_only_the_shard_it_was_at(
    tmp_path: Path, started: Nodes
) -> None:
    (tmp_path / "slow").touch()

    def workers() -> set[str]:
        """The nodes that have done shards. A file that is being written is empty for a moment."""
        return {path.read_text() for path in tmp_path.glob("*.done")} - {""}

    with ThreadPoolExecutor() as pool:
        counts = pool.submit(run, tmp_path, started)
        wait(workers)
        started.add()
        wait(lambda: len(workers()) == 3 or counts.done())
        started.kill()
        (tmp_path / "slow").unlink()
        assert counts.result() == {"done": COUNT}
    assert len(workers()) == 3
    again = [name for name, times in tried(tmp_path).items() if times > 1]
    assert len(again) <= 1, "only the shard that the lost node was at is done again"
    assert len(tried(tmp_path)) == COUNT
    assert re.search(
        r"Lost 1 process of the cluster, and with it [\d.]+ s of [\d.]+ s of work \([\d.]+%\)",
        logged(tmp_path),
    )


DRIVER = (
    "import sys; from pathlib import Path; from tests.cluster.test_ray import work_at;"
    " work_at(Path(sys.argv[1]), sys.argv[2])"
)


def test_what_a_killed_driver_has_done_is_not_done_again(tmp_path: Path, started: Nodes) -> None:
    (tmp_path / "slow").touch()
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path), started.address], cwd=ROOT)
    wait(lambda: len(list(tmp_path.glob("*.done"))) >= 2 or driver.poll() is not None)
    driver.kill()  # -9
    driver.wait()
    (tmp_path / "slow").unlink()
    wait(lambda: started.working() is None)  # its actors end with it
    done, before = {path.stem for path in tmp_path.glob("*.done")}, tried(tmp_path)
    run(tmp_path, started)
    assert done and not done & set(tried(tmp_path) - before)
    assert len(list(tmp_path.glob("*.done"))) == COUNT


def test_the_shards_of_stopped_and_stuck_processes_go_to_others(tmp_path: Path, started: Nodes) -> None:
    (tmp_path / "stopped-s10").touch()
    (tmp_path / "stuck-s11").touch()
    assert run(tmp_path, started, "work", "hardware.silence=0.1") == {"done": COUNT}
    assert {name for name, times in tried(tmp_path).items() if times > 1} == {"s10", "s11"}
    said = logged(tmp_path)
    assert re.search(r"\(process \d+ on .*\) has shown no sign of life for \d+ seconds: it is stopped", said)
    assert re.search(r"\(process \d+ on .*\) has waited for \d+ seconds without working", said)
    assert said.count("1 of its 1 shards go to others; hardware.silence=0.1") == 2
    assert "Process 0 has waited" not in said, "the process that leads only waits for the others"
    assert "time.sleep(3600)" in said, "the stack of the stuck process"
    assert not list(tmp_path.glob(".remote*"))


def test_nodes_take_turns_where_the_file_system_has_no_locks(tmp_path: Path, started: Nodes) -> None:
    (tmp_path / "unlockable").touch()
    run(tmp_path, started)
    assert (tmp_path / "turns.txt").read_text().split() == ["in", "out"] * COUNT
    assert len({path.read_text() for path in tmp_path.glob("*.done")}) == 2


def test_undivided_work_runs_in_one_process_of_the_cluster(tmp_path: Path, started: Nodes) -> None:
    assert run(tmp_path, started, "whole") == {"said": "done", "actor": ""}
    assert not list(tmp_path.glob(".whole*"))
    assert logged(tmp_path).count("it is working") == 1, "its messages are passed on"


def wait(condition: Callable[[], object], seconds: float = 240) -> None:
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline, "nothing happened"
        time.sleep(0.02)


def test_a_submitted_sweep_runs_as_tasks_that_share_scores(started: Nodes, tmp_path: Path) -> None:
    settings = [
        *ARGUMENTS,
        "hardware=ray",
        "hardware.device=cpu",
        "hardware.threads=1",
        f"outputs={tmp_path}",
    ]
    experiments("submit", *settings, f"hardware.address={started.address}")
    (submission,) = map(Submission, submitted(tmp_path))
    assert submission.place == "ray" and {step.cpus for step in submission.steps.values()} == {1}
    wait_until(submission, "done")
    wait_for_driver(submission)  # a step logs its time after its result is there
    check_shared(submission, "score")
    assert len(list(tmp_path.glob("selection/*/selection.parquet"))) == 2


def test_a_submitted_step_whose_node_is_lost_is_started_elsewhere(started: Nodes, tmp_path: Path) -> None:
    started.add()
    settings = ["hardware=ray", "hardware.device=cpu", "hardware.threads=1", f"outputs={tmp_path}"]
    experiments("submit", *ARGUMENTS, *settings, f"hardware.address={started.address}")
    (submission,) = map(Submission, submitted(tmp_path))

    def makers() -> list[psutil.Process]:
        owners = filter(None, map(submission.maker, submission.steps.values()))
        return [psutil.Process(int(owner.split()[1])) for owner in owners]

    wait(makers)
    (maker, *_) = makers()
    parents = {process.pid for process in maker.parents()}
    (node,) = [n for n in started.nodes if n.all_processes["raylet"][0].process.pid in parents]
    started.kill(node)
    assert not psutil.wait_procs([maker], timeout=60)[1], "the step ends with its node"
    wait_until(submission, "done", seconds=240)
    assert len(list(tmp_path.glob("selection/*/selection.parquet"))) == 2
    wait_for_driver(submission)


def test_a_submitted_step_that_fails_leaves_the_others(started: Nodes, tmp_path: Path) -> None:
    settings = ["method=random", "method.teacher=nobody,terse", *ARGUMENTS[2:], f"outputs={tmp_path}"]
    hardware = ["hardware=ray", "hardware.device=cpu", "hardware.threads=1"]
    experiments("submit", "table1", *settings, *hardware, f"hardware.address={started.address}")
    (submission,) = map(Submission, submitted(tmp_path))
    wait_until(submission, "done", "failed", seconds=240)
    wait_for_driver(submission)
    failed = [s for s in situations(submission) if s.state == "failed"]
    assert len(failed) == 1 and "method.teacher=nobody: choose one of" in failed[0].note
    assert len(list(tmp_path.glob("selection/*/selection.parquet"))) == 1


@pytest.mark.parametrize(
    ("token", "why"), [("0" * 64, "Failed to connect"), (None, "no authentication token was found")]
)
def test_a_client_with_a_wrong_or_no_token_is_refused(
    started: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, token: str | None, why: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # with no file ~/.ray/auth_token
    monkeypatch.setenv("RAY_NUM_REDIS_GET_RETRIES", "2")  # how often it tries to connect
    if token is None:
        monkeypatch.delenv("RAY_AUTH_TOKEN")
    else:
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    monkeypatch.setattr(cluster, "REACHED", {})
    with pytest.raises(
        LarkError, match=rf"cannot be reached \([^)]*{why}[^)]*\)\. .* the token may be wrong or missing"
    ):
        cluster.reach(started.address, tmp_path)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one machine makes."""
    folder = tmp_path_factory.mktemp("one")
    code, said = run_program(*RUN, "hardware=cpu", outputs=folder)
    assert code == 0, said
    return folder


def stamps(folder: Path, pattern: str) -> dict[str, int]:
    found = {}
    for path in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.stat().st_mtime_ns
    return found


def test_a_run_survives_the_loss_of_nodes_and_makes_the_files_of_one_machine(
    one: Path, started: Nodes, tmp_path: Path
) -> None:
    arguments = [*RUN, "hardware=ray", "hardware.elastic=true"]
    for kind in ("pool", "lengths"):  # the same either way, and not what is compared
        shutil.copytree(one / kind, tmp_path / kind)

    seen: dict[str, set[int]] = defaultdict(set)

    def shards() -> int:
        """The number of scored shards. Remembers when each was written."""
        now = stamps(tmp_path, "scores/*/shard-*")
        for name, stamp in now.items():
            seen[name].add(stamp)
        return len(now)

    program = start_program(*arguments, outputs=tmp_path)
    lost = None
    while shards() < 2 or (lost := started.working()) is None:
        assert program.poll() is None, program.communicate()[0]
        time.sleep(0.005)
    started.kill(lost)  # while it scores
    started.add()
    wait(
        lambda: (
            shards() * 0
            or list(tmp_path.glob("checkpoint/*/checkpoints/*/complete"))
            or program.poll() is not None
        )
    )
    assert all(len(times) == 1 for times in seen.values()), "no shard is done twice"
    started.kill()  # while it trains
    said, _ = program.communicate()
    assert program.returncode == 0, said
    assert re.search(r"Lost a node of the cluster; [01] of its 1 shards go to others\.", said), said
    assert re.search(
        r"Lost \d process(es)? of the cluster, and with (it|them) [\d.]+ s of [\d.]+ s of work", said
    ), said
    assert re.search(r"training runs in 2 processes\n.*training runs in 1 process\n", said, re.DOTALL), said
    assert "resuming from checkpoint-" in said, said  # of another process: before or after the line above
    for file in ("scores/*/scores.parquet", "selection/*/train.jsonl"):
        assert next(tmp_path.glob(file)).read_bytes() == next(one.glob(file)).read_bytes()
    ours, theirs = (
        load_file(next(folder.glob("checkpoint/*/model.safetensors"))) for folder in (tmp_path, one)
    )
    for name, value in theirs.items():
        assert_close(ours[name], value, rtol=0, atol=1e-6)
    curve = next(tmp_path.glob("checkpoint/*/metrics.jsonl")).read_text().splitlines()
    assert [json.loads(line)["step"] for line in curve] == list(range(1, len(curve) + 1))


def test_a_node_that_is_lost_while_generating_changes_no_answer(started: Nodes, tmp_path: Path) -> None:
    started.add(2 - len(started.nodes))
    config = composed(
        "benchmark=demo_words",
        "benchmark.tasks.demo_words.limit=12",
        "benchmark.decoding.samples=8",
        "engine.batch=4",
        "benchmark.decoding.seeds=[0,1]",
        "benchmark.decoding.max_new_tokens=150",
        "benchmark.decoding.temperature=1.5",
    )
    found = {}
    for name in ("one", "cluster"):
        folder = tmp_path / name / "run"
        folder.mkdir(parents=True)
        job = job_of(
            config, folder, outputs={"demo_words": folder}, machine=Machine("cpu", 1, 2, 1, started.address)
        )
        if name == "one":
            counts = generate(replace(job, machine=Machine("cpu", 1, 1, 1)))
        else:
            with ThreadPoolExecutor() as pool:
                working = pool.submit(launch.run_worker, job, str(GENERATE.run))
                lost, before = None, dict[Path, bytes]()
                while not any(before.values()) or (lost := started.working()) is None:
                    assert not working.done(), "it ended before a node was lost"
                    before = {path: path.read_bytes().rpartition(b"\n")[0] for path in folder.glob("shard-*")}
                started.kill(lost)
                assert not working.done()
                counts = working.result()
                assert re.search(
                    r"Lost a node of the cluster; \d of its \d shards? go to others\.", logged(folder)
                ), logged(folder)
                assert all(path.read_bytes().startswith(done) for path, done in before.items()), (
                    "nothing is generated twice"
                )
        collect(job, counts)
        found[name] = (folder / GENERATIONS.file).read_bytes()
    assert found["cluster"] == found["one"]
