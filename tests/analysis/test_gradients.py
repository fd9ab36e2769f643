"""The streamed Gram matrix and corpus gradient against whole gradients, autograd in fp64 and finite
differences.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from lark.analysis import gradients
from lark.analysis.corpus_rate import corpus_rate
from lark.analysis.decay_rate import rate
from lark.analysis.gradients import HEAD_WEIGHT, Anchor, gram_matrix, passes
from lark.errors import LarkError
from lark.models.chat import Encoded

VOCABULARY = 61
PLENTY = 1 << 30


def tiny(tied: bool, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48,
        num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=tied, initializer_range=0.2, attn_implementation="sdpa",
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype).eval()


def trajectories(count: int = 5) -> list[Encoded]:
    generator = torch.Generator().manual_seed(1)
    sizes = torch.randint(6, 24, (count,), generator=generator).tolist()
    return [
        Encoded(torch.randint(VOCABULARY, (n,), generator=generator).tolist(), 2 + n // 4, False)
        for n in sizes
    ]


def plain_loss(model: PreTrainedModel, encoded: Encoded) -> torch.Tensor:
    """ℓ_k from full logits, as the paper writes it."""
    ids = torch.tensor([encoded.ids])
    logits = model(input_ids=ids, use_cache=False).logits[0]
    return functional.cross_entropy(logits[encoded.prompt_length - 1 : -1], ids[0, encoded.prompt_length :])


def plain_gradients(model: PreTrainedModel, encoded: list[Encoded]) -> torch.Tensor:
    """[K, P], each gradient as a whole; tied parameters occur once."""
    model.requires_grad_(True)
    rows = [torch.autograd.grad(plain_loss(model, e), list(model.parameters())) for e in encoded]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("memory", [PLENTY, 40_000, 1_000])
def test_blocks_of_any_size_give_the_gram_matrix_of_whole_gradients(tied: bool, memory: int) -> None:
    model, encoded = tiny(tied), trajectories()
    whole = plain_gradients(model, encoded)
    anchor = Anchor(model)
    assert (passes(anchor, 5, memory) > 5) == (memory < PLENTY)
    for block in anchor.blocks(5, memory):
        assert 5 * 8 * sum(piece.width for piece in block) <= memory
    if memory == 1_000:  # hundreds of blocks: that they cover every entry once is enough
        covered = dict.fromkeys(anchor.tensors, 0)
        for piece in (piece for block in anchor.blocks(5, memory) for piece in block):
            for name in piece.names:
                assert piece.start == covered[name]
                covered[name] = piece.stop
        assert covered == {name: tensor.numel() for name, tensor in anchor.tensors.items()}
        return
    found = gram_matrix(anchor, encoded, memory)
    np.testing.assert_allclose(found.gram, (whole @ whole.T).numpy(), rtol=1e-9)
    assert (np.abs(found.cross).max() > 0) == tied
    assert np.linalg.eigvalsh(found.untied).min() > 0


def test_gradients_may_be_on_disk(tmp_path: Path) -> None:
    model, encoded = tiny(tied=True), trajectories()
    in_memory = gram_matrix(Anchor(model), encoded, 400_000).gram
    on_disk = gram_matrix(Anchor(model), encoded, 400_000, scratch=tmp_path / "scratch").gram
    np.testing.assert_array_equal(on_disk, in_memory)
    assert not list(tmp_path.iterdir())


def test_single_precision_is_enough() -> None:
    encoded = trajectories()
    whole = plain_gradients(tiny(tied=True), encoded)
    found = gram_matrix(Anchor(tiny(tied=True, dtype=torch.float32)), encoded, 40_000).gram
    np.testing.assert_allclose(found, (whole @ whole.T).numpy(), rtol=1e-4, atol=1e-5 * found.max())


def test_half_precision_keeps_the_gram_matrix_to_a_few_percent(tmp_path: Path) -> None:
    encoded, q = trajectories(), np.array([0.4, 0.05, 0.1, 0.2, 0.25])
    exact, half = tiny(tied=True), tiny(tied=True, dtype=torch.bfloat16)
    whole = gram_matrix(Anchor(exact), encoded, PLENTY).gram
    found = gram_matrix(Anchor(half), encoded, 20_000, scratch=tmp_path / "scratch")
    np.testing.assert_allclose(found.gram, whole, atol=0.05 * whole.max())
    rho, rounded = (
        corpus_rate(Anchor(model), encoded, q.tolist(), batch_tokens=40) for model in (exact, half)
    )
    assert rounded.rate == pytest.approx(rho.rate, rel=0.05)


def test_one_block_of_gradients_is_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[StorageWeakRef] = []
    buffer = gradients._buffer

    def recorded(*arguments: Any) -> torch.Tensor:
        assert all(storage.expired() for storage in made)
        tensor = buffer(*arguments)
        made.append(StorageWeakRef(tensor.untyped_storage()))
        return tensor

    monkeypatch.setattr(gradients, "_buffer", recorded)
    gram_matrix(Anchor(tiny(tied=True)), trajectories(), 20_000)
    assert len(made) > 3


def test_a_sum_of_many_gradients_is_kept_in_single_precision() -> None:
    """In bfloat16 a sum stops growing when an addend is below 1/256 of it: the last 64 of 320 equal ones
    would be lost.
    """
    half, one = tiny(tied=True, dtype=torch.bfloat16), trajectories()[:1]
    once = corpus_rate(Anchor(half), one, [1.0], batch_tokens=24)
    many = corpus_rate(Anchor(half), one * 320, [1 / 320] * 320, batch_tokens=24)
    assert many.rate == pytest.approx(once.rate, rel=1e-3)


def test_head_part_is_the_outer_product_of_residuals_and_states() -> None:
    """Lemma "LM head gradient": ∇_{W_out} ℓ_k = Δᵀ H / |a_k|, also where the head is tied."""
    model, encoded = tiny(tied=True), trajectories()
    anchor = Anchor(model)
    found = gram_matrix(anchor, encoded, PLENTY)
    heads = []
    for e in encoded:
        with torch.no_grad():
            hidden, targets = anchor.hidden(e)
            residual = torch.softmax(hidden @ anchor.head.T, 1) - functional.one_hot(targets, VOCABULARY)
        heads.append((residual.T @ hidden / len(targets)).flatten())
    stacked = torch.stack(heads)
    np.testing.assert_allclose(found.head, (stacked @ stacked.T).numpy(), rtol=1e-9)


def test_decay_rate_is_what_a_step_against_the_gradient_does_to_the_loss() -> None:
    """d/ds log L = -ρ along the gradient flow (paper, Sec. 3.2): a finite difference of the loss itself."""
    model, encoded = tiny(tied=True), trajectories()
    q = np.array([0.4, 0.0, 0.1, 0.2, 0.3])
    losses = np.array([plain_loss(model, e).item() for e in encoded])
    rho = float(rate(gram_matrix(Anchor(model), encoded, PLENTY).gram, losses, q))
    whole = plain_gradients(model, encoded)
    direction = torch.tensor(q) @ whole
    step, after = 1e-4, []  # Llama normalises in fp32 for any weights: a smaller step is lost in rounding
    for sign in (1, -1):
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(
                torch.nn.utils.parameters_to_vector(model.parameters()) - sign * step * direction,
                model.parameters(),
            )
            after.append(
                float(np.log(sum(w * plain_loss(model, e).item() for w, e in zip(q, encoded, strict=True))))
            )
            torch.nn.utils.vector_to_parameters(
                torch.nn.utils.parameters_to_vector(model.parameters()) + sign * step * direction,
                model.parameters(),
            )
    assert (after[1] - after[0]) / (2 * step) == pytest.approx(rho, rel=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_corpus_rate_is_the_rate_of_the_gram_matrix(tied: bool) -> None:
    model, encoded = tiny(tied), trajectories()
    q = np.array([0.4, 0.05, 0.1, 0.2, 0.25])
    losses = np.array([plain_loss(model, e).item() for e in encoded])
    gram = gram_matrix(Anchor(model), encoded, PLENTY).gram
    found = corpus_rate(Anchor(model), encoded, q.tolist(), batch_tokens=40)
    assert found.loss == pytest.approx(float(q @ losses), rel=1e-6)
    assert found.gradient_norm2 == pytest.approx(float(q @ gram @ q), rel=1e-6)
    assert found.rate == pytest.approx(float(rate(gram, losses, q)), rel=1e-6)
    assert all(p.grad is None for p in model.parameters())


def test_recomputed_activations_change_nothing_and_random_ones_are_refused() -> None:
    encoded = trajectories(3)
    plain = gram_matrix(Anchor(tiny(tied=False)), encoded, 60_000).gram
    np.testing.assert_allclose(
        gram_matrix(Anchor(tiny(tied=False), checkpointing=True), encoded, 60_000).gram, plain
    )
    model = tiny(tied=False)
    model.config.attention_dropout = 0.1
    with pytest.raises(LarkError, match="attention_dropout > 0"):
        Anchor(model, checkpointing=True)


def test_backpropagation_stops_at_the_block() -> None:
    """A block of late layers needs no graph below them, which makes many blocks affordable."""
    anchor = Anchor(tiny(tied=False))
    anchor.want({HEAD_WEIGHT})
    hidden, targets = anchor.hidden(trajectories()[0])
    assert not hidden.requires_grad
    assert anchor.loss(hidden, targets).requires_grad
