"""Heats on the demo: who stops and why, that nothing is asked twice, and what a plan says."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lark.errors import LarkError
from lark.generation.conversation import Ask
from lark.output.teach_summary import teachers_table
from lark.pipeline import pipeline
from lark.pipeline.pipeline import Pipeline
from lark.planner.report import report
from lark.pool.summary_text import pool_summary
from lark.scoring import worker
from lark.selection import leads
from lark.teaching import rollouts
from lark.teaching.__main__ import main
from lark.teaching.heats import Standing
from lark.teaching.question_files import AskedQuestion
from lark.teaching.rollouts import TeacherWork
from tests.conftest import composed, work_here

TAUGHT = [
    "pool=taught", "pool.correct_only=true", "questions.path=demo", "questions.number=60", "teach.samples=2",
    "teacher=[self,demo]", "teacher.self.max_new_tokens=48", "teacher.demo.max_new_tokens=48",
    "teacher.demo.temperature=5", "stages=[pool]", "tracking=none", "hardware.threads=1",
    "hardware.warm=false",
]  # fmt: skip
"""The demo's student, and the same model with so much randomness that it is never right."""
HEATS = "teach.heats=[24,40,all]"
Sample = tuple[str, str, int]


@pytest.fixture(autouse=True, scope="module")
def here() -> Iterator[None]:
    """The workers' work is done in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "run_worker", work_here)
        yield


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[Sample]:
    """How often each sample of a question is asked for, by teacher."""
    return counted(monkeypatch)


def counted(patch: pytest.MonkeyPatch) -> Counter[Sample]:
    seen: Counter[Sample] = Counter()
    original = TeacherWork.ask

    def ask(self: TeacherWork, question: AskedQuestion, first: int) -> Ask:
        seen.update((self.name, question.key, number) for number in range(first, self.samples))
        return original(self, question, first)

    patch.setattr(TeacherWork, "ask", ask)
    return seen


def planned(outputs: Path, *more: str) -> Pipeline:
    settings = [setting for setting in TAUGHT if "demo." not in setting or "teacher=[self]" not in more]
    return Pipeline(composed(*settings, *more, f"outputs={outputs}"), outputs / "runs" / "test")


def taught(outputs: Path, *more: str) -> Pipeline:
    run = planned(outputs, *more)
    run.run()
    return run


def number(asked: Counter[Sample], name: str) -> int:
    """Samples of a teacher that were asked for. None was asked for twice."""
    assert set(asked.values()) <= {1}
    return sum(teacher == name for teacher, _, _ in asked)


def counts(run: Pipeline, kind: str, heat: int = 0, teacher: str = "") -> dict[str, Any]:
    """The counts of an artifact. `heat`: 0 is the run's own."""
    for step in run.plan:
        for artifact in step.artifacts:
            if (artifact.kind.name, step.heat, step.teacher) == (kind, heat, teacher):
                return dict(run.store.manifest(artifact).counts)
    raise AssertionError(kind)


def final_rollouts(run: Pipeline) -> dict[str, bytes]:
    return {
        step.teacher: (run.store.path(step.artifacts[0]) / "rollouts.jsonl").read_bytes()
        for step in run.plan
        if step.heat == 3 and step.makes(rollouts.ROLLOUTS)
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pipeline, Counter[Sample]]:
    """A run with heats, and what it asked."""
    with pytest.MonkeyPatch.context() as patch:
        seen = counted(patch)
        return taught(tmp_path_factory.mktemp("whole"), HEATS), seen


def test_a_teacher_that_is_behind_stops_and_the_other_is_asked_the_rest(
    whole: tuple[Pipeline, Counter[Sample]],
) -> None:
    run, asked = whole
    assert number(asked, "self") == 120
    assert number(asked, "demo") == 48
    standing = Standing.of(counts(run, "standing", heat=1))
    assert standing.running == ["self"]
    why = standing.stopped["demo"]
    assert (why.heat, why.questions, why.ahead) == (1, 24, "self")
    assert 0 < why.low < why.difference < why.high
    assert counts(run, "rollouts", 3, "demo")["spared"] == 36
    # Decisions of later heats keep it.
    last = Standing.of(counts(run, "standing", heat=2))
    assert last.stopped == standing.stopped
    assert last.undecided == "only one teacher is left"


def test_the_pool_and_the_summary_say_who_stopped_why_and_what_was_saved(
    whole: tuple[Pipeline, Counter[Sample]],
) -> None:
    run, _ = whole
    pool = counts(run, "pool")
    assert list(pool["heats"]["stopped"]) == ["demo"]
    text = pool_summary(pool)
    assert "teachers were stopped (demo after 24 questions), so the pool is unbalanced over teachers" in text
    summary = teachers_table(run.store, run.steps)
    why = Standing.of(pool["heats"]).stopped["demo"]
    assert f"demo: stopped after heat 1 (24 questions), {why}; 36 questions, about " in summary
    assert f"{why.difference:.3f} behind self (simultaneous interval {why.low:.3f} to " in str(why)


def test_scores_of_a_heat_are_taken_over_by_the_next(whole: tuple[Pipeline, Counter[Sample]]) -> None:
    run, _ = whole
    first = counts(run, "pool", heat=1)["trajectories"]
    assert counts(run, "scores", heat=2)["taken_over"] >= first


def test_a_run_with_heats_takes_over_the_rollouts_of_one_without_and_the_other_way_round(
    whole: tuple[Pipeline, Counter[Sample]], tmp_path: Path, asked: Counter[Sample]
) -> None:
    run, before = whole
    taught(run.config.outputs_path)
    assert (number(asked, "self"), number(asked, "demo")) == (0, 72)
    assert asked.keys().isdisjoint(before)
    asked.clear()
    taught(tmp_path, "questions.number=30")
    asked.clear()
    taught(tmp_path, "questions.number=30", "teach.heats=[24,all]")
    assert not asked


@pytest.mark.parametrize("where", ["before the decision", "while the second heat asks"])
def test_a_run_that_is_stopped_between_heats_asks_nothing_twice(
    where: str,
    whole: tuple[Pipeline, Counter[Sample]],
    tmp_path: Path,
    asked: Counter[Sample],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        if where == "before the decision":
            patch.setattr(leads, "write_standing", _stop)
        else:
            patch.setattr(rollouts, "require_few_failures", _stop_after(asked, 60))
        with pytest.raises(RuntimeError, match="stopped"):
            taught(tmp_path, HEATS)
    assert 0 < len(asked) < 168
    run = taught(tmp_path, HEATS)
    assert asked == whole[1]
    assert final_rollouts(run) == final_rollouts(whole[0])


def _stop(*arguments: object) -> None:
    raise RuntimeError("stopped")


def _stop_after(asked: Counter[Sample], most: int) -> Any:
    """Stops when all answers of a batch are in the journal, and more than this were asked for."""

    def stop(*arguments: object) -> None:
        if len(asked) > 2 * most:
            raise RuntimeError("stopped")

    return stop


def test_forced_heats_ask_each_sample_once(
    whole: tuple[Pipeline, Counter[Sample]], asked: Counter[Sample]
) -> None:
    run, before = whole
    taught(run.config.outputs_path, HEATS, "force=[teach]")
    assert asked == before


def test_enough_different_rollouts_spare_later_teachers(tmp_path: Path, asked: Counter[Sample]) -> None:
    outputs = tmp_path
    more = ["teacher.demo.temperature=0.7", "teach.enough=2", "questions.number=40"]
    run = taught(outputs, *more)
    spared = counts(run, "rollouts", teacher="demo")["spared"]
    assert 0 < spared < 40
    assert number(asked, "demo") == 2 * (40 - spared)
    first = [json.loads(line) for line in _lines(run, "rollouts", "self")]
    verdicts = [json.loads(line) for line in _lines(run, "verdicts", "self")]
    table = pd.DataFrame(first).assign(correct=[verdict["correct"] for verdict in verdicts])
    valid = table[table["correct"] & (table["finish_reason"] != "length")]
    different = valid.groupby("key")["response"].apply(
        lambda texts: len({" ".join(t.split()) for t in texts})
    )
    assert spared == (different >= 2).sum()
    # With heats, only in the last one: those who are compared answer the same questions.
    run = taught(outputs, *more, "teach.heats=[20,all]")
    assert "spared" not in counts(run, "rollouts", 1, "demo")
    assert counts(run, "rollouts", 2, "demo")["spared"] <= spared


def _lines(run: Pipeline, kind: str, teacher: str) -> list[str]:
    (folder,) = [
        run.store.path(artifact)
        for step in run.plan
        for artifact in step.artifacts
        if (artifact.kind.name, step.teacher) == (kind, teacher)
    ]
    return (folder / f"{kind}.jsonl").read_text().splitlines()


def test_a_limit_that_is_reached_stops_no_teacher(tmp_path: Path) -> None:
    run = taught(tmp_path, HEATS, "teach.limit_tokens=40", "engine.batch=2", "pool.correct_only=false")
    standing = Standing.of(counts(run, "standing", heat=1))
    assert standing.stopped == {}
    assert standing.undecided is not None
    assert standing.undecided.startswith("a limit was reached before these teachers were asked all questions")


def test_a_plan_gives_an_upper_bound_until_it_is_decided(
    whole: tuple[Pipeline, Counter[Sample]], tmp_path: Path
) -> None:
    run = planned(tmp_path, HEATS)
    table, _ = report(run.config, run.steps, run.lengths(), run.finished())
    asked = [line.split("  ")[-6:] for line in table.splitlines() if " rollouts, " in line]
    assert len(asked) == 6
    for name in ("self", "demo"):
        assert f"{name}: 48 rollouts, up to" in table
        assert f"{name}: at most 32 rollouts, up to" in table
        assert f"{name}: at most 40 rollouts, up to" in table
    done = planned(whole[0].config.outputs_path, HEATS, "teach.samples=3")
    table, _ = report(done.config, done.steps, done.lengths(), done.finished())
    assert "demo: 24 rollouts, about" in table
    assert "self: at most 16 rollouts, about" in table


def test_pass_rates_and_heats_leave_the_student_out_of_the_comparison(
    tmp_path: Path, asked: Counter[Sample]
) -> None:
    other = ["path=demo", "engine=hf", "context=512", "dtype=float32", "thinking=none", "max_new_tokens=48"]
    more = ["teacher=[demo,self,qwen3_4b]", *(f"teacher.qwen3_4b.{setting}" for setting in other)]
    run = taught(tmp_path, *more, "questions.pass_rate=[0,0.5]", "teach.heats=[12,all]")
    assert number(asked, "self") == 120
    standing = Standing.of(counts(run, "standing", heat=1))
    assert set(standing.leads) == {"demo", "qwen3_4b"}
    questions = counts(run, "questions", heat=2)["questions"]
    assert 12 < questions < 60
    expected = {name: 24 if name in standing.stopped else 2 * questions for name in standing.leads}
    assert {name: number(asked, name) for name in standing.leads} == expected


REFUSED = [
    (
        ["teach.heats=[50,20,all]"],
        r"teach\.heats=\['50', '20', 'all'\]: must be numbers of questions that rise",
    ),
    (["teach.heats=[50]"], "must be numbers of questions that rise, and then all"),
    (["teach.heats=[all]"], "must be numbers of questions that rise, and then all"),
    (["teach.enough=0"], r"teach\.enough=0: must be at least 1, or null"),
    ([HEATS, "teacher=[self]"], "teach.heats: they compare teachers, and the run has only self"),
    ([HEATS, "method=base"], "method=base does not score a pool while it is made"),
    ([HEATS, "pool.questions=5"], "pool.questions and pool.ids would leave out questions of a heat"),
]


@pytest.mark.parametrize(("settings", "sentence"), REFUSED)
def test_heats_that_cannot_work_are_refused(settings: list[str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(LarkError, match=sentence):
        planned(tmp_path, *settings)


def test_batch_files_do_not_go_with_heats(tmp_path: Path) -> None:
    with pytest.raises(LarkError, match=r"teach\.heats: what a teacher is asked depends on the answers"):
        main(["batch", "write", str(tmp_path), *TAUGHT, HEATS, f"outputs={tmp_path}"])


def test_one_more_teacher_and_two_more_samples_generate_and_score_only_these(
    tmp_path: Path, asked: Counter[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without heats: a taught pool grows."""
    scored: list[int] = []
    original = worker.response_statistics

    def statistics(student: Any, batch: Any, *arguments: Any) -> Any:
        scored.extend(len(encoded.ids) for encoded in batch)
        return original(student, batch, *arguments)

    monkeypatch.setattr(worker, "response_statistics", statistics)
    settings = ["pool.correct_only=false", "stages=[score]", "questions.number=6"]
    first = taught(tmp_path, *settings, "teacher=[self]")
    assert number(asked, "self") == 6 * 2
    old = _contents(first)
    assert len(scored) == len(old) == 12
    asked.clear()
    scored.clear()
    grown = taught(tmp_path, *settings, "teach.samples=4", "teacher.demo.temperature=1.5")
    assert number(asked, "self") == 6 * 2
    assert number(asked, "demo") == 6 * 4
    rows = _contents(grown)
    assert len(rows) == 6 * 4 * 2
    # A sample may repeat the text of an earlier one, whose scores it then has.
    new = [row for row in rows if row not in old]
    assert len(scored) == len(new) <= 6 * 2 + 6 * 4
    assert counts(grown, "scores")["taken_over"] == len(rows) - len(new) >= 12
    assert counts(grown, "rollouts", teacher="self")["taken"] == {
        first.store.path(step.artifacts[0]).name: 12 for step in first.plan if step.makes(rollouts.ROLLOUTS)
    }


def _contents(run: Pipeline) -> list[tuple[str, str]]:
    """The questions and responses of a run's pool."""
    (folder,) = [
        run.store.path(artifact)
        for step in run.plan
        for artifact in step.artifacts
        if artifact.kind.name == "pool"
    ]
    table = pd.read_parquet(folder / "trajectories.parquet", columns=["question", "response"])
    return list(table.itertuples(index=False, name=None))
