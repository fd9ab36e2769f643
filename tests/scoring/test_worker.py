"""Scores do not depend on who computes them: one process or two, killed and resumed, a shuffled pool, with
or without tokens.
"""

import json
import math
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
import torch

from lark.config import Config
from lark.demo.pool import trajectories
from lark.models.chat import Encoded
from lark.models.load import load_chat, load_model
from lark.models.shapes import DEMO
from lark.pipeline import pipeline
from lark.pipeline.operations.score import SCORE
from lark.pool import trajectories as pools
from lark.pool.read import Trajectory
from lark.pool.trajectories import KEY
from lark.scoring import forward, gradient_worker, merging, shards, worker
from lark.scoring.token_counts import lengths
from lark.scoring.tokens import places, read_pieces, read_trajectories, read_trajectory
from lark.work import launch
from tests.conftest import ALONE, composed, job_of, work_here


def settings(**scoring: bool | int) -> Config:
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
    write_lengths(config, folder, {"pool": folder})
    return {"pool": folder, "lengths": folder}


def write_lengths(config: Config, folder: Path, inputs: dict[str, Path]) -> None:
    job = job_of(config, folder, inputs=inputs)
    merging.collect_lengths(job, lengths(job))


def cut(lengths: Path, config: Config) -> list[range]:
    return shards.Shards.of(lengths, config.scoring.shard_tokens).rows


def run_here(
    task: str, inputs: dict[str, Path], folder: Path, *outputs: str, **scoring: bool | int
) -> dict[str, Path]:
    """Run the operation in this process, alone, and merge its shards."""
    config = settings(**scoring)
    folders = {output: folder / output for output in outputs}
    for path in folders.values():
        path.mkdir(parents=True, exist_ok=True)
    job = job_of(config, folder, inputs=inputs, outputs=folders)
    merging.collect(job, getattr(worker, task)(job))
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
    passed = run_here("score", pool, folder, "scores", "entropy", "top50", "tokens", tokens=True)
    alone = run_here("unprompted", pool, folder, "unprompted")
    return {**passed, **run_here("local", pool, folder, "local"), **alone}


STATISTICS = ("token", "surprisal", "residual", "rank", "entropy")


def read(scored: dict[str, Path], output: str) -> pd.DataFrame:
    """A table, or one row per token."""
    if output != "tokens":
        return pd.read_parquet(scored[output] / f"{output}.parquet")
    found = [
        row for question in places(scored[output]) for row in read_trajectories(scored[output], question)
    ]
    rows = [
        pd.DataFrame({name: getattr(row, name) for name in STATISTICS}).assign(
            question_id=row.question_id, candidate_id=row.candidate_id,
            position=range(len(row)), p_gold=row.p,
            likeliest=row.alternatives[:, 0], likeliest_p=row.alternative_p[:, 0],
        )
        for row in found
    ]  # fmt: skip
    return pd.concat(rows, ignore_index=True)


def test_passes_without_gradients_ask_for_ligers_kernels(pool, tmp_path, monkeypatch):
    """On CPU the answer is always no (tests/models/test_liger.py); the passes that ask are the same."""
    devices = []
    monkeypatch.setattr(forward, "fuse_forward", lambda model, device: devices.append(device))
    run_here("score", pool, tmp_path / "with", "scores")
    run_here("unprompted", pool, tmp_path / "with", "unprompted")
    run_here("local", pool, tmp_path / "with", "local")
    assert devices == ["cpu"] * 3
    run_here("score", pool, tmp_path / "without", "scores", liger=False)
    folder = tmp_path / "gram"
    folder.mkdir()
    gradient_worker.gram(job_of(settings(), folder, inputs=pool, outputs={"gram": folder}))
    assert devices == ["cpu"] * 3


def test_every_trajectory_has_a_row_in_the_pools_order(pool, scored):
    ids = pd.read_parquet(pool["pool"] / pools.FILE, columns=KEY)
    for output in ("scores", "local", "unprompted"):
        table = read(scored, output)
        pd.testing.assert_frame_equal(table[KEY], ids)
        assert table["truncated"].any()
        assert not table.select_dtypes("number").isna().any().any()
    assert not list(scored["scores"].glob("shard-*"))


def test_the_loss_without_a_prompt_is_that_of_the_response_after_the_generation_prompt(pool, scored):
    """Naively: the end of the prompt that the template writes, and the response's tokens, one trajectory at
    a time.
    """
    config = settings().student
    chat, model = load_chat(str(DEMO), config), load_model(str(DEMO), config, "cpu")
    (assistant,) = chat.tokenizer("<|assistant|>", add_special_tokens=False)["input_ids"]
    table = read(scored, "unprompted").set_index(KEY)
    rows = list(pools.iterate(pool["pool"] / pools.FILE))[::7]
    for row, encoded in zip(rows, chat.encode_many(rows, config.max_length), strict=True):
        ids = torch.tensor([[assistant, *encoded.ids[encoded.prompt_length :]]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1].double()
        expected = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        found = table.loc[(row["question_id"], row["candidate_id"])]
        assert found["unprompted_nll"] == pytest.approx(expected, rel=1e-5)
        assert found["n_tokens"] == encoded.n_response


def test_a_response_of_several_turns_keeps_the_context_of_the_later_ones():
    encoded = Encoded([*range(20)], 6, truncated=False, context=((9, 13),))
    alone = worker.without_prompt(encoded, [91, 92], 20)
    assert alone.response == encoded.response
    assert list(alone.ids) == [91, 92, *range(6, 20)]
    assert [list(alone.ids[slice(*span)]) for span in alone.context] == [[9, 10, 11, 12]]


def test_tokens_add_up_to_their_trajectory(pool, scored):
    """To the precision of half floats."""
    tokens, table = read(scored, "tokens"), read(scored, "scores")
    assert len(tokens) == table["n_tokens"].sum()
    assert tokens[KEY].drop_duplicates().to_numpy().tolist() == table[KEY].to_numpy().tolist()
    groups = tokens.groupby(KEY)
    sums = groups.agg(
        nll=("surprisal", "sum"),
        brier=("residual", "sum"),
        p_gold=("p_gold", "mean"),
        entropy=("entropy", "mean"),
    )
    sums["rank_sum"] = tokens.assign(rank=tokens["rank"].clip(upper=100)).groupby(KEY)["rank"].sum()
    expected = table.merge(read(scored, "entropy").drop(columns="nll"), on=KEY).set_index(KEY).sort_index()
    for name in sums.columns:
        np.testing.assert_allclose(sums[name], expected[name], rtol=1e-3, err_msg=name)
    first = tokens[tokens["rank"] == 1]
    assert (first["likeliest"] == first["token"]).mean() > 0.99  # all but ties
    np.testing.assert_allclose(first["likeliest_p"], first["p_gold"], rtol=2e-3)
    assert (tokens["likeliest_p"] >= tokens["p_gold"] - 1e-3).all()


def all_logits(pool):
    """Some trajectories with all logits that predict their responses, from the model itself, in float64."""
    student = settings().student
    rows = shards.read_rows(pool["pool"] / pools.FILE, range(40, 46), pools.TEXT_COLUMNS)
    encoded = load_chat(str(DEMO), student).encode_many(rows, student.max_length)
    model = load_model(str(DEMO), student, "cpu")
    for row, e in zip(rows, encoded, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor(list(e.ids))[None]).logits[0, e.prompt_length - 1 : -1]
        yield row, e, logits.double()


def test_entropies_and_alternatives_are_those_of_the_students_own_softmax(pool, scored):
    """The naive way: all logits of a trajectory from the model itself, in float64."""
    table = read(scored, "entropy").set_index(KEY)
    for row, e, logits in all_logits(pool):
        log_p = logits.log_softmax(-1)
        p = log_p.exp()
        entropy, renyi2 = -(p * log_p).sum(-1), -p.square().sum(-1).log()
        found = table.loc[(row["question_id"], row["candidate_id"])]
        np.testing.assert_allclose(found["entropy"], entropy.mean(), rtol=1e-4)
        np.testing.assert_allclose(found["renyi2"], renyi2.mean(), rtol=1e-4)
        tokens = read_trajectory(scored["tokens"], row["question_id"], row["candidate_id"])
        assert tokens is not None
        assert tokens.token.tolist() == e.response
        np.testing.assert_allclose(tokens.entropy, entropy, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(tokens.alternative_p, p.topk(5)[0], rtol=2e-3, atol=1e-6)
        kept = p.gather(1, torch.tensor(tokens.alternatives, dtype=torch.int64))
        np.testing.assert_allclose(kept, p.topk(5)[0], rtol=1e-3)


def test_the_top_50_residual_is_that_of_a_softmax_over_the_50_largest_logits(pool, scored):
    """Token by token, from all logits of the model itself: the distribution over 50 tokens, and the gold
    token's one-hot.
    """
    table = read(scored, "top50").set_index(KEY)
    outside = 0
    for row, e, logits in all_logits(pool):
        total = 0.0
        for token, values in zip(e.response, logits, strict=True):
            largest = sorted(range(len(values)), key=lambda word: float(values[word]), reverse=True)[:50]
            odds = [math.exp(float(values[word] - values[largest[0]])) for word in largest]
            gap = [odd / math.fsum(odds) - (word == token) for word, odd in zip(largest, odds, strict=True)]
            missing = token not in largest
            total += math.fsum(difference**2 for difference in gap) + missing
            outside += missing
        found = table.loc[(row["question_id"], row["candidate_id"])]
        np.testing.assert_allclose(found["top50_residual"], total, rtol=1e-4)
    assert outside, "some tokens are not among the 50 most likely"


def test_the_text_of_a_response_can_be_read_from_its_tokens(pool, scored):
    pieces = read_pieces(scored["tokens"])
    rows = shards.read_rows(pool["pool"] / pools.FILE, range(99), pools.TEXT_COLUMNS)
    table = read(scored, "scores")
    for row, truncated in zip(rows, table["truncated"], strict=True):
        tokens = read_trajectory(scored["tokens"], row["question_id"], row["candidate_id"])
        assert tokens is not None
        text = pieces.text(token for token in tokens.token if not pieces.special[token])
        assert row["response"].startswith(text) if truncated else row["response"] == text


def test_outputs_are_the_same_with_and_without_the_others(pool, scored, tmp_path):
    for output in ("scores", "entropy", "top50", "tokens"):
        found = run_here("score", pool, tmp_path, output, tokens=True)
        pd.testing.assert_frame_equal(read(found, output), read(scored, output))


@pytest.mark.parametrize("outputs", [("tokens",), ("scores", "tokens")])
def test_tokens_of_the_first_questions_are_those_of_all(outputs, scored, pool, tmp_path, monkeypatch):
    """If only tokens are missing, the student is not run on other questions."""
    scored_ids: list[int] = []
    compute = worker.response_statistics

    def counted(student, batch, *rest):
        scored_ids.extend(map(id, batch))
        return compute(student, batch, *rest)

    monkeypatch.setattr(worker, "response_statistics", counted)
    folders = run_here("score", pool, tmp_path, *outputs, tokens=2, shard_tokens=1500)
    whole = read(scored, "tokens")
    questions = list(whole["question_id"].unique())[:2]
    assert list(places(folders["tokens"])) == questions
    expected = whole[whole["question_id"].isin(questions)]
    pd.testing.assert_frame_equal(read(folders, "tokens"), expected, rtol=1e-3, atol=1e-4)
    assert len(scored_ids) == (66 if outputs == ("tokens",) else 99)
    if "scores" in outputs:
        assert_same(read(folders, "scores"), read(scored, "scores"))


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
    write_lengths(config, tmp_path, inputs)
    (tmp_path / "tokens").mkdir()
    worker.score(job_of(config, tmp_path, inputs=inputs, outputs={"tokens": tmp_path / "tokens"}))
    assert [
        len(row)
        for question in places(tmp_path / "tokens")
        for row in read_trajectories(tmp_path / "tokens", question)
    ] == [0] * 99
    columns = {"scores": "nll", "entropy": "entropy", "top50": "top50_residual", "local": "local_naturalness"}
    for output, column in columns.items():
        task = "local" if output == "local" else "score"
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
    nll = pq.ParquetFile(victim).metadata.row_group(0).column(pq.read_schema(victim).get_field_index("nll"))
    content[nll.dictionary_page_offset + nll.total_compressed_size - 1] ^= 1  # the last byte of its data
    victim.write_bytes(content[: len(content) // 2] if harm == "torn" else content)
    before = [path.stat().st_mtime_ns for path in others]
    worker.score(job_of(config, tmp_path, inputs=pool, outputs=tasks))
    assert caplog.text.count(f"{victim} is damaged") == 1
    assert [path.stat().st_mtime_ns for path in others] == before
    merging.finish("scores", tmp_path, cut(pool["lengths"], config))
    assert_same(pd.read_parquet(tmp_path / "scores.parquet"), read(scored, "scores"))


def test_two_processes_killed_and_started_again_give_the_scores_of_one(pool, scored, tmp_path):
    machine, config = replace(ALONE, processes=2), settings(shard_tokens=300)
    job = job_of(
        config, tmp_path, inputs=pool, outputs={"scores": tmp_path, "tokens": tmp_path}, machine=machine
    )
    launch.write_job(job, SCORE.run)
    arguments = launch.command(tmp_path, machine)
    assert "torch.distributed.run" in arguments
    with (tmp_path / "said.txt").open("w") as said:
        process = subprocess.Popen(
            arguments, env=launch.environment(machine), cwd=launch.ROOT, stdout=said, stderr=said
        )
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
    merging.collect(job, counts)
    assert_same(pd.read_parquet(tmp_path / "scores.parquet"), read(scored, "scores"))
    tokens, alone = (by_key(read(where, "tokens"), "position") for where in ({"tokens": tmp_path}, scored))
    pd.testing.assert_frame_equal(tokens, alone, rtol=1e-3, atol=1e-4)


def test_one_pass_serves_every_method_and_tokens_can_be_had_later(tmp_path, monkeypatch):
    """The real pipeline, with the work of its workers done in this process."""

    def run(*arguments: str) -> dict[str, list[tuple[str, int]]]:
        """What there is after a run: for each kind of artifact, its folders and when they were finished."""
        config = composed(
            "pool.questions=3", "stages=[score,select]", "tracking=none", f"outputs={tmp_path}", *arguments
        )
        pipeline.Pipeline(config, tmp_path / "run").run()
        found: dict[str, list[tuple[str, int]]] = {}
        for manifest in sorted(tmp_path.glob("*/*/manifest.json")):
            assert json.loads(manifest.read_text())["status"] == "finished"
            found.setdefault(manifest.parts[-3], []).append((manifest.parts[-2], manifest.stat().st_mtime_ns))
        return found

    monkeypatch.setattr(pipeline, "run_worker", work_here)
    first = run("method=lark")
    assert {kind: len(found) for kind, found in first.items()} == {
        "pool": 1,
        "lengths": 1,
        "scores": 1,
        "selection": 1,
    }
    with_tokens = run("method=lark", "scoring.tokens=true")
    assert {kind: found for kind, found in with_tokens.items() if kind != "tokens"} == first
    (tokens,) = (path.parent for path in tmp_path.glob("tokens/*/manifest.json"))
    table = pd.read_parquet(next(tmp_path.glob("scores/*/scores.parquet")))
    assert len(read({"tokens": tokens}, "tokens")) == table["n_tokens"].sum()
    some = run("method=lark", "scoring.tokens=1")
    assert len(some["tokens"]) == 2, (
        "one question is not the whole pool: scoring.tokens=1 is not scoring.tokens=true"
    )
    for method in (
        "rsr",
        "grape",
        "random",
        "rule_quality",
        "local_naturalness",
        "entropy",
        "renyi2",
        "lark_top50",
    ):
        last = run(f"method={method}", "budget.size=5")
    assert last["scores"] == first["scores"]
    assert {kind: len(found) for kind, found in last.items()} == {
        "pool": 1,
        "lengths": 1,
        "scores": 1,
        "tokens": 2,
        "text": 1,
        "local": 1,
        "entropy": 1,
        "top50": 1,
        "selection": 9,
    }
    for method in ("entropy", "renyi2"):
        (made,) = tmp_path.glob(f"selection/*-{method}-*")
        counts = json.loads((made / "manifest.json").read_text())["counts"]
        assert {"loss_correlation", "loss_ratio"} <= counts.keys(), "the same pass computes the loss"
    for selection in tmp_path.glob("selection/*"):
        chosen = pd.read_parquet(selection / "selection.parquet")
        assert chosen["question_id"].nunique() == 3
        assert len(chosen) == sum(1 for _ in (selection / "train.jsonl").open())
