"""Layers in oneDNN's layout compute what PyTorch's own do."""

import platform
import weakref

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from lark.models import cpu_linear
from lark.models.cpu_linear import PackedLinear, pack_linears

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

    assert (
        pack_linears(nn.Sequential(Own(8, 8), nn.Conv1d(2, 2, 1), nn.Linear(8, 8, dtype=torch.bfloat16))) == 0
    )
    monkeypatch.setattr(cpu_linear.platform, "machine", lambda: "aarch64")
    assert pack_linears(nn.Sequential(nn.Linear(8, 8))) == 0


def test_a_build_without_the_operators_keeps_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: PackedLinear, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("Could not run 'mkldnn::_linear_pointwise'")

    monkeypatch.setattr(PackedLinear, "forward", missing)
    model = nn.Sequential(nn.Linear(8, 8))
    assert pack_linears(model) == 0
    assert type(model[0]) is nn.Linear
