"""Shards cover the pool once, whoever works on them and whatever an earlier run left behind."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark.config import Scoring
from lark.errors import LarkError
from lark.scoring import shards
from lark.scoring.shards import LEAST_SHARDS, Shards, cost, cut

COSTS = st.lists(st.integers(1, 30_000), min_size=1, max_size=300).map(lambda n: cost(np.array(n)))


@given(COSTS, st.integers(1, 200_000))
def test_shards_cover_every_row_once_and_none_costs_much_more_than_its_share(costs, shard_tokens):
    parts = cut(costs, shard_tokens)
    assert parts[0].start == 0
    assert parts[-1].stop == len(costs)
    assert all(a.stop == b.start for a, b in pairwise(parts))
    share = costs.sum() / min(len(costs), max(LEAST_SHARDS, costs.sum() / shard_tokens))
    assert all(costs[part.start : part.stop].sum() <= share + costs.max() + 1e-6 for part in parts)


@given(COSTS, st.integers(1, 9))
def test_every_shard_is_dealt_once_and_loads_differ_by_no_more_than_a_shard(costs, processes):
    whole = Shards(cut(costs, 10_000), costs, costs)
    hands = whole.deal(processes)
    assert sorted((part for hand in hands for part in hand), key=lambda part: part.start) == whole.rows
    loads = [sum(costs[part.start : part.stop].sum() for part in hand) for hand in hands]
    largest = max(costs[part.start : part.stop].sum() for part in whole.rows)
    assert max(loads) - min(loads) <= largest + 1e-6


def test_attention_makes_long_trajectories_costlier():
    assert cost(np.array([20_000]))[0] == 2 * 20_000
    assert cost(np.array([200]))[0] < 1.02 * 200


def write_lengths(folder: Path, rows: int = 40) -> None:
    pd.DataFrame({"n_prompt": 10, "n_tokens": np.arange(1, rows + 1)}).to_parquet(folder / "lengths.parquet")


def test_a_local_pass_counts_each_response_token_for_every_context_it_is_in(tmp_path):
    write_lengths(tmp_path)
    assert Shards.of(tmp_path, 1000).tokens[6] == 10 + 7
    assert Shards.of(tmp_path, 1000, blocks=5).tokens[6] == 10 + 5 * 7


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(1, 40), group=st.integers(1, 11), ends=st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_any_run_of_rows_is_read_whatever_the_row_groups(rows, group, ends, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "pool.parquet"
    pq.write_table(pa.table({"a": list(range(rows)), "b": ["x"] * rows}), path, row_group_size=group)
    wanted = range(min(*ends, rows), min(max(ends), rows))
    assert shards.read_rows(path, wanted, ["a"]) == [{"a": i} for i in wanted]


def write_shards(folder: Path, whole: Shards, value: float) -> None:
    for rows in whole.rows:
        table = pd.DataFrame({"row": list(rows), "n_tokens": 1, "truncated": False, "local_naturalness": value})
        table.to_parquet(folder / shards.name("local", rows), index=False)


def test_shards_of_another_size_are_ignored_and_removed(tmp_path):
    """`scoring.shard_tokens` is not part of the fingerprint, so a resumed run may cut the pool differently."""
    write_lengths(tmp_path)
    before, now = (Shards.of(tmp_path, tokens) for tokens in (10**6, 40))
    assert before.rows != now.rows
    write_shards(tmp_path, before, value=1.0)
    write_shards(tmp_path, now, value=2.0)
    counts = shards.finish("local", tmp_path, now.rows)
    table = pd.read_parquet(tmp_path / "local.parquet")
    assert table["row"].tolist() == list(range(40))
    assert table["local_naturalness"].eq(2.0).all()
    assert counts["trajectories"] == 40
    assert not list(tmp_path.glob("shard-*"))


def test_a_run_killed_after_the_merge_computes_nothing_again(tmp_path):
    write_lengths(tmp_path)
    whole = Shards.of(tmp_path, Scoring().shard_tokens)
    write_shards(tmp_path, whole, value=1.0)
    shards.finish("local", tmp_path, whole.rows)
    assert all(shards.done("local", tmp_path, rows) for rows in whole.rows)
    assert shards.finish("local", tmp_path, whole.rows)["trajectories"] == 40


@pytest.mark.parametrize("output", ["local", "tokens"])
def test_a_missing_shard_is_an_error_not_a_gap(output, tmp_path):
    write_lengths(tmp_path)
    whole = Shards.of(tmp_path, Scoring().shard_tokens)
    with pytest.raises(LarkError, match=f"{len(whole.rows)} of {len(whole.rows)} shards are missing"):
        shards.finish(output, tmp_path, whole.rows)
