"""Scores do not depend on who computes them: one process or two, killed and resumed, a shuffled pool, with or without tokens."""

import json
import random
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from lark.config import Config
from lark.demo.pool import trajectories
from lark.pool import trajectories as pools
from lark.pool.read import Trajectory
from lark.pool.trajectories import KEY
from lark.runtime import launch, pipeline
from lark.scoring import shards, worker
from lark.scoring.operations import SCORE
from tests.conftest import ALONE, composed, job_of, work_here


def settings(**scoring: int) -> Config:
    config = composed("pool.questions=3", "student.max_length=100")
    return replace(config, scoring=replace(config.scoring, **scoring))  # type: ignore[arg-type]


def prepare(folder: Path, shuffled: bool = False) -> dict[str, Path]:
    """A normalised pool and its lengths. At 100 tokens some trajectories are cut off."""
    folder.mkdir()
    rows = [Trajectory(**row) for row in trajectories(3, 42)]  # type: ignore[arg-type]
    if shuffled:
        random.Random(0).shuffle(rows)
    config = settings()
    pools.write(iter(rows), folder / pools.FILE, config.pool)
    worker.lengths(job_of(config, folder, inputs={"pool": folder}))
    return {"pool": folder, "lengths": folder}


def cut(lengths: Path, config: Config) -> list[range]:
    return shards.Shards.of(lengths, config.scoring.shard_tokens).rows


def run_here(task: str, inputs: dict[str, Path], folder: Path, *outputs: str, **scoring: int) -> dict[str, Path]:
    """Run the operation in this process, alone, and merge its shards."""
    config = settings(**scoring)
    folders = {output: folder / output for output in outputs}
    for path in folders.values():
        path.mkdir(parents=True, exist_ok=True)
    job = job_of(config, folder, inputs=inputs, outputs=folders)
    shards.collect(job, getattr(worker, task)(job))
    return folders


def by_key(table: pd.DataFrame, *more: str) -> pd.DataFrame:
    return table.sort_values([*KEY, *more], ignore_index=True)


def assert_same(first: pd.DataFrame, second: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(by_key(first), by_key(second), rtol=1e-5, atol=1e-6, check_dtype=True)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return prepare(tmp_path_factory.mktemp("pool") / "inputs")


@pytest.fixture(scope="module")
def scored(pool: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The outputs of one uninterrupted process."""
    folder = tmp_path_factory.mktemp("scored")
    return {**run_here("score", pool, folder, "scores", "tokens"), **run_here("local", pool, folder, "local")}


def read(scored: dict[str, Path], output: str) -> pd.DataFrame:
    if output == "tokens":
        return pd.concat(
            [pq.read_table(part).to_pandas() for part in sorted(scored[output].glob("tokens-*"))], ignore_index=True
        )
    return pd.read_parquet(scored[output] / f"{output}.parquet")


def test_every_trajectory_has_a_row_in_the_pools_order(pool, scored):
    ids = pd.read_parquet(pool["pool"] / pools.FILE, columns=KEY)
    for output in ("scores", "local"):
        table = read(scored, output)
        pd.testing.assert_frame_equal(table[KEY], ids)
        assert table["truncated"].any()
        assert not table.select_dtypes("number").isna().any().any()
    assert not list(scored["scores"].glob("shard-*"))


def test_tokens_add_up_to_their_trajectory(pool, scored):
    tokens, table = read(scored, "tokens"), read(scored, "scores")
    assert len(tokens) == table["n_tokens"].sum()
    tokens = tokens.astype(dict.fromkeys(KEY, str))
    groups = tokens.groupby(KEY)
    assert groups["position"].apply(lambda p: list(p) == list(range(len(p)))).all()
    sums = groups.agg(
        nll=("surprisal", "sum"), brier=("residual", "sum"), ties=("ties", "sum"), p_gold=("p_gold", "mean"),
        wrong_p2=("wrong_p2", "mean"), sum_p2=("sum_p2", "mean"),
    )  # fmt: skip
    sums["rank_sum"] = tokens.assign(rank=tokens["rank"].clip(upper=100)).groupby(KEY)["rank"].sum()
    expected = table.set_index(KEY).sort_index()
    for name in sums.columns:
        np.testing.assert_allclose(sums[name], expected[name], rtol=1e-5, err_msg=name)


def test_scores_are_the_same_without_tokens_and_tokens_without_scores(pool, scored, tmp_path):
    scores = run_here("score", pool, tmp_path, "scores")
    tokens = run_here("score", pool, tmp_path, "tokens")
    pd.testing.assert_frame_equal(read(scores, "scores"), read(scored, "scores"))
    pd.testing.assert_frame_equal(read(tokens, "tokens"), read(scored, "tokens"))


def test_a_shuffled_pool_cut_otherwise_has_the_same_scores(scored, tmp_path):
    inputs = prepare(tmp_path / "inputs", shuffled=True)
    found = {
        **run_here("score", inputs, tmp_path, "scores", shard_tokens=200),
        **run_here("local", inputs, tmp_path, "local", shard_tokens=3000),
    }
    for output in ("scores", "local"):
        assert read(found, output)[KEY].to_numpy().tolist() != read(scored, output)[KEY].to_numpy().tolist()
        assert_same(read(found, output), read(scored, output))


def test_a_trajectory_without_a_response_token_has_a_row_and_no_score(pool, tmp_path):
    config = settings()
    config = replace(config, student=replace(config.student, max_length=5))  # less than any prompt
    inputs = {**pool, "lengths": tmp_path}
    worker.lengths(job_of(config, tmp_path, inputs=inputs))
    for task, output, column in (("score", "scores", "nll"), ("local", "local", "local_naturalness")):
        (tmp_path / output).mkdir()
        getattr(worker, task)(job_of(config, tmp_path, inputs=inputs, outputs={output: tmp_path / output}))
        table = pd.concat(map(pd.read_parquet, (tmp_path / output).glob("shard-*")))
        assert len(table) == 99
        assert table["n_tokens"].eq(0).all()
        assert table[column].isna().all()


@pytest.mark.parametrize("harm", ["torn", "one byte"])
def test_a_damaged_shard_is_reported_and_computed_again(harm, pool, scored, tmp_path, caplog):
    config = settings()
    tasks = {"scores": tmp_path}
    worker.score(job_of(config, tmp_path, inputs=pool, outputs=tasks))
    victim, *others = sorted(tmp_path.glob("shard-*"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 4] ^= 1
    victim.write_bytes(content[: len(content) // 2] if harm == "torn" else content)
    before = [path.stat().st_mtime_ns for path in others]
    worker.score(job_of(config, tmp_path, inputs=pool, outputs=tasks))
    assert caplog.text.count(f"{victim} is damaged") == 1
    assert [path.stat().st_mtime_ns for path in others] == before
    shards.finish("scores", tmp_path, cut(pool["lengths"], config))
    assert_same(pd.read_parquet(tmp_path / "scores.parquet"), read(scored, "scores"))


def test_two_processes_killed_and_started_again_give_the_scores_of_one(pool, scored, tmp_path):
    machine, config = replace(ALONE, processes=2), settings(shard_tokens=300)
    job = job_of(config, tmp_path, inputs=pool, outputs={"scores": tmp_path, "tokens": tmp_path}, machine=machine)
    launch.write_job(job, SCORE.run)
    arguments = launch.command(tmp_path, machine)
    assert "torch.distributed.run" in arguments
    with (tmp_path / "said.txt").open("w") as said:
        process = subprocess.Popen(arguments, env=launch.environment(machine), cwd=launch.ROOT, stdout=said, stderr=said)
        deadline = time.time() + 300
        while not list(tmp_path.glob("shard-*")) and process.poll() is None and time.time() < deadline:
            time.sleep(0.005)
        assert process.poll() is None, (tmp_path / "said.txt").read_text()
        process.send_signal(signal.SIGKILL)
        process.wait()
    rows = cut(pool["lengths"], config)
    time.sleep(0.5)  # the workers die with torchrun
    left = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("shard-*")}
    assert 0 < len(left) < len(rows)
    counts = launch.run_worker(job, SCORE.run)
    assert left.items() <= {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("shard-*")}.items()
    shards.collect(job, counts)
    assert_same(pd.read_parquet(tmp_path / "scores.parquet"), read(scored, "scores"))
    tokens = read({"tokens": tmp_path}, "tokens").astype(dict.fromkeys(KEY, str))
    alone = read(scored, "tokens").astype(dict.fromkeys(KEY, str))
    pd.testing.assert_frame_equal(by_key(tokens, "position"), by_key(alone, "position"), rtol=1e-5, atol=1e-6)


def test_one_pass_serves_every_method_and_tokens_can_be_had_later(tmp_path, monkeypatch):
    """The real pipeline, with the work of its workers done in this process."""

    def run(*arguments: str) -> dict[str, list[tuple[str, int]]]:
        """What there is after a run: for each kind of artifact, its folders and when they were finished."""
        config = composed("pool.questions=3", "stages=[score,select]", "tracking=none", f"outputs={tmp_path}", *arguments)
        pipeline.Pipeline(config, tmp_path / "run").run()
        found: dict[str, list[tuple[str, int]]] = {}
        for manifest in sorted(tmp_path.glob("*/*/manifest.json")):
            assert json.loads(manifest.read_text())["status"] == "finished"
            found.setdefault(manifest.parts[-3], []).append((manifest.parts[-2], manifest.stat().st_mtime_ns))
        return found

    monkeypatch.setattr(pipeline, "run_worker", work_here)
    first = run("method=lark")
    assert {kind: len(found) for kind, found in first.items()} == {"pool": 1, "lengths": 1, "scores": 1, "selection": 1}
    with_tokens = run("method=lark", "scoring.tokens=true")
    assert {kind: found for kind, found in with_tokens.items() if kind != "tokens"} == first
    (tokens,) = (path.parent for path in tmp_path.glob("tokens/*/manifest.json"))
    table = pd.read_parquet(next(tmp_path.glob("scores/*/scores.parquet")))
    assert len(read({"tokens": tokens}, "tokens")) == table["n_tokens"].sum()
    for method in ("rsr", "grape", "random", "rule_quality", "local_naturalness"):
        last = run(f"method={method}", "budget.size=5")
    assert last["scores"] == first["scores"]
    assert {kind: len(found) for kind, found in last.items()} == {
        "pool": 1, "lengths": 1, "scores": 1, "tokens": 1, "text": 1, "local": 1, "selection": 6,
    }  # fmt: skip
    for selection in tmp_path.glob("selection/*"):
        chosen = pd.read_parquet(selection / "selection.parquet")
        assert chosen["question_id"].nunique() == 3
        assert len(chosen) == sum(1 for _ in (selection / "train.jsonl").open())
