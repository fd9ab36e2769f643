"""The planner beside the paper's own figures, and what it refuses."""

import contextlib
import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from lark import processors
from lark.config import STAGES, Config, from_dict
from lark.errors import LarkError, refuse
from lark.models.chat import ChatFormat
from lark.models.shapes import shape_of
from lark.models.students import DEMO
from lark.pipeline.operations import train as operations
from lark.pipeline.pipeline import Pipeline
from lark.pipeline.plan import make_plan, wanted
from lark.planner import report
from lark.planner.estimates import Estimate, estimate
from lark.planner.lengths import assumed, pool_lengths
from lark.planner.remedies import applied
from lark.planner.throughput import Throughput, core_tflops, efficiency, throughput
from lark.pool.read import read
from lark.store.store import Checksums
from lark.work.machine import RESERVED_GIB, Machine
from lark.work.operation import Step
from tests.conftest import composed
from tests.planner.steps import estimated, keys_of, steps_of


def by_name(*overrides: str) -> dict[str, Estimate]:
    """By operation; of two evaluations the trained student's."""
    return {e.name: e for e in estimated(composed(*overrides))}


def test_the_papers_main_run_costs_what_the_paper_says() -> None:
    """App. C.3 and D.1: 3-5 h for 5,000 trajectories on 8 A100, 1.32 s a sample, 15 min a benchmark; within
    a factor of 1.5.
    """
    run = by_name("student=qwen7b", "hardware=a100x8", "budget.size=1")
    assert 3.0 <= run["train"].seconds / 3600 <= 5.0
    seconds_a_sample = run["score"].device_hours * 3600 / 165_000
    assert 1.32 / 1.5 <= seconds_a_sample <= 1.32 * 1.5
    assert 15 / 1.5 <= run["generate"].seconds / 60 / 4 <= 15 * 1.5
    assert all(e.fits for e in run.values())
    assert "3-5 h" in run["train"].paper


def test_the_demo_pools_assumed_lengths_are_its_own() -> None:
    config = composed("pool.questions=100")
    chat = ChatFormat(AutoTokenizer.from_pretrained(DEMO))
    encoded = chat.encode_many(
        [vars(trajectory) for trajectory in read(config.pool)], config.student.max_length
    )
    lengths = pool_lengths(config)
    assert lengths.trajectories == len(encoded)
    assert lengths.total.mean() == pytest.approx(np.mean([len(e.ids) for e in encoded]), rel=0.03)
    assert lengths.response.mean() == pytest.approx(np.mean([e.n_response for e in encoded]), rel=0.03)


def test_graphs_save_time_on_gpus_and_are_planned_with() -> None:
    run = ["student=qwen7b", "hardware=a100x8"]
    planned, eager = by_name(*run)["generate"], by_name(*run, "engine.eager=true")["generate"]
    assert planned.seconds == by_name(*run, "engine.eager=false")["generate"].seconds < eager.seconds


def test_a_larger_budget_trains_longer_and_scores_once() -> None:
    one, three = (
        by_name("student=qwen7b", "hardware=a100x8", "budget.size=1"),
        by_name("student=qwen7b", "hardware=a100x8"),
    )
    assert three["train"].flops == pytest.approx(3 * one["train"].flops)
    assert three["score"].flops == one["score"].flops


@pytest.mark.parametrize(
    ("budget", "like"),
    [
        ("budget.total=5k", 1.0),
        ("budget.total=15000", 3.0),
        ("budget.total=1B", 33.0),
        ("budget.total=1B budget.size=3", 3.0),
    ],
)
def test_a_budget_across_questions_trains_as_long_as_the_same_number_per_question(
    budget: str, like: float
) -> None:
    run = ("student=qwen7b", "hardware=a100x8")
    one, across = by_name(*run, "budget.size=1")["train"], by_name(*run, *budget.split())["train"]
    assert across.flops == pytest.approx(like * one.flops)


def test_a_token_budget_trains_on_about_this_many_tokens() -> None:
    run = ("student=qwen7b", "hardware=a100x8")
    lengths = pool_lengths(composed(*run))
    tokens = int(5000 * lengths.response.mean())
    one, across = by_name(*run, "budget.size=1")["train"], by_name(*run, f"budget.tokens={tokens}")["train"]
    assert across.flops == pytest.approx(one.flops, rel=0.001)


def test_a_judge_of_32_billion_parameters_costs_more_than_the_students_own_scores() -> None:
    judged = by_name("student=qwen7b", "hardware=a100x8", "method=llm_judge")["judge"]
    scored = by_name("student=qwen7b", "hardware=a100x8", "method=lark")["score"]
    assert 2 < judged.seconds / scored.seconds < 8
    assert judged.fits, "on the two GPUs that conf/method/llm_judge.yaml gives it"
    small = [
        "student=qwen7b",
        "hardware=a100x8",
        "hardware.memory_gib=48",
        "method=llm_judge",
        "method.judge.tensor_parallel=1",
    ]
    single = [e for e in estimated(composed(*small)) if e.name == "judge"]
    with pytest.raises(LarkError, match=r"use method\.judge\.tensor_parallel=2"):
        refuse(report.refusal(single))
    whole = estimated(composed(*small[:-1], "engine=hf"))  # which shares no model between GPUs
    with pytest.raises(LarkError, match=r"use engine=vllm method\.judge\.tensor_parallel=2"):
        refuse(report.refusal([e for e in whole if e.name == "judge"]))


@pytest.mark.parametrize(
    ("overrides", "remedy"),
    [
        (
            ["hardware=a100x1"],
            "use hardware.offload=optimizer (slower, with at least 20 bytes per parameter in the host's"
            " memory).",
        ),
        (["hardware=a100x8", "hardware.zero=0"], "hardware.zero=2"),
        (["hardware=a100x8", "hardware.memory_gib=52"], "hardware.offload=optimizer"),
        (["hardware=a100x8", "hardware.memory_gib=54"], "hardware.zero=3"),
        (["hardware=a100x8", "hardware.zero=3", "hardware.memory_gib=30"], "hardware.sequence_parallel=2 "),
        (["hardware=a100x8", "hardware.memory_gib=20", "student.attention=eager"], "student.max_length="),
        (
            ["hardware=a100x1", "hardware.memory_gib=24"],
            (
                "use training.lora.rank=16 training.learning_rate=0.0001 student.max_length=16384"
                " training.lora.bits=4 (LoRA"
            ),
        ),
        (
            ["hardware=a100x8", "student.max_length=131072"],
            "use hardware.sequence_parallel=2 hardware.zero=3.",
        ),
        (
            ["hardware=a100x1", "hardware.memory_gib=12"],
            "score needs about 23 GiB on a device that has 12: use a device",
        ),
        (
            ["hardware=a100x1", "hardware.memory_gib=12"],
            (
                "use training.lora.rank=16 training.learning_rate=0.0001 student.max_length=2048"
                " hardware.train_tokens=2048 training.lora.bits=4 (LoRA instead of full fine-tuning, longer"
                " trajectories are cut, the frozen weights in 4 bits)"
            ),
        ),
        (
            ["hardware=a100x1", "hardware.memory_gib=6"],
            "train needs about 144 GiB on a device that has 6: use more GPUs",
        ),
        (
            ["hardware=a100x1", "hardware.memory_gib=12"],
            "use more GPUs or a device with more memory (about 21 GiB).",
        ),
        (
            ["hardware=a100x8", "hardware.memory_gib=12"],
            "generate) needs about 21 GiB on a device that has 12: use engine.tensor",
        ),
    ],
)
def test_what_cannot_fit_is_refused_with_the_setting_that_would_make_it_fit(
    overrides: list[str], remedy: str
) -> None:
    planned = estimated(composed("student=qwen7b", *overrides))
    with pytest.raises(LarkError, match=r"needs about \d+ GiB on a device that has") as error:
        refuse(report.refusal(planned))
    assert remedy in str(error.value)


def test_a_gpu_is_not_filled_to_the_last_byte() -> None:
    """CUDA's context, NCCL and gaps between allocations need some of it: 23.9 GiB of tensors do not fit in
    24.
    """
    lora = ["student=llama3b", "hardware=rtx4090", "training.lora.rank=16"]
    (train,) = [e for e in estimated(composed(*lora)) if e.name == "train"]
    assert train.limit_gib == 24 and not train.fits
    assert train.memory_gib - RESERVED_GIB["cuda"] < 24
    on_cpu = estimated(composed("student=demo", "pool=demo", "hardware=cpu"))
    assert all(e.memory_gib < 1.5 for e in on_cpu)


STUDENTS = [
    composed(f"student='{name}'", "hardware=a100x8", "method=llm_judge")
    for name in ("qwen7b", "qwen1.5b", "llama3b")
]


@st.composite
def runs(draw: st.DrawFn) -> Config:
    """A paper's student on hardware of any kind, with any length and way of training."""
    config = draw(st.sampled_from(STUDENTS))
    engine = draw(st.sampled_from(["hf", "vllm"]))
    gpus = draw(st.sampled_from([1, 2, 3, 4, 8]))
    shared = st.sampled_from([n for n in range(1, gpus + 1) if gpus % n == 0])
    settings = {
        "student.max_length": draw(st.sampled_from([1024, 3000, 8192, 32768, 131072])),
        "student.dtype": draw(st.sampled_from(["float32", "bfloat16"])),
        "training.lora.rank": draw(st.sampled_from([0, 8, 64])),
        "training.bf16": draw(st.booleans()),
        "training.gradient_checkpointing": draw(st.booleans()),
        "hardware.device": draw(st.sampled_from(["cuda", "cuda", "cpu"])),
        "hardware.processes": gpus,
        "hardware.zero": draw(st.sampled_from([0, 2, 3])),
        "hardware.offload": draw(st.sampled_from(["none", "none", "optimizer"])),
        "hardware.memory_gib": draw(st.sampled_from([4.0, 12.0, 16.0, 24.0, 40.0, 48.0, 80.0, 192.0])),
        "hardware.score_tokens": draw(st.sampled_from([4096, 65536])),
        "hardware.train_tokens": draw(st.sampled_from([1024, 16384])),
        "engine.name": engine,
        "engine.tensor_parallel": 1 if engine == "hf" else draw(shared),
        "method.name": draw(st.sampled_from(["lark", "llm_judge", "local_naturalness"])),
        "method.judge.tensor_parallel": draw(shared),
        "training.snapshots": 2,  # which the decay rate cannot do without
        "analysis.name": draw(st.sampled_from(["theory", "kappa"])),
        "analysis.dtype": draw(st.sampled_from(["float32", "bfloat16"])),
        "hardware.gradient_gib": draw(st.sampled_from([1.0, 24.0])),
    }
    return applied(config, settings)


def key_of(step: Step) -> str:
    """Tells it from the other steps of a run, and is the same in another."""
    return f"{step.operation.name}:{step.model}" if step.model else step.operation.name


def typed(config: Config, settings: dict[str, object]) -> Config:
    """The configuration with settings of the command line, by way of OmegaConf and all of its checks."""
    values = OmegaConf.create(asdict(config))
    for key, value in settings.items():
        OmegaConf.update(values, "engine.name" if key == "engine" else key, value)
    return from_dict(OmegaConf.to_container(values))  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(runs())
def test_every_remedy_that_names_settings_fits_when_it_is_applied(config: Config) -> None:
    machine = Machine(config.hardware.device, config.hardware.processes, 1, 1)
    speed = Throughput(machine, 1.0, config.hardware.memory_gib, 1.0)
    for e in estimate(config, steps_of(config), assumed(5000, config.student.max_length), speed):
        assert (e.remedy is None) == e.fits
        named = dict(re.findall(r"([a-z_.]+)=([\w.]+)", e.remedy or ""))
        if not named:
            continue
        better = typed(config, {key: yaml.safe_load(value) for key, value in named.items()})
        again = estimate(better, steps_of(better), assumed(5000, better.student.max_length), speed)
        assert next(a for a in again if key_of(a.step) == key_of(e.step)).fits, e.remedy
        assert machine.world > 1 or "hardware.zero" not in named
        shared = int(named.get("engine.tensor_parallel", named.get("method.judge.tensor_parallel", 1)))
        assert shared == 1 or (machine.device == "cuda" and machine.processes % shared == 0)


def test_the_remedy_really_fits() -> None:
    assert (
        report.refusal(
            estimated(
                composed("student=qwen7b", "hardware=a100x8", "hardware.memory_gib=53", "hardware.zero=3")
            )
        )
        is None
    )


def test_counting_tokens_needs_no_other_settings_but_memory() -> None:
    step = by_name("hardware=cpu", "hardware.memory_gib=0.5")["lengths"]
    assert step.remedy == "a smaller student or a machine with more memory (about 1 GiB)"


def test_too_many_processes_for_the_memory_of_a_cpu_are_the_reason_that_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lark.planner.throughput.memory_gib", lambda device: 24.0)
    many = composed("hardware=cpu", "hardware.processes=1000")
    with pytest.raises(
        LarkError, match=r"in each of 1000 processes, which share 24 GiB: use hardware\.processes=\d+\."
    ) as error:
        report.check_memory(many, Machine("cpu", 1000, 1, 1), steps_of(many))
    assert "smaller student" not in str(error.value)
    (count,) = set(re.findall(r"hardware\.processes=(\d+)", str(error.value)))
    fewer = composed("hardware=cpu", f"hardware.processes={count}")
    report.check_memory(fewer, Machine("cpu", int(count), 1, 1), steps_of(fewer))
    one = composed("hardware=cpu", "hardware.processes=2", "student=qwen7b")  # no number of processes helps
    with pytest.raises(
        LarkError, match=r"in each of 2 processes, which share 24 GiB: use (?!hardware\.processes)"
    ):
        report.check_memory(one, Machine("cpu", 2, 1, 1), steps_of(one))


def test_adapters_are_named_with_the_steps_that_they_need() -> None:
    step = by_name("student=qwen7b", "hardware=a100x1", "hardware.memory_gib=24")["train"]
    assert step.remedy is not None and step.remedy.startswith(
        "training.lora.rank=16 training.learning_rate=0.0001"
    )


def test_an_optimizer_is_not_moved_to_a_host_that_cannot_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """7.6e9 parameters of 12 bytes, and of 8 in pinned memory, which is rounded up."""
    config, machine = composed("student=qwen7b", "hardware=a100x1"), Machine("cuda", 1, 1, 1)
    moved = composed("student=qwen7b", "hardware=a100x1", "hardware.offload=optimizer")
    for gib, remedy in ((128.0, "training.lora.rank=16 "), (160.0, "hardware.offload=optimizer ")):
        monkeypatch.setattr(operations, "memory_gib", lambda device, gib=gib: gib)
        with pytest.raises(LarkError, match=f"use {remedy}"):
            report.check_memory(config, machine, steps_of(config))
        refused = pytest.raises(
            LarkError, match=r"needs about 150 GiB of the host's memory, and this machine has 128"
        )
        with refused if gib < 150 else contextlib.nullcontext():
            operations.TRAIN.check(moved, machine)  # type: ignore[misc]


def test_a_real_run_is_given_no_remedy_for_lengths_that_nobody_has_seen() -> None:
    config = composed("student=smollm2", "engine=hf", "hardware.memory_gib=2")
    with pytest.raises(LarkError) as error:
        report.check_memory(config, Machine("cpu", 1, 1, 2), steps_of(config))
    assert "training.lora.rank=16" in str(error.value) and "max_length" not in str(error.value)


def test_a_run_that_is_not_dry_is_refused_only_for_what_is_certain() -> None:
    machine = Machine("cuda", 8, 1, 1)
    config = composed("student=qwen7b", "hardware=a100x8", "hardware.memory_gib=40")
    report.check_memory(config, machine, steps_of(config))
    unsharded = composed("student=qwen7b", "hardware=a100x8", "hardware.memory_gib=40", "hardware.zero=0")
    with pytest.raises(LarkError, match="train"):
        report.check_memory(unsharded, machine, steps_of(unsharded))


def test_a_disk_that_is_too_small_gives_a_warning_and_does_not_stop_a_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config, machine = composed("student=qwen7b", "hardware=a100x8", "outputs=/proc"), Machine("cuda", 8, 1, 1)
    steps = steps_of(config)
    report.check_memory(config, machine, steps)
    (said,) = caplog.messages
    assert said.startswith(
        "/proc has 0 MiB free, but train needs 14 GiB, and up to 298 GiB more for checkpoints until it is"
        " finished"
    )
    caplog.clear()
    report.check_memory(config, machine, steps, finished=keys_of(steps, "train"))
    assert not caplog.messages
    assert "disk      train needs 14 GiB" in report.report(config, steps)[0]


def test_statistics_of_tokens_need_space_in_proportion_to_their_questions() -> None:
    run = ("student=qwen7b", "hardware=a100x8")
    none, all_, some, too_many = (
        by_name(*run, f"scoring.tokens={tokens}")["score"].kept_gib
        for tokens in ("false", "true", "50", "9999")
    )
    assert none == 0
    assert 15 <= all_ <= 50  # 1.3 billion tokens
    assert some == pytest.approx(all_ / 100)
    assert too_many == all_


ORDER = (
    "lengths",
    "score",
    "unprompted",
    "gram",
    "exact",
    "influence",
    "local",
    "judge",
    "train",
    "generate:base",
    "generate:trained",
    "gradients",
    "estimates",
    "teacher_gradients",
    "jacobians",
    "kappa",
)


@pytest.mark.parametrize(
    "asked",
    [
        ["method=lark"],
        ["method=rule_quality"],
        ["method=random", "scoring.tokens=true"],
        ["method=local_naturalness"],
        ["method=llm_judge"],
        ["method=base"],
        ["analysis.name=kappa", "training.snapshots=3"],
        ["method=ifd"],
        ["method=lark_gram"],
        ["method=less"],
        ["analysis.name=surrogate"],
        ["analysis.name=grace"],
        ["analysis.name=cost"],
        ["analysis.name=gradients"],
        ["analysis.name=theory"],
        ["analysis.name=contamination"],
    ],
)
def test_what_is_estimated_is_what_would_run(asked: list[str], tmp_path: Path) -> None:
    """The steps of the stages and those that they depend on, as the plan itself has them."""
    config = composed(*asked)
    plan, speed = make_plan(config, Checksums(tmp_path)), Throughput(Machine("cpu", 1, 1, 1), 0.1, 16.0, 12.0)
    for stages in (*([stage] for stage in STAGES), ["score", "evaluate"], list(STAGES)):
        steps = wanted(plan, stages)
        keys = [key_of(step) for step in steps]
        found = [e.step for e in estimate(replace(config, stages=stages), steps, hardware=speed)]
        assert found == [step for step in steps if step.operation.cost is not None], stages
        assert [key_of(step) for step in found] == [key for key in ORDER if key in keys], stages


def test_a_dependency_that_cannot_fit_is_refused_unless_it_is_there_already() -> None:
    config, machine = (
        composed("student=qwen7b", "hardware=a100x1", "stages=[evaluate]"),
        Machine("cuda", 1, 1, 1),
    )
    steps = steps_of(config)
    trained = keys_of(steps, "train")
    with pytest.raises(LarkError, match=r"^train needs about 144 GiB"):
        refuse(report.refusal(estimate(config, steps)))
    with pytest.raises(LarkError, match=r"^train needs about 118 GiB"):
        report.check_memory(config, machine, steps)
    report.check_memory(config, machine, steps, finished=trained)
    text, refused = report.report(config, steps, finished=trained)
    (row,) = (line for line in text.splitlines() if line.startswith("train"))
    assert row.endswith("reused")
    assert refused is None


def test_a_plan_knows_what_is_finished_and_not_to_be_made_again(tmp_path: Path) -> None:
    arguments = (
        "pool.questions=2",
        "tracking=none",
        f"outputs={tmp_path}",
        "method=rule_quality",
        "hardware=cpu",
    )
    run = Pipeline(composed(*arguments), tmp_path / "run")
    (text,) = (step for step in run.plan if step.operation.name == "text")
    assert run.finished() == frozenset()

    def build(folders: list[Path]) -> list[dict[str, object]]:
        (folders[0] / text.artifacts[0].kind.file).touch()
        return [{}]

    run.store.ensure(text.artifacts, build)
    assert run.finished() == {text.key}
    assert Pipeline(composed(*arguments, "force=[text]"), tmp_path / "run").finished() == frozenset()


def test_what_cannot_fit_is_reported_even_if_the_pool_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lark.pipeline.run import describe_run

    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO")
    config = composed(
        "student=qwen7b", "pool.path=./rsr", "hardware=a100x1", "dry_run=true", f"outputs={tmp_path}"
    )
    with pytest.raises(LarkError, match=r"use hardware\.offload=optimizer .* Also: .*pool\.path=\./rsr"):
        describe_run(config, tmp_path / "run", [], False)
    assert "144.0 !" in caplog.text
    assert "!         exceeds the memory of a device" in caplog.text


def test_the_papers_figures_stand_beside_runs_on_the_papers_hardware_only() -> None:
    paper = "student=qwen7b", "method=lark"
    assert "1.32 s per sample" in by_name(*paper, "hardware=a100x8")["score"].paper
    for hardware in (
        ["hardware=a100x1"],
        ["hardware=a100x8", "hardware.processes=4"],
        ["hardware=a100x8", "hardware.tflops=990"],
    ):
        assert not any(e.paper for e in by_name(*paper, *hardware).values())


def test_lengths_are_measured_read_or_assumed_and_it_says_which(tmp_path: Path) -> None:
    config = composed("pool=files", f"pool.path={tmp_path / 'pool.jsonl'}", "student.max_length=400")
    assert pool_lengths(config).source.startswith("assumed")
    lines = [
        json.dumps({"question": "Q" * 200, "response": "R" * 1000, "question_id": i // 3}) for i in range(12)
    ]
    (tmp_path / "pool.jsonl").write_text("\n".join(lines))
    read = pool_lengths(config)
    assert read.source.startswith("read")
    assert (read.questions, read.candidates) == (4, 3)
    assert 300 < read.total[0] <= 400
    table = pd.DataFrame(
        {"question_id": ["a", "a", "b", "b"], "n_prompt": [10, 10, 12, 12], "n_tokens": [5, 6, 7, 8]}
    )
    table.to_parquet(tmp_path / "lengths.parquet")
    measured = pool_lengths(config, tmp_path)
    assert (measured.questions, measured.candidates, measured.tokens) == (2, 2, 70)


def test_a_pool_of_named_questions_has_no_others() -> None:
    assert pool_lengths(composed("student=qwen7b", "pool.ids=['00839']")).trajectories == 33
    assert pool_lengths(composed("pool.ids=[demo-00002,demo-00007]")).trajectories == 66


def test_a_student_that_is_not_here_cannot_be_planned_for() -> None:
    with pytest.raises(LarkError, match=r"its config\.json is not available locally"):
        estimated(composed("student.path=nobody/nothing"))


def test_the_table_names_every_step_and_its_sum() -> None:
    config = composed("student=llama3b", "hardware=a100x8", "method=local_naturalness")
    planned = estimated(config)
    assert [e.name for e in planned] == ["lengths", "local", "train", "generate", "generate"]
    steps = steps_of(config)
    text = report.table(planned, steps)
    rows = [line.split() for line in text.splitlines()[2:]]
    assert [row[0] for row in rows] == [*(step.stage for step in steps), "all"]
    assert [row[1] for row in rows[:-1]] == [step.operation.name for step in steps]
    assert {row[1] for row in rows if row[-4:] == ["-"] * 4} == {"pool", "select", "grade"}
    assert "GiB per device" in text


def test_a_step_without_an_estimate_is_explained() -> None:
    config = composed("method=llm_judge", "method.judge.path=some/judge")
    steps = steps_of(config)
    text, _ = report.report(config, steps, finished=keys_of(steps, "select"))
    rows = {line.split()[1]: line.split() for line in text.splitlines() if line.count("  ") > 2}
    assert (
        rows["judge"][2:] == ["?"] * 4 and rows["pool"][2:] == ["-"] * 4 and rows["select"][2:] == ["reused"]
    )
    assert "-         not estimated: takes seconds" in text
    assert "?         not estimated: the size of its model is unknown" in text
    assert (
        "not estimated"
        not in report.report(config, [step for step in steps if step.operation.name == "lengths"])[0]
    )


def test_the_matrix_rate_is_that_of_a_computer() -> None:
    assert 1e-4 < core_tflops(0.05) < 100


@pytest.mark.parametrize("has_instructions", [True, False])
def test_bfloat16_on_a_cpu_is_planned_by_its_instructions(
    has_instructions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors, "cpu_multiplies_bfloat16", lambda: has_instructions)
    times = {}
    for dtype in ("float32", "bfloat16"):
        config = composed("student=smollm2", "hardware=cpu", "pool.questions=150", f"student.dtype={dtype}")
        hardware = Throughput(Machine("cpu", 1, 1, 2), 0.2, 24.0, 12.0)
        estimates = estimate(config, steps_of(config), hardware=hardware)
        times[dtype] = {key_of(e.step): e.seconds for e in estimates}
    ratios = {name: times["float32"][name] / times["bfloat16"][name] for name in ("score", "train")}
    # Starting a process takes the same time in both.
    if has_instructions:
        assert 1.4 < ratios["score"] < 1.6
        assert 1.5 < ratios["train"] < 1.7
    else:
        assert ratios == pytest.approx({"score": 0.3, "train": 0.3}, rel=0.2)


def test_processes_on_a_cpu_share_its_cores_and_its_memory() -> None:
    one, two = (
        throughput(composed("hardware=cpu", f"hardware.processes={n}"), Machine("cpu", n, 1, 8 // n))
        for n in (1, 2)
    )
    shape = shape_of(composed().student)
    assert shape is not None
    assert two.memory_gib == pytest.approx(one.memory_gib / 2)
    assert two.rate("training", shape) == pytest.approx(one.rate("training", shape))


def test_a_narrow_student_gains_little_from_fast_products() -> None:
    narrow, wide = (shape_of(composed(f"student={name}").student) for name in ("demo", "qwen7b"))
    assert narrow is not None and wide is not None
    gains = [
        2 * efficiency("cpu", "forward", s, 0.2) / efficiency("cpu", "forward", s, 0.1)
        for s in (narrow, wide)
    ]
    assert 1 < gains[0] < 1.5 < gains[1] < 2


def test_tokenising_takes_all_cores_of_a_node(tmp_path: Path) -> None:
    """1.3 G tokens on a node with 128 cores: minutes, not the hour of one thread."""

    def seconds(processes: int, threads: int) -> float:
        config = composed("student=qwen7b", "hardware=a100x8", "dry_run=true", f"hardware.threads={threads}")
        config = replace(config, hardware=replace(config.hardware, processes=processes))
        steps = wanted(make_plan(config, Checksums(tmp_path), elsewhere=True), ["score"])
        (lengths,) = (e for e in estimate(config, steps) if e.name == "lengths")
        return lengths.seconds

    assert seconds(8, 16) < 300
    assert seconds(1, 1) > 1200
    assert seconds(8, 2) == seconds(1, 16) == seconds(2, 8)
