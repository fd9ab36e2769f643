"""Variable-length attention: the reference against the definition, and the calls that a GPU would get."""

import inspect
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.varlen import varlen_attn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from lark.errors import LarkError
from lark.models import sdpa_segments, varlen
from lark.models.attention import assert_packing_separates, supports_packing
from lark.models.sdpa_segments import CAUSAL, sdpa_per_segment
from lark.models.varlen import VARLEN, Segments
from tests.models import kernels_in_arithmetic

SIZES = [9, 1, 17, 5]
BACKWARD = "_varlen_attn_backward"
SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.2,
}


def dense(
    query: Tensor, key: Tensor, value: Tensor, sizes: list[int], window: int | None, scale: float
) -> Tensor:
    """The definition: one softmax over the whole pack, in which a query sees its own segment's last
    `window` keys.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    back = torch.arange(len(query))[:, None] - torch.arange(len(query))[None]
    seen = (owner[:, None] == owner[None]) & (back >= 0) & (back < (window or len(query)))
    scores = torch.einsum("qhd,khd->hqk", query, key).mul(scale).masked_fill(~seen, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)


def pack(sizes: list[int], heads: int, kv_heads: int, dtype: torch.dtype, dim: int = 8) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(sizes))
    shapes = [(sum(sizes), count, dim) for count in (heads, kv_heads, kv_heads)]
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in shapes
    ]


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    kv_heads=st.sampled_from([1, 2, 4]),
    window=st.none() | st.integers(1, 45),
    block=st.sampled_from([1, 7, 256]),
)
def test_the_reference_is_causal_attention_within_each_segment(
    sizes: list[int], kv_heads: int, window: int | None, block: int
) -> None:
    inputs = pack(sizes, 4, kv_heads, torch.float64)
    bounds = Segments.of(sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sdpa_segments, "SMALLEST_BLOCK", block)
        ours = sdpa_per_segment(
            *inputs, bounds.boundaries, bounds.boundaries, bounds.longest, bounds.longest, scale=0.3,
            window_size=CAUSAL if window is None else (window - 1, 0), enable_gqa=kv_heads != 4,
        )  # fmt: skip
    exact = dense(*inputs, sizes, window, 0.3)
    torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-12)
    direction = torch.randn_like(exact)
    for a, b in zip(
        torch.autograd.grad(ours, inputs, direction),
        torch.autograd.grad(exact, inputs, direction),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_boundaries_are_small_integers_made_on_the_host() -> None:
    segments = Segments.of(SIZES)
    assert segments.boundaries.tolist() == [0, 9, 10, 27, 32] and segments.boundaries.dtype == torch.int32
    assert segments.longest == 17 and isinstance(segments.longest, int)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    names = {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}
    assert set(segments.arguments(model)) == set(segments.arguments(model.model)) == names
    assert segments.arguments(nn.Linear(2, 2)) == {}


def test_pytorchs_function_still_has_the_signature_that_is_called() -> None:
    parameters = inspect.signature(varlen_attn).parameters
    positional = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
    assert {name: parameters[name].default for name in ("scale", "window_size", "enable_gqa")} == {
        "scale": None, "window_size": (-1, -1), "enable_gqa": False,
    }  # fmt: skip
    ours = inspect.signature(sdpa_per_segment).parameters
    assert list(ours)[:7] == positional and set(ours) - {"dropout", "prefixes"} <= set(parameters)


@pytest.fixture
def gpu_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a GPU, `varlen_attn` is what computes packs. Its kernels are replaced by plain arithmetic."""
    monkeypatch.setattr(varlen, "_has_kernel", lambda device: True)
    with kernels_in_arithmetic.on_cpu():
        yield


@pytest.mark.parametrize("window", [None, 1, 6])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_pytorchs_function_and_the_reference_agree(
    kv_heads: int, window: int | None, gpu_kernels: None
) -> None:
    inputs = pack(SIZES, 4, kv_heads, torch.bfloat16)
    bounds = Segments.of(SIZES)
    arguments: dict[str, Any] = {
        "scale": 0.3, "window_size": CAUSAL if window is None else (window - 1, 0),
        "enable_gqa": kv_heads != 4,
    }  # fmt: skip
    where = (bounds.boundaries, bounds.boundaries, bounds.longest, bounds.longest)
    theirs = varlen_attn(*inputs, *where, **arguments)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    ours = sdpa_per_segment(*wide, *where, **arguments)
    torch.testing.assert_close(theirs.double(), ours, rtol=1e-2, atol=1e-2)
    direction = torch.randn_like(ours).bfloat16()
    found = torch.autograd.grad(theirs, inputs, direction)
    expected = torch.autograd.grad(ours, wide, direction.double())
    for a, b in zip(found, expected, strict=True):
        assert (a.double() - b).norm() <= 1e-2 * b.norm()


def model_of(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=VARLEN)


CONFIGS = {
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE),
    "llama": LlamaConfig(**SHAPE),
    "mistral": MistralConfig(**SHAPE, sliding_window=6),
}


class Recorder(TorchDispatchMode):
    """Collects the calls of torch_attn's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "torch_attn":
            self.calls.append((function.name().split("::")[1], args))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_gpu_gets_one_call_per_layer_and_never_has_to_be_waited_for(
    family: str, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tensors that have no values, as on a GPU whose work is not done: reading one would be an error."""
    monkeypatch.setattr(varlen, "_has_kernel", lambda device: True)
    monkeypatch.setattr(
        varlen, "_passes_window", {type(CONFIGS[family])}
    )  # known after the first forward pass
    recorder = Recorder()
    with FakeTensorMode():
        model = model_of(CONFIGS[family], torch.float32 if autocast else torch.bfloat16)
        ids, positions = (torch.zeros(1, sum(SIZES), dtype=torch.long) for _ in range(2))
        segments = Segments(torch.zeros(len(SIZES) + 1, dtype=torch.int32), max(SIZES))
        with recorder, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = model.base_model(
                input_ids=ids, position_ids=positions, use_cache=False, **segments.arguments(model.base_model)
            ).last_hidden_state
            output.float().sum().backward()
        assert all(p.grad is not None for p in model.base_model.parameters())
    forward, backward = (
        [args for name, args in recorder.calls if name == op] for op in ("_varlen_attn", BACKWARD)
    )
    assert len(forward) == len(backward) == SHAPE["num_hidden_layers"]
    for query, key, value, cu_q, cu_k, max_q, max_k, causal, scale, window, gqa, *_ in forward:
        assert {x.dtype for x in (query, key, value)} == {torch.bfloat16}
        assert query.shape == (sum(SIZES), 4, 16) and key.shape == value.shape == (sum(SIZES), 2, 16)
        assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
        assert cu_q is segments.boundaries and cu_k is segments.boundaries and max_q == max_k == max(SIZES)
        assert (causal, window) == ((False, [5, 0]) if family == "mistral" else (True, [-1, 0]))
        assert gqa and scale == pytest.approx(16**-0.5)


@pytest.mark.parametrize("family", CONFIGS)
def test_the_gpu_path_passes_the_check_of_start_up_and_has_the_references_gradients(
    family: str, gpu_kernels: None
) -> None:
    model = model_of(CONFIGS[family], torch.bfloat16)
    assert_packing_separates(model)
    ids = torch.randint(97, (1, sum(SIZES)), generator=torch.Generator().manual_seed(3))
    positions = torch.cat([torch.arange(size) for size in SIZES])[None]

    def gradients(of: PreTrainedModel) -> list[Tensor]:
        logits = of(
            input_ids=ids, position_ids=positions, use_cache=False, **Segments.of(SIZES).arguments(of)
        ).logits
        return list(torch.autograd.grad(logits.double().square().mean(), list(of.parameters())))

    recorder = Recorder()
    with recorder:
        found = gradients(model)
    assert len(recorder.calls) == 2 * SHAPE["num_hidden_layers"]
    expected = gradients(model.double())  # no half precision: the reference
    for a, b in zip(found, expected, strict=True):
        assert (a.double() - b).norm() < 0.1 * b.norm()


def test_a_kernel_that_mixes_trajectories_is_noticed(
    gpu_kernels: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def leaking(*args: Any, **kwargs: Any) -> Any:
        return varlen_attn(
            *args[:3], *(x.new_tensor([0, len(args[0])]) for x in args[3:5]), *[len(args[0])] * 2, **kwargs
        )

    monkeypatch.setattr(varlen, "varlen_attn", leaking)
    assert not supports_packing(model_of(CONFIGS["qwen2"], torch.bfloat16), doing="Scoring")
    assert (
        "Scoring padded batches instead of packs: Packed trajectories are not kept apart by varlen"
        in caplog.text
    )


def test_a_kernel_with_a_wrong_backward_pass_is_noticed(
    gpu_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", lambda *args, **kwargs: varlen_attn(*args, **kwargs).detach())
    model = model_of(CONFIGS["llama"], torch.bfloat16)
    with pytest.raises(LarkError, match=r"gradients: [1-9]"):
        assert_packing_separates(model)
    with torch.no_grad():  # scoring needs no gradients
        assert_packing_separates(model)


@pytest.mark.parametrize(
    ("what", "head", "dtype", "dropout"),
    [
        ("the precision is float32", 16, torch.float32, 0.0),
        ("attention dropout is 0.1", 16, torch.bfloat16, 0.1),
        ("the head dimensions of queries and values are 12 and 12", 12, torch.bfloat16, 0.0),
        ("the head dimensions of queries and values are 264 and 264", 264, torch.bfloat16, 0.0),
    ],
)
def test_what_the_kernel_does_not_support_is_named(
    what: str, head: int, dtype: torch.dtype, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "_has_kernel", lambda device: True)
    query = torch.empty(3, 1, head, dtype=dtype)
    assert (varlen.why_not_kernel(query, query, dtype, dropout) or "").startswith(what)
    fits = torch.empty(3, 1, 128, dtype=torch.bfloat16)
    assert varlen.why_not_kernel(fits, fits, torch.bfloat16, 0.0) is None


def test_the_cpu_has_no_kernel_and_a_reason_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    query = torch.empty(3, 1, 16, dtype=torch.bfloat16)
    assert "the device cpu does not support it" in (
        varlen.why_not_kernel(query, query, torch.bfloat16, 0.0) or ""
    )
    with caplog.at_level(logging.WARNING):
        varlen._report("a reason for this test")
        varlen._report("a reason for this test")
    assert caplog.text.count("variable-length attention is not used: a reason for this test") == 1


def test_attention_sinks_are_refused_and_not_left_out() -> None:
    config = GptOssConfig(**SHAPE, num_local_experts=2, num_experts_per_tok=1)
    with pytest.raises(LarkError, match=r"GptOssAttention has attention sinks.*student\.attention=eager"):
        model_of(config)(input_ids=torch.zeros(1, 4, dtype=torch.long), use_cache=False)
