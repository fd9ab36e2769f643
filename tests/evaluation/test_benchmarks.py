"""Benchmarks load as they are published, with the right number of problems; a new one is one YAML file."""

import csv
import json
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from lark.config import Task
from lark.errors import LarkError
from lark.evaluation.answers import AnswerFormat, grade_paper
from lark.evaluation.benchmarks import load
from tests.conftest import composed

FILES = {"aime24": ("aime24.jsonl", 30), "amc": ("amc83.jsonl", 83), "math500": ("math500.jsonl", 500)}


@pytest.mark.parametrize("name", FILES)
def test_the_published_files_load_as_they_are(name: str, shared_data: Path) -> None:
    file, count = FILES[name]
    config = composed(f"benchmark={name}", f"benchmark.tasks.{name}.path={shared_data / 'benchmarks' / file}")
    problems = load(name, config.benchmark.tasks[name])
    assert len(problems) == count == len({problem.id for problem in problems})
    assert all(problem.question.strip() and problem.answer.strip() for problem in problems)
    if name == "math500":
        assert Counter(problem.level for problem in problems) == {1: 43, 2: 90, 3: 105, 4: 128, 5: 134}
    if name == "amc":
        assert any(problem.answer.endswith(".0") for problem in problems)
        assert all(grade_paper(str(int(float(p.answer))), p.answer, AnswerFormat.NUMERIC) for p in problems)


def test_the_papers_benchmarks_are_the_four() -> None:
    tasks = composed("student=qwen7b").benchmark.tasks
    assert {name: task.count for name, task in tasks.items()} == {"aime24": 30, "amc": 83, "gpqa_diamond": 198, "math500": 500}
    assert [task.answer_format for task in tasks.values()] == ["numeric", "numeric", "choice", "free_form"]


@pytest.mark.parametrize("name", ["demo_expressions", "demo_words", "demo_choice", "demo_algebra"])
def test_the_demos_benchmarks_are_the_same_every_time(name: str) -> None:
    task = composed().benchmark.tasks[name]
    assert load(name, task) == load(name, task)
    assert len(load(name, task)) == 40


def gpqa(folder: Path, rows: int = 198) -> Task:
    path = folder / "gpqa_diamond.csv"
    names = ["Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"]
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(names)
        writer.writerows([[f"Question {i}?", f"right {i}\n", f"wrong {i}a", f"wrong {i}b", f"wrong {i}c"] for i in range(rows)])
    return composed("benchmark=gpqa_diamond", f"benchmark.tasks.gpqa_diamond.path={path}").benchmark.tasks["gpqa_diamond"]


def test_gpqas_options_are_shuffled_by_question_and_the_shuffle_is_kept(tmp_path: Path) -> None:
    problems = load("gpqa_diamond", gpqa(tmp_path))
    assert problems == load("gpqa_diamond", gpqa(tmp_path))
    for i, problem in enumerate(problems):
        assert problem.options["ABCD".index(problem.answer)] == f"right {i}\n"
        assert f"{problem.answer}) right {i}" in problem.question
        assert sorted(problem.options)[0] == f"right {i}\n"
    letters = Counter(problem.answer for problem in problems)
    assert set(letters) == set("ABCD")
    assert max(letters.values()) < 90


def test_options_that_read_alike_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    path.write_text(json.dumps({"problem": "?", "answer": "x", "a": "y", "b": "x "}) + "\n")
    task = Task(label="Twice", path=str(path), answer_format="choice", distractor_fields=["a", "b"])
    with pytest.raises(LarkError, match="two options are the same"):
        load("twice", task)


def test_a_wrong_number_of_problems_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LarkError, match="has 197 problems, but the benchmark has 198"):
        load("gpqa_diamond", gpqa(tmp_path, 197))


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv"])
def test_a_new_benchmark_is_a_file_and_its_field_names(kind: str, tmp_path: Path) -> None:
    rows = pd.DataFrame({"prompt": ["1+1?", "2+2?"], "target": [2, 4], "name": ["a", "b"], "hard": [1, 2]})
    path = tmp_path / f"mine.{kind}"
    match kind:
        case "jsonl":
            rows.to_json(path, orient="records", lines=True)
        case "parquet":
            rows.to_parquet(path)
        case _:
            rows.to_csv(path, index=False)
    task = Task(label="Mine", path=str(path), answer_format="numeric", question_field="prompt", answer_field="target",
                id_field="name", level_field="hard")  # fmt: skip
    problems = load("mine", task)
    assert [(p.id, p.question, p.answer, p.level) for p in problems] == [("a", "1+1?", "2", 1), ("b", "2+2?", "4", 2)]


def test_a_folder_or_hub_id_is_read_with_datasets(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    rows = pd.DataFrame({"problem": ["1+1?", "2+2?"], "answer": ["2", "4"]})
    (tmp_path / "mine").mkdir()
    rows.to_parquet(tmp_path / "mine" / "test.parquet")
    task = Task(label="Mine", path=str(tmp_path / "mine"), answer_format="numeric")
    assert [problem.answer for problem in load("mine", task)] == ["2", "4"]


@pytest.mark.parametrize(
    ("row", "changes", "said"),
    [
        ({"problem": "?"}, {}, "there is no `answer`; it has problem"),
        ({"problem": "?", "answer": "1"}, {"id_field": "name"}, "there is no `name`"),
        ({"problem": "?", "answer": "1", "level": "Level 5"}, {"level_field": "level"}, "is no whole number"),
    ],
)
def test_a_missing_field_is_named(row: dict[str, str], changes: dict[str, str], said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(LarkError, match=said):
        load("mine", Task(label="Mine", path=str(path), answer_format="numeric", **changes))


def test_answers_in_a_csv_stay_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("problem,answer\na?,073\nb?,1e5\nc?,NA\n")
    assert [p.answer for p in load("mine", Task(label="Mine", path=str(path), answer_format="free_form"))] == [
        "073",
        "1e5",
        "NA",
    ]
    path.write_text("problem,answer\na?,\n")
    with pytest.raises(LarkError, match="there is no `answer`"):
        load("mine", Task(label="Mine", path=str(path), answer_format="free_form"))


def test_a_missing_file_is_one_sentence() -> None:
    with pytest.raises(LarkError, match="no such file"):
        load("mine", Task(label="Mine", path="nowhere.jsonl", answer_format="numeric"))
    with pytest.raises(LarkError, match="needs its file"):
        load("mine", Task(label="Mine", answer_format="numeric"))
