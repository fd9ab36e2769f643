"""The pool: 33 correct trajectories per question, the same in every process, in which every false equation
is corrected.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from lark.config.pool import DEMO_QUESTIONS
from lark.demo import exams
from lark.demo.phrasing import MENDS
from lark.demo.pool import trajectories
from lark.demo.problems import KINDS, LEVELS, draw, seeded
from lark.demo.teachers import ROLLOUTS, TEACHERS
from tests.demo.independent_arithmetic import evaluate

ROOT = Path(__file__).parents[2]
Row = dict[str, object]
OPERAND = r"\(*(?:\d+[xyn]?|[xyn])\)*"
EXPRESSION = rf"{OPERAND}(?: [-+*×] {OPERAND})*"
CHAIN = re.compile(rf"(?<![\w)]){EXPRESSION}(?:\s= {EXPRESSION})+")


@pytest.fixture(scope="module")
def pool() -> list[Row]:
    return list(trajectories(100, seed=7))


def by_question(pool: list[Row]) -> list[list[Row]]:
    return [pool[i : i + 33] for i in range(0, len(pool), 33)]


def different_questions(kind: str, draws: int) -> int:
    """How many different questions of level 1 are among these draws."""
    rng = seeded("different questions")
    return len({draw(kind, 1, rng).question for _ in range(draws)})


def test_the_demo_has_as_many_questions_as_its_smallest_kind_allows() -> None:
    """Kinds and levels alternate, so the pool ends when one of them has no other question."""
    smallest = different_questions("expression", 40_000)
    assert len(KINDS) * len(LEVELS) * smallest == DEMO_QUESTIONS
    assert all(different_questions(kind, 4000) > smallest for kind in KINDS if kind != "expression")


def test_every_question_has_11_teachers_with_3_rollouts(pool: list[Row]) -> None:
    assert len(TEACHERS) == 11 and ROLLOUTS == 3
    for rows in by_question(pool):
        assert len({row["question_id"] for row in rows}) == len({row["question"] for row in rows}) == 1
        assert {(row["teacher"], row["rollout"]) for row in rows} == {
            (t, r) for t in TEACHERS for r in range(3)
        }
        assert all(row["candidate_id"] == f"{row['teacher']}.{row['rollout']}" for row in rows)


def test_the_rollouts_of_a_teacher_differ_and_teachers_coincide_only_where_there_is_one_step(
    pool: list[Row],
) -> None:
    for rows in by_question(pool):
        assert len({(row["teacher"], row["response"]) for row in rows}) == 33
        one_step = str(rows[0]["response"]).count("=") == 1
        assert len({row["response"] for row in rows}) >= (31 if one_step else 33)


def test_every_trajectory_ends_with_the_right_answer_in_its_only_box(pool: list[Row]) -> None:
    for row in pool:
        assert re.findall(r"\\boxed\{([^}]*)\}\.?$", str(row["response"])) == [row["answer"]]
        assert str(row["response"]).count("boxed") == 1
        assert row["correct"] is True and row["system"] is None


def test_an_equation_is_true_unless_the_next_words_take_it_back(pool: list[Row]) -> None:
    false, true = Counter[str](), 0
    for row in pool:
        text = str(row["response"])
        for match in CHAIN.finditer(text):
            if len({evaluate(side.strip()) for side in match.group().split("=")}) == 1:
                true += 1
                continue
            assert text[match.end() :].removeprefix(". ").startswith(MENDS), (
                f"{row['candidate_id']}: {match.group()} in {text}"
            )
            false[str(row["teacher"])] += 1
    assert true > 5000
    assert set(false) == {"wanderer"}, "only the wanderer makes mistakes, and it does make them"


def test_every_twenty_questions_hold_each_kind_and_level_once(pool: list[Row]) -> None:
    def kind(question: str) -> str:
        if "A) " in question:
            return "choice"
        return (
            "word"
            if "How many" in question
            else "algebra"
            if re.search(r"\d[xyn]\b", question)
            else "expression"
        )

    kinds = Counter(kind(str(rows[0]["question"])) for rows in by_question(pool))
    assert kinds == dict.fromkeys(KINDS, 25)
    # A terse trajectory has one equation for each operation: the level can be read off it.
    levels = Counter(str(rows[0]["response"]).count("=") for rows in by_question(pool))
    assert levels == dict.fromkeys(LEVELS, 20)


def test_a_longer_pool_begins_with_the_shorter_one(pool: list[Row]) -> None:
    assert list(trajectories(10, seed=7)) == pool[:330]
    assert list(islice(trajectories(100, seed=8), 330)) != pool[:330]


@pytest.mark.parametrize("seed", [0, 1, 2024, 10**9])
def test_no_pool_asks_a_question_of_a_benchmark(seed: int) -> None:
    asked = {row["question"] for name in exams.KIND for row in exams.problems(name)}
    assert asked.isdisjoint(row["question"] for row in trajectories(200, seed))


def test_the_pool_and_the_benchmarks_are_the_same_in_every_process() -> None:
    code = (
        "import hashlib, json; from lark.demo import exams; from lark.demo.pool import trajectories; "
        "rows = [list(trajectories(20, seed=3)), [exams.problems(name) for name in exams.KIND]]; "
        "print(hashlib.sha256(json.dumps(rows).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    here = json.dumps([list(trajectories(20, seed=3)), [exams.problems(name) for name in exams.KIND]])
    assert digests == {hashlib.sha256(here.encode()).hexdigest()}


def test_the_texts_of_the_demo_are_those_of_finished_artifacts() -> None:
    """The demo's pool is identified by its settings alone. If its texts change, finished artifacts would no
    longer match it.
    """
    columns = (
        "question_id",
        "candidate_id",
        "teacher",
        "rollout",
        "system",
        "question",
        "response",
        "answer",
        "correct",
    )
    rows = json.dumps([[row[name] for name in columns] for row in trajectories(150, seed=42)])
    assert hashlib.sha256(rows.encode()).hexdigest()[:16] == "6baddef23fcc6892"
    problems = json.dumps([exams.problems(name) for name in exams.KIND])
    assert hashlib.sha256(problems.encode()).hexdigest()[:16] == "f1c83b8512a4ca66"
