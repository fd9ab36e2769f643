"""Benchmarks load as published, with the right number of problems; a new one is one YAML file."""

import csv
import gzip
import json
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lark.config import Benchmark, Config, Task
from lark.errors import LarkError
from lark.evaluation.benchmarks import check, doubtful, load
from lark.grading.answers import AnswerFormat, grade_paper
from lark.pipeline.pipeline import Pipeline
from lark.pipeline.plan import make_plan
from lark.store.store import Checksums
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
        assert not any(problem.answer.endswith(".0") for problem in problems), "the file has 142.0"
        assert all(grade_paper(p.answer, p.answer, AnswerFormat.NUMERIC) for p in problems)


@pytest.mark.parametrize("name", FILES)
def test_no_published_gold_answer_is_doubtful(name: str, shared_data: Path) -> None:
    config = composed(
        f"benchmark={name}", f"benchmark.tasks.{name}.path={shared_data / 'benchmarks' / FILES[name][0]}"
    )
    assert not list(doubtful(load(name, config.benchmark.tasks[name]), config.benchmark.tasks[name]))


def test_the_papers_benchmarks_are_the_four() -> None:
    tasks = composed("student=qwen7b").benchmark.tasks
    assert {name: task.count for name, task in tasks.items()} == {
        "aime24": 30,
        "amc": 83,
        "gpqa_diamond": 198,
        "math500": 500,
    }
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
        writer.writerows(
            [
                [f"Question {i}?", f"right {i}\n", f"wrong {i}a", f"wrong {i}b", f"wrong {i}c"]
                for i in range(rows)
            ]
        )
    return composed("benchmark=gpqa_diamond", f"benchmark.tasks.gpqa_diamond.path={path}").benchmark.tasks[
        "gpqa_diamond"
    ]


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


def test_only_an_ambiguous_right_answer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    task = Task(label="Twice", path=str(path), answer_format="choice", distractor_fields=["a", "b"])
    path.write_text(json.dumps({"problem": "?", "answer": "x", "a": "y", "b": "x "}) + "\n")
    with pytest.raises(LarkError, match="a wrong option is the same as the right one"):
        load("twice", task)
    path.write_text(json.dumps({"problem": "?", "answer": "x", "a": "y", "b": "y"}) + "\n")
    (problem,) = load("twice", task)
    assert problem.options["ABC".index(problem.answer)] == "x"
    task.distractor_fields *= 6
    with pytest.raises(LarkError, match="13 options, but letters go from A to J"):
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
    task = Task(
        label="Mine",
        path=str(path),
        answer_format="numeric",
        question_field="prompt",
        answer_field="target",
        id_field="name",
        level_field="hard",
    )
    problems = load("mine", task)
    assert [(p.id, p.question, p.answer, p.level) for p in problems] == [
        ("a", "1+1?", "2", 1),
        ("b", "2+2?", "4", 2),
    ]


def test_a_hub_dataset_of_several_configurations_is_named_by_its_subset(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "README.md").write_text(
        "---\nconfigs:\n"
        + "".join(
            f"- config_name: {n}\n  data_files:\n  - split: test\n    path: {n}.jsonl\n"
            for n in ("easy", "hard")
        )
        + "---\n"
    )
    for name, answer in (("easy", "2"), ("hard", "4")):
        (folder / f"{name}.jsonl").write_text(json.dumps({"problem": "?", "answer": answer}) + "\n")
    task = Task(label="Mine", path=str(folder), answer_format="numeric", subset="hard")
    assert [problem.answer for problem in load("mine", task)] == ["4"]
    task.subset = None
    with pytest.raises(LarkError, match="Config name is missing"):
        load("mine", task)


def test_a_folder_or_hub_id_is_read_with_datasets(tmp_path: Path) -> None:
    rows = pd.DataFrame({"problem": ["1+1?", "2+2?"], "answer": ["2", "4"]})
    (tmp_path / "mine").mkdir()
    rows.to_parquet(tmp_path / "mine" / "test.parquet")
    task = Task(label="Mine", path=str(tmp_path / "mine"), answer_format="numeric")
    assert [problem.answer for problem in load("mine", task)] == ["2", "4"]


@pytest.mark.parametrize(
    ("row", "changes", "said"),
    [
        ({"problem": "?"}, {}, "there is no `answer`; the row has problem"),
        ({"problem": "?", "answer": "1"}, {"id_field": "name"}, "there is no `name`"),
        (
            {"problem": "?", "answer": "1", "level": "hard"},
            {"level_field": "level"},
            "`level` must be a whole number, not 'hard'",
        ),
    ],
)
def test_a_missing_field_is_named(
    row: dict[str, str], changes: dict[str, str], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(LarkError, match=said):
        load("mine", Task(label="Mine", path=str(path), answer_format="numeric", **changes))


MINE = Task(label="Mine", answer_format="free_form")
ROW = b'{"problem": "?", "answer": "5"}\n'


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (
            "a.json",
            b'[{"problem": "?", "answer": "5"}, 5]',
            "item 2: a JSON object is expected, {…}, not a number",
        ),
        ("a.jsonl", ROW + b"5\n", "line 2: a JSON object is expected, {…}, not a number"),
        ("a.jsonl", ROW + b"[" * 100_000, "line 2: the JSON is nested too deeply"),
        (
            "a.jsonl",
            b'{"problem": "?", "answer": ' + b"1" * 5000 + b"}",
            "line 1: a number in the JSON has too many digits",
        ),
        (
            "a.jsonl",
            b'{"problem": "?", "answer": "5", "answer": "6"}',
            "line 1: broken JSON .the key 'answer' appears twice",
        ),
        ("a.csv", b"problem,answer\nWhat is 2+3?,5,1,\n", "line 2: 4 values, but the header has 2 columns"),
        ("a.csv", b"problem,answer\nWhat is 2+3?\n", "line 2: 1 values, but the header has 2 columns"),
        ("a.csv", b"problem,answer,answer\n?,5,6\n", "the column 'answer' appears 2 times"),
        ("a.jsonl", ROW + b'{"problem": "?"', "line 2: broken JSON"),
        ("a.jsonl", ROW + "{'problem': 'naïve?'}".encode("latin-1"), "line 2: not UTF-8 .byte 0xef"),
        (
            "a.jsonl",
            b'{"problem": "half \\ud83d", "answer": "5"}',
            r"line 1: lone surrogate .* \(half a character\)",
        ),
        (
            "a.jsonl",
            b'{"problem": "?", "answer": ["5", "6"]}',
            "`answer` must be text or a number, not a list",
        ),
        ("a.jsonl", b"", "has no problems"),
        ("a.csv", b"", "has no problems"),
        ("a.csv", b"problem,answer\n", "has no problems"),
        ("a.csv", "problem,answer\nnaïve?,5\n".encode("latin-1"), "not UTF-8"),
        ("a.csv", b'problem,answer\n"?,5\n', "cannot be read as CSV"),
        ("a.parquet", b"PAR1", "cannot be read as Parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_reported_in_one_line(
    file: str, content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(LarkError, match=said) as error:
        load("mine", replace(MINE, path=str(tmp_path / file)))
    assert file in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("answer", ["", "   ", "\t\n", "\u200b", None])
def test_an_empty_gold_answer_is_refused(answer: object, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"problem": "?", "answer": answer}) + "\n")
    with pytest.raises(LarkError, match=r"a\.jsonl, line 1: there is no `answer`"):
        load("mine", replace(MINE, path=str(tmp_path / "a.jsonl")))


@pytest.mark.parametrize("form", ["free_form", "numeric", "choice"])
@pytest.mark.parametrize("answer", [True, False])
def test_a_boolean_is_an_option_but_not_an_answer(answer: bool, form: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"problem": "?", "answer": answer, "wrong": not answer}) + "\n"
    )
    task = replace(MINE, path=str(tmp_path / "a.jsonl"), answer_format=form)
    with pytest.raises(LarkError, match=rf"a\.jsonl, line 1: `answer` is the boolean {answer}\. Write the"):
        load("mine", task)
    (problem,) = load("mine", replace(task, answer_format="choice", distractor_fields=["wrong"]))
    assert sorted(problem.options) == ["False", "True"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("field", ["answer", "level", "wrong", "id"])
def test_numbers_that_mean_nothing_are_named(field: str, value: float, tmp_path: Path) -> None:
    row = {"problem": "?", "answer": "5", "level": 1, "wrong": "6", "id": "a", field: value}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    task = replace(MINE, path=str(tmp_path / "a.jsonl"), level_field="level", id_field="id")
    task = replace(task, answer_format="choice", distractor_fields=["wrong"]) if field == "wrong" else task
    with pytest.raises(
        LarkError, match=rf"a\.jsonl, line 1: `{field}` (is nan \(a missing value\)|must be .*, not -?inf)"
    ):
        load("mine", task)


@pytest.mark.parametrize(
    ("right", "wrong", "are_same"),
    [
        ("Yes", "yes ", True),
        ("5", "5.0", True),
        (5.0, "5", True),
        (5, 5.0, True),
        ("a  b c", "A b\nC", True),
        ("None of these", "none of  these", True),
        ("AaBb", "aabb", False),
        ("c1ccccc1", "C1CCCCC1", False),
        ("CO", "Co", False),
        ("5", "-5", False),
        ("5 m", "5 M", False),
    ],
)
def test_a_wrong_option_that_says_the_same_as_the_right_one_is_refused(
    right: object, wrong: object, are_same: bool, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"problem": "?", "answer": right, "a": wrong, "b": "other"}) + "\n"
    )
    task = replace(MINE, path=str(tmp_path / "a.jsonl"), answer_format="choice", distractor_fields=["a", "b"])
    if not are_same:
        assert len(load("mine", task)[0].options) == 3
        return
    with pytest.raises(LarkError, match=r"a\.jsonl, line 1: a wrong option is the same as the right one \('"):
        load("mine", task)


def test_options_are_written_in_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"problem": "?", "answer": 5.0, "a": 6.0, "b": 7.5}) + "\n")
    task = replace(MINE, path=str(tmp_path / "a.jsonl"), answer_format="choice", distractor_fields=["a", "b"])
    assert sorted(load("mine", task)[0].options) == ["5", "6", "7.5"]


@pytest.mark.parametrize(
    ("golds", "agree"),
    [
        (["5", "6"], False),
        (["5", "5"], True),
        (["5", "5.0"], True),
        (["5", " 5 "], True),
        (["x", "X"], False),
    ],
)
def test_a_problem_with_two_different_answers_is_refused(
    golds: list[str], agree: bool, tmp_path: Path
) -> None:
    rows = [
        {"problem": problem, "answer": gold}
        for problem, gold in zip(("What?", " What? "), golds, strict=True)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = replace(MINE, path=str(tmp_path / "a.jsonl"))
    if agree:
        assert len(load("mine", task)) == 2
        return
    with pytest.raises(
        LarkError, match=r"a\.jsonl, line 2: the problem of .*a\.jsonl, line 1 again, with the answer"
    ):
        load("mine", task)


@pytest.mark.parametrize(
    ("gold", "what"),
    [
        (r"\boxed{5}", "contain a box"),
        (r"so \fbox{5}", "contain a box"),
        ("$5$", "dollar signs"),
        ("2+3\n#### 5", "####"),
        ("N/A", "missing value"),
        ("None", "missing value"),
        ("nan", "missing value"),
        ("5", None),
        (r"\$5", None),
        (r"\text{none}", None),
        ("-5", None),
        ("-", "missing value"),
    ],
)
def test_gold_answers_that_no_response_can_equal_are_counted_before_anything_runs(
    gold: str, what: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"problem": "a", "answer": "7"}, {"problem": "b", "answer": gold}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    check(Benchmark("mine", {"mine": replace(MINE, path=str(tmp_path / "a.jsonl"))}))
    assert ("benchmark mine: 1 of 2 gold answers" in caplog.text) == (what is not None)
    assert (what or "") in caplog.text


@pytest.mark.parametrize(
    "path", ["~nouser/x", "~nouser/x.jsonl", "x" * 5000, "x" * 5000 + ".jsonl", "/" + "y" * 300]
)
def test_paths_that_cannot_exist_get_a_sentence(path: str) -> None:
    with pytest.raises(
        LarkError, match=r"benchmark\.tasks\.mine\.path=.{1,220}: (there is no such user|not a path)"
    ):
        load("mine", replace(MINE, path=path))


@pytest.mark.parametrize(
    ("answer", "is_letter"),
    [(" b ", True), ("J", True), ("K", False), ("(B)", False), ("5 cm", False), (2, False)],
)
def test_the_gold_answer_of_a_choice_is_a_letter(answer: object, is_letter: bool, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"problem": "?", "answer": answer}) + "\n")
    task = replace(MINE, path=str(tmp_path / "a.jsonl"), answer_format="choice")
    if is_letter:
        assert load("mine", task)[0].answer.strip() == str(answer).strip()
        return
    with pytest.raises(LarkError, match=r"a\.jsonl, line 1: the answer '.*' is not the letter of a choice"):
        load("mine", task)


@pytest.mark.parametrize(
    ("answer", "read"),
    [(5, "5"), ("1,296", "1,296"), (r"\frac{1}{2}", r"\frac{1}{2}"), (0.00001, "0.00001"),
     (1e22, "1" + "0" * 22),
     (-2.5e-7, "-0.00000025"), ("five", None), ("5 cm", None), (r"\boxed{5}", None), ("So 5\n#### 5", None),
     ("1e3", None), ("5, 6", None)],
)  # fmt: skip
def test_the_gold_answer_of_a_numeric_benchmark_is_a_number(
    answer: object, read: str | None, tmp_path: Path
) -> None:
    """Also without an exponent, as it would be written in a box."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"problem": "?", "answer": answer}) + "\n")
    task = replace(MINE, path=str(tmp_path / "a.jsonl"), answer_format="numeric")
    if read is None:
        with pytest.raises(LarkError, match=r"a\.jsonl, line 1: the answer '.*' is not a number"):
            load("mine", task)
        return
    assert load("mine", task)[0].answer == read
    assert grade_paper(read, read, AnswerFormat.NUMERIC)


@pytest.mark.parametrize("question", [5, True, 1.5, ["?"], {"text": "?"}])
def test_a_question_is_text(question: object, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"problem": question, "answer": "5"}) + "\n")
    with pytest.raises(LarkError, match=r"a\.jsonl, line 1: `problem` must be a string, not "):
        load("mine", replace(MINE, path=str(tmp_path / "a.jsonl")))


@pytest.mark.parametrize("wrong", ["[a,a]", "[answer]", "[problem,a]"])
def test_an_option_is_another_column_than_the_answer(wrong: str) -> None:
    task = "benchmark.tasks.demo_choice"
    with pytest.raises(LarkError, match="once each"):
        composed(
            "benchmark=demo_choice", f"{task}.question_field=problem", f"{task}.distractor_fields={wrong}"
        )


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("a.json", b'[{"problem": "?", "answer": "5"}]'),
        ("A.JSONL", ROW),
        ("a.jsonl.gz", gzip.compress(ROW, mtime=0)),
        ("a.csv", b"problem,answer,\n?,5,\n"),
        ("a.jsonl", b'{"problem": "?", "answer": 5.0}'),
    ],
)
def test_lists_compressed_files_and_whole_floats_are_read(file: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(content)
    assert [p.answer for p in load("mine", replace(MINE, path=str(tmp_path / file)))] == ["5"]


@pytest.mark.parametrize(("file", "content"), [("a.jsonl", ROW), ("a.csv", b"problem,answer\n?,5\n")])
def test_a_byte_order_mark_is_ignored(file: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(b"\xef\xbb\xbf" + content)
    assert [p.answer for p in load("mine", replace(MINE, path=str(tmp_path / file)))] == ["5"]


@pytest.mark.parametrize(
    ("level", "is_whole"),
    [
        (3, True),
        (3.0, True),
        ("3", True),
        (2.5, False),
        ("Level 3", True),
        ("grade 3", False),
        ([3], False),
        ("1e300", False),
    ],
)
def test_a_level_is_a_whole_number(level: object, is_whole: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"problem": "?", "answer": "5", "level": level}))
    task = replace(MINE, path=str(path), level_field="level")
    if is_whole:
        assert load("mine", task)[0].level == 3
    else:
        with pytest.raises(LarkError, match=r"line 1: .*level"):
            load("mine", task)


def test_lists_and_missing_values_in_parquet_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    task = replace(MINE, path=str(path))
    pd.DataFrame({"problem": ["?"], "answer": [["5", "6"]]}).to_parquet(path)
    with pytest.raises(LarkError, match="`answer` must be text or a number"):
        load("mine", task)
    pd.DataFrame({"problem": ["?", "?"], "answer": pd.array([5, None], dtype="Int64")}).to_parquet(path)
    with pytest.raises(LarkError, match=r"row 2: there is no `answer`"):
        load("mine", task)


def test_the_id_that_occurs_twice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"problem": "?", "answer": "5", "id": i}) + "\n" for i in (1, 7, 7)))
    with pytest.raises(LarkError, match=r"2 problems of .* have the id '7'"):
        load("mine", replace(MINE, path=str(path), id_field="id"))


def own_benchmark(folder: Path, rows: list[dict[str, str]], *overrides: str, **changes: Any) -> Config:
    """Configuration of a run that is evaluated on these rows."""
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = composed(f"outputs={folder / 'out'}", "tracking=none", *overrides)
    task = Task(label="Mine", path=str(folder / "mine.jsonl"), answer_format="numeric", id_field="id")
    config.benchmark.tasks = {"mine": replace(task, **changes)}
    return config


ROWS = [{"id": str(i), "problem": f"{i}+1?", "answer": str(i + 1)} for i in range(3)]


@pytest.mark.parametrize("dry_run", [True, False])
def test_errors_in_a_benchmark_are_reported_before_any_stage_runs(dry_run: bool, tmp_path: Path) -> None:
    dry = f"dry_run={str(dry_run).lower()}"
    Pipeline(own_benchmark(tmp_path, ROWS, dry), tmp_path)
    wrong: list[tuple[list[dict[str, str]], dict[str, Any], str]] = [
        (ROWS, {"path": "nowhere.jsonl"}, "there is no such file"),
        (ROWS, {"path": None}, "needs its file"),
        (ROWS, {"count": 4}, "has 3 problems, but the benchmark has 4"),
        (ROWS[:1] * 2, {}, "2 problems of .* have the id '0'"),
        (ROWS, {"question_field": "prompt"}, "there is no `prompt`"),
    ]
    for rows, changes, said in wrong:
        with pytest.raises(LarkError, match=said):
            Pipeline(own_benchmark(tmp_path, rows, dry, **changes), tmp_path)
        Pipeline(
            own_benchmark(tmp_path, rows, dry, "stages=[select]", **changes), tmp_path
        )  # needs no benchmark
    Pipeline(own_benchmark(tmp_path, ROWS, dry, path="somebody/dataset"), tmp_path)  # a hub is not asked


def test_answers_are_generated_again_only_if_they_can_change(tmp_path: Path) -> None:
    def fingerprints(rows: list[dict[str, str]], *overrides: str, **changes: Any) -> list[str]:
        """Fingerprints of the base model's generations and metrics."""
        plan = make_plan(
            own_benchmark(tmp_path, rows, "method=base", *overrides, **changes), Checksums(tmp_path)
        )
        return [step.artifacts[0].fingerprint for step in plan if step.stage == "evaluate"]

    generations, metrics = fingerprints(ROWS)
    assert fingerprints(ROWS, label="Other", count=3, split="train") == [generations, metrics]
    corrected = fingerprints([{**ROWS[0], "answer": "11"}, *ROWS[1:]])
    assert corrected[0] == generations
    assert corrected[1] != metrics
    for changed in (
        fingerprints([{**ROWS[0], "problem": "10+1?"}, *ROWS[1:]]),
        fingerprints(ROWS, limit=2),
        fingerprints(ROWS, answer_format="free_form"),
        fingerprints(ROWS, "benchmark.decoding.temperature=0.7"),
    ):
        assert changed[0] != generations
        assert changed[1] != metrics
    hub = fingerprints(ROWS, path="somebody/dataset")
    assert fingerprints(ROWS, path="somebody/dataset", label="Other") == hub
    assert fingerprints(ROWS, path="somebody/dataset", subset="hard")[0] != hub[0]


def test_answers_in_a_csv_stay_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("problem,answer\na?,073\nb?,1e5\nc?,NA\n")
    assert [
        p.answer for p in load("mine", Task(label="Mine", path=str(path), answer_format="free_form"))
    ] == [
        "073",
        "1e5",
        "NA",
    ]
    path.write_text("problem,answer\na?,\n")
    with pytest.raises(LarkError, match="there is no `answer`"):
        load("mine", Task(label="Mine", path=str(path), answer_format="free_form"))


@pytest.mark.parametrize(
    ("column", "read"),
    [
        (["5.0", "6.0"], ["5", "6"]),  # integers with a gap in them, as pandas saves them
        (["5.0", "2.5", "1e-05"], ["5", "2.5", "0.00001"]),
        (["5.0", "6"], ["5.0", "6"]),
        (["5.0", "x"], ["5.0", "x"]),
        (["5.00"], ["5.00"]),
        (["1e5"], ["1e5"]),
        (["007.0"], ["007.0"]),
    ],
)
def test_a_csv_column_of_floats_is_read_as_numbers_and_any_other_as_text(
    column: list[str], read: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "".join(
            f"{name}\n" for name in ("problem,answer,id", *(f"?{i},{a},{i}.0" for i, a in enumerate(column)))
        )
    )
    problems = load("mine", Task(label="Mine", path=str(path), answer_format="free_form", id_field="id"))
    assert [(p.id, p.answer) for p in problems] == [(str(i), answer) for i, answer in enumerate(read)]


def test_numbers_of_a_parquet_file_are_read_at_their_own_precision(tmp_path: Path) -> None:
    columns = {
        "decimal": pa.array([Decimal("5.00"), Decimal("2.50"), Decimal("100.00")], pa.decimal128(5, 2)),
        "float32": pa.array([0.1, 5.0, 16777216.0], pa.float32()),
        "float16": pa.array(np.array([0.1, 5.0, 0.5], np.float16)),
        "float64": pa.array([0.1, 5.0, 1e-7], pa.float64()),
    }
    pq.write_table(pa.table({"problem": ["a", "b", "c"], **columns}), tmp_path / "a.parquet")
    read = {
        name: [
            p.answer for p in load("mine", replace(MINE, path=str(tmp_path / "a.parquet"), answer_field=name))
        ]
        for name in columns
    }
    assert read == {
        "decimal": ["5", "2.5", "100"],
        "float32": ["0.1", "5", "16777216"],
        "float16": ["0.1", "5", "0.5"],
        "float64": ["0.1", "5", "0.0000001"],
    }


@pytest.mark.parametrize(
    ("ids", "read"), [([7.0, 8], ["7", "8"]), (["7 ", " 8"], ["7", "8"]), (["007", "7"], ["007", "7"])]
)
def test_ids_are_text_without_a_fraction_or_white_space(
    ids: list[object], read: list[str], tmp_path: Path
) -> None:
    rows = [{"problem": f"{k}?", "answer": "5", "id": id} for k, id in enumerate(ids)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [p.id for p in load("mine", replace(MINE, path=str(tmp_path / "a.jsonl"), id_field="id"))] == read


def test_a_missing_file_is_reported() -> None:
    with pytest.raises(LarkError, match="no such file"):
        load("mine", Task(label="Mine", path="nowhere.jsonl", answer_format="numeric"))
    with pytest.raises(LarkError, match="needs its file"):
        load("mine", Task(label="Mine", answer_format="numeric"))
