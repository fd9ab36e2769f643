"""What goes wrong with the judge's model is reported as the judge's, not as the student's."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from lark.config import Judge, Student
from lark.config.cli import as_hydra_reads
from lark.errors import LarkError
from lark.pipeline.machine_check import check_steps
from lark.pipeline.operations.score import JUDGE
from lark.pipeline.operations.student import CONVERT
from lark.pipeline.plan import make_plan
from lark.planner.estimates import Estimate, estimate
from lark.planner.lengths import shortest
from lark.planner.throughput import Throughput
from lark.store.store import Checksums
from lark.work.machine import RESERVED_GIB, Machine
from lark.work.operation import Step
from tests.conftest import ALONE, composed
from tests.planner.steps import steps_of

LARGE = [
    "method=llm_judge",
    "method.judge.path=Qwen/Qwen3-32B",
    "method.judge.style=paper",
    "method.judge.max_length=40960",
]
"""A judge that does not fit on a laptop, with the demo's student."""


def checked(folder: Path, *typed: str) -> None:
    """Plan a run and run the checks of its operations, on a CPU."""
    config = composed(*as_hydra_reads(list(typed)))
    check_steps(config, ALONE, make_plan(config, Checksums(folder)))


def without_config(folder: Path) -> None:
    folder.mkdir()


def broken_config(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "there is no such folder"),
        (without_config, "the folder has no config.json"),
        (broken_config, "its config.json cannot be read"),
    ],
)
def test_a_folder_that_cannot_judge_is_reported_as_the_judges(
    make: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    make(tmp_path / "judge")
    with pytest.raises(LarkError) as error:
        checked(tmp_path, "method=llm_judge", f"method.judge.path={tmp_path / 'judge'}")
    assert str(error.value).startswith(f"method.judge.path={tmp_path / 'judge'}: {said}")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("max_length=1024", "is longer than the model's context of 512: set method.judge.max_length=512."),
        ("max_length=1", "must be at least 2"),
        ("dtype=float8", "choose one of auto, float32, bfloat16, float16"),
        ("temperature=-1", "must be 0 (greedy), or from 0.01 to 1000"),
        ("max_new_tokens=512", "must be less than method.judge.max_length=512"),
    ],
)
def test_a_setting_that_the_judge_cannot_have_is_named(setting: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(LarkError) as error:
        checked(tmp_path, "method=llm_judge", f"method.judge.{setting}")
    assert str(error.value).startswith(f"method.judge.{setting.split('=', maxsplit=1)[0]}=")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (["method=llm_judge", "method.judge.path=smollm2"], "method.judge.path=smollm2"),
        (["student=smollm2", "engine=hf", "pool.questions=2"], "student.path=smollm2"),
    ],
)
def test_a_missing_reader_of_gguf_names_the_model_that_needs_it(
    typed: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "lacks", lambda self, module: module == "gguf")
    with pytest.raises(LarkError, match=f"^{named} is a GGUF file, which needs the package gguf"):
        checked(tmp_path, *typed)


def judged(device: str, *typed: str) -> Estimate:
    config = composed("method=llm_judge", *typed)
    hardware = Throughput(Machine(device, 2, 1, 1), 1.0, 24.0, 1.0)
    (found,) = (
        e for e in estimate(config, steps_of(config), shortest(), hardware) if e.step.operation is JUDGE
    )
    return found


def test_a_judge_that_does_not_fit_asks_for_a_smaller_judge() -> None:
    assert (judged("cpu", *LARGE).remedy or "").startswith("a smaller judge or a machine with more memory")


def test_a_judge_on_the_cpu_is_one_process_that_holds_all_of_its_weights() -> None:
    """Tensor parallelism divides the weights among GPUs, not among the processes of one memory."""
    alone, shared = ([*LARGE, "engine=vllm", f"method.judge.tensor_parallel={n}"] for n in (1, 2))
    assert judged("cpu", *shared).memory_gib == judged("cpu", *alone).memory_gib
    assert judged("cuda", *shared).memory_gib == pytest.approx(
        (judged("cuda", *alone).memory_gib + RESERVED_GIB["cuda"]) / 2  # every GPU has its own reserve
    )


def conversions(folder: Path, *typed: str) -> list[Step]:
    config = composed(*typed)
    return [step for step in make_plan(config, Checksums(folder)) if step.operation is CONVERT]


def test_a_packaged_model_that_is_student_and_judge_is_converted_once(tmp_path: Path) -> None:
    student, judge = (
        ["student=smollm2", "pool.questions=2"],
        ["method=llm_judge", "method.judge.path=smollm2"],
    )
    (both,) = conversions(tmp_path, *student, *judge)
    assert both.artifacts == conversions(tmp_path, *student)[0].artifacts
    assert both.artifacts == conversions(tmp_path, *judge)[0].artifacts, "also with another student"
    plan = make_plan(composed(*student, *judge), Checksums(tmp_path))
    users = [step.operation.name for step in plan if both.artifacts[0] in step.needs]
    assert {"lengths", "judge"} <= set(users)


def test_the_judges_model_has_the_judges_settings() -> None:
    judge = Judge(path="a/b", revision="v1", dtype="float32", max_length=4096)
    model = judge.model
    assert (model.path, model.revision, model.dtype, model.max_length) == ("a/b", "v1", "float32", 4096)
    assert asdict(model) == asdict(Student("judge", "a/b", revision="v1", dtype="float32", max_length=4096))
