"""QLoRA: adapters on 4-bit weights get the direct formula's gradients, and are merged into the weights
before quantization.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM

from lark.errors import LarkError
from lark.models.shapes import Shape
from lark.pipeline.operations import train as operations
from lark.training.lora import PEFT_PREFIX
from lark.training.memory import NF4_CONSTANTS, TrainingSetup, state_bytes
from lark.training.worker import Run, prepare, train
from lark.work.machine import Machine
from tests.conftest import composed
from tests.training.probe import RATE, SGD, fresh
from tests.training.tiny import losses, make_job, relative_error, write_student, write_training_set

QLORA = ["training.lora.rank=4", "training.lora.alpha=8", "training.lora.bits=4"]


def missing(module: str) -> bool:
    return Machine("cpu", 1, 1, 1).lacks(module)


needs_bitsandbytes = pytest.mark.skipif(missing("bitsandbytes"), reason="bitsandbytes is not installed")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("qlora")
    return write_student(folder / "student", hidden=64, intermediate=128), write_training_set(
        folder / "selection"
    )


def adapters(run: Run) -> dict[str, torch.Tensor]:
    state = run.trainer.model.state_dict()  # type: ignore[union-attr]
    return {
        name.removeprefix(PEFT_PREFIX): value.clone() for name, value in state.items() if ".lora_" in name
    }


Gradients = dict[str, torch.Tensor]


def direct(student: Path, selection: Path, run: Run, factors: Gradients, dtype: torch.dtype) -> Gradients:
    """The gradients of the adapters: y = W x + alpha/rank B A x with the dequantised W, one trajectory at a
    time.

    In float64 everything is exact. In bfloat16, products are rounded as autocast rounds them in training.
    """
    import bitsandbytes

    model = AutoModelForCausalLM.from_pretrained(student, dtype=dtype)
    exact = dtype == torch.float64
    leaves = {
        name: (value.double() if exact else value.clone()).requires_grad_() for name, value in factors.items()
    }
    for name, layer in run.exporter.student.named_modules():
        if hasattr(layer, "lora_B"):
            quantized, plain = layer.base_layer.weight, model.get_submodule(name)  # type: ignore[union-attr]
            base = bitsandbytes.functional.dequantize_4bit(quantized.data, quantized.quant_state).to(dtype)
            assert (
                0.01 < (base - plain.weight).norm() / base.norm() < 0.2
            )  # quantised, but still these weights
            plain.weight.data = base
            a, b = (leaves[f"{name}.lora_{which}.default.weight"] for which in "AB")
            plain.register_forward_hook(
                lambda _layer, x, y, a=a, b=b: y + 2.0 * linear(linear(x[0].to(a.dtype), a), b)
            )
        elif isinstance(layer, nn.Embedding) or "norm" in name:
            model.get_submodule(name).load_state_dict(layer.state_dict())  # in the precision of training
    with torch.autocast("cpu", torch.bfloat16, enabled=not exact):
        for loss in losses(model, selection, student):
            loss.backward()
    return {name: leaf.grad.double() for name, leaf in leaves.items() if leaf.grad is not None}


@needs_bitsandbytes
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_on_4_bit_weights_have_the_direct_gradient(
    dtype: str, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    """Exactly in float32. In bfloat16 up to the rounding of its products, which the direct formula then has
    too (about 4%, with 4-bit weights and without).
    """
    fresh()
    student, selection = inputs
    half = ["training.bf16=true", "training.gradient_checkpointing=true"] if dtype == "bfloat16" else []
    settings = [*SGD, *QLORA, "hardware.train_tokens=330", f"student.dtype={dtype}", *half]
    run = prepare(make_job(student, selection, tmp_path, *settings))
    run.trainer.args.optim = "sgd"
    torch.manual_seed(1)
    for name, weight in run.exporter.student.named_parameters():
        if "lora_B" in name:  # they start at zero, where A would have no gradient
            nn.init.normal_(weight, std=0.1)
    before = adapters(run)
    exact = direct(student, selection, run, before, torch.float64)
    rounded = direct(student, selection, run, before, torch.bfloat16) if half else exact
    run.trainer.train()
    after = adapters(run)
    assert len(exact) == 2 * 7 * 2
    ours = {name: (before[name].double() - after[name].double()) / RATE for name in exact}
    if half:
        assert relative_error(ours, rounded) < 0.02
        assert relative_error(ours, exact) < 1.25 * relative_error(rounded, exact) < 0.08
    else:
        assert relative_error(ours, exact) < 1e-5


@needs_bitsandbytes
def test_the_export_is_the_unquantised_student_with_the_adapters_merged(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    fresh()
    student, selection = inputs
    train(
        make_job(
            student,
            selection,
            tmp_path,
            *QLORA,
            "training.learning_rate=0.01",
            "training.warmup=0",
            "student.dtype=float32",
        )
    )
    before, after = load_file(student / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert set(before) == set(after)
    for name, value in after.items():
        change = (value - before[name]).double()
        if "_proj" in name:  # of rank 4: quantization errors would have full rank
            assert torch.linalg.matrix_rank(change, atol=1e-5) == 4, name
        else:
            assert torch.equal(value, before[name]), name
    AutoModelForCausalLM.from_pretrained(tmp_path)  # an ordinary student


@needs_bitsandbytes
def test_layers_that_bitsandbytes_dequantises_wrongly_on_cpu_are_refused(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    fresh()
    student = write_student(tmp_path / "student", hidden=64, intermediate=96)
    with pytest.raises(LarkError, match=r"a multiple of 64, and model\.layers\.0\.mlp\.down_proj has 96"):
        prepare(make_job(student, inputs[1], tmp_path, *QLORA))


@needs_bitsandbytes
def test_4_bit_weights_take_the_memory_that_is_planned() -> None:
    import bitsandbytes

    weight = bitsandbytes.nn.Params4bit(
        torch.randn(512, 512), requires_grad=False, quant_type="nf4", compress_statistics=True
    )
    weight = weight.to("cpu")
    state = weight.quant_state
    held = weight.nbytes + state.absmax.nbytes + state.state2.absmax.nbytes
    assert held == pytest.approx(512 * 512 * (4 + NF4_CONSTANTS) / 8, rel=1e-3)


def test_4_bit_weights_need_a_quarter_of_the_memory() -> None:
    shape = Shape(28, 3584, 18944, 28, 4, 128, 152064, False, True, False, 32768)  # Qwen-2.5-7B
    setup = TrainingSetup(1, 0, 1024, checkpointing=True, bf16=True, lora=16, half=True, cuda=True)
    full, quantized = (
        state_bytes(shape, TrainingSetup(**{**vars(setup), "bits": bits})) for bits in (None, 4)
    )
    assert full - quantized == pytest.approx(shape.backbone_matrices * (16 - 4 - 0.127) / 8, rel=1e-3)


def test_qlora_of_a_mixture_of_experts_is_refused(tmp_path: Path) -> None:
    """Also of a family whose size is unknown."""
    for experts in ({"model_type": "qwen3_moe", "num_experts": 4}, {"n_routed_experts": 4}):
        (tmp_path / "config.json").write_text(json.dumps(experts))
        config = composed("hardware=cpu", "student=own", f"student.path={tmp_path}", *QLORA)
        with pytest.raises(LarkError, match=r"bits=4: the student is a mixture of experts, and bitsandbytes"):
            operations.TRAIN.check(config, Machine("cpu", 1, 1, 1))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["training.lora.bits=4"], r"training.lora.bits=4: needs adapters: set training.lora.rank too"),
        (
            ["training.lora.rank=8", "training.lora.bits=8"],
            r"training.lora.bits=8: choose 4 \(NF4\), or null",
        ),
        (
            [*QLORA, "hardware.zero=3", "hardware.processes=2"],
            r"ZeRO-3 cannot shard 4-bit weights. Set hardware.zero=2",
        ),
        (
            [*QLORA, "hardware.offload=optimizer", "hardware.zero=2", "hardware.processes=1"],
            r"ZeRO-3 cannot shard 4-bit weights. Set hardware.offload=none",
        ),
        (
            QLORA,
            r"bitsandbytes is not installed: pip install bitsandbytes==[\d.]+, or training.lora.bits=null",
        ),
    ],
)
def test_what_qlora_cannot_do_is_refused_before_the_run(
    overrides: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Machine, "lacks", lambda machine, module: module == "bitsandbytes" and "zero" not in str(overrides)
    )
    with pytest.raises(LarkError, match=said):
        config = composed("hardware=cpu", *overrides)
        assert operations.TRAIN.check is not None
        operations.TRAIN.check(config, Machine("cpu", config.hardware.processes, 1, 1))
