"""Sketched gradients against whole ones from autograd; what they do not depend on; which models are
refused.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from lark.errors import LarkError
from lark.models.chat import Encoded
from lark.models.cpu_linear import pack_linears
from lark.models.head import Head, LogitRule
from lark.scoring import forward
from lark.scoring.forward import LoadedStudent
from lark.scoring.gradient_sketches import BackwardSketcher, ForwardSketcher, Sketcher, TrajectoryGradient
from lark.scoring.learnability import exact_score
from lark.scoring.residuals import head_residuals
from lark.scoring.sketches import Fold, Sizes, signs
from lark.scoring.statistics import token_statistics
from lark.scoring.tiles import COMPILE_FROM

VOCABULARY = 61
WHOLE = Sizes(None, None)
FAMILIES: dict[str, Callable[..., Any]] = {
    "llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config, "mistral": MistralConfig,
}  # fmt: skip
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "initializer_range": 0.2,
    "max_position_embeddings": 128,
}


def tiny(config: Any, attention: str = "sdpa") -> PreTrainedModel:
    torch.manual_seed(0)
    config._attn_implementation = attention
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).eval()


def student(family: str = "llama", tied: bool = True, attention: str = "sdpa") -> LoadedStudent:
    return LoadedStudent.of(tiny(FAMILIES[family](**SHAPE, tie_word_embeddings=tied), attention))


def trajectories(count: int = 5) -> list[Encoded]:
    """One of them has two turns."""
    generator = torch.Generator().manual_seed(1)
    sizes = torch.randint(8, 24, (count,), generator=generator).tolist()
    found = [
        Encoded(torch.randint(VOCABULARY, (n,), generator=generator).tolist(), 2 + n // 4, False)
        for n in sizes
    ]
    found[1] = Encoded(
        found[1].ids,
        found[1].prompt_length,
        False,
        ((found[1].prompt_length + 1, found[1].prompt_length + 3),),
    )
    return found


def writers(model: PreTrainedModel) -> list[torch.nn.Linear]:
    return [part for layer in model.model.layers for part in (layer.self_attn.o_proj, layer.mlp.down_proj)]


def predicts(encoded: Encoded) -> list[int]:
    """Positions that predict a response token."""
    return [at - 1 for start, stop in encoded.turns for at in range(start, stop)]


def naive_head(model: PreTrainedModel, encoded: Encoded) -> Tensor:
    """∇ of W_out in its use for logits: 1/n Σ (π - e_y) ⊗ h, from all logits."""
    with torch.no_grad():
        hidden = model.model(input_ids=torch.tensor([encoded.ids])).last_hidden_state[0][predicts(encoded)]
        gold = functional.one_hot(torch.tensor(encoded.response), VOCABULARY)
        residual = torch.softmax(hidden @ model.lm_head.weight.T, 1) - gold
    return (residual.T @ hidden / encoded.n_response).flatten()


def naive_exact(model: PreTrainedModel, encoded: Encoded) -> Tensor:
    """∇ of the output projections by autograd, and of the head."""
    weights = [part.weight for part in writers(model)]
    model.requires_grad_(False)
    for weight in weights:
        weight.requires_grad_(True)
    logits = model(input_ids=torch.tensor([encoded.ids])).logits[0]
    loss = functional.cross_entropy(logits[predicts(encoded)], torch.tensor(encoded.response))
    found = torch.autograd.grad(loss, weights)
    model.requires_grad_(False)
    return torch.cat([*(g.flatten() for g in found), naive_head(model, encoded)])


def naive_gram(model: PreTrainedModel, encoded: Encoded) -> Tensor:
    """1/n Σ e_t ⊗ a_t, with e_t by autograd from each token's loss to the input of the last norm, one token
    at a time.
    """
    seen: list[Tensor] = []
    hooks = [
        part.register_forward_hook(lambda _m, entering, _o: seen.append(entering[0][0].detach()))
        for part in writers(model)
    ]
    last: list[Tensor] = []
    hooks.append(
        model.model.norm.register_forward_pre_hook(lambda _m, entering: last.append(entering[0][0].detach()))
    )
    with torch.no_grad():
        model(input_ids=torch.tensor([encoded.ids]))
    for hook in hooks:
        hook.remove()
    positions, rows = predicts(encoded), []
    for at, token in zip(positions, encoded.response, strict=True):
        x = last[0][at].clone().requires_grad_()
        loss = functional.cross_entropy(model.lm_head(model.model.norm(x))[None], torch.tensor([token]))
        rows.append(torch.autograd.grad(loss, x)[0])
    e = torch.stack(rows)
    parts = [(e.T @ a[positions] / len(positions)).flatten() for a in seen]
    return torch.cat([*parts, naive_head(model, encoded)])


def whole(found: list[TrajectoryGradient]) -> Tensor:
    return torch.stack([torch.cat([g.layers, g.head]) for g in found])


NAIVE = [(ForwardSketcher, naive_gram), (BackwardSketcher, naive_exact)]


@pytest.mark.parametrize(("sketcher", "naive"), NAIVE)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_without_sketches_gradients_and_scores_are_those_of_autograd(
    sketcher: type[Sketcher], naive: Callable[..., Tensor], family: str, tied: bool
) -> None:
    made, encoded = student(family, tied), trajectories()
    found = sketcher(made, WHOLE, WHOLE)(encoded)
    expected = torch.stack([naive(made.model, e) for e in encoded])
    torch.testing.assert_close(whole(found), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    losses = np.array([g.loss for g in found])
    ours, theirs = (exact_score((g @ g.T).double().numpy(), losses) for g in (whole(found), expected))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())


def folded(matrix: Tensor, name: str, kept: int) -> Tensor:
    """[kept, n] Rows of a matrix [m, n], with the signs of seed 3, added up by their number modulo `kept`."""
    signed = signs(3, name, len(matrix))[:, None] * matrix
    return torch.stack([signed[n::kept].sum(0) for n in range(kept)])


@pytest.mark.parametrize(("sketcher", "naive"), NAIVE)
def test_a_sketch_is_its_linear_map_of_the_whole_gradient(
    sketcher: type[Sketcher], naive: Callable[..., Tensor]
) -> None:
    made, (one, *_) = student(), trajectories()
    small = sketcher(made, Sizes(5, 7), Sizes(11, 6), seed=3)
    expected, (found,) = naive(made.model, one), small([one])
    first = "0.self_attn.o_proj"
    o = expected[: 32 * 32].view(32, 32)
    mapped = folded(folded(o, f"{first}, out", 5).T, f"{first}, in", 7).T
    torch.testing.assert_close(found.layers[:35], mapped.flatten(), rtol=1e-4, atol=1e-6)
    head = expected[-VOCABULARY * 32 :].view(VOCABULARY, 32)
    mapped = folded(folded(head, "head, words", 11).T, "head, states", 6).T
    torch.testing.assert_close(found.head, mapped.flatten(), rtol=1e-4, atol=1e-6)
    assert found.layers.numel() + found.head.numel() == small.numbers


def with_shared_prompts() -> list[Encoded]:
    """Some of them have the same prompt."""
    found = trajectories()
    prompt = found[0].ids[: found[0].prompt_length]
    more = [Encoded([*prompt, *e.ids[e.prompt_length :]], len(prompt), False) for e in found if not e.context]
    return [*found, *more]


@pytest.mark.parametrize("sketcher", [ForwardSketcher, BackwardSketcher])
def test_neither_company_nor_padding_nor_packing_nor_a_shared_prompt_changes_a_sketch(
    sketcher: type[Sketcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = with_shared_prompts()
    padded, packed, shared = (
        sketcher(student(attention=name), Sizes(8, 8), Sizes(16, 8)) for name in ("eager", "varlen", "sdpa")
    )
    assert [made.student.packs for made in (padded, packed, shared)] == [False, True, True]
    assert [made.student.shares for made in (padded, packed, shared)] == [False, False, True]
    alone = whole([padded([e])[0] for e in encoded])
    scale = float(alone.abs().max())
    for budget in (2048, 40):  # one pass, or several
        monkeypatch.setattr(forward, "CPU_TOKENS", budget)
        for made in (padded, packed, shared):
            for found in (made(encoded), made(encoded[::-1])[::-1], [*made(encoded[:2]), *made(encoded[2:])]):
                torch.testing.assert_close(whole(found), alone, rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.parametrize("sketcher", [ForwardSketcher, BackwardSketcher])
def test_weights_in_the_layout_of_the_cpus_kernels_change_nothing(sketcher: type[Sketcher]) -> None:
    encoded = with_shared_prompts()
    expected = whole(sketcher(student(), Sizes(8, 8))(encoded))
    again = tiny(LlamaConfig(**SHAPE, tie_word_embeddings=True))
    assert pack_linears(again.base_model, gradients=sketcher is BackwardSketcher)
    found = whole(sketcher(LoadedStudent.of(again), Sizes(8, 8))(encoded))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def test_recomputed_activations_change_nothing() -> None:
    """On a GPU, activations are recomputed: hooks then see every layer twice."""
    encoded = trajectories()
    expected = whole(BackwardSketcher(student(), Sizes(8, 8))(encoded))
    again = student()
    again.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    again.model.disable_input_require_grads()
    again.model.train()
    torch.testing.assert_close(
        whole(BackwardSketcher(again, Sizes(8, 8))(encoded)), expected, rtol=1e-5, atol=1e-7
    )


def test_products_of_sketches_are_right_on_average_and_their_signs_are_the_same_everywhere() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 300).double()
    y = x + y
    folds = [Fold.of(seed, "f", 300, 20, torch.device("cpu")) for seed in range(400)]
    found = np.array([float(fold(x[None]) @ fold(y[None]).T) for fold in folds])
    spread = float((x.norm() * y.norm()) / 20**0.5)
    assert abs(found.mean() - float(x @ y)) < 4 * 2**0.5 * spread / 400**0.5
    assert found.std() < 2 * spread
    assert signs(7, "a", 8).tolist() == [1, -1, 1, -1, -1, 1, -1, 1]
    assert not torch.equal(signs(7, "a", 64), signs(7, "b", 64))
    assert torch.equal(Fold.of(0, "f", 300, 300, torch.device("cpu"))(x[None]), x[None].float())


@pytest.mark.parametrize(
    ("vocabulary", "rule"),
    [
        (700, LogitRule()),
        (700, LogitRule(0.25)),
        (2500, LogitRule(1.0, 5.0)),
        (COMPILE_FROM + 100, LogitRule()),
    ],
)
def test_residuals_are_gradients_at_the_head(rule: LogitRule, vocabulary: int) -> None:
    """One vocabulary is so large that the reduction is compiled."""
    torch.manual_seed(0)
    weight, hidden = 0.6 * torch.randn(vocabulary, 16), torch.randn(1030, 16)
    weight[3] *= 6  # some tokens that are predicted almost with certainty
    targets = torch.randint(vocabulary, (1030,))
    targets[::5] = (hidden @ weight.T).argmax(1)[::5]
    fold = Fold.of(0, "f", vocabulary, 128, torch.device("cpu"))
    found = head_residuals(hidden, targets, Head(weight, None, rule), fold)
    x = hidden.double().requires_grad_()
    h = (x @ weight.double().T).requires_grad_()
    h.retain_grad()
    z = rule.scale * h if rule.softcap is None else rule.softcap * torch.tanh(rule.scale * h / rule.softcap)
    functional.cross_entropy(z, targets, reduction="sum").backward()
    assert h.grad is not None and x.grad is not None
    torch.testing.assert_close(found.pulled.double(), x.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.folded.double(), fold(h.grad).double(), rtol=1e-4, atol=1e-6)
    plain = token_statistics(hidden, targets, Head(weight, None, rule), "eager")
    torch.testing.assert_close(found.surprisal, plain.surprisal, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (Gemma2Config(**SHAPE, query_pre_attn_scalar=16), "layers do more than add"),
        (GraniteConfig(**SHAPE, residual_multiplier=0.5), "layers do more than add"),
        (GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2), "no list of decoder layers"),
    ],
)  # fmt: skip
def test_a_model_of_another_kind_gets_a_sentence_and_not_a_wrong_number(config: Any, why: str) -> None:
    with pytest.raises(
        LarkError, match=rf"method=lark_gram cannot score \w+: .*{why}.*Choose another method"
    ):
        ForwardSketcher(LoadedStudent.of(tiny(config, "eager")), Sizes(8, 8))
