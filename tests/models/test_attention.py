"""Packed trajectories must not see each other, whichever implementation computes the attention."""

import logging

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen3Config,
)

from lark.config import Student
from lark.errors import LarkError
from lark.models import attention as choice
from lark.models import varlen
from lark.models.attention import (
    assert_packing_separates,
    separate_segments,
    supports_packing,
    supports_prefixes,
)
from lark.models.varlen import SEGMENTS, VARLEN, Segments

SIZES = [9, 1, 17, 5]
FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}
IMPLEMENTATIONS = ["eager", "sdpa", SEGMENTS, VARLEN]
SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}
WINDOW = {"sliding_window": 4}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"], **WINDOW}
ARCHITECTURES = {
    "llama": LlamaConfig(**SHAPE),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen2, window": Qwen2Config(**SHAPE, use_sliding_window=True, max_window_layers=1, **WINDOW),
    "qwen3": Qwen3Config(**SHAPE, head_dim=24),
    "mistral": MistralConfig(**SHAPE, **WINDOW),
    "phi3": Phi3Config(**SHAPE, pad_token_id=0, **WINDOW),
    "gemma": GemmaConfig(**SHAPE, head_dim=32),
    "gemma2 without soft cap": Gemma2Config(**SHAPE, head_dim=16, attn_logit_softcapping=None, **ALTERNATING),
    "gemma3": Gemma3TextConfig(**SHAPE, head_dim=16, **ALTERNATING),
    "qwen2_moe, whose layers do not pass their window on": Qwen2MoeConfig(
        **SHAPE,
        use_sliding_window=True,
        max_window_layers=1,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        experts_implementation="eager",
        **WINDOW,
    ),
}


def student(family: str, implementation: str) -> PreTrainedModel:
    config, model = FAMILIES[family]
    torch.manual_seed(0)
    return model(config(**SHAPE, attn_implementation=implementation))


def settings(**asked: str) -> Student:
    return Student(name="s", path="p", **asked)  # type: ignore[arg-type]


def pack_of(sizes: list[int]) -> tuple[Tensor, Tensor]:
    ids = torch.randint(97, (1, sum(sizes)), generator=torch.Generator().manual_seed(3))
    return ids, torch.cat([torch.arange(n) for n in sizes]).unsqueeze(0)


def alone(model: PreTrainedModel, ids: Tensor) -> Tensor:
    return torch.cat(
        [model(input_ids=piece, use_cache=False).logits for piece in ids.split(SIZES, dim=1)], dim=1
    )


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
        model(input_ids=ids, position_ids=positions, use_cache=False).logits.square().sum(),
        list(model.parameters()),
    )
    apart = torch.autograd.grad(alone(model, ids).square().sum(), list(model.parameters()))
    for a, b in zip(together, apart, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()


def gradients(model: PreTrainedModel, logits: Tensor) -> list[Tensor]:
    return list(
        torch.autograd.grad(
            logits.square().mean(), list(model.parameters()), allow_unused=True, materialize_grads=True
        )
    )


@pytest.mark.parametrize("implementation", [SEGMENTS, VARLEN])
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_packs_of_every_architecture_are_what_transformers_computes_for_each_trajectory(
    family: str, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With transformers' own sdpa, one trajectory at a time: so windows are those of transformers too."""
    monkeypatch.setattr(varlen, "_passes_window", set())
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        ARCHITECTURES[family], attn_implementation="sdpa", dtype=torch.float64
    )
    ids, positions = pack_of(SIZES)
    expected = alone(model, ids)
    exact = gradients(model, expected)
    model.set_attn_implementation(implementation)
    for repetition in range(
        2
    ):  # the first pass has a mask for a window; the second knows whether it needs one
        packed = model(
            input_ids=ids, position_ids=positions, use_cache=False, **Segments.of(SIZES).arguments(model)
        ).logits
        torch.testing.assert_close(packed, expected, rtol=1e-8, atol=1e-9, msg=f"pass {repetition}")
        for a, b in zip(gradients(model, packed), exact, strict=True):
            assert (a - b).norm() <= 1e-6 * max(float(b.norm()), 1e-6)  # Gemma's norms round to float32
    passes = "do not pass" not in family and hasattr(model.config, "sliding_window")
    assert (type(model.config) in varlen._passes_window) == passes
    assert supports_packing(model)


@torch.no_grad()
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_shared_prefix_is_what_transformers_computes_for_each_trajectory(family: str) -> None:
    """Prefixes in one piece and in two, some longer than the windows of 4 tokens. A model that cannot do it
    is recognised.
    """
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        ARCHITECTURES[family], attn_implementation="sdpa", dtype=torch.float64
    ).eval()
    assert not supports_prefixes(model)  # sdpa itself cannot
    sizes = [9, 3, 8, 6, 2]
    ids, _ = pack_of(sizes)
    # The last prefix is the second segment's, and two tokens of that segment itself.
    places = ([], [0, 1, 2, 3, 4, 5], [], [12, 13, 14], [0, 1, 2, 3, 4, 5, 9, 10])
    prefixes = [torch.tensor(where, dtype=torch.long) for where in places]
    rows = ids.split(sizes, dim=1)
    whole = [torch.cat([ids[:, prefix], row], dim=1) for row, prefix in zip(rows, prefixes, strict=True)]
    expected = [
        model(input_ids=each, use_cache=False).logits[:, -size:]
        for each, size in zip(whole, sizes, strict=True)
    ]
    separate_segments(model)
    assert supports_packing(model)
    possible = "do not pass" not in family
    assert supports_prefixes(model) == possible
    positions = torch.cat(
        [torch.arange(len(where), len(where) + own) for where, own in zip(places, sizes, strict=True)]
    )[None]
    segments = Segments.of(sizes, prefixes)
    assert segments.longest == 10
    found = model(input_ids=ids, position_ids=positions, use_cache=False, **segments.arguments(model)).logits
    close = torch.allclose(found, torch.cat(expected, dim=1), rtol=1e-8, atol=1e-9)
    assert close == possible


@pytest.mark.parametrize("implementation", [SEGMENTS, VARLEN])
def test_boundaries_and_positions_describe_the_same_pack(implementation: str) -> None:
    model = student("qwen2", implementation)
    ids, positions = pack_of(SIZES)
    by_position = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    by_boundary = model(
        input_ids=ids, position_ids=positions, use_cache=False, **Segments.of(SIZES).arguments(model)
    ).logits
    assert torch.equal(by_position, by_boundary)


@pytest.mark.parametrize(
    ("asked", "device", "used"),
    [
        ({}, "cuda:0", VARLEN),
        ({}, "cpu", "sdpa"),
        ({"dtype": "float32"}, "cuda:0", "sdpa"),
        ({"dtype": "float16"}, "cuda:3", VARLEN),
        ({"attention": "flash_attention_2"}, "cuda:0", "flash_attention_2"),
        ({"attention": "sdpa"}, "cuda:0", "sdpa"),
        ({"attention": "varlen"}, "cpu", VARLEN),
        ({"attention": "kernels-community/flash-attn3"}, "cuda:0", "kernels-community/flash-attn3"),
    ],
)
def test_the_gpu_uses_pytorchs_own_kernel_unless_asked_otherwise(
    asked: dict[str, str], device: str, used: str
) -> None:
    assert choice.attention(settings(**asked), device, Qwen2Config(**SHAPE)) == used


SPECIAL: list[tuple[PreTrainedConfig, str]] = [
    (Gemma2Config(**SHAPE, attn_logit_softcapping=50.0), "gemma2 caps attention scores at 50"),
    (GptOssConfig(**SHAPE), "gpt_oss does more in attention than sdpa computes"),
]


@pytest.mark.parametrize(("config", "reason"), SPECIAL)
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_attention_that_sdpa_does_not_compute_is_eager_and_never_left_out(
    config: PreTrainedConfig, reason: str, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    """transformers' sdpa ignores a soft cap without a word."""
    assert choice.attention(settings(), device, config) == "eager"
    assert f"Using eager attention, which needs memory for the square of the length: {reason}" in caplog.text
    for asked in ("sdpa", "varlen"):
        with pytest.raises(
            LarkError, match=rf"student\.attention={asked} cannot be used: {reason}.*Set it to eager"
        ):
            choice.attention(settings(attention=asked), device, config)
    assert choice.attention(settings(attention="flash_attention_2"), device, config) == "flash_attention_2"


def test_what_is_recommended_can_compute_the_attention(caplog: pytest.LogCaptureFixture) -> None:
    """flash-attn 2 has a soft cap and no sinks, and sdpa neither."""
    alternatives = ("flash_attention_2", "kernels-community/vllm-flash-attn3")
    for (config, _), alternative in zip(SPECIAL, alternatives, strict=True):
        caplog.clear()
        assert choice.attention(settings(), "cuda:0", config) == "eager"
        assert f"consider student.attention={alternative}" in caplog.text
        with pytest.raises(LarkError, match=f"on a GPU to {alternative}"):
            choice.attention(settings(attention="sdpa"), "cuda:0", config)
    caplog.clear()
    sinks = GptOssConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2)
    model = AutoModelForCausalLM.from_config(sinks, attn_implementation="eager")
    assert not choice.supports_packing(model)
    assert "Set training.packing to false" in caplog.text and "sdpa" not in caplog.text


def test_a_soft_cap_reaches_our_attention_as_an_error() -> None:
    model = AutoModelForCausalLM.from_config(SPECIAL[0][0], attn_implementation=VARLEN)
    with pytest.raises(LarkError, match=r"Gemma2Attention has a soft cap on attention scores"):
        model(input_ids=torch.zeros(1, 3, dtype=torch.long), use_cache=False)


def test_flash_attention_gets_the_boundaries_that_were_made_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stand-in for the functions that transformers imports from flash-attn."""
    from transformers import modeling_flash_attention_utils as flash

    calls: list[tuple[Tensor, int]] = []

    def flash_varlen(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
    ) -> Tensor:
        assert causal and cu_seqlens_k is cu_seqlens_q and max_seqlen_k == max_seqlen_q
        calls.append((cu_seqlens_q, max_seqlen_q))
        bounds = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        return varlen.sdpa_per_segment(q, k, v, *bounds, scale=softmax_scale, enable_gqa=True)

    functions = (
        (None, flash_varlen, None, None, None),
        (flash._lazy_define_process_function(flash_varlen), dict),
    )
    monkeypatch.setattr(flash, "lazy_import_flash_attention", lambda *_args, **_kwargs: functions)
    model = student("qwen2", "sdpa").bfloat16()
    ids, positions = pack_of(SIZES)
    segments = Segments.of(SIZES)
    expected = alone(model, ids)
    model.config._attn_implementation = "flash_attention_2"
    found = model(input_ids=ids, position_ids=positions, use_cache=False, **segments.arguments(model)).logits
    assert (found - expected).abs().max() < 0.05 * expected.abs().max()
    assert len(calls) == 2 and all(cu is segments.boundaries and longest == 17 for cu, longest in calls)


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
