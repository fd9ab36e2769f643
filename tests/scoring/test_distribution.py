"""Entropies and the most likely tokens against a float64 softmax of the same logits, on ordinary and
extreme inputs.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lark.models.head import Head, LogitRule
from lark.scoring import statistics
from lark.scoring.statistics import DetailedStatistics, detailed_statistics, tiled_details, token_statistics
from lark.scoring.tiles import Backend, Tiling, absorb_tile
from tests.scoring.test_statistics import PADDED, SMALL, as_head, assert_exact


def _untouched(logits: Tensor, targets: Tensor, gold: Tensor, state: Tensor) -> None:
    """A reduction that leaves the tile as it is, as the CUDA kernel does."""
    absorb_tile(logits.clone(), targets, gold, state)


KERNEL = Tiling(rows=4, columns=8, absorb=_untouched)
TILINGS = st.sampled_from([SMALL, PADDED, KERNEL])


def assert_distribution(
    found: DetailedStatistics, logits: Tensor, targets: Tensor, K: int, tolerance: float = 1e-5
) -> None:
    """Compare with the definitions in float64 on all logits at once."""
    z = logits.double()
    T, V = z.shape
    log_p = z - z.logsumexp(1, keepdim=True)
    p = log_p.exp()
    terms = torch.where(p > 0, -p * log_p, 0)
    # -p log p of a token with p close to 1 from 1 - p, the sum of the others: the softmax rounds it away.
    top = p.argmax(1, keepdim=True)
    rest = p.scatter(1, top, 0).sum(1)
    entropy = terms.scatter(1, top, 0).sum(1) - (1 - rest) * torch.log1p(-rest)
    squares = p.square().scatter(1, top, 0).sum(1)
    renyi2 = -torch.log1p(-(2 * rest - rest.square() - squares))
    # Where the likeliest token is a wrong one, only the absolute error is bounded: its 1 - p is not a sum of
    # the sweep.
    wrong = top[:, 0] != targets
    for name, expected in (("entropy", entropy), ("renyi2", renyi2)):
        actual = getattr(found, name)
        assert actual.dtype == torch.float32
        error = (actual.double() - expected).abs()
        assert bool((error <= tolerance * expected + torch.where(wrong, 1e-6, 1e-37)).all()), (
            name,
            actual,
            expected,
        )
    width = min(K, V)
    assert found.alternatives.shape == found.alternative_p.shape == (T, width)
    assert found.alternatives.dtype == torch.int32
    expected_p = p.sort(1, descending=True)[0][:, :width]
    torch.testing.assert_close(found.alternative_p.double(), expected_p, rtol=tolerance, atol=1e-37)
    real = z.sort(1, descending=True)[0][:, :width] > -torch.inf
    assert torch.equal(found.alternatives >= 0, real)
    kept = p.gather(1, found.alternatives.long().clamp_min(0))
    torch.testing.assert_close(
        kept[real], expected_p[real], rtol=1e-12, atol=0
    )  # the words that have these probabilities
    for row in found.alternatives:
        words = row[row >= 0].tolist()
        assert len(set(words)) == len(words)


@settings(max_examples=150)
@given(
    T=st.integers(1, 9),
    V=st.integers(1, 23),
    K=st.integers(0, 7),
    scale=st.sampled_from([0.0, 0.3, 3.0, 30.0, 1e4]),
    offset=st.sampled_from([0.0, -1e4, 1e4]),
    coarse=st.booleans(),
    seed=st.integers(0, 2**31),
    tiling=TILINGS,
)
def test_distributions_are_exact(T, V, K, scale, offset, coarse, seed, tiling):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(T, V, generator=generator) * scale + offset
    logits = logits.round() if coarse else logits  # whole numbers tie often
    targets = torch.randint(0, V, (T,), generator=generator)
    hidden, head = as_head(logits)
    found = tiled_details(hidden, targets, head, K, tiling)
    assert_distribution(found, logits, targets, K)
    assert_exact(found, logits, targets)


@settings(max_examples=60)
@given(data=st.data(), V=st.integers(2, 23), seed=st.integers(0, 2**31), tiling=TILINGS)
def test_masked_words_are_no_alternatives(data, V, seed, tiling):
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(seed))
    masked = data.draw(st.lists(st.integers(0, V - 1), min_size=1, max_size=V - 1, unique=True))
    logits[:, masked] = -torch.inf
    targets = torch.tensor([data.draw(st.integers(0, V - 1)) for _ in range(4)])
    hidden, head = as_head(logits)
    assert_distribution(tiled_details(hidden, targets, head, 5, tiling), logits, targets, 5)


@pytest.mark.parametrize("backend", ["eager", "torch"])
@pytest.mark.parametrize("log_odds", [-100.0, -69.1, -40.0, -16.1, -1e-3, 0.0, 16.1, 69.1, 9e3])
def test_entropy_keeps_its_digits_where_the_gold_token_is_certain(backend: Backend, log_odds: float) -> None:
    """-16.1 is a gold probability of 1 - 1e-7, where 1 - p in single precision has no digit left."""
    V = 5003
    logits = torch.zeros(2, V)
    targets = torch.tensor([0, V - 1])
    logits[[0, 1], targets] = torch.tensor(V - 1.0).log() - log_odds
    hidden, head = as_head(logits)
    assert_distribution(detailed_statistics(hidden, targets, head, 5, backend), logits, targets, 5)


@pytest.mark.parametrize("backend", ["eager", "torch"])
def test_a_large_vocabulary_has_the_entropy_of_its_words(backend: Backend) -> None:
    V = 151_936
    bias = torch.full((V,), -0.1)
    bias[[7, 9]] = torch.tensor([0.5, 0.2])
    targets = torch.tensor([0, 7, V - 1])
    found = detailed_statistics(torch.zeros(3, 1), targets, Head(torch.zeros(V, 1), bias), 2, backend)
    assert found.alternatives.tolist() == [[7, 9]] * 3
    assert_distribution(found, bias.expand(3, V), targets, 2, tolerance=5e-6)


def test_compiled_and_eager_agree_and_details_do_not_change_the_statistics() -> None:
    torch.manual_seed(0)
    T, V, d = 1100, 3001, 32
    hidden, targets = torch.randn(T, d), torch.randint(0, V, (T,))
    head = Head(torch.randn(V, d), torch.randn(V), LogitRule(0.7, 30.0))
    compiled, eager = (
        detailed_statistics(hidden, targets, head, 5, backend) for backend in ("torch", "eager")
    )
    for name, column in vars(compiled).items():
        torch.testing.assert_close(column, getattr(eager, name), rtol=1e-5, atol=1e-30)
    for name, column in vars(token_statistics(hidden, targets, head, "eager")).items():
        assert torch.equal(column, getattr(eager, name))


def test_equal_logits_are_listed_by_their_number() -> None:
    found = detailed_statistics(torch.zeros(2, 4), torch.tensor([0, 999]), Head(torch.ones(1000, 4)), 1000)
    assert found.alternatives.tolist() == [list(range(1000))] * 2
    torch.testing.assert_close(found.entropy, torch.full((2,), 1000.0).log())
    torch.testing.assert_close(found.renyi2, torch.full((2,), 1000.0).log())


def test_a_vocabulary_of_one_word_has_no_entropy() -> None:
    found = detailed_statistics(
        torch.randn(3, 4), torch.zeros(3, dtype=torch.long), Head(torch.randn(1, 4)), 5
    )
    assert found.entropy.tolist() == found.renyi2.tolist() == [0, 0, 0]
    assert found.alternatives.tolist() == [[0]] * 3
    assert found.alternative_p.tolist() == [[1.0]] * 3


def test_a_block_whose_gold_logits_round_differently_has_the_same_distribution() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(10, 23), torch.randint(0, 23, (10,))
    hidden, head = as_head(logits)
    first, *rest = (tiled_details(hidden, targets, head, 5, replace(SMALL, rows=rows)) for rows in (1, 3, 10))
    for other in rest:
        assert torch.equal(first.alternatives, other.alternatives)
        torch.testing.assert_close(first.entropy, other.entropy)


def test_the_pass_without_details_collects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not asked for costs nothing."""
    monkeypatch.setattr(statistics, "Collector", None)
    found = token_statistics(torch.randn(5, 4), torch.arange(5), Head(torch.randn(7, 4)))
    assert not hasattr(found, "entropy")
