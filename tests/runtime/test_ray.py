"""A cluster gives the files of one machine, whatever happens to its nodes. Real Ray, on loopback."""

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from lark.errors import LarkError
from lark.runtime import cluster, launch
from lark.runtime.dispatch import ATTEMPTS
from lark.runtime.machine import Machine
from tests.conftest import composed, job_of, run_program, start_program
from tests.runtime.ray_cluster import Nodes, nodes

RUN = ["pool.questions=4", "training.epochs=2", "training.global_batch=6", "stages=[train]", "tracking=none", "hardware.threads=1",
       "benchmark=demo_words", "benchmark.tasks.demo_words.limit=6", "benchmark.decoding.samples=2",
       "benchmark.decoding.seeds=[0]", "benchmark.decoding.max_new_tokens=40"]  # fmt: skip


@pytest.fixture(scope="module")
def started() -> Iterator[Nodes]:
    """The cluster of all tests in this file. Nothing of it is left afterwards."""
    before = {process.pid for process in psutil.process_iter()}
    with nodes(2) as running:
        yield running
    deadline = time.time() + 30
    while time.time() < deadline and (left := _of_ray(before)):
        time.sleep(0.5)
    assert not left


def _of_ray(before: set[int]) -> list[str]:
    """Processes of Ray that did not exist before, and belong to the user who runs the tests."""
    found = []
    for process in psutil.process_iter(["cmdline", "uids"]):
        line = " ".join(process.info["cmdline"] or [])
        if (
            process.pid not in before
            and process.info["uids"].real == os.getuid()
            and ("raylet" in line or "gcs_server" in line)
        ):
            found.append(line[:100])
    return found


def run(folder: Path, started: Nodes, target: str = "work") -> dict[str, object]:
    """Do the work in `folder` on the cluster."""
    folder.mkdir(exist_ok=True)
    machine = Machine("cpu", 1, 2, 1, started.address)
    return launch.run_worker(job_of(composed(), folder, machine=machine), f"tests.runtime.ray_work:{target}")


def tried(folder: Path) -> Counter[str]:
    return Counter((folder / "tried.txt").read_text().split())


def test_a_shard_that_fails_three_times_is_named_and_the_others_are_kept(tmp_path: Path, started: Nodes) -> None:
    (tmp_path / "bad-s03").touch()
    (tmp_path / "deadly-s05").touch()
    with pytest.raises(
        LarkError, match=r"s03 cannot be done This occurred 3 times in trajectory s03\. Finished shards are kept"
    ):
        run(tmp_path, started)
    assert tried(tmp_path)["s03"] == ATTEMPTS
    (tmp_path / "bad-s03").unlink()
    before = tried(tmp_path)
    done = {path.stem for path in tmp_path.glob("*.done")}
    run(tmp_path, started)
    again = tried(tmp_path) - before
    assert set(again) == {f"s{number:02d}" for number in range(12)} - done
    assert len(list(tmp_path.glob("*.done"))) == 12
    assert before["s05"] + again["s05"] == 2  # its process was killed once
    assert run(tmp_path, started) == {"done": 0.0}


def test_a_node_that_joins_takes_work_and_undivided_work_runs_on_the_cluster(tmp_path: Path, started: Nodes) -> None:
    (tmp_path / "slow").touch()
    with ThreadPoolExecutor() as pool:
        counts = pool.submit(run, tmp_path, started)
        wait(lambda: any(tmp_path.glob("*.done")))
        started.add()
        assert counts.result() == {"done": 12.0}
    assert len({path.read_text() for path in tmp_path.glob("*.done")}) == 3
    assert run(tmp_path / "whole", started, "whole") == {"said": "done", "actor": ""}


def wait(condition: Callable[[], object], seconds: float = 240) -> None:
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline, "nothing happened"
        time.sleep(0.02)


def test_a_client_without_the_token_is_refused(started: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    monkeypatch.setenv("RAY_NUM_REDIS_GET_RETRIES", "2")  # how often it tries to connect
    cluster.reach.cache_clear()
    with pytest.raises(LarkError, match=r"the Ray cluster cannot be reached .*token"):
        cluster.reach(started.address)
    cluster.reach.cache_clear()


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


def test_a_run_survives_the_loss_of_its_driver_and_of_nodes_and_makes_the_files_of_one_machine(
    one: Path, started: Nodes, tmp_path: Path
) -> None:
    arguments = [*RUN, "hardware=ray", "hardware.elastic=true", "scoring.shard_tokens=300"]
    for kind in ("pool", "lengths"):  # the same either way, and not what is compared
        shutil.copytree(one / kind, tmp_path / kind)

    first = start_program(*arguments, outputs=tmp_path)
    wait(lambda: len(stamps(tmp_path, "scores/*/shard-*")) >= 2 or first.poll() is not None)
    first.kill()  # -9
    first.communicate()
    kept = stamps(tmp_path, "scores/*/shard-*")

    second = start_program(*arguments, outputs=tmp_path)
    wait(lambda: len(stamps(tmp_path, "scores/*/shard-*")) > len(kept) or second.poll() is not None)
    before = stamps(tmp_path, "scores/*/shard-*")
    assert kept.items() <= before.items(), "what was done before the driver was killed is not done again"
    started.kill()
    seen = dict(before)
    while second.poll() is None and (now := stamps(tmp_path, "scores/*/shard-*")):
        seen |= now
        time.sleep(0.05)
    assert before.items() <= seen.items(), "a shard was computed twice"

    wait(lambda: list(tmp_path.glob("checkpoint/*/checkpoints/*/complete")) or second.poll() is not None)
    if len(started.nodes) > 1:
        started.kill()
    said, _ = second.communicate()
    assert second.returncode == 0, said
    assert "Lost a node of the cluster" in said
    for file in ("scores/*/scores.parquet", "selection/*/train.jsonl"):
        assert next(tmp_path.glob(file)).read_bytes() == next(one.glob(file)).read_bytes()
    ours, theirs = (load_file(next(folder.glob("checkpoint/*/model.safetensors"))) for folder in (tmp_path, one))
    for name, value in theirs.items():
        assert_close(ours[name], value, rtol=0, atol=1e-6)
