"""A setting that the user typed and that changes nothing is an error, or a warning in a sweep."""

from pathlib import Path

import pytest

from lark.config.cli import as_hydra_reads
from lark.errors import LarkError
from lark.pipeline import unused
from lark.pipeline.plan import make_plan
from lark.pipeline.unused import check_unused
from lark.store.store import Checksums
from lark.work.machine import Machine
from lark.work.operation import Operation, Step
from tests.conftest import ALONE, composed, run_program

GPUS = Machine("cuda", 2, 1, 1)


def checked(folder: Path, *typed: str, machine: Machine = ALONE, sweep: bool = False) -> None:
    """Check what was typed, as run.py does."""
    read = as_hydra_reads(list(typed))
    config = composed(*read)
    check_unused(config, machine, make_plan(config, Checksums(folder), elsewhere=True), read, sweep)


UNUSED = [
    (["method=lark", "method.seed=7"], "method.seed=7 has no effect: method=lark takes no seed."),
    (["method.seed=42"], "method.seed=42 has no effect"),
    (
        ["compare.questions=50"],
        "compare.questions=50 has no effect: it is for `python -m experiments run compare`",
    ),
    (["method.path=a.csv"], "method.path=a.csv has no effect: it belongs to method=external."),
    (["method=rsr", "method.higher_is_better=false"], "method.higher_is_better=false has no effect"),
    (["method.judge.path=a/b"], "method.judge.path=a/b has no effect: method=lark does not use it."),
    (
        ["method.judge.path=a/b", "method.judge.style=brief"],
        "method.judge.path=a/b, method.judge.style=brief have no effect: method=lark does not use it.",
    ),
    (
        ["method=llm_judge", "method.judge.tensor_parallel=2"],
        "has no effect: engine=hf on a CPU keeps the judge in one piece",
    ),
    (
        ["training.lora.alpha=8"],
        (
            "training.lora.alpha=8 has no effect: training.lora.rank=0 trains every weight. Set"
            " training.lora.rank too, or remove it."
        ),
    ),
    (
        [
            "training=lora",
            "training.lora.rank=0",
            "training.lora.dropout=0.1",
            "training.lora.targets=[q_proj]",
        ],
        (
            "training.lora.dropout=0.1, training.lora.targets=[q_proj] have no effect: training.lora.rank=0"
            " trains every weight."
        ),
    ),
    (["method=base", "weighting=kl"], "weighting=kl has no effect: method=base does not use it."),
    (
        ["method=base", "method.reverse=true"],
        "method.reverse=true has no effect: method=base does not use it.",
    ),
    (["method=base", "method.teacher=2"], "method.teacher=2 has no effect: method=base does not use it."),
    (["method=base", "budget=5"], "budget.size=5 has no effect: method=base does not use it."),
    (["method=base", "budget.tokens=2k"], "budget.tokens=2k has no effect: method=base does not use it."),
    (["scoring.local_context=2"], "scoring.local_context=2 has no effect: method=lark does not use it."),
    (
        ["scoring.local_steps=paragraphs"],
        "scoring.local_steps=paragraphs has no effect: method=lark does not use it.",
    ),
    (
        ["method=grape", "whole_weights=margins"],
        "whole_weights=margins has no effect: the weights of method=grape are uniform.",
    ),
    (
        ["method=base", "whole_weights=margins"],
        "whole_weights=margins has no effect: method=base does not use it.",
    ),
    (
        ["method=random", "scoring.liger=false"],
        "scoring.liger=false has no effect: method=random does not use it.",
    ),
    (
        ["method=random", "scoring.rank_clip=5"],
        "scoring.rank_clip=5 has no effect: method=random does not use it.",
    ),
    (
        ["analysis.questions=5"],
        "analysis.questions=5 has no effect: no measurement is chosen. Add analysis.name=gradients|",
    ),
    (
        ["analysis.seed=1", "analysis.questions=5"],
        "analysis.seed=1, analysis.questions=5 have no effect: no measurement is chosen.",
    ),
    (
        ["analysis.name=theory", "stages=[select]"],
        (
            "analysis.name=theory has no effect: stages=[select] does not contain analyse. Add it, or remove"
            " the setting."
        ),
    ),
    (
        ["stages=analyse"],
        (
            "stages: analyse has nothing to do: choose a measurement with "
            "analysis.name=gradients|surrogate|theory|grace|kappa|contamination|cost."
        ),
    ),
    (["stages=evaluate,analyse"], "stages: analyse has nothing to do"),
    (
        ["method=base", "stages=train"],
        "stages: train has nothing to do: the stages of method=base are evaluate.",
    ),
    (
        ["method=base", "stages=[select]"],
        "stages: select has nothing to do: the stages of method=base are evaluate.",
    ),
    (["method=base", "stages=[pool,report]"], "stages: pool has nothing to do"),
    (["stages=[teach]"], "stages: teach has nothing to do: add pool=taught and teacher=<name>"),
    (["questions.number=3"], "questions.number=3 has no effect: only pool=taught asks teachers."),
    (
        ["pool=taught", "questions.path=demo", "teacher=[self]", "teach.command.run=true"],
        "teach.command.run=true has no effect: it belongs to teach.verify=command.",
    ),
]


@pytest.mark.parametrize(("typed", "said"), UNUSED)
def test_a_setting_without_effect_is_an_error_in_a_single_run(
    typed: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(LarkError) as error:
        checked(tmp_path, *typed)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("typed", "said"), UNUSED)
def test_a_setting_without_effect_is_a_warning_in_a_sweep(
    typed: list[str], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checked(tmp_path, *typed, sweep=True)
    assert said in caplog.text


@pytest.mark.parametrize(
    "typed",
    [
        [],
        ["method=random", "method.seed=7"],
        ["method=random", "method.options.seed=7"],
        ["method=external", "method.path=README.md", "method.higher_is_better=false"],
        ["method=llm_judge", "method.judge.path=demo", "method.judge.tensor_parallel=1"],
        ["analysis.name=cost", "method.judge.style=brief", "scoring.local_context=2", "analysis.rounds=1"],
        ["analysis.name=gradients", "analysis.quick=true", "sketch.exact=32"],
        ["method=local_naturalness", "scoring.local_context=2"],
        ["method=random", "scoring.tokens=true", "scoring.rank_clip=5"],
        ["weighting=kl", "method.teacher=2", "stages=select,train"],
        ["training.lora.rank=4", "training.lora.alpha=8"],
        ["training=lora", "training.lora.alpha=8"],
        ["method=base", "stages=evaluate,report"],
        ["stages=pool,score,select,train,evaluate,analyse,report"],
        ["stages=report"],
        ["pool=taught", "questions.path=demo", "teacher=[self]", "teach.samples=2", "stages=[teach]"],
        ["method=base", "stages=analyse", "analysis.name=contamination"],
    ],
)
def test_a_setting_with_an_effect_is_accepted(
    typed: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checked(tmp_path, *typed)
    assert not caplog.text


def test_a_new_operation_is_covered_by_the_settings_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = Operation("new", "score", "module:function", settings=("sketch.new",))
    monkeypatch.setattr(unused, "OPERATIONS", (*unused.OPERATIONS, new))
    config = composed("method=lark")
    check_unused(config, ALONE, [Step(new, ())], ["sketch.new.size=3"], sweep=False)
    with pytest.raises(LarkError, match=r"sketch\.new\.size=3 has no effect: method=lark does not use it"):
        check_unused(
            config, ALONE, make_plan(config, Checksums(tmp_path)), ["sketch.new.size=3"], sweep=False
        )


def test_a_judge_is_shared_among_gpus_by_an_engine_that_can_and_refused_by_one_that_cannot(
    tmp_path: Path,
) -> None:
    typed = ["method=llm_judge", "method.judge.tensor_parallel=2"]
    checked(tmp_path, *typed, "engine=vllm", machine=GPUS)
    with pytest.raises(LarkError, match="engine=hf on GPUs keeps the judge in one piece"):
        checked(tmp_path, *typed, "engine=hf", machine=GPUS)


def test_a_run_without_anything_to_do_fails_and_a_sweep_of_methods_with_a_seed_succeeds(
    tmp_path: Path,
) -> None:
    code, said = run_program("stages=[analyse]", "tracking=none", outputs=tmp_path)
    assert (code, said.count("\n")) == (1, 1)
    assert said.startswith("error: stages: analyse has nothing to do")
    arguments = [
        "-m",
        "method=lark,random",
        "method.seed=1",
        "dry_run=true",
        "pool.questions=2",
        "tracking=none",
    ]
    code, said = run_program(*arguments, outputs=tmp_path)
    assert code == 0, said
    assert said.count("method.seed=1 has no effect: method=lark takes no seed") == 1
