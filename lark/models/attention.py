"""Attention for packed trajectories, which must not see each other, and a check at start-up that they do not.

With `use_cache=False`, no attention mask and positions that restart, transformers 5.19 finds the trajectories of a pack itself
(`masking_utils.find_packed_sequence_indices`; with the default cache it does not look for them, and they leak):

    eager              a [t, t] additive mask.
    sdpa               a [t, t] bool mask: correct, but a pack of 32,768 tokens costs the full t² and a mask of 1 GB.
    sdpa_segments      ours: one call of the causal kernel per trajectory. No mask, Σ t_i² instead of (Σ t_i)².
    flash_attention_2  its variable-length kernel, split where positions are 0 (one row only). GPU, bf16.
    flex_attention     a block mask; on CPU it has no backward pass.

A 4-D bool mask made by hand is wrong in eager attention, which adds it to the scores, so none is made here.
"""

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lark.errors import LarkError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

SEGMENTS = "sdpa_segments"


def separate_segments(model: "PreTrainedModel") -> None:
    """Make `sdpa` process each trajectory of a pack separately. The other implementations are unchanged."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(SEGMENTS)


def supports_packing(model: "PreTrainedModel") -> bool:
    """Whether trajectories can be packed for this model on this device. If not, the reason is logged; batches are padded."""
    try:
        assert_packing_separates(model)
    except (LarkError, RuntimeError, TypeError, ValueError) as error:
        log.warning("Training on padded batches instead of packs: %s", first_line(error))
        return False
    return True


def assert_packing_separates(model: "PreTrainedModel") -> None:
    """Raise unless three packed trajectories have the same logits as alone, and none depends on another's tokens.

    The first comparison is subject to rounding in the model's dtype. The second is not: the shapes are the same, so in any
    dtype a trajectory's logits either change with its neighbour or do not. Call this when the model is on the device where it
    will train, because flash attention only exists on GPUs; the half precision that it needs is set here.
    """
    training, flash = model.training, "flash" in model.config._attn_implementation
    model.eval()
    try:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=flash):
            alone_error, leak = _packing_errors(model)
    finally:
        model.train(training)
    exact = model.dtype in (torch.float32, torch.float64) and not flash
    tolerance = 1e-4 if exact else 5e-2
    if alone_error > tolerance or leak > 1e-4:
        raise LarkError(
            f"Packed trajectories are not kept apart by {model.config._attn_implementation} attention in "
            f"{type(model).__name__}: logits differ by {alone_error:.1e} from those of the trajectory alone, and by {leak:.1e} "
            "when a neighbour changes. Set student.attention to sdpa or flash_attention_2, or training.packing to false."
        )


def _packing_errors(model: "PreTrainedModel") -> tuple[float, float]:
    """The largest differences (packed and alone; with one neighbour and another), in units of the largest logit, at least 1.

    Gradients stay enabled: an implementation without a backward pass on this device raises an error in the forward pass.
    """
    sizes = [7, 12, 5]
    generator = torch.Generator().manual_seed(0)
    vocabulary = int(model.config.get_text_config().vocab_size)
    ids = torch.randint(vocabulary, (1, sum(sizes)), generator=generator).to(model.device)
    positions = torch.cat([torch.arange(size) for size in sizes]).unsqueeze(0).to(model.device)

    def logits(tokens: Tensor, position_ids: Tensor) -> Tensor:
        output = model(input_ids=tokens, position_ids=position_ids, use_cache=False).logits
        return output.detach().float()

    together = logits(ids, positions)
    pieces = zip(ids.split(sizes, dim=1), positions.split(sizes, dim=1), strict=True)
    alone = torch.cat([logits(*piece) for piece in pieces], dim=1)
    changed = ids.clone()
    middle = slice(sizes[0], sizes[0] + sizes[1])
    changed[:, middle] = (changed[:, middle] + 1) % vocabulary
    beside_another = logits(changed, positions)
    difference = (together - beside_another).abs()
    difference[:, middle] = 0.0
    unit = max(1.0, float(alone.abs().max()))
    return float((together - alone).abs().max()) / unit, float(difference.max()) / unit


def _segmented_sdpa(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query [1, heads, t, head_dim] -> [1, t, heads, head_dim], with causal attention within each run of rising positions.

    Everything that is not a whole pack (a mask, several rows, a cache) uses ordinary sdpa.
    """
    whole = attention_mask is None and position_ids is not None and len(query) == 1 and query.shape[2] == key.shape[2]
    sizes = _run_lengths(position_ids[0]) if whole and position_ids is not None else [key.shape[2]]
    if len(sizes) == 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    pieces = zip(query.split(sizes, dim=2), key.split(sizes, dim=2), value.split(sizes, dim=2), strict=True)
    return torch.cat([sdpa_attention_forward(module, q, k, v, None, **kwargs)[0] for q, k, v in pieces], dim=1), None


def _run_lengths(positions: Tensor) -> list[int]:
    """Lengths of the runs of positions that rise by 1: [0 1 2 0 1] -> [3, 2]."""
    starts = (positions.diff() != 1).nonzero().squeeze(1).add(1).tolist()
    return [stop - start for start, stop in zip([0, *starts], [*starts, len(positions)], strict=True)]


def _segmented_mask(
    q_length: int,
    kv_length: int,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """None if `_segmented_sdpa` needs no mask. Padding, a cache or a sliding window need sdpa's, which also separates packs."""
    if attention_mask is None and local_size is None and q_length == kv_length:
        return None
    return sdpa_mask(q_length=q_length, kv_length=kv_length, attention_mask=attention_mask, local_size=local_size, **kwargs)


AttentionInterface.register(SEGMENTS, _segmented_sdpa)
AttentionMaskInterface.register(SEGMENTS, _segmented_mask)
