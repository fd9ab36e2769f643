"""Statistics of tokens on disk: what is written is what is read, question by question, finished or not."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark.errors import LarkError
from lark.scoring import tokens
from lark.scoring.token_files import write_index, write_shard
from lark.scoring.tokens import TrajectoryTokens, places, read_trajectories, read_trajectory


def trajectory(question: str, candidate: str, T: int, K: int = 5, seed: int = 0) -> TrajectoryTokens:
    rng, K = np.random.default_rng([seed, T, len(candidate)]), K if T else 5
    return TrajectoryTokens(
        question,
        candidate,
        rng.integers(0, 150_000, T, dtype=np.int32),
        rng.gamma(1.0, 1.0, T).astype(np.float32),
        rng.uniform(0, 2, T).astype(np.float32),
        rng.integers(1, 150_000, T, dtype=np.int32),
        rng.gamma(1.0, 1.0, T).astype(np.float32),
        rng.integers(-1, 150_000, (T, K), dtype=np.int32),
        rng.uniform(0, 1, (T, K)).astype(np.float32),
    )


def assert_same(found: TrajectoryTokens, expected: TrajectoryTokens) -> None:
    """Equal to the precision of the file: ids exactly, numbers as half floats, ranks up to 65,535."""
    assert (found.question_id, found.candidate_id) == (expected.question_id, expected.candidate_id)
    for name in ("token", "alternatives"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_array_equal(found.rank, np.minimum(expected.rank, 65_535))
    for name in ("surprisal", "residual", "entropy", "alternative_p"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=2**-11, atol=2**-25)


def shard(folder: Path, start: int, rows: list[TrajectoryTokens]) -> Path:
    path = folder / f"tokens-{start:08d}-{start + len(rows):08d}.parquet"
    write_shard(path, rows)
    return path


@settings(max_examples=25)
@given(
    sizes=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), min_size=1, max_size=12),
    cut=st.integers(0, 12),
    K=st.integers(1, 5),
    finished=st.booleans(),
)
def test_every_question_is_read_as_it_was_written(sizes, cut, K, finished, tmp_path_factory):
    """Whatever the order of questions in the pool, also if a question is in several shards or in several
    places of one.
    """
    folder = tmp_path_factory.mktemp("tokens")
    rows = [trajectory(question, f"t{i}", T, K, seed=i) for i, (question, T) in enumerate(sizes)]
    cut = min(cut, len(rows))
    parts = [shard(folder, start, part) for start, part in ((0, rows[:cut]), (cut, rows[cut:])) if part]
    if finished:
        counts = write_index(folder, parts)
        assert counts == {
            "tokens": sum(map(len, rows)),
            "questions": len({q for q, _ in sizes}),
            "files": len(parts),
        }
    assert list(places(folder)) == list(dict.fromkeys(question for question, _ in sizes))
    for question in "abc":
        expected = [row for row in rows if row.question_id == question]
        found = read_trajectories(folder, question)
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert_same(ours, theirs)


def test_one_candidate_is_found_by_its_ids(tmp_path):
    rows = [trajectory("a", name, 4) for name in ("t1", "t2", "t33")]
    shard(tmp_path, 0, rows)
    found = read_trajectory(tmp_path, "a", "t33")
    assert found is not None
    assert_same(found, rows[2])
    assert read_trajectory(tmp_path, "a", "t4") is None
    assert read_trajectory(tmp_path, "b", "t1") is None
    assert tokens.candidates(tmp_path, "a") == ["t1", "t2", "t33"] and tokens.candidates(tmp_path, "b") == []


def test_a_row_group_holds_one_question(tmp_path):
    path = shard(tmp_path, 0, [trajectory(q, f"t{i}", 3) for i, q in enumerate("aaabbc")])
    file = pq.ParquetFile(path)
    groups = [file.read_row_group(i).column("question_id").to_pylist() for i in range(file.num_row_groups)]
    assert groups == [["a"] * 3, ["b"] * 2, ["c"]]


def test_numbers_too_large_for_their_type_are_clipped(tmp_path):
    row = trajectory("a", "t", 3)
    huge = replace(
        row, surprisal=np.array([np.inf, 1e30, 0], np.float32), rank=np.array([1, 65_536, 10**6], np.int32)
    )
    shard(tmp_path, 0, [huge])
    (found,) = read_trajectories(tmp_path, "a")
    assert found.surprisal.tolist() == [65_504, 65_504, 0]
    assert found.rank.tolist() == [1, 65_535, 65_535]
    assert found.p.tolist() == [0, 0, 1]


def test_a_finished_artifact_is_read_without_opening_other_shards(tmp_path):
    parts = [shard(tmp_path, i, [trajectory(f"q{i}", "t", 5)]) for i in range(4)]
    write_index(tmp_path, parts)
    for part in (parts[0], parts[1], parts[3]):
        part.write_bytes(b"damaged")
    tokens._footer_of.cache_clear()
    assert len(read_trajectories(tmp_path, "q2")) == 1


def test_a_shard_that_appears_or_changes_is_seen(tmp_path):
    """A reader may watch a run: nothing that it remembers may be out of date."""
    assert places(tmp_path) == {}
    path = shard(tmp_path, 0, [trajectory("a", "t", 5)])
    assert list(places(tmp_path)) == ["a"]
    write_shard(path, [trajectory("b", "t", 6)])
    assert list(places(tmp_path)) == ["b"]
    assert len(read_trajectories(tmp_path, "b")[0]) == 6


@pytest.mark.parametrize("harm", ["torn", "one byte", "old layout", "gone"])
def test_a_file_that_cannot_be_read_is_an_error_with_its_name(harm, tmp_path):
    path = shard(tmp_path, 0, [trajectory("a", "t", 5)])
    write_index(tmp_path, [path])
    content = bytearray(path.read_bytes())
    if harm == "torn":
        path.write_bytes(content[:200])
    elif harm == "one byte":
        content[content.index(b"t") + 40] ^= 1
        path.write_bytes(content)
    elif harm == "old layout":
        pd.DataFrame({"question_id": ["a"], "position": [0]}).to_parquet(path)
    else:
        path.unlink()
    with pytest.raises(
        LarkError, match=rf"{path.name}: the statistics of its tokens cannot be read \(.*Run the command"
    ):
        read_trajectories(tmp_path, "a")


def test_all_statistics_of_a_trajectory_are_columns():
    assert [field.name for field in fields(TrajectoryTokens)] == tokens.TOKENS_SCHEMA.names
