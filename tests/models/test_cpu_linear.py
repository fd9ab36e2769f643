"""Layers in oneDNN's layout compute what PyTorch's own do."""

import platform
import weakref

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from lark.models import cpu_linear
from lark.models.cpu_linear import (
    PackedLinear,
    add_product,
    pack_linears,
    product,
    train_through_onednn,
    uses_onednn,
)
from lark.models.shapes import DEMO

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not torch.backends.mkldnn.is_available(), reason="needs oneDNN on x86"
)


def student() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        attention_bias=True,
    )
    return LlamaForCausalLM(config).eval()


def without_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the check of the operators run again in this test."""
    monkeypatch.setattr(cpu_linear, "_has_operators", cpu_linear._has_operators.__wrapped__)


@torch.no_grad()
@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_a_model_gives_the_same_hidden_states(tokens: int) -> None:
    model = student()
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    ids = torch.randint(97, (2, tokens))
    expected = model.model(input_ids=ids, use_cache=False).last_hidden_state
    assert pack_linears(model.model) == 14
    assert type(model.lm_head) is nn.Linear
    torch.testing.assert_close(
        model.model(input_ids=ids, use_cache=False).last_hidden_state, expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_gradients_at_hidden_states_are_the_same(tokens: int) -> None:
    model = student().requires_grad_(False)
    torch.manual_seed(1)
    inputs, weights = torch.randn(2, tokens, 64), torch.randn(2, tokens, 64)

    def gradient() -> torch.Tensor:
        x = inputs.clone().requires_grad_()
        hidden = model.model(inputs_embeds=x, use_cache=False).last_hidden_state
        return torch.autograd.grad((hidden * weights).sum(), x)[0]

    expected = gradient()
    assert pack_linears(model.model, gradients=True) == 14
    torch.testing.assert_close(gradient(), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_the_weight_is_held_once_and_can_still_be_read() -> None:
    model = student()
    layer = model.model.layers[0].mlp.up_proj
    weight, original = layer.weight.detach().clone(), weakref.ref(layer.weight)
    del layer
    pack_linears(model)
    packed = model.model.layers[0].mlp.up_proj
    assert isinstance(packed, PackedLinear) and (packed.in_features, packed.out_features) == (64, 96)
    assert original() is None
    assert torch.equal(packed.weight, weight)


def test_other_layers_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(nn.Linear):
        """A subclass may compute something else."""

    others = [Own(8, 8), nn.Conv1d(2, 2, 1), nn.Linear(8, 8, dtype=torch.float64)]
    assert pack_linears(nn.Sequential(*others)) == 0
    without_operators(monkeypatch)
    monkeypatch.setattr(cpu_linear.platform, "machine", lambda: "aarch64")
    assert pack_linears(nn.Sequential(nn.Linear(8, 8))) == 0


def test_a_build_without_the_operators_keeps_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: PackedLinear, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("Could not run 'mkldnn::_linear_pointwise'")

    without_operators(monkeypatch)
    monkeypatch.setattr(PackedLinear, "forward", missing)
    model = nn.Sequential(nn.Linear(8, 8))
    assert pack_linears(model) == 0
    assert type(model[0]) is nn.Linear


@torch.no_grad()
@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_bfloat16_layers_round_as_pytorchs_do(tokens: int) -> None:
    model = student()
    nn.Module.to(model, torch.bfloat16)
    ids = torch.randint(97, (2, tokens))
    expected = model.model(input_ids=ids, use_cache=False).last_hidden_state
    assert pack_linears(model.model) == 14
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    assert hidden.dtype == torch.bfloat16
    torch.testing.assert_close(hidden, expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))


@pytest.mark.parametrize("bias", [False, True])
def test_trained_layers_have_the_gradients_of_pytorchs(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_linear, "LARGE", 1)
    torch.manual_seed(0)
    layer = nn.Linear(64, 96, bias=bias)
    x = torch.randn(2, 37, 64, requires_grad=True)
    weights = torch.randn(2, 37, 96)

    def gradients() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad((layer(x) * weights).sum(), [x, *layer.parameters()])

    expected = gradients()
    assert train_through_onednn(nn.Sequential(layer)) == 1
    for gradient, exact in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(gradient, exact, rtol=1e-5, atol=1e-5 * float(exact.abs().max()))


def test_a_trained_layer_under_autocast_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_linear, "LARGE", 1)
    layer = nn.Linear(64, 96)
    x = torch.randn(5, 64)
    with torch.autocast("cpu", torch.bfloat16):
        expected = layer(x)
        train_through_onednn(nn.Sequential(layer))
        assert torch.equal(layer(x), expected)


def test_the_products_of_the_demos_student_stay_what_they_were() -> None:
    """So its results do not change."""
    demo = LlamaForCausalLM(LlamaConfig.from_pretrained(DEMO))
    assert train_through_onednn(demo) == 0
    assert not uses_onednn(demo.lm_head.weight)


def test_products_and_sums_of_products() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(9000, 30), torch.randn(30, 40)
    torch.testing.assert_close(product(a, b), a @ b, rtol=1e-5, atol=1e-5)
    total = torch.ones(9000, 40)
    add_product(total, a, b)
    torch.testing.assert_close(total, 1 + a @ b, rtol=1e-5, atol=1e-4)
