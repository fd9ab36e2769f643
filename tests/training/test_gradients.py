"""Weights have their exact effect: on 1 process and 2, plain, under DDP and DeepSpeed, packed and padded,
accumulated or not.

The truth is ∇ 1/|batch| Σ w_i ℓ_i in fp64, one trajectory at a time. It is compared with the gradient that
the optimizer of a real run received (tests/training/probe.py): one torchrun runs all settings of 2
processes.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from lark.models.load import PROCESSOR
from lark.models.shapes import Shape
from lark.planner.costs import RESUMABLE, resume_bytes
from lark.planner.host_memory import PAGED
from lark.training.constants import BUCKET
from lark.training.memory import TrainingSetup, state_bytes
from lark.work.sharding import TIMEOUT
from tests.conftest import ROOT
from tests.training.probe import gradients, trained
from tests.training.tiny import POISON as TOO_LARGE
from tests.training.tiny import (
    POISONED,
    WEIGHTS,
    direct_gradient,
    relative_error,
    run_probe,
    write_multimodal,
    write_student,
    write_training_set,
)

ARRANGEMENTS = {
    (1, "packed", 1): ["hardware.train_tokens=4000"],
    (1, "packed", 4): ["hardware.train_tokens=330"],
    (1, "padded", 1): ["hardware.train_tokens=4000", "training.packing=false", "hardware.micro_batch=16"],
    (1, "padded", 4): ["hardware.train_tokens=4000", "training.packing=false", "hardware.micro_batch=4"],
    (2, "packed", 1): ["hardware.train_tokens=4000"],
    (2, "packed", 4): ["hardware.train_tokens=170", "student.max_length=160"],
    (2, "padded", 1): ["hardware.train_tokens=4000", "training.packing=false", "hardware.micro_batch=8"],
    (2, "padded", 4): ["hardware.train_tokens=4000", "training.packing=false", "hardware.micro_batch=2"],
}
"""(processes, kind, micro-steps) of a batch of 16."""
ZERO = (0, 2, 3)
OBJECTIVES = ("nll", "dft", "entropy")
"""With weights of tokens, which the training set `tokens` has."""
SEVERAL_STEPS = ["training.global_batch=4", "training.learning_rate=0.001"]
POISON = SEVERAL_STEPS
SHARED = ["hardware.sequence_parallel=2"]
OFFLOAD = ["hardware.offload=optimizer"]
"""As in the cases below with hardware.zero=2, which the preset of a node with 8 GPUs sets."""
RECOMPUTED = (0, 1, 2)
"""Layers of the student, which has two, whose activations are computed again."""
SMALL_BUCKET = 2000
"""Numbers. Larger than a norm or a projection of the tiny student, smaller than its embedding."""
LORA = ["training.lora.rank=4", "training.lora.alpha=8"]
QLORA = [*LORA, "training.lora.bits=4", "student.dtype=float32"]
"""4-bit layers on CPU need a multiple of 64 inputs, which the student `wide` has."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Students and training sets, and the results of 2 processes."""
    folder = tmp_path_factory.mktemp("gradients")
    write_student(folder / "student")
    write_student(folder / "untied", tied=False)
    write_student(folder / "wide", hidden=64, intermediate=128)
    write_multimodal(folder / "multimodal")
    write_training_set(folder / "selection")
    write_training_set(folder / "poisoned", poisoned=True)
    write_training_set(folder / "all poisoned", weights=[TOO_LARGE] * 16)
    write_training_set(folder / "tokens", tokens=True)
    cases: dict[str, Any] = {}
    for zero in ZERO:
        for (processes, kind, steps), overrides in ARRANGEMENTS.items():
            if processes == 2:
                cases[f"{zero}-{kind}-{steps}"] = case("student", zero, *overrides)
        for kind in ("packed", "padded"):  # two processes that share their micro-batches have those of one
            cases[f"{zero}-{kind}-shared"] = case("student", zero, *ARRANGEMENTS[1, kind, 4], *SHARED)
        cases[f"{zero}-poisoned"] = case("untied", zero, *POISON) | {"selection": "poisoned"}
        cases[f"{zero}-multimodal"] = case("multimodal", zero, *SEVERAL_STEPS)
        cases[f"{zero}-lora"] = case("student", zero, *LORA)
        cases[f"{zero}-stopped"] = case("student", zero, *POISON) | {"selection": "all poisoned"}
        cases[f"{zero}-clipped"] = case("student", zero, "training.max_grad_norm=0.5")
        for layers in RECOMPUTED:
            settings = ["training.gradient_checkpointing=true", f"hardware.recomputed_layers={layers}"]
            cases[f"{zero}-recomputed-{layers}"] = case("student", zero, *settings)
        if zero:
            cases[f"{zero}-resumed"] = case("student", zero)
            cases[f"{zero}-bucket"] = case("student", zero, *ARRANGEMENTS[2, "packed", 4]) | {
                "bucket": SMALL_BUCKET
            }
    for objective in OBJECTIVES:
        settings = [f"training.objective={objective}"]
        for kind in ("packed", "padded"):
            for zero in (0, 2):
                overrides = [*ARRANGEMENTS[2, kind, 4], *settings]
                cases[f"{zero}-{kind}-{objective}"] = case("student", zero, *overrides) | {
                    "selection": "tokens"
                }
        shared = case("student", 2, *ARRANGEMENTS[1, "packed", 4], *SHARED, *settings)
        cases[f"2-shared-{objective}"] = shared | {"selection": "tokens"}
    cases["2-shared-resumed"] = case("student", 2, *SHARED, "training.gradient_checkpointing=true")
    cases["offload"] = case("student", 2, *OFFLOAD)
    cases["bf16-offload"] = case("student", 2, *OFFLOAD, "training.bf16=true")
    cases["offload-resumed"] = case("student", 2, *OFFLOAD)
    poisoned = case("untied", 2, *POISON, *OFFLOAD, "training.bf16=true")
    cases["offload-poisoned"] = poisoned | {"selection": "poisoned"}
    for zero in (0, 2):
        cases[f"{zero}-qlora"] = case("wide", zero, *QLORA)
    cases["2-qlora-resumed"] = case("wide", 2, *QLORA)
    cases["architectures"] = {"parts": 2}
    cases["2-bf16-stopped"] = case("student", 2, *POISON, "training.bf16=true") | {
        "selection": "all poisoned"
    }
    cases["2-bf16"] = case("student", 2, "training.bf16=true", "training.gradient_checkpointing=true")
    cases["3-bf16"] = case("student", 3, "training.bf16=true")
    run_probe(folder, cases)
    return folder


def case(student: str, zero: int, *overrides: str) -> dict[str, Any]:
    return {"student": student, "selection": "selection", "overrides": [f"hardware.zero={zero}", *overrides]}


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "results-2.json").read_text()))


@pytest.fixture(scope="module")
def exact(folder: Path) -> dict[str, Tensor]:
    return direct_gradient(folder / "student", folder / "selection")


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("kind", ["packed", "padded"])
@pytest.mark.parametrize("zero", ZERO)
def test_two_processes_give_the_direct_gradient(
    zero: int, kind: str, steps: int, folder: Path, results: dict[str, Any], exact: dict[str, Tensor]
) -> None:
    name = f"{zero}-{kind}-{steps}"
    assert results[name]["micro_steps"] == steps
    assert results[name]["wrapper"] == ("DeepSpeedEngine" if zero else "DistributedDataParallel")
    assert results[name]["views"] is (
        None if zero else True
    )  # as planned: DDP keeps no copy of the gradients
    assert relative_error(load_file(folder / f"{name}.safetensors"), exact) < 1e-5


@pytest.mark.parametrize("zero", [2, 3])
def test_parameters_larger_than_the_bucket_get_the_direct_gradient(
    zero: int, folder: Path, exact: dict[str, Tensor]
) -> None:
    """As the embedding and the head of a 7B student are (5.4e8 numbers, in buckets of 5e8)."""
    sizes = [g.numel() for g in exact.values()]
    assert min(sizes) < SMALL_BUCKET < max(sizes)
    assert relative_error(load_file(folder / f"{zero}-bucket.safetensors"), exact) < 1e-5


@pytest.mark.parametrize("zero", ZERO)
def test_gradients_are_equal_whether_all_some_or_no_layers_are_recomputed(
    zero: int, folder: Path, results: dict[str, Any], exact: dict[str, Tensor]
) -> None:
    ours = [load_file(folder / f"{zero}-recomputed-{layers}.safetensors") for layers in RECOMPUTED]
    for layers, gradient in zip(RECOMPUTED, ours, strict=True):
        # The last layers are kept: their activations are freed before others are computed again.
        assert results[f"{zero}-recomputed-{layers}"]["recomputed"] == [number < layers for number in (0, 1)]
        assert relative_error(gradient, exact) < 1e-5
        for name, value in gradient.items():
            assert torch.equal(value, ours[0][name]), name


def test_an_offloaded_optimizer_gets_the_direct_gradient(
    folder: Path, results: dict[str, Any], exact: dict[str, Tensor]
) -> None:
    assert relative_error(load_file(folder / "offload.safetensors"), exact) < 1e-5
    assert results["offload"]["zero"] == 3


def test_an_offloaded_optimizer_takes_the_memory_that_is_planned(
    folder: Path, results: dict[str, Any]
) -> None:
    """In bf16. Nothing of a gradient stays on the device but DeepSpeed's bucket."""
    shape = Shape.of(json.loads((folder / "student" / "config.json").read_text(encoding="utf-8")))
    setup = TrainingSetup(2, 3, 1024, checkpointing=False, bf16=True, half=True, offload=True)
    held = results["bf16-offload"]["held"]
    assert held["host"] == (PAGED - 8 + 4 + 4) * shape.parameters / 2  # SGD has no moments, of 8 bytes
    assert held["weights"] == 2 * shape.parameters / 2
    assert held["buckets"] == 4 * BUCKET
    copies = (4 + 2) * shape.parameters  # what is reduced, and what is gathered
    assert state_bytes(shape, replace(setup, cuda=True)) == held["weights"] + held["buckets"] + copies


@pytest.mark.parametrize("kind", ["packed", "padded"])
@pytest.mark.parametrize("zero", ZERO)
def test_processes_that_share_micro_batches_give_the_direct_gradient(
    zero: int, kind: str, folder: Path, results: dict[str, Any], exact: dict[str, Tensor]
) -> None:
    """The student has one key-value head, which both processes need, and trajectories cross the processes'
    boundary.
    """
    assert results[f"{zero}-{kind}-shared"]["micro_steps"] == 4
    assert relative_error(load_file(folder / f"{zero}-{kind}-shared.safetensors"), exact) < 1e-5


def test_attention_that_cannot_be_shared_is_refused_and_the_rest_is_exact(results: dict[str, Any]) -> None:
    said = results["architectures"]
    assert {name for name, refusal in said.items() if refusal is None} == {
        "llama",
        "qwen2",
        "qwen3",
        "sliding window",
    }
    assert "needs a mask, which sequence parallelism does not support" in said["masked window"]


def test_processes_wait_for_each_other_for_hours(results: dict[str, Any]) -> None:
    """A checkpoint on a slow disk takes longer than the 10 or 30 minutes that are the libraries' defaults."""
    assert {result["timeout"] for result in results.values() if "timeout" in result} == {
        TIMEOUT.total_seconds()
    }
    env = {name: value for name, value in os.environ.items() if name != "RANK"} | {"DS_ACCELERATOR": "cpu"}
    code = (
        "from lark.training.zero import connect; connect('cpu', True); from tests.training.waiting import"
        " group_timeout as said"
    )
    said = subprocess.check_output(
        [sys.executable, "-c", f"{code}; print(said())"], cwd=ROOT, env=env, text=True
    )
    assert (
        float(said.split()[-1]) == TIMEOUT.total_seconds()
    )  # DeepSpeed's own start, which the runs above have shared


def one_process(folder: Path, selection: str, name: str, *overrides: str) -> tuple[dict[str, Tensor], int]:
    before = AutoModelForCausalLM.from_pretrained(folder / "student").state_dict()
    run = trained(folder / "student", folder / selection, folder / name, *overrides)
    return gradients(before, run), len(run.trainer.batches.steps[0].micro[0])


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("kind", ["packed", "padded"])
def test_one_process_gives_the_direct_gradient(
    kind: str, steps: int, folder: Path, exact: dict[str, Tensor]
) -> None:
    ours, micro_steps = one_process(folder, "selection", f"1-{kind}-{steps}", *ARRANGEMENTS[1, kind, steps])
    assert micro_steps == steps
    assert relative_error(ours, exact) < 1e-5


@pytest.fixture(scope="module", params=OBJECTIVES)
def objective(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def exact_objective(objective: str, folder: Path) -> dict[str, Tensor]:
    return direct_gradient(folder / "student", folder / "tokens", objective)


def test_objectives_with_weights_of_tokens_give_the_direct_gradient_on_one_process_and_two(
    objective: str,
    folder: Path,
    results: dict[str, Any],
    exact_objective: dict[str, Tensor],
    exact: dict[str, Tensor],
) -> None:
    assert relative_error(exact_objective, exact) > 0.1
    for kind in ("packed", "padded"):
        setting = f"training.objective={objective}"
        ours, _ = one_process(folder, "tokens", f"1-{kind}-{objective}", *ARRANGEMENTS[1, kind, 4], setting)
        assert relative_error(ours, exact_objective) < 1e-5
        for zero in (0, 2):
            assert results[f"{zero}-{kind}-{objective}"]["micro_steps"] == 4
            assert (
                relative_error(load_file(folder / f"{zero}-{kind}-{objective}.safetensors"), exact_objective)
                < 1e-5
            )
    assert relative_error(load_file(folder / f"2-shared-{objective}.safetensors"), exact_objective) < 1e-5


def test_doubling_a_weight_adds_exactly_that_trajectorys_share(
    folder: Path, exact: dict[str, Tensor]
) -> None:
    heavy = [WEIGHTS[k % len(WEIGHTS)] * (2 if k == 3 else 1) for k in range(16)]
    alone = [WEIGHTS[3] if k == 3 else 0.0 for k in range(16)]
    write_training_set(folder / "heavy", weights=heavy)
    write_training_set(folder / "alone", weights=alone)
    share = direct_gradient(folder / "student", folder / "alone")
    ours, _ = one_process(folder, "heavy", "1-heavy", *ARRANGEMENTS[1, "packed", 4])
    before, _ = one_process(folder, "selection", "1-before", *ARRANGEMENTS[1, "packed", 4])
    assert relative_error({name: ours[name].double() - before[name].double() for name in share}, share) < 1e-4
    assert relative_error(ours, {name: exact[name] + share[name] for name in exact}) < 1e-5


def test_equal_weights_are_the_plain_mean_over_trajectories_of_the_mean_over_tokens(folder: Path) -> None:
    write_training_set(folder / "equal", equal=True)
    ours, _ = one_process(folder, "equal", "1-equal", *ARRANGEMENTS[1, "padded", 4])
    assert relative_error(ours, direct_gradient(folder / "student", folder / "equal")) < 1e-5


@pytest.mark.parametrize("zero", ZERO)
def test_the_norm_of_the_whole_gradient_is_clipped(zero: int, folder: Path, exact: dict[str, Tensor]) -> None:
    clipped = load_file(folder / f"{zero}-clipped.safetensors")
    norm = torch.stack([g.norm() for g in exact.values()]).norm()
    assert norm > 0.5
    assert relative_error(clipped, {name: g * 0.5 / norm for name, g in exact.items()}) < 1e-4


@pytest.mark.parametrize("zero", [2, 3])
def test_bf16_under_deepspeed_is_the_gradient_up_to_its_rounding(
    zero: int, folder: Path, exact: dict[str, Tensor]
) -> None:
    rounded = load_file(folder / f"{zero}-bf16.safetensors")
    total = torch.cat([(rounded[name].double() - g).flatten() for name, g in exact.items()]).norm()
    assert total < 0.05 * torch.cat([g.flatten() for g in exact.values()]).norm()


@pytest.mark.parametrize("kind", [*ZERO, "offload"])
def test_a_step_that_is_not_finite_is_skipped_on_all_processes_and_its_culprit_named(
    kind: int | str, folder: Path, results: dict[str, Any]
) -> None:
    """And only this step. `offload` is in bf16, where the weights of later steps would be skipped too if
    their gradients were added to those of this one.
    """
    result = results[f"{kind}-poisoned"]
    assert list(result["skipped"].values()) == [[f"q{POISONED:02d}/c"]]
    assert result["scheduled"] == 4  # the schedule continues: it must end where it would have ended
    before, after = (
        load_file(folder / "untied" / "model.safetensors"),
        load_file(folder / f"{kind}-poisoned" / "model.safetensors"),
    )
    head = "lm_head.weight"
    assert after[head].isfinite().all() and not torch.equal(after[head], before[head])
    lines = [json.loads(line) for line in (folder / f"{kind}-poisoned" / "metrics.jsonl").open()]
    assert [line["loss"] is None for line in lines] == ["skipped" in line for line in lines]
    assert sum("skipped" in line for line in lines) == 1


def test_a_multimodal_student_is_trained_and_exported_whole_however_it_is_sharded(
    folder: Path, results: dict[str, Any]
) -> None:
    """Four steps of SGD. With DDP, weights without gradients would end the run at the second."""
    alone = trained(folder / "multimodal", folder / "selection", folder / "1-multimodal", *SEVERAL_STEPS)
    alone.exporter.export()
    before, expected = (
        load_file(folder / name / "model.safetensors") for name in ("multimodal", "1-multimodal")
    )
    vision = {name for name in before if "vision_tower" in name or "multi_modal_projector" in name}
    assert {name for name in before if torch.equal(before[name], expected[name])} == vision
    for zero in ZERO:
        exported = folder / f"{zero}-multimodal"
        assert len(results[f"{zero}-multimodal"]["frozen"]) == len(vision) > 0
        after = load_file(exported / "model.safetensors")
        assert set(after) == set(before)
        for name, weight in after.items():
            assert float((weight - expected[name]).abs().max()) <= 1e-6, name
        assert all(
            (exported / name).read_bytes() == (folder / "multimodal" / name).read_bytes()
            for name in PROCESSOR
        )
        assert (
            type(AutoModelForCausalLM.from_pretrained(exported)).__name__ == "Gemma3ForConditionalGeneration"
        )


@pytest.mark.parametrize("kind", ["0", "2", "3", "2-bf16"])
def test_all_processes_stop_if_most_steps_are_skipped(kind: str, results: dict[str, Any]) -> None:
    stopped = (
        "Training stopped at step 3 of 4: the gradients of 3 steps were not finite and no step was taken."
    )
    errors = results[f"{kind}-stopped"]["errors"]
    assert len(errors) == 2 and all(str(error).startswith(stopped) for error in errors)


@pytest.mark.parametrize("kind", ["2", "3", "2-shared", "offload", "2-qlora"])
def test_a_crashed_deepspeed_run_resumes_to_the_same_weights(
    kind: str, folder: Path, results: dict[str, Any]
) -> None:
    assert results[f"{kind}-resumed"]["resumed_from"] == ["checkpoint-2"]
    whole, crashed = (
        load_file(folder / f"{kind}-resumed" / name / "model.safetensors") for name in ("whole", "crashed")
    )
    assert max(float((crashed[name] - value).abs().max()) for name, value in whole.items()) <= 1e-6
    before = load_file(folder / ("wide" if "qlora" in kind else "student") / "model.safetensors")
    assert any(not torch.equal(value, before[name]) for name, value in whole.items())


def test_sharing_micro_batches_and_offloading_change_no_weight(folder: Path) -> None:
    """With AdamW, after four steps."""
    plain, *others = (
        load_file(folder / f"{kind}-resumed" / "whole" / "model.safetensors")
        for kind in ("2", "2-shared", "offload")
    )
    for other in others:
        assert (
            max(float((other[name] - value).abs().max()) for name, value in plain.items()) <= 2e-4
        )  # of steps of 0.01


@pytest.mark.parametrize("zero", [2, 3])
def test_a_checkpoint_is_as_large_as_planned(zero: int, folder: Path, results: dict[str, Any]) -> None:
    shape = Shape.of(json.loads((folder / "student" / "config.json").read_text(encoding="utf-8")))
    setup = TrainingSetup(2, zero, 1024, checkpointing=False, bf16=False)
    planned = resume_bytes(shape, setup) / RESUMABLE
    held = results[f"{zero}-resumed"]
    assert 0.9 * held["bytes"] < planned < 1.1 * held["bytes"]
    assert not any(name.endswith(".safetensors") for name in held["files"]), "DeepSpeed has its own copy"


def test_lora_is_merged_to_the_same_weights_however_it_is_sharded(folder: Path) -> None:
    merged = {zero: load_file(folder / f"{zero}-lora" / "model.safetensors") for zero in ZERO}
    student = load_file(folder / "student" / "model.safetensors")
    assert set(merged[0]) == set(student)
    changed = {name for name in student if not torch.equal(merged[0][name], student[name])}
    assert changed == {name for name in student if "_proj" in name}
    for zero in (2, 3):
        for name in changed:
            change = (merged[0][name] - student[name]).double()
            assert (
                merged[zero][name].double() - student[name].double() - change
            ).norm() < 1e-4 * change.norm()


@pytest.mark.parametrize("zero", [0, 2])
def test_qlora_on_two_processes_gives_the_weights_of_one(zero: int, folder: Path) -> None:
    """Those of one process have the direct gradient (tests/training/test_qlora.py)."""
    run = trained(folder / "wide", folder / "selection", folder / "1-qlora", *QLORA)
    run.exporter.export()
    one, two = (load_file(folder / f"{name}-qlora" / "model.safetensors") for name in (1, zero))
    student = load_file(folder / "wide" / "model.safetensors")
    changed = {name for name in student if not torch.equal(one[name], student[name])}
    assert changed == {name for name in student if "_proj" in name}
    for name in changed:
        change = (one[name] - student[name]).double()
        assert (two[name].double() - student[name].double() - change).norm() < 1e-4 * change.norm()
