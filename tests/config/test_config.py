"""Every option of every group composes; a mistake is reported in one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from lark.config.cli import as_hydra_reads
from lark.config.hydra_errors import sentence
from lark.config.schema import others
from lark.errors import LarkError
from lark.pipeline.plan import check_names
from lark.scoring.methods import METHODS
from lark.selection.rules import WEIGHTINGS
from tests.conftest import ROOT, composed

GROUPS = sorted(path for path in (ROOT / "conf").iterdir() if path.is_dir() and path.name != "hydra")
OPTIONS = [(group.name, option.stem) for group in GROUPS for option in sorted(group.glob("*.yaml"))]
NEEDS = {
    "pool=files": ["pool.path=x.jsonl"], "pool=hub": ["pool.path=a/b"], "pool=mix": ["++pool.mix.a.path=x"],
    "method=external": ["method.path=x.csv"], "method=own": ["method.function=package.module:score"],
    "student=own": ["student.path=my/student", "student.max_length=8192"],
    "teacher=endpoint": ["teacher.endpoint.endpoint=https://host/v1", "teacher.endpoint.model=name"],
    "budget=total": ["budget.total=5000"], "budget=tokens": ["budget.tokens=50M"],
}  # fmt: skip


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes(group: str, option: str) -> None:
    choice = f"{group}='{option}'"
    loaded = composed(choice, *NEEDS.get(f"{group}={option}", []))
    assert loaded.budget.limit or loaded.budget.size >= 1


def test_the_papers_sentence_means_the_papers_run() -> None:
    loaded = composed("method=lark", "budget.size=3", "student=qwen7b")
    assert loaded.student.path == "Qwen/Qwen2.5-7B"
    assert (loaded.pool.format, loaded.pool.questions) == ("rsr", 5000)
    assert (loaded.training.learning_rate, loaded.training.epochs, loaded.training.global_batch) == (
        1e-5,
        5,
        64,
    )
    assert list(loaded.benchmark.tasks) == ["aime24", "amc", "gpqa_diamond", "math500"]
    assert loaded.benchmark.decoding.repetition_penalty == 1.1
    assert (loaded.engine.name, loaded.weighting_name) == ("vllm", "chi2")


def test_what_a_paper_student_brings_can_be_overridden() -> None:
    loaded = composed("student=llama3b", "training=verify", "engine=hf", "benchmark=aime24")
    assert (loaded.training.questions, loaded.training.learning_rate) == (500, 5e-6)
    assert loaded.pool.questions == 500
    assert (loaded.engine.name, list(loaded.benchmark.tasks)) == ("hf", ["aime24"])


def test_a_student_of_ones_own_brings_the_papers_recipe_and_none_of_the_demos() -> None:
    loaded = composed("student=own", *NEEDS["student=own"])
    assert (loaded.training.name, loaded.engine.name, loaded.student.dtype) == ("paper", "vllm", "bfloat16")
    assert list(loaded.benchmark.tasks) == ["math500"]


def test_nothing_means_the_demo() -> None:
    loaded = composed()
    assert (loaded.student.path, loaded.pool.format, loaded.method.name, loaded.budget.size) == (
        "demo",
        "demo",
        "lark",
        3,
    )


def test_every_method_of_the_registry_has_an_option_and_the_other_way_round() -> None:
    options = {path.stem for path in (ROOT / "conf" / "method").glob("*.yaml")}
    assert options == {*METHODS, "base", "own", "lark_reversed"}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["student=own"], "student.path has no value: add student.path=<value>"),
        (["method=larkk"], "method=larkk: there is no such option; choose one of"),
        (["~student=1_000"], "~student=1_000: leave it out, or choose one of demo,"),
        (["~method=[1]"], "~method=[1]: leave it out, or choose one of"),
        (["method=[1]"], "method=[1]: leave it out, or choose one of"),
        (["student={a: 1}"], "student={a: 1}: leave it out, or choose one of demo,"),
        (["method=3"], "method=3: leave it out, or choose one of"),
        (["budgt.size=3"], "did you mean budget.size?"),
        (["training.epochs=many"], "training.epochs=many: must be a whole number."),
        (["budget.size=0"], "budget=0: select at least 1"),
        (["budget.total=few"], "budget.total=few: give a whole number"),
        (["budget.total=5", "budget.tokens=5k"], "budget.total=5: cannot be combined with budget.tokens"),
        (
            ["experiment=table1", "budget.total=100"],
            "budget.total=100: the paper's tables and figures use a number",
        ),
        (["weighting=top"], "weighting=top: choose one of auto, "),
        (["weighting.name=top"], "weighting=top: choose one of auto, "),
        (["method.options.alpha=1"], "method.options.alpha=1: method=lark has no such option; it takes none"),
        (
            ["method=random", "method.options.sead=1"],
            "method.options.sead=1: method=random has no such option; it takes seed.",
        ),
        (["method=random", "method.options={sead: 1}"], "method=random has no such option; it takes seed."),
        (
            ["++method.options.alpha=1"],
            "method.options.alpha=1: method=lark has no such option; it takes none",
        ),
        (["method=random", "method.seed=x"], "method.seed=x: must be a whole number."),
        (["engine.name=tgi"], "engine.name=tgi: choose one of "),
        (["analysis.name=entropy"], "analysis.name=entropy: choose one of gradients, surrogate, theory"),
        (["force=theorem"], "force=theorem: choose one of teach, pool, score"),
        (["force=[report]"], "force=report: choose one of teach, pool, score"),
        (["student.max_length=1"], "student.max_length=1"),
        (["pool.format=csv"], "pool.format=csv: choose one of"),
        (["pool=files"], "pool.path"),
        (["pool.questions=null"], "pool.questions=null: the demo's pool is generated"),
        (["stages=[scoring]"], "stages=scoring: choose one of"),
        (["benchmark.decoding.seeds=[1,1]"], "seeds must differ"),
        (["benchmark.decoding.top_p=0"], "top_p"),
        (["benchmark.decoding.top_k=0"], "benchmark.decoding.top_k=0: must be at least 1, or -1 (off)"),
        (["benchmark.decoding.top_k=-2"], "must be at least 1, or -1 (off)"),
        (["benchmark.decoding.repetition_penalty=0"], "repetition_penalty=0.0: must be from 0.01 to 100"),
        (
            ["benchmark.decoding.temperature=1e-30"],
            "temperature=1e-30: must be 0 (greedy), or from 0.01 to 1000",
        ),
        (["training.learning_rate=1e38"], "training.learning_rate=1e+38: must be positive and at most 1e+06"),
        (["training.learning_rate=inf"], "training.learning_rate=inf: must be positive and at most 1e+06"),
        (["training.learning_rate=nan"], "training.learning_rate=nan: must be positive and at most 1e+06"),
        (["training.max_grad_norm=inf"], "training.max_grad_norm=inf: must be"),
        (["training.weight_decay=inf"], "training.weight_decay=inf: must be"),
        (["training.epsilon=nan"], "training.epsilon=nan: must not be negative"),
        (["benchmark.decoding.temperature=nan"], "benchmark.decoding.temperature=nan: must be"),
        (["benchmark.decoding.top_p=nan"], "benchmark.decoding.top_p=nan: must be"),
        (["benchmark.tasks.demo_words.limit=0"], "benchmark.tasks.demo_words.limit=0: must be at least 1"),
        (["training.learning_rate=-1"], "must be positive"),
        (["training.betas=[0.9]"], "training.betas=[0.9]: must be two numbers"),
        (["training.betas=[0.9,1]"], "must be two numbers from 0 to less than 1"),
        (["training.seed=-1"], "training.seed=-1: must be from 0 to 2^32 - 1"),
        (
            ["hardware=ray", "hardware.address=a:99999"],
            "hardware.address=a:99999: must be host:port of the Ray cluster, with a port from 1 to 65535",
        ),
        (["hardware.address=a:99"], "hardware.address=a:99: belongs to hardware=ray"),
        (
            ["hardware=ray", "hardware.address='a:²'"],
            "hardware.address=a:²: must be host:port of the Ray cluster",
        ),
        (
            ["hardware=ray", "hardware.address=ray://a:10001"],
            "give host:port of the cluster's head, for example node0:6379",
        ),
        (
            ["hardware=cpu", "hardware.workers=4"],
            "hardware.workers=4: belongs to a cluster: hardware=ray or hardware=slurm",
        ),
        (["hardware=cpu", "hardware.elastic=true"], "hardware.elastic=true: belongs to a cluster"),
        (["training.elastic=true"], "training.elastic: there is no such key; did you mean hardware.elastic?"),
        (["hardware.threads=-1"], "hardware.threads=-1: must not be negative"),
        (["+training.epcohs=3"], "+training.epcohs: there is no such key"),
        (["+benchmark.tasks.demo_words.lmit=3"], "+benchmark.tasks.demo_words.lmit: there is no such key"),
        (["scale=paper"], "scale=paper: only applies to an experiment: add experiment=<name>"),
        (["student.name=../out"], "student.name=../out: is used in folder names"),
        (
            ["benchmark.tasks.demo_words.answer_format=foo"],
            "benchmark.tasks.demo_words.answer_format=foo: choose one of",
        ),
        (["budget=0"], "budget=0: select at least 1"),
        (["budget="], "budget=: must be a whole number."),
        (["budget=three"], "budget=three: must be a whole number."),
        (["budget=total"], "budget.total=: give a whole number of at least 1"),
        (["budget=1,3"], "budget=1,3: these are several values; to run each of them, add -m."),
        (["method=lark,rsr"], "method=lark,rsr: these are several values; to run each of them, add -m."),
        (
            ["pool=files", "pool.path=a,b.jsonl"],
            "to run each of them, add -m; if this is one value, quote it: pool.path=\"'a,b.jsonl'\".",
        ),
        (["force=null"], "force=null: cannot be null; give a value, or leave it out."),
        (["stages=null"], "stages=null: cannot be null; give a value, or leave it out."),
        (
            ["stages=[]"],
            "stages=[]: name at least one of teach, pool, score, select, train, evaluate, analyse, report.",
        ),
        (["student=null"], "student=null: leave it out, or choose one of demo, llama3b"),
        (["training.bf16=maybe"], "training.bf16=maybe: must be true or false."),
        (["training.learning_rate=x"], "training.learning_rate=x: must be a number."),
        (["training.betas=3"], "training.betas=3: must be a list in brackets, such as [a,b]."),
        (["stages=abc,[x"], "stages=abc,[x: Hydra cannot parse it"),
        (["method.label=ö"], "method.label=ö: Hydra cannot parse it"),
        (["lark"], "lark: Hydra cannot parse it; write key=value"),
        (["benchmark.tasks.aime24.path=a"], "Name the benchmark that has it, such as benchmark=paper."),
    ],
)
def test_a_mistake_is_one_sentence(overrides: list[str], said: str) -> None:
    with pytest.raises((HydraException, OmegaConfBaseException, LarkError)) as error:
        check_names(composed(*as_hydra_reads(overrides)))
    text = sentence(error.value)
    assert said in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("override", "cpu", "gpu"), [(None, True, False), ("true", True, True), ("false", False, False)]
)
def test_graphs_are_used_on_gpus_unless_the_user_says_otherwise(
    override: str | None, cpu: bool, gpu: bool
) -> None:
    engine = composed("engine=vllm", *([f"engine.eager={override}"] if override else [])).engine
    assert (engine.is_eager("cpu"), engine.is_eager("cuda")) == (cpu, gpu)


def test_a_judge_on_two_gpus_does_not_stop_the_hf_engine() -> None:
    assert composed("student=qwen7b", "method=llm_judge", "engine=hf").method.judge.tensor_parallel == 2


def test_the_judges_settings_reach_the_model_that_is_loaded() -> None:
    judge = composed(
        "method=llm_judge", "method.judge.dtype=float16", "method.judge.max_length=900"
    ).method.judge
    assert (judge.model.path, judge.model.max_length, judge.model.dtype) == (judge.path, 900, "float16")


def test_stages_are_typed_as_words() -> None:
    typed = ["force=grade", "stages=select,train", "force=[train]", "force=[]", "pool.path=force=grade"]
    read = ["force=[grade]", "stages=[select,train]", *typed[2:]]
    assert as_hydra_reads(typed) == read
    assert composed(*read[:2]).force == ["grade"]
    assert composed(*read[:2]).stages == ["select", "train"]


def test_a_budget_is_typed_as_a_number() -> None:
    assert as_hydra_reads(["budget=3", "-m", "budget=1,3", "budget.size=7", "method=lark"]) == [
        "-m", "budget.size=3", "budget.size=1,3", "budget.size=7", "method=lark",
    ]  # fmt: skip
    assert composed(*as_hydra_reads(["budget=7"])).budget.size == 7


def test_a_typed_number_means_the_option_of_the_same_name() -> None:
    """`budget=3` sets budget.size, as `budget=7` does, so an option that is a number may not set anything
    else.
    """
    numbers = [option for group, option in OPTIONS if group == "budget" and option.isdigit()]
    assert sorted(numbers, key=int) == ["1", "3", "5", "10", "20"]
    for number in numbers:
        assert composed(f"budget='{number}'") == composed(*as_hydra_reads([f"budget={number}"]))


def test_help_lists_the_budgets() -> None:
    shown = subprocess.run(
        [sys.executable, "run.py", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "\nbudget: 1, 10, 20, 3, 5, tokens, total\n" in shown.stdout


def test_a_budget_across_questions_is_an_option_that_needs_its_number() -> None:
    chosen = composed(*as_hydra_reads(["budget=tokens", "budget.tokens=50M"]))
    assert chosen == composed("budget.tokens=50M")
    assert chosen.budget.identity == {"tokens": 50_000_000}
    assert (
        composed(*as_hydra_reads(["budget=total", "budget.total=5k", "budget.size=3"])).budget.name
        == "total5k-B3"
    )


def test_paths_and_columns_are_typed_as_they_are() -> None:
    typed = ["pool=files", "pool.path=a b/ä.jsonl", "pool.fields.question=prompt", "outputs=out"]
    read = composed(*as_hydra_reads(typed)).pool
    assert (read.path, read.fields) == ("a b/ä.jsonl", {"question": "prompt"})
    assert (
        composed(*as_hydra_reads([*typed[:2], "pool.fields={question: prompt}"])).pool.fields == read.fields
    )
    assert as_hydra_reads(["method.path=a.csv,b.csv", "pool.path='a b'"]) == [
        "method.path=a.csv,b.csv",
        "pool.path='a b'",
    ]
    with pytest.raises(LarkError, match="outputs= has no value"):
        as_hydra_reads(["outputs="])


def test_a_job_of_a_sweep_is_named_after_what_was_swept() -> None:
    swept = [
        "method=lark",
        "weighting=kl",
        "training.learning_rate=0.001",
        "hardware.threads=1",
        "pool.path=/a/b",
        "budget.size=7",
    ]
    assert others(swept) == "-weighting=kl-learning_rate=0.001"
    assert others(["student=demo", "method=rsr", "budget.size=3", "experiment=table1"]) == ""


def test_flags_may_come_between_settings_and_keep_their_values() -> None:
    typed = [
        "outputs=x",
        "-m",
        "method=lark",
        "-cd",
        "mine",
        "--config-name=other",
        "seed=-1",
        "-c",
        "job",
        "budget=1",
    ]
    assert as_hydra_reads(typed) == [
        "-m",
        "-cd",
        "mine",
        "--config-name=other",
        "-c",
        "job",
        "outputs=x",
        "method=lark",
        "seed=-1",
        "budget.size=1",
    ]
    parsed = get_args_parser().parse_args(as_hydra_reads(typed))
    assert (parsed.multirun, parsed.config_dir, parsed.config_name, parsed.cfg) == (
        True,
        "mine",
        "other",
        "job",
    )
    assert parsed.overrides == ["outputs=x", "method=lark", "seed=-1", "budget.size=1"]


def test_every_key_of_every_yaml_is_documented_in_the_schema() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "lark" / "config").glob("*.py"))
    for path in Path(ROOT / "conf").rglob("*.yaml"):
        if "hydra" not in path.parts and path.name != "config.yaml":
            for line in path.read_text(encoding="utf-8").splitlines():
                key = line.split(":")[0]
                if key.isidentifier() and key not in ("defaults", "hydra"):
                    assert f"{key}:" in text, f"{path}: {key}"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("weighting=", {f"weighting={name}" for name in ("auto", *WEIGHTINGS)}),
        ("weighting=k", {"weighting=kl"}),
        ("method=lark_t", {"method=lark_top50"}),
    ],
)
def test_the_shell_completes_to_values_and_to_options(typed: str, offered: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "run.py", "-sc", "query=bash"],
        cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "COMP_LINE": f"python run.py {typed}"},
    )  # fmt: skip
    assert set(done.stdout.split()) == offered
