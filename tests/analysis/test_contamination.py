"""The audit against a naive one, at full scale, and on real benchmarks with planted problems."""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark.analysis import contamination
from lark.config import Benchmark, Task
from lark.evaluation.benchmarks import Problem
from lark.pipeline.pipeline import Pipeline
from lark.work.machine import Machine
from lark.work.operation import Job
from tests.conftest import composed


def naive(a: str, b: str) -> float:
    """Jaccard similarity of the sets of 8-grams, as the paper defines it."""

    def grams(text: str) -> set[str]:
        text = contamination.normalise(text)
        return {text[i : i + 8] for i in range(len(text) - 7)} or {text}

    return len(grams(a) & grams(b)) / len(grams(a) | grams(b))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text("ab \\,é𝒳", max_size=24), min_size=1, max_size=5),
    st.lists(st.text("ab é𝒳", max_size=24), min_size=1, max_size=5),
)
def test_similarity_is_that_of_sets_of_grams(problems: list[str], questions: list[str]) -> None:
    found = contamination.closest(problems, questions)
    expected = [max(naive(problem, question) for question in questions) for problem in problems]
    np.testing.assert_allclose(found.similarity, expected, rtol=1e-12)
    assert [naive(p, questions[i]) for p, i in zip(problems, found.index, strict=True)] == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Let  $x$\n\tbe", "let $x$ be"),
        (r"10,\!000 m\,s", "10,000 ms"),
        (r"a\quad b \qquad c\ d~e", "a b c d e"),
        (r"a\hspace{2em}b\vspace*{1cm}c", "a b c"),
        (r"\text{if }\;x\:=\;1", r"\text{if }x=1"),
        (r"\quadratic \sqrt{x} \left( x \right)", r"\quadratic \sqrt{x} \left( x \right)"),
        (r"\tilde x a\~b", r"\tilde x a\~b"),
    ],
)
def test_normalisation_removes_spacing_and_nothing_else(text: str, normal: str) -> None:
    assert contamination.normalise(text) == normal


def test_full_scale_takes_seconds_and_agrees_with_a_naive_audit_on_a_sample() -> None:
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("etaoinshrdlu"), rng.integers(2, 9))) for _ in range(800)])

    def texts(count: int) -> list[str]:
        return [" ".join(rng.choice(words, rng.integers(20, 60))) for _ in range(count)]

    problems, questions = texts(811), texts(5000)
    questions[77] = problems[5][:-12]
    started = time.process_time()
    found = contamination.closest(problems, questions)
    assert time.process_time() - started < 10
    assert found.index[5] == 77
    for i in [5, *rng.integers(0, 811, 3)]:
        assert found.similarity[i] == pytest.approx(naive(problems[i], questions[found.index[i]]))
        assert found.similarity[i] >= max(naive(problems[i], q) for q in questions[:300]) - 1e-12


def test_levels_and_thresholds_are_counted_as_in_the_papers_table() -> None:
    problems = [Problem(str(i), "x", "1", level) for i, level in enumerate([1, 1, 2, None])]
    audited = pd.DataFrame(
        {
            "benchmark": ["MATH-500"] * 3 + ["AMC"],
            "level": pd.array([p.level for p in problems], dtype="Int64"),
            "similarity": [1.0, 0.5, 0.85, 0.39],
            "exact": [True, False, False, False],
        }
    )
    table = contamination.summary(audited).set_index("benchmark")
    assert table.index.tolist() == ["AMC", "MATH-L1", "MATH-L2", "Total"]
    assert table.loc["MATH-L1"].tolist() == [2, 1, 2, 1, 1]
    assert table.loc["MATH-L2"].tolist() == [1, 0, 1, 1, 1]
    assert table.loc["Total"].tolist() == [4, 1, 3, 2, 2]


def test_options_of_a_multiple_choice_are_not_part_of_its_problem() -> None:
    assert (
        contamination.stem(Problem("0", "Which gas?\n\nA) He\nB) Ne", "A", options=("He", "Ne")))
        == "Which gas?"
    )


def test_planted_problems_are_found_in_the_right_columns(shared_data: Path, tmp_path: Path) -> None:
    """Three real problems in a pool: as it is, with a number changed, and with other spacing."""
    folder = shared_data / "benchmarks"
    math = [json.loads(line) for line in (folder / "math500.jsonl").open()]
    aime = [json.loads(line) for line in (folder / "aime24.jsonl").open()]
    verbatim = next(row for row in math if row["level"] == 2)
    number = next(
        row for row in math if row["level"] == 5 and len(row["problem"]) > 150 and "5" in row["problem"]
    )
    spaced = aime[0]
    planted = {
        "as it is": verbatim["problem"],
        "number": number["problem"].replace("5", "7", 1),
        "spacing": spaced["problem"].replace(" ", "  \n").replace("=", r"\;=\,"),
    }
    pool = shared_data / "pools" / "gsm_symbolic.jsonl"
    with (tmp_path / "pool.jsonl").open("w") as handle:
        handle.write(pool.read_text())
        for name, question in planted.items():
            handle.write(
                json.dumps({"problem_id": name, "candidate_id": 0, "question": question, "response": "?"})
                + "\n"
            )
    config = composed(
        "benchmark=paper",
        f"benchmark.tasks.math500.path={folder / 'math500.jsonl'}",
        f"outputs={tmp_path / 'out'}",
        f"benchmark.tasks.aime24.path={folder / 'aime24.jsonl'}",
        f"benchmark.tasks.amc.path={folder / 'amc83.jsonl'}",
        "benchmark.tasks.amc.id_field=null",
        "analysis.name=contamination",
        "stages=[analyse]",
        "pool=files",
        f"pool.path={tmp_path / 'pool.jsonl'}",
        "tracking=none",
    )
    del config.benchmark.tasks["gpqa_diamond"]  # not to be republished, so not in the repository
    Pipeline(config, tmp_path / "run").run()
    (artifact,) = (tmp_path / "out" / "analysis").iterdir()
    closest = pd.read_parquet(artifact / contamination.CLOSEST).set_index(["benchmark", "problem_id"])
    assert closest.loc[("MATH-500", verbatim["unique_id"]), ["question_id", "exact"]].tolist() == [
        "as it is",
        True,
    ]
    assert closest.loc[("AIME", str(spaced["id"])), ["question_id", "exact"]].tolist() == ["spacing", True]
    assert closest.loc[("MATH-500", number["unique_id"]), "question_id"] == "number"
    assert 0.85 <= closest.loc[("MATH-500", number["unique_id"]), "similarity"] < 1
    table = pd.read_parquet(artifact / contamination.TABLE).set_index("benchmark")
    assert table.loc["AIME"].tolist() == [30, 1, 1, 1, 1]
    assert table.loc["MATH-L2"].tolist() == [90, 1, 1, 1, 1]
    assert table.loc["MATH-L5"].tolist() == [134, 0, 1, 1, 1]
    assert table.loc["Total"].tolist() == [613, 2, 3, 3, 3]


def test_a_benchmark_without_its_file_is_refused(tmp_path: Path) -> None:
    from lark.errors import LarkError

    benchmark = Benchmark("x", {"x": Task("X", "nowhere.jsonl", answer_format="numeric")})
    config, inputs = replace(composed(), benchmark=benchmark), {"pool": tmp_path / "pool"}
    job = Job("contamination", tmp_path, {"analysis": tmp_path}, inputs, "", config, Machine("cpu", 1, 1, 1))
    with pytest.raises(LarkError, match="there is no such file"):
        contamination.write_audit(job)
