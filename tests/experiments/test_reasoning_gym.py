"""Published answers to reasoning-gym's tasks as a training pool and a benchmark per task."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import reasoning_gym
from experiments.__main__ import main
from experiments.harness.sweep import compose_sweep
from experiments.reasoning_gym import EASY, POOL, divide
from lark.errors import LarkError
from lark.evaluation.benchmarks import load
from lark.pool.read import read
from tests.conftest import composed

QUESTIONS = 10


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def published(folder: Path, teachers: tuple[str, ...] = ("openai_o3-mini", "qwen_qwq-32b")) -> Path:
    """Result files in the layout of the public repository, with a task that is not among ours."""
    for place, teacher in enumerate(teachers):
        for task in ("gcd", "lcm", "sokoban"):
            results = [
                {
                    "question": f"Question {number} of {task}?",
                    "expected_answer": str(number),
                    "completions": [
                        {"full_model_response": f"<answer>{number + place}</answer>", "score": 1.0 - place}
                        for _ in range(2)
                    ],
                }
                for number in range(QUESTIONS)
            ]
            file = folder / f"{teacher}_20250315_181742" / "arithmetic" / f"{task}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"name": task, "system_prompt": "Use tags.", "results": results}))
        (folder / f"{teacher}_20250315_181742" / "summary.json").write_text("{}")
    return folder


def test_held_out_questions_are_not_in_the_pool(tmp_path: Path) -> None:
    counts = divide(published(tmp_path / "source"), tmp_path / "data", 0.4)
    assert counts == {POOL: 2 * 6 * 4, "gcd.jsonl": 4, "lcm.jsonl": 4}
    pool = rows(tmp_path / "data" / POOL)
    assert {row["teacher"] for row in pool} == {"o3-mini", "qwq-32b"}
    assert {row["correct"] for row in pool} == {True, False}
    for task in ("gcd", "lcm"):
        problems = rows(tmp_path / "data" / f"{task}.jsonl")
        questions = {problem["question"] for problem in problems}
        assert questions.isdisjoint(row["question"] for row in pool)
        assert {problem["id"].rpartition("-")[0] for problem in problems} == {task}


def test_the_division_does_not_depend_on_the_form_of_the_source(tmp_path: Path) -> None:
    """The same answers as rows in another order, with other ids."""
    source = published(tmp_path / "source")
    divide(source, tmp_path / "of_folder")
    answers = [row for task in ("gcd", "lcm") for row in _as_rows(source, task)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in reversed(answers)))
    divide(file, tmp_path / "of_rows")
    for name in (POOL, "gcd.jsonl", "lcm.jsonl"):
        assert (tmp_path / "of_folder" / name).read_text() == (tmp_path / "of_rows" / name).read_text()


def _as_rows(source: Path, task: str) -> list[dict[str, Any]]:
    answers = []
    for file in sorted(source.glob(f"*/arithmetic/{task}.json")):
        teacher = file.parts[-3].split("_")[1]
        for number, result in enumerate(json.loads(file.read_text())["results"]):
            for rollout, completion in enumerate(result["completions"]):
                answers.append(
                    {
                        "question_id": f"{task}-{number:03d}",
                        "teacher": teacher,
                        "rollout": rollout,
                        "question": result["question"],
                        "response": completion["full_model_response"],
                        "answer": result["expected_answer"],
                        "correct": completion["score"] == 1.0,
                    }
                )
    return answers


def test_the_preset_reads_what_is_written(tmp_path: Path) -> None:
    divide(published(tmp_path / "source"), tmp_path / "data")
    config = composed("student=smollm2_easy", f"pool.path={tmp_path / 'data' / POOL}", "pool.questions=null")
    kept = list(read(config.pool))
    assert {trajectory.teacher for trajectory in kept} == {"o3-mini"}, "only correct ones"
    assert all(trajectory.response.startswith("\\boxed{") for trajectory in kept)
    task = config.benchmark.tasks["gcd"]
    assert task.path == "data/reasoning_gym_easy/gcd.jsonl"
    task.path = str(tmp_path / "data" / "gcd.jsonl")
    assert len(load("gcd", task)) == 4
    assert tuple(config.benchmark.tasks) == EASY
    traces = composed("student=smollm2_traces", f"pool.path={tmp_path / 'data' / POOL}")
    with pytest.raises(
        LarkError, match=r"has no question that pool.correct_only=true and pool.drop=\[empty\]"
    ):
        list(read(traces.pool))  # these answers have no reasoning


def test_a_source_without_these_tasks_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pool.jsonl"
    file.write_text('{"question_id": "q1", "question": "1+1?", "response": "2"}\n')
    for source in (file, tmp_path / "nothing"):
        source.mkdir(exist_ok=True) if not source.suffix else None
        with pytest.raises(LarkError, match="has no questions of calendar_arithmetic"):
            divide(source, tmp_path / "data")


def test_without_the_data_one_sentence_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("table1", "compare", "token-level"):
        for command in ("plan", "run"):
            with pytest.raises(
                LarkError, match="Clone the public repository open-thought/reasoning-gym-eval"
            ):
                main([command, name, "scale=smollm2", f"outputs={tmp_path / 'outputs'}"])


def test_table1_has_every_method_and_two_seeds_at_this_scale(tmp_path: Path) -> None:
    sweep = compose_sweep("table1", ["scale=smollm2", f"outputs={tmp_path}"])
    runs = {(t.config.method.key, t.config.budget.size, t.config.training.seed) for t in sweep.trials}
    methods = (
        "random token_length shortest rule_quality grape local_naturalness rsr lark lark_gram lark-reversed"
    )
    assert runs == {(method, b, seed) for method in methods.split() for b in (1, 3) for seed in (42, 1)}
    for trial in sweep.trials:
        assert trial.config.method.seed == trial.config.training.seed, "Random draws again"


def test_real_files_and_rows_hold_out_the_same_questions(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reasoning_gym, "EASY", ("gcd", "family_relationships"))
    counts = divide(shared_data / "published" / "reasoning_gym_eval", tmp_path / "files")
    divide(shared_data / "pools" / "reasoning_gym_easy.jsonl", tmp_path / "rows")
    for task in ("gcd", "family_relationships"):
        assert counts[f"{task}.jsonl"] == 20
        assert (tmp_path / "files" / f"{task}.jsonl").read_text() == (
            tmp_path / "rows" / f"{task}.jsonl"
        ).read_text()
    questions = {row["question_id"] for row in rows(tmp_path / "files" / POOL)}
    assert questions == {row["question_id"] for row in rows(tmp_path / "rows" / POOL)}
    assert len(questions) == 60
