"""Attention in blocks is the student's own attention, has forward-mode derivatives, and never holds a
square of the length.
"""

import pytest
import torch
from torch.func import functional_call, jacrev, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from lark.analysis import blockwise
from lark.analysis.gradients import Anchor
from lark.analysis.jacobian import head_norm, jacobian_norm2
from lark.errors import LarkError
from lark.models.chat import Encoded
from tests.analysis.test_gradients import VOCABULARY, tiny, trajectories

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}


def windowed() -> PreTrainedModel:
    torch.manual_seed(0)
    return (
        MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=5, attn_implementation="sdpa"))
        .double()
        .eval()
    )


def capped() -> PreTrainedModel:
    """Soft-capped scores, a non-default scale, and a window in every other layer."""
    torch.manual_seed(0)
    settings = {
        "sliding_window": 5,
        "attn_logit_softcapping": 2.0,
        "query_pre_attn_scalar": 3,
        "attn_implementation": "eager",
    }
    return Gemma2ForCausalLM(Gemma2Config(**SHAPE, **settings)).double().eval()


@pytest.mark.parametrize(
    "make", [lambda: tiny(tied=False), windowed, capped], ids=["plain", "window", "soft cap"]
)
@pytest.mark.parametrize("block", [4, 7, 256])
def test_attention_in_blocks_is_the_students_own(make, block: int, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(blockwise, "BLOCK", block)
    model, ids = make(), torch.randint(VOCABULARY, (2, 21), generator=torch.Generator().manual_seed(2))
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    generator = torch.Generator().manual_seed(3)
    direction = {
        name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in parameters.items()
    }

    def logits(values: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(model, values, kwargs={"input_ids": ids, "use_cache": False}).logits

    with sdpa_kernel(SDPBackend.MATH):
        expected, pushed = jvp(logits, (parameters,), (direction,))
    before = model.config._attn_implementation
    with blockwise.forward_mode(model.train()):
        assert not model.training
        found, ours = jvp(logits, (parameters,), (direction,))
    assert model.training and model.config._attn_implementation == before
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours, pushed, rtol=1e-4, atol=1e-4 * float(pushed.abs().max()))


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_memory_grows_with_length_and_not_with_its_square() -> None:
    T, heads = 2048, 2
    anchor = Anchor(tiny(tied=False, dtype=torch.float32), checkpointing=True)
    ids = torch.randint(VOCABULARY, (T,), generator=torch.Generator().manual_seed(0)).tolist()
    with Largest() as seen:
        jacobian_norm2(anchor, Encoded(ids, 4, False), 2, 0)
    assert seen.elements <= heads * blockwise.BLOCK * T
    assert seen.elements < heads * T * T / 4


@pytest.mark.parametrize("checkpointing", [False, True])
def test_power_iteration_finds_the_largest_eigenvalue_from_below(checkpointing: bool) -> None:
    encoded = trajectories()[1]
    backbone = tiny(tied=True, dtype=torch.float32).base_model
    parameters = {name: p.detach() for name, p in backbone.named_parameters()}
    ids = torch.tensor([encoded.ids])

    def states(values: dict[str, torch.Tensor]) -> torch.Tensor:
        output = functional_call(backbone, values, kwargs={"input_ids": ids, "use_cache": False})
        return output.last_hidden_state[0, encoded.prompt_length - 1 : -1].flatten()

    whole = torch.cat(
        [part.flatten(1) for part in jacrev(states, chunk_size=64)(parameters).values()], dim=1
    ).double()
    largest = float(torch.linalg.eigvalsh(whole @ whole.T)[-1])
    anchor = Anchor(tiny(tied=True, dtype=torch.float32), checkpointing=checkpointing)
    found = jacobian_norm2(anchor, encoded, 60, 0)
    assert found.change < 0.01
    assert 0.9 * largest <= found.value <= largest * (1 + 1e-5)
    assert jacobian_norm2(anchor, encoded, 1, 0).value < found.value
    assert head_norm(anchor) == pytest.approx(float(torch.linalg.matrix_norm(anchor.head.double(), 2)))
    half = jacobian_norm2(Anchor(tiny(tied=True, dtype=torch.bfloat16), checkpointing), encoded, 60, 0)
    assert half.value == pytest.approx(found.value, rel=0.05)


@pytest.mark.parametrize(
    ("experts", "said"), [("eager", "more than causal"), ("grouped_mm", "no forward-mode derivatives")]
)
def test_a_student_without_forward_mode_is_refused(experts: str, said: str) -> None:
    """One with attention sinks, and with experts in one product, which PyTorch cannot differentiate in
    forward mode.
    """
    torch.manual_seed(0)
    config = GptOssConfig(**SHAPE, num_local_experts=2, num_experts_per_tok=1, attn_implementation="eager")
    model = GptOssForCausalLM(config).eval()
    model.set_experts_implementation(experts)
    with pytest.raises(LarkError, match=f"gpt_oss student .*{said}.*choose another"):
        jacobian_norm2(Anchor(model), trajectories()[1], 3, 0)
