"""Operations are objects: what a step is, which model it loads and what it costs are defined in one place."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from experiments.harness.sweep import method_label
from lark.analysis.kinds import CONVERTED_JUDGE
from lark.config import STAGES, Judge
from lark.config.cli import as_hydra_reads
from lark.errors import LarkError
from lark.explorer.rankings import ranking_of
from lark.generation import engine
from lark.models.shapes import DEMO
from lark.pipeline import pipeline as pipelines
from lark.pipeline.analysis_plan import ANALYSES
from lark.pipeline.operations.analyse import TIMING
from lark.pipeline.operations.score import JUDGE, LENGTHS, SCORE, SCORING
from lark.pipeline.operations.student import CONVERT
from lark.pipeline.pipeline import Pipeline
from lark.pipeline.plan import FORCEABLE, make_plan, wanted
from lark.pipeline.registry import OPERATIONS
from lark.planner.estimates import estimate
from lark.scoring import methods
from lark.scoring.sources import JUDGE_TABLE, SOURCES
from lark.selection import rules
from lark.store.store import Artifact, Checksums
from lark.work.operation import Step
from tests.conftest import ROOT, composed, work_here
from tests.operation_names import places, trees, vocabulary


def steps(folder: Path, *typed: str) -> list[Step]:
    config = composed(*as_hydra_reads(list(typed)))
    return wanted(make_plan(config, Checksums(folder), elsewhere=True), config.stages)


def test_code_that_compares_an_operations_name_is_rare_and_in_declarations_or_the_plan() -> None:
    """There are as many declarations as operations; the limit of the others leaves room for a few more."""
    found = places(ROOT)
    declared = ("plan.py", "scoring/methods.py", "scoring/sources.py", "config/schema.py")
    elsewhere = [place for place in found if "/operations/" not in place.file]
    assert [str(place) for place in elsewhere if not place.file.endswith(declared)] == []
    assert sum(place.what == "declaration" for place in found) == len(OPERATIONS)
    assert sum(place.what != "declaration" for place in found) <= 10


def test_the_counted_names_are_those_of_operations_stages_and_analyses() -> None:
    names = vocabulary(trees(ROOT)).names
    assert names == {*(operation.name for operation in OPERATIONS), *STAGES, *ANALYSES}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('chosen = step.name == "train"', "comparison"),
        ('chosen = step.name in ("other", "train")', "comparison"),
        ('chosen = stages == ["train", "pool"]', "comparison"),
        ("chosen = step.operation is not TRAIN", "comparison"),
        ("chosen = FIRST in stages", "comparison"),
        ("chosen = stages == [operations.TRAIN.stage]", "comparison"),
        ("chosen = step.artifact.kind in (STUDENT, other)", "comparison"),
        ('match name:\n    case "train":\n        pass', "comparison"),
        ('ORDER = ("first", *STAGES, "pool")', "table"),
        ('RUN = {"train": 1, "pool": 2}', "table"),
        ('for name in ["train", "pool"]:\n    pass', "table"),
        ('found = STAGES["train"]', "lookup"),
        ('found = place_of("train")', "lookup"),
        ('chosen = row["train"]', ""),
        ('chosen = thinking == "train"', ""),
        ('chosen = key == ["train", "seed"]', ""),
        ('EXPERIMENTS = ("table", "figure", "ablation", "other", "train", "pool")', ""),
        ("chosen = step.makes(STUDENT)", ""),
    ],
)
def test_the_counter_sees_each_way_to_decide_by_name(line: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "lark").mkdir()
    declared = [
        'STAGES = ("train", "pool")',
        'TRAIN = Operation("train", "train", run)',
        'STUDENT = Kind("student")',
        'FIRST = "pool"',
        "def place_of(name):\n    return STAGES[name]",
    ]
    (tmp_path / "lark" / "declared.py").write_text("\n".join(declared))
    (tmp_path / "lark" / "other.py").write_text(line)
    assert [place.what for place in places(tmp_path) if place.file == "lark/other.py"] == (
        [what] if what else []
    )


def test_names_are_unique_and_stages_are_those_that_users_know() -> None:
    names = [operation.name for operation in OPERATIONS]
    assert len(set(names)) == len(names)
    assert {operation.stage for operation in OPERATIONS} <= {*STAGES, ""}


def test_a_step_without_a_stage_runs_only_if_another_step_needs_it(tmp_path: Path) -> None:
    typed = ["student=smollm2", "engine=hf", "pool.questions=3"]
    for stage, needed in (("pool", False), ("score", True), ("evaluate", True)):
        assert any(step.stage == "" for step in steps(tmp_path, *typed, f"stages=[{stage}]")) is needed


def test_every_source_of_a_method_has_a_step_or_a_file() -> None:
    assert {*SCORING, "lengths", "external"} == set(SOURCES)
    assert {source for method in methods.METHODS.values() for source in method.needs} <= set(SOURCES)


def test_the_judge_has_its_own_weights_whatever_the_student(tmp_path: Path) -> None:
    """A packaged student's converted weights once replaced the judge's, under the judge's name."""
    arguments = ["student=smollm2", "method=llm_judge", "pool=files", "pool.path=pool.jsonl"]
    (judge,) = (step for step in steps(tmp_path, *arguments) if step.operation is JUDGE)
    assert judge.weights == "Qwen/Qwen3-32B"
    plan = steps(tmp_path, *arguments)
    loaded = [step.weights for step in plan if step.operation in (LENGTHS, SCORE)]
    assert loaded and all(
        isinstance(weights, Artifact) and weights.kind.name == "student" for weights in loaded
    )


def test_a_packaged_model_can_judge(tmp_path: Path) -> None:
    plan = steps(tmp_path, "method=llm_judge", "method.judge.path=smollm2")
    (judge,) = (step for step in plan if step.operation is JUDGE)
    assert isinstance(judge.weights, Artifact)
    assert judge.weights in plan[plan.index(judge) - 1].artifacts


def test_verdicts_of_a_judge_with_wrong_weights_are_not_reused(tmp_path: Path) -> None:
    """Versions 1 and 2 may hold verdicts of another model, in artifacts and in the cache of verdicts."""
    from lark.scoring.judge import verdicts_folder

    depends = {"judge": {"weights": "Qwen/Qwen3-32B@main"}, "engine": "vllm"}
    folders = set()
    for version in (2, 3):
        artifact = tmp_path / "judge" / f"v{version}"
        artifact.mkdir(parents=True)
        (artifact / "config.yaml").write_text(json.dumps({"version": version, "depends": depends}))
        folders.add(verdicts_folder(artifact))
    assert len(folders) == 2
    assert JUDGE_TABLE.version == 3


def test_forcing_an_analysis_forces_its_steps(tmp_path: Path) -> None:
    arguments = [
        "analysis.name=theory",
        "force=theory",
        f"outputs={tmp_path}",
        "tracking=none",
        "dry_run=true",
    ]
    run = Pipeline(composed(*as_hydra_reads(arguments)), tmp_path)
    assert [step.operation.name for step in run.steps if run._forced(step)] == ["gradients", "jacobians"]


@pytest.fixture(scope="module")
def every_run(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[list[str], set[str]]]:
    """A run of each method, each analysis and a packaged student, with the stages, operations and analyses
    of its steps.
    """
    few, folder = ["pool.questions=3", "training.snapshots=2"], tmp_path_factory.mktemp("plans")
    asked = [[], ["student=smollm2", "engine=hf"], *([f"analysis.name={name}"] for name in ANALYSES)]
    asked += [[f"method={name}"] for name in methods.METHODS if name != "external"]
    asked.append(["pool=taught", "questions.path=demo", "teacher=[self]"])
    in_heats = ["teacher=[self,demo]", "teach.heats=[2,all]", "pool.questions=null"]
    asked.append(["pool=taught", "questions.path=demo", *in_heats])
    plans = [(typed, steps(folder, *few, *typed)) for typed in asked]
    return [
        ([*few, *typed], {n for s in plan for n in (s.stage, s.operation.name, s.purpose)})
        for typed, plan in plans
    ]


@pytest.mark.parametrize("name", FORCEABLE)
def test_every_value_of_force_forces_something(
    name: str, every_run: list[tuple[list[str], set[str]]], tmp_path: Path
) -> None:
    """In a run that has such a step."""
    typed = next(typed for typed, names in every_run if name in names)
    arguments = [*typed, f"force={name}", f"outputs={tmp_path}", "tracking=none", "dry_run=true"]
    run = Pipeline(composed(*as_hydra_reads(arguments)), tmp_path)
    assert any(run._forced(step) for step in run.steps)


def test_forcing_what_this_run_does_not_have_gives_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Pipeline(
        composed("force=[judge]", f"outputs={tmp_path}", "tracking=none", "dry_run=true"), tmp_path
    )
    operations = ", ".join(dict.fromkeys(step.operation.name for step in run.steps))
    assert f"force=[judge] has no effect: the operations of this run are {operations}" in caplog.text


@pytest.mark.parametrize("name", ANALYSES)
def test_the_base_model_can_be_analysed_or_says_why_not(name: str, tmp_path: Path) -> None:
    """`method=base analysis.name=cost` once planned nothing, without a message."""
    if name == "kappa":
        with pytest.raises(
            LarkError, match="follows a training run, and method=base has none: choose another method"
        ):
            steps(tmp_path, "method=base", "analysis.name=kappa")
    else:
        found = steps(tmp_path, "method=base", f"analysis.name={name}", "stages=[analyse]")
        assert found[-1].stage == "analyse"
        assert {a.fingerprint for s in found for a in s.needs} <= {
            a.fingerprint for s in found for a in s.artifacts
        }


def test_timings_of_a_packaged_judge_use_its_converted_weights(tmp_path: Path) -> None:
    """They once asked the hub for a model called `smollm2`."""
    found = steps(tmp_path, "analysis.name=cost", "method.judge.path=smollm2", "method.judge.max_length=2048")
    (converted,) = (step.artifacts[0] for step in found if step.operation is CONVERT)
    (timing,) = (step for step in found if step.operation is TIMING)
    assert timing.inputs[CONVERTED_JUDGE] == converted
    assert timing.weights == str(DEMO)


def test_timings_refuse_a_context_that_their_judge_does_not_have(tmp_path: Path) -> None:
    config = composed(
        "analysis.name=cost", "method.judge.path=smollm2", f"outputs={tmp_path}", "tracking=none"
    )
    with pytest.raises(
        LarkError, match=r"method\.judge\.max_length=100000 is longer than the model's context of"
    ):
        Pipeline(
            replace(config, method=replace(config.method, judge=Judge("smollm2", max_length=100_000))),
            tmp_path,
        )


def test_every_step_is_planned_after_what_it_needs(tmp_path: Path) -> None:
    packaged = ["analysis.name=cost", "method.judge.path=smollm2"]
    judged = ["method=llm_judge", "student=smollm2", "pool.questions=3"]
    for typed in (judged, packaged, ["analysis.name=theory"], ["method=base"]):
        made: set[str] = set()
        for step in steps(tmp_path, *typed):
            assert {source.fingerprint for source in step.needs} <= made
            made |= {artifact.fingerprint for artifact in step.artifacts}


def test_an_estimate_is_of_the_plans_own_steps(tmp_path: Path) -> None:
    for typed in (
        ["student=qwen7b", "hardware=a100x8", "method=llm_judge"],
        ["method=base"],
        ["analysis.name=theory"],
    ):
        plan = steps(tmp_path, *typed)
        found = estimate(composed(*typed), plan)
        assert [e.step for e in found] == [step for step in plan if step.operation.cost is not None]


def test_a_new_engine_is_planned_without_being_known_to_the_planner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once ended every run with a KeyError."""
    monkeypatch.setitem(engine.ENGINES, "mine", engine.EngineKind("my.engine:Engine", start_seconds=7.0))
    typed = ["student=qwen7b", "hardware=a100x8", "engine.name=mine"]
    plan = steps(tmp_path, *typed)
    assert all(e.seconds > 0 for e in estimate(composed(*typed), plan))


def test_a_weighting_is_one_function_and_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rules.WEIGHTINGS, "first", lambda top: (top.utility == top.best).astype(float))
    monkeypatch.setattr(pipelines, "run_worker", work_here)
    arguments = ["weighting=first", "method=random", "pool.questions=2", "stages=[select]", "tracking=none"]
    Pipeline(composed(*arguments, f"outputs={tmp_path}"), tmp_path / "run").run()
    (file,) = tmp_path.glob("selection/*-first-*/selection.parquet")
    assert sorted(pd.read_parquet(file)["weight"].unique()) == [0.0, 1.0]


def shortest(trajectories: pd.DataFrame, *, power: float = 1.0) -> object:
    return -(trajectories["n_tokens"].to_numpy(dtype=float) ** power)


def test_a_methods_options_are_its_functions_arguments_and_in_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = methods.SelectionMethod("mine", frozenset({"lengths"}), shortest)  # type: ignore[arg-type]
    monkeypatch.setitem(methods.METHODS, "mine", mine)
    config = composed("pool.questions=2")
    found = set()
    for options in ({}, {"power": 2.0}, {"power": 3}):
        chosen = replace(config, method=replace(config.method, name="mine", options=options))
        (selection,) = (s.artifacts[0] for s in make_plan(chosen, Checksums(tmp_path)) if s.stage == "select")
        found.add(selection.fingerprint)
    assert len(found) == 3
    with pytest.raises(LarkError, match=r"method\.options\.power=x: method=mine takes a value of type float"):
        mine.check({"power": "x"})
    with pytest.raises(
        LarkError, match=r"method\.options\.poer=1: method=mine has no such option; it takes power"
    ):
        mine.check({"poer": 1})
    with pytest.raises(LarkError, match=r"method\.options\.budget: an option cannot have this name"):
        mine.check({"budget": 1})  # it would take the budget's place in the fingerprint


def test_benchmarks_are_parsed_once_in_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lark.evaluation import benchmarks

    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"question": "1+1?", "answer": "2"}) + "\n")
    parsed = []
    real = benchmarks._rows
    monkeypatch.setattr(benchmarks, "_rows", lambda *arguments: parsed.append(arguments) or real(*arguments))
    typed = [
        f"benchmark.tasks.demo_words.path={path}",
        "benchmark.tasks.demo_words.count=null",
        "benchmark=demo_words",
    ]
    typed += ["benchmark.tasks.demo_words.id_field=null", "benchmark.tasks.demo_words.level_field=null"]
    Pipeline(composed(*typed, f"outputs={tmp_path}", "tracking=none", "dry_run=true"), tmp_path)
    assert len(parsed) == 1


def test_methods_and_budgets_share_one_scoring_pass(tmp_path: Path) -> None:
    swept = [(method, budget) for method in ("random", "rsr", "lark") for budget in (1, 3)]
    plans = [
        steps(tmp_path, f"method={method}", f"budget={budget}", "stages=[select]") for method, budget in swept
    ]
    passes = {step.key for plan in plans for step in plan if step.operation == SCORE}
    assert len(passes) == 1


def test_the_demos_student_is_where_students_are_looked_up() -> None:
    assert (DEMO / "config.json").is_file()


def test_a_reversed_method_is_named_so_everywhere_and_has_its_own_selection(tmp_path: Path) -> None:
    plain, backwards = (
        steps(tmp_path, "method=rsr", f"method.reverse={value}") for value in ("false", "true")
    )
    for one, other in zip(plain, backwards, strict=True):
        same = [a.fingerprint for a in one.artifacts] == [a.fingerprint for a in other.artifacts]
        depends = one.stage in ("select", "train") or one.model == "trained"
        assert same != depends
        assert all(("rsr-reversed" in artifact.folder.name) == depends for artifact in other.artifacts)
    config = composed("method=rsr", "method.reverse=true")
    assert (config.method.key, config.method.title) == ("rsr-reversed", "RSR min (reversed)")
    assert method_label("rsr-reversed") == "RSR min (reversed)"
    described = ranking_of({"method": "rsr", "reverse": True}).describe()
    assert described.pop("about").endswith("Reversed here: the other end is selected.")
    assert described == {
        "key": "rsr-reversed",
        "label": "RSR min (reversed)",
        "method": "rsr",
        "higher": True,
    }
