"""Grading is separate from generating: it uses the current gold answers, and stores what each grader read."""

import json
from pathlib import Path
from typing import Any

import pytest

from lark.config import Task
from lark.evaluation.grade import collect_grades, grade_all
from lark.evaluation.shards import GENERATIONS
from tests.conftest import composed, job_of

TEXTS = [r"\boxed{5}", r"\fbox{5}", r"$\boxed{5}$, $\boxed{6}$", "five"]


@pytest.fixture
def generations(tmp_path: Path) -> Path:
    """One problem with four answers; at generation its gold answer was 7."""
    problem = {"id": "a", "question": "?", "answer": "7", "level": 1, "options": []}
    (tmp_path / "problems.jsonl").write_text(json.dumps(problem) + "\n")
    rows = [{"problem": "a", "seed": 0, "sample": i, "text": t, "finish_reason": "stop"} for i, t in enumerate(TEXTS)]
    (tmp_path / GENERATIONS.file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def graded(generations: Path, path: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    folder = generations / "metrics"
    folder.mkdir(exist_ok=True)
    task = Task(label="Mine", path=path, answer_format="free_form", id_field="id", level_field="level")
    config = composed()
    config.benchmark.tasks["mine"] = task
    job = job_of(config, folder, inputs={"generations:mine": generations}, outputs={"mine": folder})
    assert collect_grades(job, grade_all(job)) == {"mine": {"problems": 1, "answers": 4}}
    assert not list(folder.glob("shard-*"))
    lines = (folder / "grades.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], json.loads((folder / "metrics.json").read_text())


def test_what_each_grader_read_is_stored_and_counted(generations: Path) -> None:
    file = generations / "mine.jsonl"
    file.write_text(json.dumps({"id": "a", "problem": "?", "answer": "5", "level": 4}) + "\n")
    grades, metrics = graded(generations, str(file))
    assert [(g["answer"], g["paper"]) for g in grades] == [("5", True), (None, False), ("6", False), (None, False)]
    assert [(g["answer_verify"], g["verify"]) for g in grades] == [("5", True), ("5", True), ("5, 6", False), (None, False)]
    assert (metrics["paper"]["unboxed"], metrics["verify"]["unboxed"]) == (50.0, 25.0)
    assert metrics["verify"]["sample_accuracy"]["mean"] == 50.0


def test_a_corrected_gold_answer_needs_no_new_generations(generations: Path) -> None:
    file = generations / "mine.jsonl"
    for gold, level in (("5", 4), ("6", 5)):
        file.write_text(json.dumps({"id": "a", "problem": "?", "answer": gold, "level": level}) + "\n")
        grades, metrics = graded(generations, str(file))
        assert {g["gold"] for g in grades} == {gold}
        assert [part["level"] for part in metrics["paper"]["levels"]] == [level]
    grades, _ = graded(generations, "somebody/dataset")  # a hub is not asked again: the stored gold answer counts
    assert {g["gold"] for g in grades} == {"7"}
