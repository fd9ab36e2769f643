"""Packed trajectories must not see each other, whichever implementation computes the attention."""

import logging

import pytest
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from lark.errors import LarkError
from lark.models.attention import assert_packing_separates, separate_segments, supports_packing
from lark.models.varlen import SEGMENTS

SIZES = [9, 1, 17, 5]
FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}
IMPLEMENTATIONS = ["eager", "sdpa", SEGMENTS]
SHAPE = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "initializer_range": 0.2,
}  # fmt: skip


def student(family: str, implementation: str) -> PreTrainedModel:
    config, model = FAMILIES[family]
    torch.manual_seed(0)
    return model(config(**SHAPE, attn_implementation=implementation))


def pack_of(sizes: list[int]) -> tuple[Tensor, Tensor]:
    ids = torch.randint(97, (1, sum(sizes)), generator=torch.Generator().manual_seed(3))
    return ids, torch.cat([torch.arange(n) for n in sizes]).unsqueeze(0)


def alone(model: PreTrainedModel, ids: Tensor) -> Tensor:
    return torch.cat([model(input_ids=piece, use_cache=False).logits for piece in ids.split(SIZES, dim=1)], dim=1)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_logits_are_those_of_each_trajectory_alone(family: str, implementation: str) -> None:
    model = student(family, implementation)
    ids, positions = pack_of(SIZES)
    packed = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    assert (packed - alone(model, ids)).abs().max() < 1e-4
    assert_packing_separates(model)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_packed_gradients_are_those_of_each_trajectory_alone(implementation: str) -> None:
    model = student("llama", implementation)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    ids, positions = pack_of(SIZES)
    together = torch.autograd.grad(
        model(input_ids=ids, position_ids=positions, use_cache=False).logits.square().sum(), list(model.parameters())
    )
    apart = torch.autograd.grad(alone(model, ids).square().sum(), list(model.parameters()))
    for a, b in zip(together, apart, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()


def test_with_a_cache_packs_leak_and_the_check_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """The reason for the start-up check: transformers looks for packs only if there is no cache."""

    class WithCache(LlamaForCausalLM):
        def forward(self, *args: object, **kwargs: object) -> object:
            return super().forward(*args, **{**kwargs, "use_cache": True})

    model = WithCache(student("llama", "sdpa").config)
    with pytest.raises(LarkError, match="not kept apart by sdpa"):
        assert_packing_separates(model)
    with caplog.at_level(logging.WARNING):
        assert not supports_packing(model)
    assert len(caplog.records) == 1 and "padded batches instead of packs" in caplog.text


def test_an_attention_that_cannot_train_here_falls_back(caplog: pytest.LogCaptureFixture) -> None:
    """Flex attention has no backward pass on CPU and raises an error when one is needed."""
    assert not supports_packing(student("llama", "flex_attention"))
    assert "padded batches instead of packs: FlexAttention does not support backward on CPU" in caplog.text


def test_bf16_passes_the_check_and_still_leaks_visibly() -> None:
    model = student("qwen2", "sdpa").bfloat16()
    assert supports_packing(model)
    model.config.is_causal = False  # attends to everything: no mask separates anything
    assert not supports_packing(model)


def test_the_check_leaves_the_model_as_it_was() -> None:
    model = student("llama", "sdpa").train()
    assert supports_packing(model)
    assert model.training and all(p.grad is None for p in model.parameters())


def test_only_sdpa_is_replaced_by_segments() -> None:
    for implementation, after in [("sdpa", SEGMENTS), ("eager", "eager")]:
        model = student("llama", implementation)
        separate_segments(model)
        assert model.config._attn_implementation == after
        assert supports_packing(model)


def test_segments_treat_padding_caches_and_rows_as_sdpa_does() -> None:
    model = student("llama", "sdpa").eval()
    ids = torch.randint(97, (3, 12), generator=torch.Generator().manual_seed(4))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    before = [
        model(input_ids=ids, attention_mask=mask).logits[mask.bool()],
        model(input_ids=ids, use_cache=False).logits,
        model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=0),
    ]
    separate_segments(model)
    after = [
        model(input_ids=ids, attention_mask=mask).logits[mask.bool()],
        model(input_ids=ids, use_cache=False).logits,
        model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=0),
    ]
    for a, b in zip(before, after, strict=True):
        torch.testing.assert_close(a, b)


def test_segments_respect_a_sliding_window() -> None:
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=4, attn_implementation="sdpa"))
    ids, positions = pack_of(SIZES)
    expected = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    separate_segments(model)
    torch.testing.assert_close(model(input_ids=ids, position_ids=positions, use_cache=False).logits, expected)
    assert supports_packing(model)


def test_a_saved_student_does_not_ask_for_our_attention(tmp_path: object) -> None:
    model = student("llama", "sdpa")
    separate_segments(model)
    model.save_pretrained(tmp_path)
    assert LlamaForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"
