"""Grading is separate from generating: it uses the current gold answers, and stores what each grader read."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lark.config import Task
from lark.evaluation.grade import collect_grades, grade_all, part_name
from lark.evaluation.shards import GENERATIONS
from tests.conftest import composed, job_of

TEXTS = [r"\boxed{5}", r"\fbox{5}", r"$\boxed{5}$, $\boxed{6}$", "five"]


@pytest.fixture
def generations(tmp_path: Path) -> Path:
    """One problem with four answers; at generation its gold answer was 7."""
    problem = {"id": "a", "question": "?", "answer": "7", "level": 1, "options": []}
    (tmp_path / "problems.jsonl").write_text(json.dumps(problem) + "\n")
    rows = [
        {"problem": "a", "seed": 0, "sample": i, "text": t, "finish_reason": "stop"}
        for i, t in enumerate(TEXTS)
    ]
    (tmp_path / GENERATIONS.file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def graded(
    generations: Path, path: str, damage: Callable[[Path], object] | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """Grades and metrics. `damage`: of the shard's file, before a second run of an interrupted grading."""
    folder = generations / "metrics"
    folder.mkdir(exist_ok=True)
    task = Task(label="Mine", path=path, answer_format="free_form", id_field="id", level_field="level")
    config = composed()
    config.benchmark.tasks["mine"] = task
    job = job_of(config, folder, inputs={"generations:mine": generations}, outputs={"mine": folder})
    if damage is not None:
        grade_all(job)
        damage(folder / part_name(range(len(TEXTS))))
    assert collect_grades(job, grade_all(job)) == {"mine": {"problems": 1, "answers": 4}}
    assert not list(folder.glob("shard-*"))
    lines = (folder / "grades.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], json.loads((folder / "metrics.json").read_text())


def test_what_each_grader_read_is_stored_and_counted(generations: Path) -> None:
    file = generations / "mine.jsonl"
    file.write_text(json.dumps({"id": "a", "problem": "?", "answer": "5", "level": 4}) + "\n")
    grades, metrics = graded(generations, str(file))
    assert [(g["answer"], g["paper"]) for g in grades] == [
        ("5", True),
        (None, False),
        ("6", False),
        (None, False),
    ]
    assert [(g["answer_verify"], g["verify"]) for g in grades] == [
        ("5", True),
        ("5", True),
        ("5, 6", False),
        (None, False),
    ]
    assert (metrics["paper"]["unboxed"], metrics["verify"]["unboxed"]) == (50.0, 25.0)
    assert metrics["verify"]["sample_accuracy"]["mean"] == 50.0


def test_a_corrected_gold_answer_needs_no_new_generations(generations: Path) -> None:
    file = generations / "mine.jsonl"
    for gold, level in (("5", 4), ("6", 5)):
        file.write_text(json.dumps({"id": "a", "problem": "?", "answer": gold, "level": level}) + "\n")
        grades, metrics = graded(generations, str(file))
        assert {g["gold"] for g in grades} == {gold}
        assert [part["level"] for part in metrics["paper"]["levels"]] == [level]
    grades, _ = graded(
        generations, "somebody/dataset"
    )  # a hub is not asked again: the stored gold answer counts
    assert {g["gold"] for g in grades} == {"7"}


def swap(part: Path) -> None:
    first, second, *others = part.read_text().splitlines(keepends=True)
    part.write_text("".join([second, first, *others]))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "nothing": lambda part: None,
    "forged": lambda part: part.write_text(part.read_text().replace("false", "true")),
    "of another answer": lambda part: part.write_text(part.read_text().splitlines(keepends=True)[0] * 4),
    "in another order": swap,
    "another shape": lambda part: part.write_text('{"x": 1}\n' * 4),
    "no objects": lambda part: part.write_text("[]\n" * 4),
    "without checksums": lambda part: part.write_text(re.sub(r', "check": "\w+"', "", part.read_text())),
    "cut": lambda part: part.write_bytes(part.read_bytes()[:-40]),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_grades_of_an_interrupted_run_count_only_for_the_answers_that_they_were_made_of(
    how: str, generations: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = graded(generations, "somebody/dataset")
    assert graded(generations, "somebody/dataset", DAMAGE[how]) == expected
    assert ("graded again" in caplog.text) == (how != "nothing")


@pytest.mark.parametrize("changed", ["text", "gold"])
def test_grades_are_not_reused_for_another_answer_or_gold(changed: str, generations: Path) -> None:
    def change(part: Path) -> None:
        file = generations / ("problems.jsonl" if changed == "gold" else GENERATIONS.file)
        file.write_text(
            file.read_text().replace('"answer": "7"', '"answer": "5"').replace("five", r"\\boxed{7}")
        )

    grades, _ = graded(generations, "somebody/dataset", change)
    assert [grade["paper"] for grade in grades] == (
        [True, *[False] * 3] if changed == "gold" else [*[False] * 3, True]
    )
