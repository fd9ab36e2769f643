"""Shards cover the pool once, whoever works on them and whatever an earlier run left behind."""

import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lark.errors import LarkError
from lark.scoring import merging, shards
from lark.scoring.pass_sizes import CPU_TOKENS
from lark.scoring.shards import LEAST_SHARDS, Shards, cost, cut
from lark.scoring.token_files import write_shard
from lark.scoring.tokens import ALTERNATIVES, TrajectoryTokens
from lark.store.part_files import write_part
from lark.work.sharding import Shard, deal

COSTS = st.lists(st.integers(1, 30_000), min_size=1, max_size=300).map(lambda n: cost(np.array(n)))


@given(COSTS, st.integers(1, 200_000))
def test_shards_cover_every_row_once_and_none_costs_much_more_than_its_share(costs, shard_tokens):
    parts = cut(costs, shard_tokens)
    assert parts[0].start == 0
    assert parts[-1].stop == len(costs)
    assert all(a.stop == b.start for a, b in pairwise(parts))
    least = min(LEAST_SHARDS, costs.sum() / CPU_TOKENS)
    share = costs.sum() / min(len(costs), max(least, costs.sum() / shard_tokens))
    assert all(costs[part.start : part.stop].sum() <= share + costs.max() + 1e-6 for part in parts)


def test_shards_of_a_small_pool_are_not_smaller_than_a_forward_pass():
    lengths = cost(np.full(40, 300))
    assert [len(part) for part in cut(lengths, 2_000_000)] == [6, 7, 7, 6, 7, 7]  # 12,180 tokens
    assert len(cut(lengths, 1000)) == 13
    assert len(cut(cost(np.full(4000, 300)), 2_000_000)) == LEAST_SHARDS


@given(COSTS, st.integers(1, 9))
def test_every_shard_is_dealt_once_and_loads_differ_by_no_more_than_a_shard(costs, processes):
    whole = Shards(cut(costs, 10_000), costs, costs, pa.table({}))
    listed = [Shard(str(part), cost=whole.cost_of(part)) for part in whole.rows]
    hands = deal(listed, processes)
    assert sorted((shard for hand in hands for shard in hand), key=listed.index) == listed
    loads = [sum(shard.cost for shard in hand) for hand in hands]
    largest = max(costs[part.start : part.stop].sum() for part in whole.rows)
    assert max(loads) - min(loads) <= largest + 1e-6


def test_attention_makes_long_trajectories_costlier():
    assert cost(np.array([20_000]))[0] == 2 * 20_000
    assert cost(np.array([200]))[0] < 1.02 * 200


def write_lengths(folder: Path, rows: int = 40) -> None:
    table = pd.DataFrame(
        {
            "question_id": [f"q{row // 5}" for row in range(rows)],
            "candidate_id": [f"c{row}" for row in range(rows)],
            "n_prompt": 10,
            "n_tokens": range(1, rows + 1),
        }
    )
    table.to_parquet(folder / "lengths.parquet")


def test_a_local_pass_counts_each_response_token_for_every_context_it_is_in(tmp_path):
    write_lengths(tmp_path)
    assert Shards.of(tmp_path, 1000).tokens[6] == 10 + 7
    assert Shards.of(tmp_path, 1000, blocks=5).tokens[6] == 10 + 5 * 7


def test_some_questions_are_in_some_of_the_same_shards(tmp_path):
    """A pass for some questions resumes from the shards of a pass for all."""
    write_lengths(tmp_path)
    whole = Shards.of(tmp_path, 40)
    assert whole.first_questions(2) == {"q0", "q1"}
    assert whole.first_questions(None) == whole.first_questions(99) == {f"q{n}" for n in range(8)}
    some = whole.only(frozenset({"q1", "q6"}))
    assert [rows for rows in whole.rows if {*range(5, 10), *range(30, 35)} & {*rows}] == some.rows
    assert [row for rows in some.rows for row in some.with_work(rows)] == [
        *range(5, 10),
        *range(30, 35),
    ]
    assert (
        sum(map(some.tokens_in, some.rows))
        == some.tokens.sum()
        == sum(10 + n for n in (*range(6, 11), *range(31, 36)))
    )
    assert whole.only(whole.first_questions(None)).rows == whole.rows


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 40), group=st.integers(1, 11), ends=st.tuples(st.integers(0, 40), st.integers(0, 40))
)
def test_any_run_of_rows_is_read_whatever_the_row_groups(rows, group, ends, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "pool.parquet"
    pq.write_table(pa.table({"a": list(range(rows)), "b": ["x"] * rows}), path, row_group_size=group)
    wanted = range(min(*ends, rows), min(max(ends), rows))
    assert shards.read_rows(path, wanted, ["a"]) == [{"a": i} for i in wanted]


def write_shards(folder: Path, whole: Shards, value: float) -> None:
    for rows in whole.rows:
        table = whole.expected.slice(rows.start, len(rows)).to_pandas()
        table = table.assign(row=list(rows), truncated=False, local_naturalness=value)
        table.to_parquet(folder / shards.name("local", rows), index=False)


def test_shards_of_another_size_are_ignored_and_removed(tmp_path):
    """`scoring.shard_tokens` is not in the fingerprint, so a resumed run may cut the pool differently."""
    write_lengths(tmp_path)
    before, now = (Shards.of(tmp_path, tokens) for tokens in (10**6, 40))
    assert before.rows != now.rows
    write_shards(tmp_path, before, value=1.0)
    write_shards(tmp_path, now, value=2.0)
    counts = merging.finish("local", tmp_path, now.rows)
    table = pd.read_parquet(tmp_path / "local.parquet")
    assert table["row"].tolist() == list(range(40))
    assert table["local_naturalness"].eq(2.0).all()
    assert counts["trajectories"] == 40
    assert not list(tmp_path.glob("shard-*"))


def test_a_run_killed_after_the_merge_computes_nothing_again(tmp_path):
    write_lengths(tmp_path)
    whole = Shards.of(tmp_path, 80)
    write_shards(tmp_path, whole, value=1.0)
    merging.finish("local", tmp_path, whole.rows)
    assert whole.missing("local", tmp_path, whole.rows) == set()
    assert merging.finish("local", tmp_path, whole.rows)["trajectories"] == 40


def harmed(path: Path, harm: str, other: Path) -> None:
    table = pd.read_parquet(path)
    match harm:
        case "rows of another shard":
            path.write_bytes(other.read_bytes())
        case "a row too few":
            table.iloc[:-1].to_parquet(path, index=False)
        case "a row twice":
            pd.concat([table, table.iloc[:1]]).to_parquet(path, index=False)
        case "another order":
            table.iloc[::-1].to_parquet(path, index=False)
        case "other lengths":
            table.assign(n_tokens=table["n_tokens"] + 1).to_parquet(path, index=False)
        case "another table":
            pd.DataFrame({"x": [1]}).to_parquet(path, index=False)
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            path.write_bytes(path.read_bytes()[:-9])


HARM = [
    "rows of another shard",
    "a row too few",
    "a row twice",
    "another order",
    "other lengths",
    "another table",
    "empty",
    "truncated",
]


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("harm", HARM)
def test_a_shard_or_a_merged_table_with_other_rows_is_computed_again(harm, merged, tmp_path, caplog):
    write_lengths(tmp_path)
    whole = Shards.of(tmp_path, 80)
    write_shards(tmp_path, whole, value=1.0)
    victim, other = (tmp_path / shards.name("local", rows) for rows in whole.rows[:2])
    if merged:
        other = shutil.copy(other, tmp_path / "other.parquet")
        merging.finish("local", tmp_path, whole.rows)
        victim = tmp_path / "local.parquet"
    harmed(victim, harm, other)
    assert whole.missing("local", tmp_path, whole.rows) == (set(whole.rows) if merged else {whole.rows[0]})
    assert f"{victim} is damaged" in caplog.text and not victim.exists()


def test_a_table_of_the_same_trajectories_from_another_artifact_is_computed_again(tmp_path, caplog):
    """Such as the lengths under another tokenizer that happen to be equal, or scores of another student."""
    write_lengths(tmp_path)
    whole = Shards.of(tmp_path, 80)
    mine, other, renamed = (tmp_path / "local" / name for name in ("demo-111", "demo-222", "smollm2-111"))
    for folder, value in ((mine, 1.0), (other, 2.0)):
        folder.mkdir(parents=True)
        write_shards(folder, whole, value)
        merging.finish("local", folder, whole.rows)
    assert whole.missing("local", mine, whole.rows) == set()
    assert whole.missing("local", mine.rename(renamed), whole.rows) == set()
    shutil.copy(other / "local.parquet", renamed / "local.parquet")
    assert whole.missing("local", renamed, whole.rows) == set(whole.rows)
    assert "it belongs to local/222" in caplog.text


@pytest.mark.parametrize("harm", [*(name for name in HARM if name != "other lengths"), "a token too few"])
def test_statistics_of_the_wrong_tokens_are_computed_again(harm, tmp_path):
    write_lengths(tmp_path)
    whole = Shards.of(tmp_path, 80)
    kept = whole.only(whole.first_questions(4))
    assert 0 < len(kept.rows) < len(whole.rows)
    for rows in kept.rows:
        part = whole.expected.take(kept.with_work(rows)).to_pylist()
        write_shard(tmp_path / shards.name("tokens", rows), [some_tokens(**row) for row in part])
    assert kept.missing("tokens", tmp_path, kept.rows) == set()
    first, second = kept.rows[:2]
    victim, other = (tmp_path / shards.name("tokens", rows) for rows in (first, second))
    if harm == "a token too few":
        part = whole.expected.take(kept.with_work(first)).to_pylist()
        write_shard(victim, [some_tokens(**{**row, "n_tokens": row["n_tokens"] - 1}) for row in part])
    else:
        harmed(victim, harm, other)
    assert kept.missing("tokens", tmp_path, kept.rows) == {first}


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), output=st.sampled_from(["local", "tokens"])
)
def test_any_changed_bit_of_a_shard_is_noticed(at, bit, output, tmp_path):
    """Also in the footer: names and types of columns, metadata, places of pages."""
    write_lengths(tmp_path)
    whole = Shards.of(tmp_path, 80)
    first = whole.rows[0]
    path = tmp_path / shards.name(output, first)
    rows = whole.expected.slice(0, len(first))
    if output == "tokens":
        write_shard(path, [some_tokens(**row) for row in rows.to_pylist()])
    else:
        write_part(rows, path)
    before, content = pq.read_table(path), bytearray(path.read_bytes())
    assert whole.missing(output, tmp_path, [first]) == set()
    content[int(at * len(content))] ^= 1 << bit
    path.write_bytes(content)
    if whole.missing(output, tmp_path, [first]) == set():
        assert pq.read_table(path).equals(before, check_metadata=True), (
            "a changed digest changes nothing else"
        )


def test_statistics_of_another_student_are_computed_again(tmp_path):
    write_lengths(tmp_path)
    whole = Shards.of(tmp_path, 80)
    first = whole.rows[0]
    file = shards.name("tokens", first)
    for folder in (mine := tmp_path / "scores" / "demo-111", other := tmp_path / "scores" / "demo-222"):
        folder.mkdir(parents=True)
        write_shard(
            folder / file, [some_tokens(**row) for row in whole.expected.slice(0, len(first)).to_pylist()]
        )
    assert whole.missing("tokens", mine, [first]) == set()
    shutil.copy(other / file, mine / file)
    assert whole.missing("tokens", mine, [first]) == {first}


def some_tokens(question_id: str, candidate_id: str, n_tokens: int) -> TrajectoryTokens:
    numbers = np.zeros(n_tokens)
    alternatives = np.zeros((n_tokens, ALTERNATIVES))
    return TrajectoryTokens(question_id, candidate_id, *[numbers] * 5, alternatives, alternatives)


@pytest.mark.parametrize("output", ["local", "tokens"])
def test_a_missing_shard_is_an_error_not_a_gap(output, tmp_path):
    write_lengths(tmp_path)
    whole = Shards.of(tmp_path, 80)
    with pytest.raises(LarkError, match=f"{len(whole.rows)} of {len(whole.rows)} shards are missing"):
        merging.finish(output, tmp_path, whole.rows)
