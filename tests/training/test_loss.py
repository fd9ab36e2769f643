"""The weighted objective against a plain full-logits formulation, in fp64 and as models are run in
practice.
"""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from lark.errors import LarkError
from lark.models.chat import Encoded
from lark.models.head import PLAIN, LogitRule, logit_rule
from lark.training.loss import NO_TARGET, response_targets, weighted_loss
from lark.training.packing import MicroBatch, collate_packed, collate_padded

VOCABULARY = 61


class Problem:
    """Random hidden states, head, targets with gaps, unequal weights and lengths; everything fp64."""

    def __init__(self, seed: int = 0, tokens: int = 43, trajectories: int = 5, dim: int = 8) -> None:
        torch.manual_seed(seed)
        self.hidden = torch.randn(tokens, dim, dtype=torch.float64, requires_grad=True)
        self.head = torch.randn(VOCABULARY, dim, dtype=torch.float64, requires_grad=True)
        self.bias = torch.randn(VOCABULARY, dtype=torch.float64, requires_grad=True)
        self.segment = (
            torch.cat([torch.arange(trajectories), torch.randint(trajectories, (tokens - trajectories,))])
            .sort()
            .values
        )
        self.targets = torch.randint(VOCABULARY, (tokens,))
        self.targets[torch.rand(tokens) < 0.3] = NO_TARGET
        first = torch.searchsorted(self.segment, torch.arange(trajectories))
        self.targets[first] = torch.randint(VOCABULARY, (trajectories,))
        self.lengths = torch.bincount(self.segment[self.targets != NO_TARGET], minlength=trajectories)
        self.weights = torch.rand(trajectories, dtype=torch.float64) * 3

    def ours(
        self, weights: Tensor | None = None, chunk: int = 7, rule: LogitRule = PLAIN, **options: Any
    ) -> tuple[Tensor, Tensor]:
        loss, nll, _ = self.measured(weights, chunk, rule, **options)
        return loss, nll

    def measured(
        self, weights: Tensor | None = None, chunk: int = 7, rule: LogitRule = PLAIN, **options: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        weights = self.weights if weights is None else weights
        return weighted_loss(
            self.hidden,
            self.head,
            self.targets,
            self.segment,
            weights,
            self.lengths,
            64,
            self.bias,
            chunk,
            rule,
            **options,
        )

    def trajectory_loss(self, i: int, rule: LogitRule = PLAIN) -> Tensor:
        """ℓ_i of one trajectory, as the paper writes it."""
        mine = (self.segment == i) & (self.targets != NO_TARGET)
        return functional.cross_entropy(self.logits(mine, rule), self.targets[mine])

    def logits(self, positions: Tensor, rule: LogitRule) -> Tensor:
        z = rule.scale * (self.hidden[positions] @ self.head.T + self.bias)
        return z if rule.softcap is None else rule.softcap * torch.tanh(z / rule.softcap)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss, (self.hidden, self.head, self.bias), retain_graph=True))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(6, 60), st.integers(1, 6), st.integers(1, 70))
def test_loss_and_gradients_are_those_of_the_full_logits(
    seed: int, tokens: int, trajectories: int, chunk: int
) -> None:
    problem = Problem(seed, tokens, trajectories)
    loss, nll = problem.ours(chunk=chunk)
    losses = [problem.trajectory_loss(i) for i in range(trajectories)]
    expected = sum((w * each for w, each in zip(problem.weights, losses, strict=True)), torch.zeros(())) / 64
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(nll, torch.stack(losses).detach(), rtol=1e-12, atol=1e-12)
    assert not nll.requires_grad
    for ours, plain in zip(problem.gradients(loss), problem.gradients(expected), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 70), st.sampled_from(["nll", "dft", "entropy"]))
def test_token_accuracy_is_the_share_of_targets_that_are_the_argmax(
    seed: int, chunk: int, objective: str
) -> None:
    problem = Problem(seed)
    rule = LogitRule(scale=3.0, softcap=1.5)
    likeliest = problem.logits(torch.ones_like(problem.targets, dtype=torch.bool), rule).argmax(1)
    # Random targets would hardly ever be the argmax.
    is_hit = (torch.rand(len(problem.targets)) < 0.5) & (problem.targets != NO_TARGET)
    problem.targets[is_hit] = likeliest[is_hit]
    _, _, accuracies = problem.measured(chunk=chunk, rule=rule, objective=objective)
    for i, accuracy in enumerate(accuracies.tolist()):
        mine = (problem.segment == i) & (problem.targets != NO_TARGET)
        expected = (likeliest[mine] == problem.targets[mine]).double().mean()
        assert accuracy == pytest.approx(float(expected), abs=1e-12)
    assert not accuracies.requires_grad and 0 < float(accuracies.mean()) < 1


def test_positions_without_numbers_are_no_hits() -> None:
    problem = Problem()
    with torch.no_grad():
        problem.hidden[:] = math.nan
    assert problem.measured()[2].tolist() == [0.0] * 5


@pytest.mark.parametrize(
    "rule", [LogitRule(scale=0.25), LogitRule(softcap=2.0), LogitRule(scale=3.0, softcap=1.5)]
)
def test_scaled_and_capped_logits_have_their_gradients(rule: LogitRule) -> None:
    problem = Problem()
    loss, _ = problem.ours(rule=rule)
    expected = (
        sum((w * problem.trajectory_loss(i, rule) for i, w in enumerate(problem.weights)), torch.zeros(()))
        / 64
    )
    torch.testing.assert_close(loss, expected)
    for ours, plain in zip(problem.gradients(loss), problem.gradients(expected), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("objective", ["nll", "dft", "entropy"])
@pytest.mark.parametrize("rule", [PLAIN, LogitRule(scale=3.0, softcap=1.5)])
def test_token_level_objectives_are_their_formulas_with_constant_factors(
    objective: str, rule: LogitRule
) -> None:
    problem = Problem()
    tokens = torch.rand(len(problem.targets), dtype=torch.float64) * 2
    loss, nll = problem.ours(rule=rule, objective=objective, token_weights=tokens)
    expected = torch.zeros((), dtype=torch.float64)
    for i, w in enumerate(problem.weights):
        mine = (problem.segment == i) & (problem.targets != NO_TARGET)
        p = problem.logits(mine, rule).softmax(1)
        gold = p[range(len(p)), problem.targets[mine]]
        likely = p.sort(1, descending=True).values[:, :20]
        likely = likely / likely.sum(1, keepdim=True)
        factor = {
            "nll": torch.ones_like(gold),
            "dft": gold.detach(),
            "entropy": -(likely * likely.log()).sum(1).detach() / math.log(20),
        }[objective]
        expected = expected + w * (tokens[mine] * factor * -gold.log()).mean() / 64
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(nll, problem.ours(rule=rule)[1])  # of the responses, under any objective
    for ours, plain in zip(problem.gradients(loss), problem.gradients(expected), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-12)


def test_a_certain_student_learns_nothing_under_entropy_and_a_hopeless_token_nothing_under_dft() -> None:
    hidden = torch.tensor([[300.0]], requires_grad=True)
    head = torch.tensor([[1.0], *[[-1.0]] * 30], requires_grad=True)
    for objective in ("dft", "entropy"):
        loss, *_ = weighted_loss(
            hidden,
            head,
            torch.tensor([5]),
            torch.tensor([0]),
            torch.ones(1),
            torch.ones(1),
            1,
            objective=objective,
        )
        loss.backward()
        assert hidden.grad is not None and loss.item() == 0 and not hidden.grad.any()


def test_doubling_a_weight_adds_exactly_that_trajectorys_gradient() -> None:
    problem = Problem()
    doubled = problem.weights.clone()
    doubled[2] *= 2
    before, after = problem.gradients(problem.ours()[0]), problem.gradients(problem.ours(doubled)[0])
    share = problem.gradients(problem.weights[2] * problem.trajectory_loss(2) / 64)
    for old, new, added in zip(before, after, share, strict=True):
        torch.testing.assert_close(new - old, added, rtol=1e-9, atol=1e-14)


def test_equal_weights_are_the_plain_mean_of_means() -> None:
    problem = Problem()
    loss, nll = problem.ours(torch.ones(5))
    torch.testing.assert_close(loss * 64 / 5, nll.mean())


def test_a_weight_counts_when_its_trajectory_is_alone_in_the_micro_batch() -> None:
    problem = Problem(trajectories=1)
    heavy, _ = problem.ours(torch.tensor([3.0]))
    light, nll = problem.ours(torch.tensor([1.0]))
    torch.testing.assert_close(heavy, 3 * light)
    torch.testing.assert_close(light, nll[0] / 64)


def test_gradient_scales_with_what_backward_is_given() -> None:
    problem = Problem()
    once, eight_times = problem.gradients(problem.ours()[0]), problem.gradients(8 * problem.ours()[0])
    for a, b in zip(once, eight_times, strict=True):
        torch.testing.assert_close(8 * a, b)


def test_a_frozen_head_gets_no_gradient_and_hidden_the_same() -> None:
    problem = Problem()
    expected = problem.gradients(problem.ours()[0])[0]
    problem.head.requires_grad_(False)
    problem.bias.requires_grad_(False)
    problem.ours()[0].backward()
    assert problem.head.grad is None and problem.hidden.grad is not None
    torch.testing.assert_close(problem.hidden.grad, expected)


def test_without_gradients_none_are_made() -> None:
    problem = Problem()
    with torch.no_grad():
        loss, nll = problem.ours()
    assert not loss.requires_grad
    torch.testing.assert_close(nll, problem.ours()[1])


def test_a_second_backward_is_refused_and_not_wrong() -> None:
    loss, _ = Problem().ours()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass"):
        loss.backward()


def test_no_response_token_is_a_zero_that_reaches_every_parameter() -> None:
    model = tiny_llama(tied=False)
    loss, nll, _ = micro_loss(model, collate_packed([], []), 4)
    loss.backward()
    assert loss.item() == 0 and nll.shape == (0,)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


# As models are run in practice.


def tiny_llama(tied: bool, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=tied, initializer_range=0.2, attn_implementation="sdpa",
    )  # fmt: skip
    return LlamaForCausalLM(config).train()


def some_trajectories(count: int = 6) -> tuple[list[Encoded], list[float]]:
    generator = torch.Generator().manual_seed(1)
    sizes = torch.randint(4, 30, (count,), generator=generator).tolist()
    encoded = [
        Encoded(torch.randint(VOCABULARY, (n,), generator=generator).tolist(), 1 + n // 4, False)
        for n in sizes
    ]
    return encoded, (torch.rand(count, generator=generator) * 2).tolist()


def micro_loss(
    model: LlamaForCausalLM, batch: MicroBatch, batch_trajectories: int, **options: object
) -> tuple[Tensor, Tensor, Tensor]:
    output = model.model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False)
    return weighted_loss(
        output.last_hidden_state.flatten(0, 1),
        model.lm_head.weight,
        batch.targets.flatten(),
        batch.segment.flatten(),
        batch.weights,
        batch.lengths,
        batch_trajectories,
        **options,
    )


def plain_gradients(model: LlamaForCausalLM, encoded: list[Encoded], weights: list[float]) -> list[Tensor]:
    """One trajectory at a time through the whole model and full logits."""
    for trajectory, weight in zip(encoded, weights, strict=True):
        ids = torch.tensor([trajectory.ids])
        logits = model(input_ids=ids, use_cache=False).logits[0]
        start = trajectory.prompt_length
        nll = functional.cross_entropy(logits[start - 1 : -1], ids[0, start:])
        (weight * nll / len(encoded)).backward()
    return taken_gradients(model)


def taken_gradients(model: LlamaForCausalLM) -> list[Tensor]:
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return [g for g in grads if g is not None]


def assert_same(ours: list[Tensor], plain: list[Tensor], relative: float) -> None:
    assert len(ours) == len(plain)
    for a, b in zip(ours, plain, strict=True):
        assert (a - b).norm() <= relative * b.norm()


@pytest.mark.parametrize("tied", [True, False])
def test_packed_padded_and_one_by_one_have_the_same_gradients(tied: bool) -> None:
    model = tiny_llama(tied)
    encoded, weights = some_trajectories()
    plain = plain_gradients(model, encoded, weights)
    arrangements = {
        "packed": [collate_packed(encoded, weights)],
        "padded": [collate_padded(encoded, weights)],
        "one by one": [collate_packed([e], [w]) for e, w in zip(encoded, weights, strict=True)],
        "two micro-batches": [
            collate_packed(encoded[:2], weights[:2]),
            collate_padded(encoded[2:], weights[2:]),
        ],
    }
    for batches in arrangements.values():
        for batch in batches:
            micro_loss(model, batch, len(encoded), chunk=11)[0].backward()
        assert_same(taken_gradients(model), plain, 1e-5)


def test_gradient_checkpointing_changes_nothing() -> None:
    model = tiny_llama(tied=True)
    encoded, weights = some_trajectories()
    plain = plain_gradients(model, encoded, weights)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    micro_loss(model, collate_packed(encoded, weights), len(encoded))[0].backward()
    assert_same(taken_gradients(model), plain, 1e-5)


def test_loss_inside_a_checkpointed_region_is_the_same() -> None:
    problem = Problem()
    expected = problem.gradients(problem.ours()[0])
    loss = torch.utils.checkpoint.checkpoint(lambda: problem.ours()[0], use_reentrant=False)
    for ours, plain in zip(problem.gradients(loss), expected, strict=True):
        torch.testing.assert_close(ours, plain)


def test_autocast_rounds_factors_but_not_logits() -> None:
    """Large logits: bf16 ones would be 0.125 apart; ours are exact for the rounded factors."""
    torch.manual_seed(0)
    hidden = (torch.randn(64, 32) * 4).requires_grad_()
    head = torch.randn(VOCABULARY, 32, requires_grad=True)
    targets = torch.randint(VOCABULARY, (64,))
    arguments = (targets, torch.zeros(64, dtype=torch.long), torch.ones(1), torch.tensor([64]), 1)
    exact = functional.cross_entropy(hidden.bfloat16().double() @ head.bfloat16().double().T, targets)
    with torch.autocast("cpu", torch.bfloat16):
        loss, *_ = weighted_loss(hidden, head, *arguments)
        rounded = functional.cross_entropy((hidden @ head.T).float(), targets)
        in_fp32, *_ = weighted_loss(hidden, head, *arguments, precision=torch.float32)
    loss.backward()
    assert loss.dtype == torch.float32
    assert hidden.grad is not None and head.grad is not None and head.grad.dtype == torch.float32
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=1e-6)
    assert abs(rounded - exact) > 100 * abs(loss - exact)
    torch.testing.assert_close(
        in_fp32, functional.cross_entropy(hidden @ head.T, targets), rtol=1e-5, atol=1e-5
    )


def test_bf16_gradients_have_their_parameters_dtype_and_are_close_to_exact() -> None:
    problem = Problem()
    exact = problem.gradients(problem.ours()[0])
    for name in ("hidden", "head", "bias"):
        setattr(problem, name, getattr(problem, name).detach().bfloat16().requires_grad_())
    loss, _ = problem.ours()
    ours = problem.gradients(loss)
    assert loss.dtype == torch.float32 and all(g.dtype == torch.bfloat16 for g in ours)
    assert_same([g.double() for g in ours], exact, 0.05)


def test_extreme_logits_stay_finite() -> None:
    hidden = torch.tensor([[200.0], [-200.0]], requires_grad=True)
    head = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    loss, nll, _ = weighted_loss(
        hidden, head, torch.tensor([1, 1]), torch.tensor([0, 1]), torch.ones(2), torch.ones(2), 2
    )
    loss.backward()
    assert nll.tolist() == [400.0, 0.0]
    assert head.grad is not None and bool(head.grad.isfinite().all())


@given(st.lists(st.integers(0, 9), min_size=2, max_size=20), st.data())
def test_targets_are_the_next_token_of_the_response_and_nothing_else(
    ids: list[int], data: st.DataObject
) -> None:
    prompt = data.draw(st.integers(1, len(ids) - 1))
    targets = response_targets(Encoded(ids, prompt, truncated=False))
    assert len(targets) == len(ids) and targets[-1] == NO_TARGET
    assert [t for t in targets if t != NO_TARGET] == ids[prompt:]
    assert all(targets[t] == (ids[t + 1] if t + 1 >= prompt else NO_TARGET) for t in range(len(ids) - 1))


@pytest.mark.parametrize("prompt", [0, 3])
def test_a_trajectory_without_a_response_is_refused(prompt: int) -> None:
    with pytest.raises(LarkError, match="no response token"):
        response_targets(Encoded([1, 2, 3], prompt, truncated=False))


def test_logit_rule_is_read_off_the_model() -> None:
    from transformers import (
        CohereConfig,
        CohereForCausalLM,
        Gemma2Config,
        Gemma2ForCausalLM,
        GraniteConfig,
        GraniteForCausalLM,
    )

    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "pad_token_id": 0,
        "initializer_range": 0.2,
    }
    assert logit_rule(tiny_llama(tied=True)) == LogitRule()
    assert logit_rule(GraniteForCausalLM(GraniteConfig(**sizes, logits_scaling=8.0))) == LogitRule(
        scale=1 / 8
    )
    assert logit_rule(CohereForCausalLM(CohereConfig(**sizes, logit_scale=0.0625))) == LogitRule(scale=0.0625)
    assert logit_rule(Gemma2ForCausalLM(Gemma2Config(**sizes, final_logit_softcapping=2.0))) == LogitRule(
        softcap=2.0
    )


def test_a_model_whose_head_is_not_plain_is_refused() -> None:
    class Shifted(LlamaForCausalLM):
        def forward(self, *args: object, **kwargs: object) -> object:
            output = super().forward(*args, **kwargs)
            output.logits = output.logits + torch.arange(VOCABULARY)
            return output

    with pytest.raises(LarkError, match="Shifted does something to its logits"):
        logit_rule(Shifted(tiny_llama(tied=False).config))
