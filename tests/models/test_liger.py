"""Liger's kernels against the models that they replace parts of: on a GPU where there is one, otherwise in
Triton's interpreter.

The interpreter has to be chosen before Triton is first imported, so the comparisons run in a separate
process. Triton 3.7.1's interpreter lacks three things that Liger's kernels need (`_complete_interpreter`).
"""

import os
import sys
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import triton
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from triton import language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter

from lark.models import liger
from lark.models.attention import assert_packing_separates
from lark.models.chat import Encoded
from lark.models.varlen import SEGMENTS
from lark.scoring.forward import LoadedStudent, response_statistics
from tests.conftest import interpreted

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HERE = INTERPRETED or DEVICE == "cuda"
HALF = torch.float16
"""Not bfloat16, whose arithmetic the interpreter does on the bits as if they were whole numbers."""
GPU = "cuda:0"
"""The device that the functions are told. In the interpreter, tensors are on CPU all the same."""

needs_kernels = pytest.mark.skipif(not HERE, reason="run by test_the_kernels_agree_in_the_interpreter")
SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "pad_token_id": 0,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "qwen2": Qwen2Config(**SHAPE),
    "llama": LlamaConfig(**SHAPE),
    "mistral": MistralConfig(**SHAPE, sliding_window=6),
    "qwen3": Qwen3Config(**SHAPE),
    "gemma3_text": Gemma3TextConfig(**SHAPE, sliding_window=6),
}


@pytest.mark.skipif(HERE, reason="the comparisons below run in this process")
def test_the_kernels_agree_in_the_interpreter() -> None:
    summary = interpreted(__file__)
    assert "13 passed, 2 skipped" in summary, summary


@triton.jit
def _rsqrt(x):  # type: ignore[no-untyped-def]
    return tl.rsqrt(x)


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    return 2 * tl.sigmoid(2 * x) - 1


def _complete_interpreter() -> None:
    """Three stand-ins. Before Liger is imported, because its modules import the functions by name."""
    convert = interpreter._implicit_cvt

    def with_floats(argument: Any) -> Any:
        """Arguments that are floats become tensors, as in a compiled kernel, where they have a dtype."""
        if isinstance(argument, float):
            handle = interpreter.TensorHandle(np.array([argument], dtype=np.float32), tl.float32)
            return tl.tensor(handle, tl.float32)
        return convert(argument)

    interpreter._implicit_cvt = with_floats
    # Of CUDA's library, which the interpreter does not have.
    libdevice.rsqrt = _rsqrt
    libdevice.tanh = _tanh


if INTERPRETED and DEVICE == "cpu":
    _complete_interpreter()


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    """Liger replaces names in transformers' modules. Other tests must not see them."""
    originals = [liger._Original(model_of(config)) for config in CONFIGS.values()]
    yield
    for original in originals:
        original.restore()


def model_of(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(deepcopy(config), attn_implementation="sdpa")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Norms start at 1 (in Gemma at 0), where a kernel without the weight would go unnoticed.
            if "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif parameter.ndim == 2:
                parameter.mul_(5)
    moved: PreTrainedModel = model.to(DEVICE, dtype).eval()
    return moved


def logits_and_gradients(model: PreTrainedModel) -> tuple[Tensor, dict[str, Tensor]]:
    ids = torch.randint(97, (2, 13), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    logits = model(input_ids=ids, use_cache=False).logits
    model.zero_grad()
    logits.square().mean().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), gradients


@needs_kernels
@pytest.mark.parametrize("family", CONFIGS)
def test_logits_and_gradients_are_those_of_the_model_without_kernels(family: str) -> None:
    model = model_of(CONFIGS[family])
    expected, gradients = logits_and_gradients(model)
    assert liger.apply_liger(model, GPU)
    found, with_kernels = logits_and_gradients(model)
    assert (found - expected).abs().max() <= 2e-6 * expected.abs().max()
    assert gradients.keys() == with_kernels.keys() == dict(model.named_parameters()).keys()
    largest = max(float(gradient.norm()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        # The gradient of a key's bias is 0 but for rounding, hence relative to the largest one too.
        assert (with_kernels[name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-6 * largest, name


@needs_kernels
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_half_precision_statistics_are_as_near_to_float32_as_without_kernels(family: str) -> None:
    """The scoring pass, from start-up on: the kernels pass their check, and packs stay apart with them."""
    generator = torch.Generator().manual_seed(2)
    batch = [Encoded(torch.randint(97, (n,), generator=generator).tolist(), 3, False) for n in (9, 5, 11)]

    def losses(dtype: torch.dtype, fused: bool) -> Tensor:
        model = model_of(CONFIGS[family], dtype)
        if fused:
            assert liger.fuse_forward(model, GPU)
        student = LoadedStudent.of(model)
        assert student.packs
        return torch.cat([tokens.surprisal.double() for tokens in response_statistics(student, batch)])

    exact = losses(torch.float32, fused=False)
    rounding = (losses(HALF, fused=False) - exact).norm()
    assert 0 < (losses(HALF, fused=True) - exact).norm() <= 1.5 * rounding
    assert rounding <= 0.01 * exact.norm()


@needs_kernels
@pytest.mark.parametrize("family", ["qwen2", "gemma3_text"])
def test_packs_stay_apart_with_the_kernels_also_in_the_backward_pass(family: str) -> None:
    model = model_of(CONFIGS[family])
    model.set_attn_implementation(SEGMENTS)
    assert liger.apply_liger(model, GPU)
    assert_packing_separates(model)


@needs_kernels
def test_kernels_that_compute_something_else_are_removed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    apply = liger.apply_liger

    def with_a_wrong_offset(model: PreTrainedModel, device: str, doing: str) -> bool:
        applied = apply(model, device, doing)
        model.base_model.norm.offset = 1.0
        return applied

    model = model_of(CONFIGS["llama"], HALF)
    expected = liger._probe(model)
    monkeypatch.setattr(liger, "apply_liger", with_a_wrong_offset)
    assert not liger.fuse_forward(model, GPU)
    assert "Scoring with PyTorch's own kernels: with Liger's, logits differ by" in caplog.text
    assert torch.equal(liger._probe(model), expected)


@needs_kernels
@pytest.mark.parametrize(("dtype", "device"), [(torch.float32, GPU), (HALF, "cpu")])
def test_only_gpus_in_half_precision_score_with_the_kernels(dtype: torch.dtype, device: str) -> None:
    model = model_of(CONFIGS["llama"], dtype)
    assert not liger.fuse_forward(model, device)
    assert "forward" not in vars(model.base_model.norm)


@needs_kernels
def test_the_interpreter_runs_the_kernels_and_not_something_else() -> None:
    """Replacing a kernel's input changes the result: so it is the kernel that computes it."""
    model = model_of(CONFIGS["llama"])
    liger.apply_liger(model, GPU)
    before = liger._probe(model)
    model.base_model.norm.variance_epsilon = 10.0
    assert not torch.allclose(before, liger._probe(model), rtol=1e-2)


@pytest.mark.skipif(HERE, reason="with the kernels, nothing fails")
def test_a_machine_that_cannot_compile_the_kernels_scores_without_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """This machine has no GPU, so Triton cannot launch anything: as on a GPU machine without a C compiler."""
    model = model_of(CONFIGS["qwen2"], torch.bfloat16)
    expected = liger._probe(model)
    assert not liger.fuse_forward(model, GPU)
    assert "Scoring with PyTorch's own kernels: Liger's do not run here (" in caplog.text
    assert torch.equal(liger._probe(model), expected)
    assert all("liger" not in type(part).__module__ for part in model.modules())
    assert "liger" not in sys.modules[type(model).__module__].apply_rotary_pos_emb.__module__
