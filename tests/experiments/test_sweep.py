"""Every experiment composes at every scale, with the paper's settings at the paper's."""

import re
import subprocess
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from experiments.__main__ import main
from experiments.harness.planning import describe, planned
from experiments.harness.report import unfinished
from experiments.harness.sweep import (
    CONF,
    Sweep,
    available,
    compose_sweep,
    dashed,
    find,
    method_label,
    published,
)
from lark.errors import LarkError
from lark.pipeline.operations.train import TRAIN
from tests.conftest import ROOT

SCALES = [
    (name, scale)
    for name in available()
    for scale, settings in OmegaConf.load(CONF / "experiment" / f"{name}.yaml").experiment.scales.items()
    if all((CONF / "student" / f"{student}.yaml").exists() for student in settings.student.split(","))
]
FEW = [
    "method=lark",
    "budget=3",
    "weighting=auto",
    "method.teacher=1",
    "training.seed=42",
    "pool.noise=none",
    "pool.noise_share=0",
]
"""One trial of any sweep; all of them are composed below and where reports are rendered."""


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_every_experiment_composes_at_every_scale(name: str, scale: str, tmp_path: Path) -> None:
    few = FEW if name != "cost" else ["method=local_naturalness"]
    sweep = compose_sweep(name, [f"scale={scale}", f"outputs={tmp_path}", *few])
    students = {("table1", "paper"): 3, ("regime", "paper"): 3, ("table1", "qwen3"): 2}.get((name, scale), 1)
    prompts = 2 if name == "case_study" else 1
    assert len(sweep.trials) == students * prompts
    for trial in sweep.trials:
        assert trial.steps
        assert trial.config.tracking.group == f"{name}-{scale}"


def test_every_experiment_runs_at_the_demo_and_the_papers_scale() -> None:
    assert {(name, scale) for name in available() for scale in ("demo", "paper")} <= set(SCALES)


def test_table1_at_paper_scale_is_48_trainings_and_3_base_evaluations(paper_table1: Sweep) -> None:
    titles = [p.step.title for p in planned(paper_table1)]
    assert titles.count("train") == 48
    assert titles.count("generate (base model)") == titles.count("grade (base model)") == 3
    assert titles.count("score") == 3  # a pass for each student feeds all its methods and budgets
    assert titles.count("pool") == 1
    chosen = {
        (t.config.student.name, t.config.method.name, t.config.budget.size) for t in paper_table1.trials
    }
    paper = published("table1").query("method != 'base'")
    assert chosen == set(paper[["student", "method", "budget"]].itertuples(index=False, name=None))
    assert "48 trainings, 3 base evaluations" in describe(paper_table1)


def test_table1_at_paper_scale_has_the_papers_settings(paper_table1: Sweep) -> None:
    for trial in paper_table1.trials:
        config = trial.config
        assert (config.pool.format, config.pool.questions) == ("rsr", 5000)
        training = config.training
        assert (training.learning_rate, training.epochs, training.global_batch, training.seed) == (
            1e-5,
            5,
            64,
            42,
        )
        assert list(config.benchmark.tasks) == ["aime24", "amc", "gpqa_diamond", "math500"]
        decoding = config.benchmark.decoding
        assert (decoding.samples, decoding.seeds, decoding.temperature, decoding.top_p) == (
            5,
            [0, 1, 2],
            0.6,
            0.95,
        )
        assert config.weighting_name == ("chi2" if config.method.name == "lark" else "uniform")
        assert config.engine.name == "vllm"


def test_experiments_share_what_they_have_in_common(tmp_path: Path) -> None:
    made: dict[str, set[str]] = {}
    for name, few in {
        "table1": ["method=rsr,lark"],
        "loss_reduction": ["method=rsr,lark"],
        "ablation_score": ["method=rho,lark"],
        "ablation_weighting": ["weighting=kl,auto"],
        "budget_scaling": ["budget=1,3,5"],
    }.items():
        sweep = compose_sweep(name, [f"outputs={tmp_path}", *few])
        made[name] = {str(p.step.artifacts[0].folder) for p in planned(sweep) if p.step.operation is TRAIN}
    assert made["loss_reduction"] < made["table1"]
    assert len(made["ablation_score"] & made["table1"]) == 1
    assert len(made["ablation_weighting"] & made["table1"]) == 1
    assert len(made["budget_scaling"] & made["table1"]) == 2


def test_what_the_user_types_replaces_the_sweeps_values(tmp_path: Path) -> None:
    sweep = compose_sweep(
        "table1", ["method=lark,random", "budget=3", "pool.questions=4", f"outputs={tmp_path}"]
    )
    assert [(t.config.method.name, t.config.budget.size) for t in sweep.trials] == [
        ("lark", 3),
        ("random", 3),
    ]
    assert sweep.overrides == ("method=lark,random", "budget.size=3", "pool.questions=4")
    assert not sweep.like_the_paper


def test_the_location_of_files_does_not_change_the_experiment(tmp_path: Path) -> None:
    few = ["scale=paper", "hardware=a100x8", f"outputs={tmp_path}"]
    moved = [*few, "pool.path=/elsewhere", "pool.format=rsr", "force=[grade]", "engine.memory=0.8"]
    assert compose_sweep("cost", moved).like_the_paper
    assert "pool.path=/elsewhere" in compose_sweep("cost", moved).overrides, "the report must show it"
    for change in ("pool.questions=4", "student.max_length=4096", "training.epochs=1"):
        assert not compose_sweep("cost", [*moved, change]).like_the_paper


@pytest.mark.parametrize("name", ["surrogate", "token_level"])
def test_a_student_in_a_package_is_planned_with_its_conversion_first(name: str, tmp_path: Path) -> None:
    said = describe(compose_sweep(name, ["scale=smollm2", f"outputs={tmp_path}"]))
    table = said.split("\n\n")[2].splitlines()
    assert table[2].split()[:4] == ["student", "1", "0", "1"]
    assert "device-hours in all" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["scale=huge"], "can be run at scale demo"),
        (["method=magic"], "choose one of"),
        (["trainng.epochs=1"], "no such key"),
        (["scale"], "expected key=value after the experiment's name"),
        (["experiment=kappa"], "the experiment is already table1"),
        (["@x=1"], "must be the name of one of its options"),
        (["scale=demo,paper"], "scale=demo,paper: an experiment has one scale"),
        (["budget.size=range(1,1)"], r"budget.size=range\(1,1\): the sweep has no trials"),
    ],
)
def test_a_bad_argument_is_one_sentence(arguments: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(LarkError, match=said):
        compose_sweep("table1", [*arguments, f"outputs={tmp_path}"])


def test_help_is_given_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert main(["--help"]) is None
        assert main(["plan", "table1", "-h"]) is None
    assert caplog.text.count("python -m experiments plan table1") == 2
    assert "loss-reduction" in caplog.text
    assert "Run as:" in str(main([])), "without a command the usage is the error"


def test_a_trial_whose_pool_is_missing_says_so(tmp_path: Path) -> None:
    sweep = compose_sweep(
        "token_level", ["pool=files", "pool.path=/nowhere/pool.jsonl", f"outputs={tmp_path}"]
    )
    ((_, why),) = unfinished(sweep)
    assert "/nowhere/pool.jsonl" in why


def test_an_unknown_experiment_names_those_there_are() -> None:
    assert find("ablation-score") == "ablation_score"
    with pytest.raises(LarkError, match="choose one of pipeline, table1"):
        find("table9")


def test_every_experiment_opens_with_its_command_its_cost_and_what_to_expect() -> None:
    for name in available():
        comments = [
            line
            for line in (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()
            if line.startswith("#")
        ]
        opening = "\n".join(comments)
        assert f"make {dashed(name)} " in opening, name
        assert all(word in opening for word in ("# Run:", "# Plan:", "# Cost:", "# Expect:")), name
        assert (ROOT / "experiments" / f"{name}.py").exists(), name


def test_make_knows_every_experiment() -> None:
    told = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in map(dashed, available()):
        assert re.search(rf"^  make {name} +\S", told, re.M), name
        commands = ["make", "-n", name, f"plan-{name}", "SCALE=paper", "ARGS=budget.size=2"]
        said = subprocess.run(commands, cwd=ROOT, capture_output=True, text=True, check=True).stdout.replace(
            "'", ""
        )
        said = re.sub(" +", " ", said)
        assert f"-m experiments run {name} scale=paper budget.size=2" in said
        assert f"-m experiments plan {name} scale=paper budget.size=2" in said
    own = subprocess.run(
        ["make", "-n", "compare", "POOL=a b.jsonl", "STUDENT=own"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "scale=demo' pool=files 'pool.path=a b.jsonl' 'student=own'" in own.stdout


def test_the_papers_table_is_complete_and_its_averages_are_its_columns_but_for_the_known_one() -> None:
    paper = published("table1")
    assert len(paper) == 3 * 9 * 2 * 5
    wide = paper.pivot_table(index=["student", "method", "budget"], columns="benchmark", values="mean")
    off = (wide.drop(columns="avg").mean(axis=1) - wide["avg"]).abs()
    assert list(off[off > 0.011].index) == [("qwen1.5b", "lark", 1)]
    best = paper.loc[paper.groupby(["student", "budget", "benchmark"])["mean"].idxmax(), "method"]
    assert set(best) == {"lark"}
    assert {method_label(method) for method in paper["method"].unique()} >= {"Base model", "LARK", "RSR min"}


def test_the_papers_contamination_table_adds_up() -> None:
    paper = published("contamination").set_index("benchmark")
    assert (paper.drop(index="Total").sum() == paper.loc["Total"]).all()
    assert paper.loc["Total", "problems"] == 811


@pytest.mark.parametrize("name", ["cost", "ablation_score"])
def test_a_sweep_that_cannot_be_drawn_is_refused_before_it_runs(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        LarkError, match=r"cannot be drawn with budget.size=1,3 .*do not sweep over anything else"
    ):
        main(["run", name, "budget=1,3", f"outputs={tmp_path}", "tracking=none"])
    assert not list(tmp_path.glob("runs/*"))


def test_files_may_be_elsewhere_at_the_papers_scale(tmp_path: Path) -> None:
    sweep = compose_sweep(
        "table1",
        [
            "scale=paper",
            "method=lark",
            f"outputs={tmp_path}",
            "benchmark=paper",
            "benchmark.tasks.aime24.path=/else/where",
        ],
    )
    assert {trial.config.benchmark.tasks["aime24"].path for trial in sweep.trials} == {"/else/where"}
    assert sweep.overrides == ("method=lark", "benchmark.tasks.aime24.path=/else/where")
