"""What the pages say is what the artifacts of a real run say."""

import json
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark.explorer.api import ROUTES, answer, respond
from lark.explorer.context import Context
from lark.explorer.lists import Query, Rows
from lark.explorer.pieces import running_text, single
from lark.explorer.rankings import rank_all, rankings_of, ranks, scores
from lark.explorer.values import rounded
from lark.pool.trajectories import KEY
from lark.scoring.methods import METHODS
from lark.scoring.tokens import read_pieces, read_trajectories
from lark.selection.choose import candidates


def get(context: Context, path: str, **query: str) -> dict[str, Any]:
    status, values = respond(context, path, query)
    assert status == 200, values
    return json.loads(json.dumps(values, allow_nan=False))


@pytest.fixture(scope="module")
def table(store: Path) -> pd.DataFrame:
    """All columns of all trajectories, as the select stage joins them."""
    inputs = {kind: next((store / kind).iterdir()) for kind in ("pool", "lengths", "scores", "text")}
    return candidates(inputs)


def test_the_overview_counts_artifacts_and_says_how_they_depend_on_each_other(
    context: Context, pool: str
) -> None:
    overview = get(context, "overview")
    kinds = {row["kind"]: row["finished"] for row in overview["kinds"]}
    assert kinds["pool"] == kinds["scores"] == kinds["tokens"] == kinds["checkpoint"] == 1
    assert kinds["selection"] == 11 and kinds["metrics"] == 2
    assert overview["running"] == overview["failed"] == []
    made = get(context, f"artifact/pool/{pool}")
    assert {"lengths", "scores", "selection"} <= {user["kind"] for user in made["used_by"]}
    assert made["counts"]["questions"] == 6
    assert get(context, "artifacts", flags="kind:selection", search="rsr")["found"] == 2


def test_runs_have_their_steps_and_results(context: Context, view: str) -> None:
    rows = get(context, "runs")["rows"]
    (full,) = [row for row in rows if row["results"]]
    assert (
        full["state"] == "finished"
        and full["done"] == full["total"] == len(full["steps"])
        and full["current"] is None
    )
    rows_of_both = [(row["method"], row["metric"]) for row in full["results"]]
    assert rows_of_both == list(product(("Base model", "LARK"), ("Acc@2", "pass@1")))
    assert "scoring.tokens=true" in full["overrides"]
    made = {step["title"]: [artifact["kind"] for artifact in step["made"]] for step in full["steps"]}
    assert (
        made["score"] == ["scores", "tokens"]
        and made["train"] == ["checkpoint"]
        and made["grade"] == ["metrics"]
    )
    assert full["took"] > 0 and all(step["seconds"] is not None for step in full["steps"])
    others = [row for row in rows if row is not full]
    assert len(others) == 10 and all(
        row["steps"][0]["seconds"] is None for row in others
    )  # the pool is reused
    used = get(context, f"artifact/scores/{view}")["runs"]
    assert [run["how"] for run in used].count("made") == 1 and {run["how"] for run in used} == {
        "made",
        "reused",
    }


def test_results_are_those_of_metrics_json(context: Context, store: Path) -> None:
    results = get(context, "results")
    assert [model["label"] for model in results["models"]] == ["Base model", "LARK"]
    for model in results["models"]:
        ((group, cell),) = model["cells"].items()
        stored = json.loads(
            next((store / "metrics").glob(f"*-{cell['metrics']}")).joinpath("metrics.json").read_text()
        )
        assert cell["paper"]["mean"] == stored["paper"]["accuracy_at_k"]["mean"]
        assert cell["verify"]["interval"] == stored["verify"]["interval"]
        assert group == results["tasks"][0]["group"]
    assert results["models"][1]["budget"] == 3 and results["models"][1]["weighting"] == "chi2"


def test_training_curves_are_the_lines_of_metrics_jsonl(context: Context, store: Path) -> None:
    (curve,) = get(context, "curves")["curves"]
    columns = get(context, f"curve/{curve['fingerprint']}")["columns"]
    lines = [
        json.loads(line)
        for line in next((store / "checkpoint").glob("*/metrics.jsonl")).read_text().splitlines()
    ]
    assert columns["loss"] == [line.get("loss") for line in lines]
    assert columns["step"] == [line["step"] for line in lines]


def test_scores_and_ranks_of_a_question_are_those_of_the_methods(
    context: Context, table: pd.DataFrame, pool: str, view: str
) -> None:
    expected = {
        name: METHODS[name].score(table)
        for name in ("lark", "random", "rsr", "rule_quality", "grape", "brier")
    }
    for n in (0, 3, 5):
        page = get(context, f"question/{pool}/{view}/{n}")
        rows = np.flatnonzero(table["question_id"] == page["id"])
        assert [c["id"] for c in page["candidates"]] == table["candidate_id"].iloc[rows].tolist()
        for name, values in expected.items():
            assert page["scores"][name] == values[rows].tolist(), name
        assert [c["tokens"] for c in page["candidates"]] == table["n_tokens"].iloc[rows].tolist()
        assert all(c["has_tokens"] for c in page["candidates"])


def test_selections_of_a_question_are_those_of_the_artifacts(
    context: Context, store: Path, pool: str, view: str
) -> None:
    page = get(context, f"question/{pool}/{view}/2")
    assert len(page["selections"]) == 11
    for selection in page["selections"]:
        stored = pd.read_parquet(
            next((store / "selection").glob(f"*-{selection['fingerprint']}")) / "selection.parquet"
        )
        mine = stored[stored["question_id"] == page["id"]].sort_values("rank")
        names = [page["candidates"][row["c"]]["id"] for row in selection["chosen"]]
        assert names == mine["candidate_id"].tolist()
        assert [row["weight"] for row in selection["chosen"]] == mine["weight"].tolist()
        ranked = page["ranks"][selection["ranking"]]
        assert [ranked[row["c"]] for row in selection["chosen"]] == mine["rank"].tolist()
        assert selection["threshold"] == (
            None if mine["threshold"].isna().all() else mine["threshold"].iloc[0]
        )


def test_ranks_of_whole_pools_are_those_of_single_questions(context: Context, pool: str, view: str) -> None:
    opened = context.open(pool, view)
    for ranking in rankings_of(opened):
        whole = ranks(ranking, opened).rank
        for n in range(len(opened.pool.questions)):
            rows = opened.pool.rows(n)
            page = get(context, f"question/{pool}/{view}/{n}")
            assert page["ranks"][ranking.key] == whole[rows].tolist(), ranking.key


def test_agreement_is_spearmans_correlation_within_questions(
    context: Context, table: pd.DataFrame, pool: str, view: str
) -> None:
    values = get(context, f"agreement/{pool}/{view}/3")
    keys = [ranking["key"] for ranking in values["rankings"]]
    for a, b in (("lark", "rsr"), ("lark", "rule_quality"), ("grape", "brier")):
        signed = {
            name: METHODS[name].score(table) * (1 if METHODS[name].higher_is_better else -1)
            for name in (a, b)
        }
        frame = pd.DataFrame({"q": table["question_id"], **signed})
        expected = np.mean([part[[a, b]].corr("spearman").iloc[0, 1] for _, part in frame.groupby("q")])
        assert values["spearman"][keys.index(a)][keys.index(b)] == pytest.approx(expected, abs=1e-3)
    overlap = np.array(values["overlap"])
    assert np.allclose(np.diag(overlap), 1) and np.allclose(overlap, overlap.T)
    assert np.allclose(np.sum(values["shares"], axis=1), 1, atol=1e-3)


def test_disagreements_start_with_the_lowest_correlation(context: Context, pool: str, view: str) -> None:
    rows = get(context, f"disagreement/{pool}/{view}/lark/rsr/3")["rows"]
    found = [row["spearman"] for row in rows]
    assert len(found) == 6 and found == sorted(found)
    for row in rows:
        page = get(context, f"question/{pool}/{view}/{row['n']}")
        for method, picks in zip(("lark", "rsr"), row["picks"], strict=True):
            best = np.argsort(page["ranks"][method])[:3]
            assert picks == [page["candidates"][i]["id"] for i in best]


def test_tokens_are_those_of_the_artifact(context: Context, store: Path, pool: str, view: str) -> None:
    folder = next((store / "tokens").iterdir())
    page = get(context, f"question/{pool}/{view}/1")
    stored = {row.candidate_id: row for row in read_trajectories(folder, page["id"])}
    pieces = read_pieces(folder)
    for candidate in page["candidates"][::8]:
        tokens, kept = get(context, f"tokens/{pool}/{view}/1/{candidate['c']}"), stored[candidate["id"]]
        assert tokens["id"] == kept.token.tolist() and tokens["rank"] == kept.rank.tolist()
        assert "".join(tokens["pieces"][i] for i in tokens["piece"]) == pieces.text(kept.token)
        for name in ("surprisal", "residual", "entropy"):
            np.testing.assert_array_equal(np.float16(tokens[name]), np.float16(getattr(kept, name)))
        found = get(context, f"alternatives/{pool}/{view}/1/{candidate['c']}/0")
        n = len(found["ids"])
        assert found["ids"] == kept.alternatives[:n].tolist()
        np.testing.assert_allclose(found["p"], kept.alternative_p[:n], rtol=6e-4)
        assert found["texts"] == {
            str(token): pieces.text([token]) for token in np.unique(kept.alternatives[:n]).tolist()
        }
        assert tokens["special"] == [i for i, token in enumerate(tokens["id"]) if pieces.special[token]]


def test_the_text_of_a_candidate_is_the_pools(context: Context, store: Path, pool: str) -> None:
    rows = pd.read_parquet(next((store / "pool").iterdir()) / "trajectories.parquet")
    first = rows["question_id"].iloc[0]
    text = get(context, f"text/{pool}/0/4")
    assert text["messages"][-1]["content"] == rows[rows["question_id"] == first]["response"].iloc[4]


def test_answers_have_both_graders_verdicts_and_their_texts(context: Context, store: Path) -> None:
    (benchmark,) = get(context, "benchmarks")["benchmarks"]
    base, trained = (model["id"] for model in benchmark["models"])
    where = f"{benchmark['group']}/{base}/{trained}"
    page = get(context, f"problem/{where}/3")
    sides = []
    for side, name in zip(page["sides"], ("demo-base", "demo-lark-B3"), strict=True):
        folder = next((store / "generations").glob(f"{name}-*"))
        answers = [json.loads(line) for line in (folder / "generations.jsonl").read_text().splitlines()]
        grades = [
            json.loads(line)
            for line in next((store / "metrics").glob(f"{name}-*"))
            .joinpath("grades.jsonl")
            .read_text()
            .splitlines()
        ]
        sides.append(grades)
        for sample in side["samples"]:
            assert (
                answers[sample["i"]]["problem"] == page["id"]
                and answers[sample["i"]]["seed"] == sample["seed"]
            )
            assert (sample["paper"], sample["verify"]) == (
                grades[sample["i"]]["paper"],
                grades[sample["i"]]["verify"],
            )
            whole = get(context, f"sample/{benchmark['group']}/{side['id']}/{sample['i']}")
            assert whole["text"] == answers[sample["i"]]["text"] and whole["text"].endswith(sample["ending"])
            assert sample["truncated"] == (answers[sample["i"]]["finish_reason"] == "length")
    everything = get(context, f"problems/{where}/paper")
    solved = {row["n"]: (row["before"], row["after"]) for row in everything["rows"]}
    for row in everything["rows"]:
        side_counts = []
        for side in sides:
            mine = [grade["paper"] for grade in side if grade["problem"] == row["id"]]
            side_counts += [sum(mine), len(mine)]
        names = ("before_correct", "before_samples", "after_correct", "after_samples")
        assert [row[name] for name in names] == side_counts
    changes = [row["after_correct"] - row["before_correct"] for row in everything["rows"]]
    ordered = get(context, f"problems/{where}/paper", sort="change")["rows"]
    assert [row["after_correct"] - row["before_correct"] for row in ordered] == sorted(changes)
    fewer = get(context, f"problems/{where}/paper", flags="fewer")["rows"]
    assert len(fewer) == sum(change < 0 for change in changes)
    fixed = get(context, f"problems/{where}/paper", flags="fixed")["rows"]
    assert {row["n"] for row in fixed} == {
        n for n, (before, after) in solved.items() if before < 0.5 <= after
    }


def test_the_pool_has_its_teachers_and_their_shares_of_selections(
    context: Context, table: pd.DataFrame, pool: str, view: str
) -> None:
    page = get(context, f"pool/{pool}/{view}")
    for teacher in page["teachers"]:
        mine = table[table["teacher"] == teacher["teacher"]]
        assert teacher["trajectories"] == len(mine) == sum(teacher["histogram"])
        assert teacher["tokens"]["quantiles"][2] == mine["n_tokens"].median()
    assert [budget["label"] for budget in page["budgets"]] == ["B = 1", "B = 3", "B = 40"]
    shares = get(context, f"shares/{pool}/{view}/{page['budgets'][0]['key']}")["selections"]
    assert [selection["ranking"] for selection in shares] == [
        "lark",
        "random",
        "rule_quality",
        "rsr",
        "brier",
    ]  # as in METHODS
    for selection in shares:
        stored = pd.read_parquet(
            next((context.root / "selection").glob(f"*-{selection['fingerprint']}")) / "selection.parquet"
        )
        counts = stored["teacher"].value_counts().to_dict()
        assert dict(zip([t["teacher"] for t in page["teachers"]], selection["teachers"], strict=True)) == {
            t["teacher"]: counts.get(t["teacher"], 0) for t in page["teachers"]
        }
    found = get(context, f"questions/{pool}/{view}", sort="-tokens", flags="tokens")
    means = table.groupby("question_id")["n_tokens"].mean().sort_values(ascending=False)
    assert [row["id"] for row in found["rows"]] == means.index.tolist()


def test_distributions_count_every_score(context: Context, table: pd.DataFrame, pool: str, view: str) -> None:
    page = get(context, f"methods/{pool}/{view}")
    assert {"lark", "random", "rsr", "rule_quality"} <= set(page["comparable"]) and 40 in page["budgets"]
    values = get(context, f"distribution/{pool}/{view}/lark")
    score = METHODS["lark"].score(table)
    assert sum(values["histogram"]) == np.isfinite(score).sum() == sum(map(sum, values["length"]["counts"]))
    median = {row["teacher"]: row["quantiles"][2] for row in values["teachers"]}
    assert median == pytest.approx(pd.Series(score).groupby(table["teacher"]).median().to_dict())


@given(st.text(max_size=40), st.lists(st.integers(0, 200), max_size=12))
def test_characters_split_between_tokens_are_kept_whole(text: str, cuts: list[int]) -> None:
    data = text.encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in pairwise(edges)]
    shown = running_text(pieces)
    assert len(shown) == len(pieces)
    whole = "".join(
        part
        for part, piece in zip(shown, pieces, strict=True)
        if part != single(piece) or not part.startswith("‹")
    )
    assert whole.replace("‹", "") == text.replace("‹", "")


@given(st.lists(st.floats(-6e4, 6e4, width=16), max_size=30))
def test_five_digits_identify_every_half_float(values: list[float]) -> None:
    np.testing.assert_array_equal(np.float16(rounded(np.array(values))), np.float16(values))


def test_lists_are_searched_filtered_sorted_and_cut_into_pages() -> None:
    rows = Rows(
        120, lambda i: {"n": i}, lambda i: f"Item {i}",
        {"even": np.arange(120) % 2 == 0, "big": np.arange(120) > 100},
        {"v": np.where(np.arange(120) == 7, np.nan, -np.arange(120.0))},
    )  # fmt: skip
    assert [row["n"] for row in rows.page(Query())["rows"]] == list(range(25))
    assert rows.page(Query(page=4))["rows"][-1]["n"] == 119 and rows.page(Query(page=99))["page"] == 4
    assert len(rows.page(Query(size=8))["rows"]) == 8
    found = rows.page(Query(search="item 11", flags=("even",)))
    assert [row["n"] for row in found["rows"]] == [110, 112, 114, 116, 118] and found["flags"] == {
        "even": 5,
        "big": 10,
    }
    assert rows.page(Query(sort="v"))["rows"][0]["n"] == 119
    assert (
        rows.page(Query(sort="v", page=4))["rows"][-1]["n"]
        == 7
        == rows.page(Query(sort="-v", page=4))["rows"][-1]["n"]
    )
    assert rows.page(Query(flags=("even|big",)))["found"] == 70


def test_ties_and_missing_scores_are_ranked_as_select_ranks_them(
    context: Context, pool: str, view: str
) -> None:
    from lark.explorer.rankings import Ranking
    from lark.selection.rules import select

    table = context.open(pool, view).pool
    rng = np.random.default_rng(3)
    score = rng.integers(0, 4, len(table)).astype(float)
    score[rng.random(len(table)) < 0.2] = np.nan
    score[table.question == 1] = np.nan
    for higher in (True, False):
        ranking = Ranking("x", "x", METHODS["grape" if higher else "rsr"])
        ids = np.array(table.candidate.values, dtype=object)[table.candidate.code]
        made = select(score, table.question, ids, 5, "chi2", higher_is_better=higher)
        found = rank_all(score, ranking, table)
        expected = np.zeros(len(table), int)
        expected[made.row] = made.rank
        np.testing.assert_array_equal(np.where(found.rank <= 5, found.rank, 0), expected)
        assert not found.varies[1]


def test_scores_by_number_are_those_by_id(
    context: Context, table: pd.DataFrame, pool: str, view: str
) -> None:
    opened = context.open(pool, view)
    keys = table[KEY].astype(str).agg("/".join, axis=1)
    rows = opened.pool
    assert [
        f"{rows.questions[n]}/{rows.candidate[row]}" for row, n in enumerate(rows.question)
    ] == keys.tolist()
    for ranking in rankings_of(opened):
        expected = ranking.method.score(table, ranking.options)
        np.testing.assert_array_equal(scores(ranking, opened), expected, ranking.key)


def test_an_answer_of_every_address_is_json(context: Context, pool: str, view: str) -> None:
    for route in ROUTES:
        path = (
            route.address.replace("{fingerprint}/{view}", f"{pool}/{view}")
            .replace("{number}", "1")
            .replace("{key}", "lark")
        )
        status, values = respond(context, path.replace("{fingerprint}", pool).replace("{kind}", "pool"), {})
        assert status in (200, 400, 404)
        json.dumps(values, allow_nan=False)
    assert isinstance(answer(context, "artifacts"), Rows)
