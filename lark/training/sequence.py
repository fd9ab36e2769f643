"""Sequence parallelism (`hardware.sequence_parallel`): several processes share each micro-batch, every one
with a part of its positions. For contexts whose activations exceed one GPU.

Everything but attention treats positions separately, so a process runs the model on its own part. Attention
is DeepSpeed's Ulysses: the processes exchange queries, keys and values so that each has all positions of
some heads, apply the model's own attention to them, and exchange the results back. The loss of a process
covers its own positions and is normalised by the whole global batch as always (`weighted_loss`). Gradients
are summed over all processes, so nothing else changes: neither DDP and ZeRO, which need not know about it,
nor checkpoints.
"""

import importlib
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, distributed, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lark.errors import first_line
from lark.models.attention import half_only
from lark.models.varlen import Segments
from lark.training.checks import refuse_mask, refuse_other_states, refuse_sharing
from lark.training.packing import MicroBatch

SHARED = ("input_ids", "position_ids", "segment", "targets", "token_weights")
"""Tensors of a micro-batch with one entry per position."""
TRIED_POSITIONS = 12
"""Positions per process in the check of a model (`attach_checked`)."""


class SequenceParallel:
    """This process's part in sharing micro-batches with `parts` - 1 other processes of consecutive ranks."""

    def __init__(self, parts: int) -> None:
        """All processes must call this together, after they are connected."""
        rank = distributed.get_rank()
        firsts = range(0, distributed.get_world_size(), parts)
        groups = [distributed.new_group(range(first, first + parts)) for first in firsts]
        self.parts = parts
        self.part = rank % parts
        self.group = groups[rank // parts]

    def share(self, micro: MicroBatch) -> MicroBatch:
        """This process's positions of a micro-batch, whose width is a multiple of `parts`. Trajectories
        keep their numbers.
        """
        positions: dict[str, Any] = {}
        for name in SHARED:
            value = getattr(micro, name)
            if value is not None:
                positions[name] = value.chunk(self.parts, dim=1)[self.part]
        return replace(micro, **positions)

    def attach(self, model: PreTrainedModel) -> None:
        """Exchange heads for positions in the attention of this model, and of no other in this process."""
        # The name of the implementation stays: transformers compares it, for example to find flash
        # attention's kernels.
        name = model.config._attn_implementation
        core = ALL_ATTENTION_FUNCTIONS[name]
        members = WeakSet(model.modules())
        layers: dict[int, nn.Module] = {}

        def attention(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **more: Any
        ) -> tuple[Tensor, Tensor | None]:
            if module not in members:
                return core(module, query, key, value, mask, **more)
            if mask is not None:
                refuse_mask(self.parts, type(model).__name__, name)
            rows = len(query)
            if rows not in layers:
                layers[rows] = self._layer(model, core, rows)
            exchanged: tuple[Tensor, Tensor | None] = layers[rows](module, query, key, value, None, **more)
            return exchanged

        ALL_ATTENTION_FUNCTIONS[name] = attention

    def _layer(self, model: PreTrainedModel, core: Any, rows: int) -> nn.Module:
        """DeepSpeed's attention for micro-batches of this many rows. It has no weights."""
        ulysses = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp")
        shape = model.config.get_text_config()
        size = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
        layer: nn.Module = ulysses.UlyssesSPAttentionHF(
            core,
            rows,
            shape.num_attention_heads,
            size,
            shape.num_key_value_heads,
            shape.num_hidden_layers,
            self.group,
            seq_length_is_variable=True,
        )
        return layer

    @torch.no_grad()
    def attach_checked(self, model: PreTrainedModel, packed: bool) -> None:
        """Attach; refuse a model whose hidden states differ from those of a process with all positions."""
        backbone = model.base_model
        half = half_only(model)
        width = TRIED_POSITIONS * self.parts
        vocabulary = int(model.config.get_text_config().vocab_size)
        ids = torch.randint(vocabulary, (1, width), generator=torch.Generator().manual_seed(0)).to(
            model.device
        )
        # Two trajectories, of which the first ends inside the positions of the first process.
        lengths = [7, width - 7] if packed else [width]
        positions = torch.cat([torch.arange(length) for length in lengths]).unsqueeze(0).to(model.device)
        segments = Segments.of(lengths).to(model.device).arguments(backbone) if packed else {}

        def hidden(part: slice) -> Tensor:
            with torch.autocast(model.device.type, torch.bfloat16, enabled=half):
                output = backbone(
                    input_ids=ids[:, part], position_ids=positions[:, part], use_cache=False, **segments
                )
            states: Tensor = output.last_hidden_state
            return states.float()

        share = slice(TRIED_POSITIONS * self.part, TRIED_POSITIONS * (self.part + 1))
        training = model.training
        model.eval()
        expected = hidden(slice(None))[:, share]
        self.attach(model)
        name = type(model).__name__
        implementation = model.config._attn_implementation
        try:
            error = float((hidden(share) - expected).abs().max() / expected.abs().max().clamp(min=1.0))
        except (RuntimeError, TypeError, ValueError, AssertionError) as failure:
            refuse_sharing(self.parts, name, implementation, first_line(failure))
        model.train(training)
        if error > (5e-2 if half or model.dtype == torch.bfloat16 else 1e-4):
            refuse_other_states(self.parts, name, implementation, error)
