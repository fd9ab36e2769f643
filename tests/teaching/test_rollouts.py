"""Teachers are asked once: after kill -9, for more questions, more samples and more teachers."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lark.errors import LarkError
from lark.pipeline.pipeline import Pipeline
from lark.planner.report import report
from lark.teaching.rollouts import merge, teach
from lark.work.launch import read_job
from tests.conftest import composed, run_program, start_program

SMALL = [
    "pool=taught", "questions.path=demo", "questions.number=6", "teach.samples=2", "stages=[pool]",
    "tracking=none", "hardware.threads=1",
]  # fmt: skip
TAUGHT = [*SMALL, "teacher=[self]", "teacher.self.max_new_tokens=48"]


def taught(outputs: Path, *more: str) -> Pipeline:
    """A run of the real pipeline, with the demo's student as its own teacher."""
    return ran(outputs, *TAUGHT, *more)


def ran(outputs: Path, *settings: str) -> Pipeline:
    run = Pipeline(composed(*settings, f"outputs={outputs}"), outputs / "runs" / "test")
    run.run()
    return run


def counts(run: Pipeline, kind: str, name: str = "") -> dict[str, Any]:
    for step in run.plan:
        for artifact in step.artifacts:
            if artifact.kind.name == kind and name in ("", artifact.name):
                return dict(run.store.manifest(artifact).counts)
    raise AssertionError(kind)


def folder(run: Pipeline, kind: str) -> Path:
    (artifact,) = [made for step in run.plan for made in step.artifacts if made.kind.name == kind]
    return run.store.path(artifact)


def rollouts(run: Pipeline) -> list[dict[str, Any]]:
    lines = (folder(run, "rollouts") / "rollouts.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def texts(run: Pipeline) -> dict[tuple[str, int], str]:
    return {(row["question"], row["rollout"]): row["response"] for row in rollouts(run)}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return taught(tmp_path_factory.mktemp("first"))


def test_the_pool_has_every_rollout_with_its_verdict_and_the_students_pass_rate(first: Pipeline) -> None:
    pool = pd.read_parquet(folder(first, "pool") / "trajectories.parquet")
    assert len(pool) == 12
    assert set(pool["teacher"]) == {"self"}
    assert pool["correct"].notna().all()
    for _, candidates in pool.groupby("question_id"):
        assert candidates["pass_rate"].tolist() == pytest.approx([candidates["correct"].mean()] * 2)
    assert sorted(pool["rollout"].unique()) == [0, 1]


def test_a_rollout_says_how_it_was_made(first: Pipeline) -> None:
    for row in rollouts(first):
        assert row["finish_reason"] in ("stop", "length")
        assert 0 < row["n_tokens"] <= 48
        assert row["n_prompt_tokens"] > 10
        assert row["model"]
        assert row["cost"] == 0
        assert (row["temperature"], row["top_p"]) == (0.6, 0.95)
    assert len({row["seed"] for row in rollouts(first)}) == 12


def test_more_questions_and_samples_ask_only_for_these(first: Pipeline, tmp_path: Path) -> None:
    outputs = first.config.outputs_path
    run = taught(outputs, "questions.number=8", "teach.samples=3")
    assert counts(run, "rollouts")["rollouts"] == 24
    assert counts(run, "rollouts")["taken"] == {folder(first, "rollouts").name: 12}
    assert texts(first).items() <= texts(run).items()
    # The same as in a run of its own: what was taken over is what would have been generated.
    assert texts(taught(tmp_path, "questions.number=8", "teach.samples=3")) == texts(run)


def test_the_same_questions_under_other_ids_are_not_asked_again(first: Pipeline, tmp_path: Path) -> None:
    rows = {row["question"]: row["answer"] for row in rollouts(first)}
    path = tmp_path / "questions.csv"
    lines = [f'"{question}",{answer},q{number}' for number, (question, answer) in enumerate(rows.items())]
    path.write_text("\n".join(["problem,answer,id", *reversed(lines)]) + "\n")
    run = taught(first.config.outputs_path, f"questions.path={path}", "questions.number=null")
    assert sum(counts(run, "rollouts")["taken"].values()) == 12
    assert {row["question_id"] for row in rollouts(run)} == {f"q{number}" for number in range(6)}
    assert texts(run) == texts(first)


def test_another_sampling_is_another_teacher(first: Pipeline) -> None:
    run = taught(first.config.outputs_path, "teacher.self.temperature=1")
    assert "taken" not in counts(run, "rollouts")
    assert texts(run) != texts(first)


def test_a_limit_on_tokens_ends_with_what_is_done(tmp_path: Path) -> None:
    run = taught(tmp_path, "teach.limit_tokens=1", "engine.batch=2")
    made = counts(run, "rollouts")
    assert 0 < made["rollouts"] < 12
    assert made["not_asked"] + made["rollouts"] // 2 == 6
    assert counts(run, "pool")["trajectories"] == made["rollouts"]
    more = taught(tmp_path, "teach.limit_tokens=100000")
    assert sum(counts(more, "rollouts")["taken"].values()) == made["rollouts"]
    assert len(texts(more)) == 12
    assert texts(run).items() <= texts(more).items()


def test_a_run_that_is_killed_three_times_gives_the_same_rollouts(tmp_path: Path) -> None:
    more = ["questions.number=100", "engine.batch=4"]
    kills = 0
    answered = 0
    while kills < 3:
        process = start_program(*TAUGHT, *more, outputs=tmp_path / "killed", start_new_session=True)
        answered = _kill_after(process, tmp_path / "killed", answered)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        kills += 1
    code, output = run_program(*TAUGHT, *more, outputs=tmp_path / "killed")
    assert code == 0, output
    assert 0 < answered < 100
    whole = taught(tmp_path / "whole", *more)
    (killed,) = (tmp_path / "killed" / "rollouts").iterdir()
    lines = (killed / "rollouts.jsonl").read_bytes()
    assert lines == (folder(whole, "rollouts") / "rollouts.jsonl").read_bytes()


def _kill_after(process: subprocess.Popen[str], outputs: Path, answered: int) -> int:
    """Kill a run when it has answered more questions than before; return how many."""
    lines = answered
    while lines <= answered and process.poll() is None:
        time.sleep(0.02)
        files = list(outputs.glob("rollouts/*/shard-*.jsonl"))
        lines = sum(path.read_bytes().count(b"\n") for path in files)
    assert process.poll() is None, "it ended before it could be killed"
    os.killpg(process.pid, signal.SIGKILL)
    return lines


def test_other_teachers_are_asked_only_what_the_student_sometimes_solves(
    first: Pipeline, tmp_path: Path
) -> None:
    """Two teachers, a program that verifies, and the student's pass rates."""
    program = tmp_path / "check.py"
    program.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    row = json.loads(line)\n"
        "    print(json.dumps({'correct': len(row['question']) % 2 == row['rollout']}), flush=True)\n"
    )
    outputs = first.config.outputs_path
    more = ["teacher=[demo,self]", "teacher.demo.max_new_tokens=48", "questions.pass_rate=[0.6,1]"]
    verify = ["teach.verify=command", f"teach.command.run={sys.executable} {program}"]
    with pytest.raises(LarkError, match=r"no question has a pass rate from 0\.6 to 1"):
        taught(outputs, *more, *verify)  # each question has one right and one wrong sample
    run = taught(outputs, *more[:2], "questions.pass_rate=[0.5,1]", *verify)
    assert "taken" not in counts(run, "rollouts", "self")  # finished: nothing is copied
    assert counts(run, "rollouts", "demo")["questions"] == 6
    assert counts(run, "verdicts", "demo")["right"] == 6
    pool = pd.read_parquet(folder(run, "pool") / "trajectories.parquet")
    assert dict(pool["teacher"].value_counts()) == {"self": 12, "demo": 12}
    assert set(pool["pass_rate"]) == {0.5}


def test_questions_without_an_answer_are_decided_by_vote(first: Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps({"question": row["question"]}) + "\n" for row in rollouts(first)))
    run = taught(
        first.config.outputs_path, f"questions.path={path}", "questions.number=null", "teach.verify=vote"
    )
    assert counts(run, "questions")["repeated"] == 6
    assert counts(run, "verdicts")["unknown"] == 12
    assert counts(run, "pool")["votes"]["undecided"] < 6


def test_the_number_of_processes_changes_nothing_and_may_change_in_between(
    first: Pipeline, tmp_path: Path
) -> None:
    job, target = read_job(folder(first, "rollouts") / "job.json")
    assert target == "lark.teaching.rollouts:teach"
    own = replace(job, folder=tmp_path, outputs={"self": tmp_path})
    teach(replace(own, rank=1, world=2))
    assert [path.name for path in tmp_path.glob("shard-*")] == ["shard-00001.jsonl"]
    with pytest.raises(LarkError, match=r"3 of 6 questions have no answer yet\. Run the command again"):
        merge(own, {})
    for rank in range(3):
        teach(replace(own, rank=rank, world=3))
    assert merge(own, {})["self"] == counts(first, "rollouts")
    whole = folder(first, "rollouts") / "rollouts.jsonl"
    assert (tmp_path / "rollouts.jsonl").read_bytes() == whole.read_bytes()


def test_the_plan_counts_what_is_left_to_ask_with_tokens_and_money(tmp_path: Path) -> None:
    asked = taught(tmp_path, "stages=[teach]", "teach.verify=none")
    priced = ["teacher.self.price.output=10", "teach.samples=3", "questions.number=7"]
    run = Pipeline(composed(*TAUGHT, f"outputs={tmp_path}", *priced), tmp_path / "runs" / "plan")
    table, refusal = report(run.config, run.steps, run.lengths(), run.finished())
    assert refusal is None
    # 6 questions have 2 of 3 samples, and one is new. Their length is that of the samples so far.
    made = counts(asked, "rollouts")
    tokens = 9 * made["tokens"] / made["rollouts"]
    assert f"self: 9 rollouts, about {tokens:,.0f} tokens, cost about {tokens * 10 / 1e6:,.2f}" in table
