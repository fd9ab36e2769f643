"""Per-token statistics against a float64 softmax of the same logits, on ordinary and extreme inputs."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lark.errors import LarkError
from lark.models.head import Head, LogitRule
from lark.scoring.statistics import TokenStatistics, tiled_statistics, token_statistics
from lark.scoring.tiles import Backend, Tiling, absorb_tile

SMALL = Tiling(rows=3, columns=5, absorb=absorb_tile)
PADDED = Tiling(rows=4, columns=7, absorb=absorb_tile, fixed=True)
ROOT = Path(__file__).parents[2]


def as_head(logits: Tensor) -> tuple[Tensor, Head]:
    """Hidden states and a head that give exactly these logits; columns that are -inf throughout become the
    head's bias.
    """
    masked = (logits == -torch.inf).all(0)
    bias = torch.where(masked, -torch.inf, 0.0)
    return logits.masked_fill(masked, 0.0), Head(torch.eye(logits.shape[1]), bias)


def reference(logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The definitions, written down in float64 on all logits at once. Sums over the wrong tokens leave the
    gold one out.
    """
    z, y = logits.double(), targets[:, None]
    log_p = z - torch.logsumexp(z, 1, keepdim=True)
    gold, wrong_log_p = log_p.gather(1, y)[:, 0], log_p.scatter(1, y, -torch.inf)
    log_p_wrong = torch.logsumexp(wrong_log_p, 1)
    wrong_p2 = torch.exp(2 * wrong_log_p).sum(1)
    z_y = z.gather(1, y)
    return {
        # -log(1 - q) keeps its digits if the gold probability 1 - q is close to one, -log p if not.
        "surprisal": torch.where(log_p_wrong < -1, -torch.log1p(-log_p_wrong.exp()), -gold),
        "residual": torch.exp(2 * log_p_wrong) + wrong_p2,
        "sum_p2": torch.exp(2 * gold) + wrong_p2,
        "p_gold": gold.exp(),
        "wrong_p2": wrong_p2,
        "rank": 1 + (z > z_y).sum(1),
        "ties": (z == z_y).sum(1) - 1,
    }


def assert_exact(
    statistics: TokenStatistics, logits: Tensor, targets: Tensor, tolerance: float = 1e-5
) -> None:
    for name, expected in reference(logits, targets).items():
        actual = getattr(statistics, name)
        if name in ("rank", "ties"):
            assert actual.dtype == torch.int32
            assert torch.equal(actual.long(), expected), name
        else:
            assert actual.dtype == torch.float32
            # Below 1e-37 fp32 has no full precision left: such a probability squared is zero.
            torch.testing.assert_close(
                actual.double(), expected, rtol=tolerance, atol=1e-37, msg=lambda m, n=name: f"{n}: {m}"
            )


@settings(deadline=None, max_examples=200)
@given(
    T=st.integers(1, 9),
    V=st.integers(1, 23),
    scale=st.sampled_from([0.0, 0.3, 3.0, 30.0, 1e4]),
    offset=st.sampled_from([0.0, -1e4, 1e4]),
    coarse=st.booleans(),
    seed=st.integers(0, 2**31),
    tiling=st.sampled_from([SMALL, PADDED]),
)
def test_statistics_are_exact(
    T: int, V: int, scale: float, offset: float, coarse: bool, seed: int, tiling: Tiling
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(T, V, generator=generator) * scale + offset
    logits = logits.round() if coarse else logits  # whole numbers tie often
    targets = torch.randint(0, V, (T,), generator=generator)
    hidden, head = as_head(logits)
    assert_exact(tiled_statistics(hidden, targets, head, tiling), logits, targets)


@settings(deadline=None, max_examples=100)
@given(
    data=st.data(), V=st.integers(2, 23), seed=st.integers(0, 2**31), tiling=st.sampled_from([SMALL, PADDED])
)
def test_masked_words_have_probability_zero(data: st.DataObject, V: int, seed: int, tiling: Tiling) -> None:
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(seed))
    masked = data.draw(st.lists(st.integers(0, V - 1), min_size=1, max_size=V - 1, unique=True))
    logits[:, masked] = -torch.inf
    targets = torch.tensor([data.draw(st.integers(0, V - 1)) for _ in range(4)])
    hidden, head = as_head(logits)
    statistics = tiled_statistics(hidden, targets, head, tiling)
    assert_exact(statistics, logits, targets)
    assert torch.equal(statistics.surprisal.isinf(), torch.isin(targets, torch.tensor(masked)))


@pytest.mark.parametrize("backend", ["eager", "torch"])
@pytest.mark.parametrize("log_odds", [-100.0, -69.1, -40.0, -16.1, -1e-3, 0.0, 1e-3, 16.1, 69.1, 100.0, 9e3])
def test_no_precision_is_lost_at_either_end(backend: Backend, log_odds: float) -> None:
    """The gold token's logit is `log_odds` below what all wrong ones have together: -16.1 is a gold
    probability of 1 - 1e-7.
    """
    V = 5003
    logits = torch.zeros(2, V)
    targets = torch.tensor([0, V - 1])
    logits[[0, 1], targets] = torch.tensor(V - 1.0).log() - log_odds
    hidden, head = as_head(logits)
    assert_exact(token_statistics(hidden, targets, head, backend), logits, targets)


@settings(deadline=None, max_examples=60)
@given(
    log_odds=st.lists(
        st.sampled_from([-69.1, -16.1, -1.0, 0.0, 2.3, 16.1, 69.1]) | st.floats(-80, 80),
        min_size=1,
        max_size=24,
    ),
    cuts=st.lists(st.integers(0, 24), max_size=5),
    V=st.integers(2, 300),
    seed=st.integers(0, 2**31),
)
def test_certain_and_hopeless_tokens_are_exact_in_any_company(
    log_odds: list[float], cuts: list[int], V: int, seed: int
) -> None:
    """16.1 is a gold probability of 1e-7 and -16.1 of 1 - 1e-7, 69.1 of 1e-30, side by side in batches of
    any make-up.
    """
    T, generator = len(log_odds), torch.Generator().manual_seed(seed)
    logits, targets = torch.randn(T, V, generator=generator), torch.randint(0, V, (T,), generator=generator)
    wrong = logits.double().scatter(1, targets[:, None], -torch.inf).logsumexp(1)
    logits[torch.arange(T), targets] = (wrong - torch.tensor(log_odds, dtype=torch.float64)).float()
    hidden, head = as_head(logits)
    bounds = sorted({0, T, *(cut for cut in cuts if cut < T)})
    for begin, end in pairwise(bounds):
        part = slice(begin, end)
        assert_exact(
            token_statistics(hidden[part], targets[part], head, "eager"), logits[part], targets[part]
        )
        assert_exact(tiled_statistics(hidden[part], targets[part], head, SMALL), logits[part], targets[part])


@pytest.mark.parametrize("backend", ["eager", "torch"])
def test_a_large_vocabulary_sums_without_drift(backend: Backend) -> None:
    """Many equal small terms are the worst case for a running fp32 sum: rounding then has a direction."""
    V = 151_936
    bias = torch.full((V,), -0.1)
    bias[7] = 0.0
    statistics = token_statistics(
        torch.zeros(3, 1), torch.tensor([0, 7, V - 1]), Head(torch.zeros(V, 1), bias), backend
    )
    assert_exact(statistics, bias.expand(3, V), torch.tensor([0, 7, V - 1]), tolerance=5e-6)


def test_all_equal_logits_are_all_ties() -> None:
    V = 1000
    statistics = token_statistics(torch.zeros(3, 4), torch.tensor([0, 5, 999]), Head(torch.ones(V, 4)))
    assert statistics.rank.tolist() == [1, 1, 1]
    assert statistics.ties.tolist() == [V - 1] * 3
    torch.testing.assert_close(statistics.p_gold, torch.full((3,), 1 / V))
    torch.testing.assert_close(statistics.residual, torch.full((3,), 1 - 1 / V))


def test_a_vocabulary_of_one_word_is_certain() -> None:
    statistics = token_statistics(
        torch.randn(3, 4), torch.zeros(3, dtype=torch.long), Head(torch.randn(1, 4))
    )
    assert statistics.surprisal.tolist() == statistics.residual.tolist() == [0, 0, 0]
    assert statistics.p_gold.tolist() == statistics.sum_p2.tolist() == [1, 1, 1]


@pytest.mark.parametrize("backend", ["eager", "torch"])
def test_no_tokens_give_no_statistics(backend: Backend) -> None:
    statistics = token_statistics(
        torch.empty(0, 4), torch.empty(0, dtype=torch.long), Head(torch.randn(7, 4)), backend
    )
    assert {len(column) for column in vars(statistics).values()} == {0}


@pytest.mark.parametrize("T", [1, 300])
def test_equal_rows_of_the_head_tie(T: int) -> None:
    """Every word is in the head twice, in different tiles. A gold logit that rounds differently from its
    tile loses ties.
    """
    torch.manual_seed(0)
    half, d = 5000, 67
    weight = torch.randn(half, d).repeat(2, 1)
    hidden, targets = torch.randn(T, d), torch.randint(0, 2 * half, (T,))
    statistics = token_statistics(hidden, targets, Head(weight), "eager")
    twin = token_statistics(hidden, (targets + half) % (2 * half), Head(weight), "eager")
    assert torch.equal(statistics.ties, torch.ones_like(statistics.ties))
    assert torch.equal(statistics.rank, twin.rank)
    assert torch.all(statistics.rank % 2 == 1)  # words above come in pairs


class _OffHead(Head):
    """A head whose gold rows are wrong, as if a matrix product rounded very differently from shape to
    shape.
    """

    def rows(self, tokens: slice | Tensor) -> Head:
        part = super().rows(tokens)
        return part if isinstance(tokens, slice) else Head(part.weight + 0.1)


def test_ranks_are_those_of_the_tiles_even_if_the_first_gold_logit_is_off() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(10, 23).round(decimals=1), torch.randint(0, 23, (10,))
    assert_exact(tiled_statistics(logits, targets, _OffHead(torch.eye(23)), SMALL), logits, targets)


@pytest.mark.parametrize("backend", ["eager", "torch"])
def test_a_token_does_not_depend_on_its_company(backend: Backend) -> None:
    torch.manual_seed(0)
    T, V, d = 1300, 3001, 48
    hidden, targets, head = torch.randn(T, d), torch.randint(0, V, (T,)), Head(torch.randn(V, d) / 2)
    together = token_statistics(hidden, targets, head, backend)
    for part in (slice(0, 1), slice(3, 260), slice(1000, 1300)):
        alone = token_statistics(hidden[part], targets[part], head, backend)
        for name, column in vars(alone).items():
            torch.testing.assert_close(column, getattr(together, name)[part], rtol=1e-5, atol=1e-30)


def test_compiled_and_eager_agree() -> None:
    torch.manual_seed(0)
    T, V, d = 1100, 3001, 32
    hidden, targets, head = (
        torch.randn(T, d),
        torch.randint(0, V, (T,)),
        Head(torch.randn(V, d), torch.randn(V), LogitRule(0.7, 30.0)),
    )
    compiled, eager = (token_statistics(hidden, targets, head, backend) for backend in ("torch", "eager"))
    for name, column in vars(compiled).items():
        torch.testing.assert_close(column, getattr(eager, name), rtol=1e-5, atol=1e-30)


def test_half_precision_models_get_single_precision_logits() -> None:
    torch.manual_seed(0)
    hidden, weight = (10 * torch.randn(20, 32)).bfloat16(), torch.randn(3000, 32).bfloat16()
    targets = torch.randint(0, 3000, (20,))
    statistics = token_statistics(hidden, targets, Head(weight))
    exact = hidden.double() @ weight.double().T
    expected = torch.nn.functional.cross_entropy(exact, targets, reduction="none")
    torch.testing.assert_close(statistics.surprisal.double(), expected, rtol=1e-5, atol=1e-5)
    assert int(statistics.ties.sum()) == 0


class _LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation returned."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        outputs = result if isinstance(result, (tuple, list)) else [result]
        self.numel = max([self.numel, *(t.numel() for t in outputs if isinstance(t, Tensor))])
        return result


def test_no_tensor_of_all_logits_ever_exists() -> None:
    T, V, d = 2050, 8200, 4
    hidden, targets, head = torch.randn(T, d), torch.randint(0, V, (T,)), Head(torch.randn(V, d))
    with _LargestTensor() as largest:
        token_statistics(hidden, targets, head, "eager")
    assert largest.numel <= 2**20 < T * V / 15


@pytest.mark.parametrize("where", ["hidden", "head"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_non_finite_numbers_are_refused_with_their_place(where: str, value: float) -> None:
    hidden, weight = torch.rand(5, 3) + 1, torch.rand(11, 3)
    (hidden[2:3] if where == "hidden" else weight[4:5]).fill_(value)
    with pytest.raises(LarkError, match=r"not finite.*position " + ("2" if where == "hidden" else "0")):
        token_statistics(hidden, torch.zeros(5, dtype=torch.long), Head(weight))


@pytest.mark.parametrize("target", [-100, 11])
def test_targets_outside_the_vocabulary_are_refused(target: int) -> None:
    with pytest.raises(LarkError, match=f"{target}.*vocabulary of 11"):
        token_statistics(torch.rand(2, 3), torch.tensor([target, target]), Head(torch.rand(11, 3)))


def test_without_a_compiler_scoring_continues_and_warns_once(tmp_path: Path) -> None:
    script = (
        "import logging, torch; logging.basicConfig(format='LOG %(message)s')\n"
        "from lark.models.head import Head, LogitRule; from lark.scoring.statistics import token_statistics\n"
        "h, y, head = torch.randn(1500, 4), torch.arange(1500), Head(torch.randn(20_000, 4))\n"
        "for _ in range(2): a, b = token_statistics(h, y, head), token_statistics(h, y, head, 'eager')\n"
        "torch.testing.assert_close(a.residual, b.residual)"
    )
    env = {
        **os.environ,
        "PATH": str(tmp_path),
        "CXX": str(tmp_path / "none"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
    }
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("LOG Scoring runs uncompiled") == 1, run.stderr


@pytest.mark.parametrize(
    "failure", [RuntimeError("Failed to find C compiler. Please specify via CC\nmore"), ImportError("no")]
)
def test_without_triton_scoring_on_a_gpu_runs_on_pytorch_and_warns_once(
    failure: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from lark.scoring import tiles, triton_kernel

    def fail(*arguments: object) -> None:
        raise failure

    monkeypatch.setattr(triton_kernel, "absorb_tile", fail)
    tiles._kernel_runs.cache_clear()
    hidden = SimpleNamespace(is_cuda=True, device=torch.device("cpu"))
    for _ in range(3):
        tiling = tiles.choose_tiling("auto", hidden, Head(torch.randn(50, 4)))  # type: ignore[arg-type]
        assert tiling.absorb is tiles.absorb_tile
    tiles._kernel_runs.cache_clear()
    (record,) = caplog.records
    assert (
        "Scoring runs without its Triton kernel" in record.message
        and str(failure).splitlines()[0] in record.message
    )
    assert "more" not in record.message


def test_with_triton_scoring_on_a_gpu_uses_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from lark.scoring import tiles, triton_kernel

    sizes: list[torch.Size] = []
    monkeypatch.setattr(triton_kernel, "absorb_tile", lambda logits, *rest: sizes.append(logits.shape))
    tiles._kernel_runs.cache_clear()
    hidden = SimpleNamespace(is_cuda=True, device=torch.device("cpu"))
    tilings = [tiles.choose_tiling("auto", hidden, Head(torch.randn(50, 4))) for _ in range(2)]  # type: ignore[arg-type]
    tiles._kernel_runs.cache_clear()
    assert all(tiling.absorb is triton_kernel.absorb_tile for tiling in tilings)
    assert sizes == [(1, tiles.KERNEL_TILE[1])]  # tried once, on one row
