"""Sequence parallelism (`hardware.sequence_parallel`): several processes share each micro-batch, every one
with a part of its positions. It is for contexts whose activations exceed one GPU.

Everything but attention treats positions separately, so a process runs the model on its own part. Attention
is DeepSpeed's Ulysses: the processes exchange queries, keys and values such that each has all positions of
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

from lark.errors import LarkError, first_line
from lark.models.attention import half_only
from lark.models.varlen import Segments
from lark.training.packing import MicroBatch

MASKED = (
    "hardware.sequence_parallel={parts}: the attention of {model} with {attention} needs a mask, which"
    " sequence parallelism does not support. Set hardware.sequence_parallel=1."
)


class SequenceParallel:
    """This process's part in sharing micro-batches with `parts` - 1 other processes of consecutive ranks."""

    def __init__(self, parts: int) -> None:
        """All processes must call this together, after they are connected."""
        rank, world = distributed.get_rank(), distributed.get_world_size()
        self.parts, self.part = parts, rank % parts
        groups = [distributed.new_group(range(first, first + parts)) for first in range(0, world, parts)]
        self.group = groups[rank // parts]

    def own(self, micro: MicroBatch) -> MicroBatch:
        """This process's positions of a micro-batch, whose width is a multiple of `parts`. Trajectories
        keep their numbers.
        """
        names = ("input_ids", "position_ids", "segment", "targets", "token_weights")
        found = {name: getattr(micro, name) for name in names}
        own = {
            name: value.chunk(self.parts, dim=1)[self.part]
            for name, value in found.items()
            if value is not None
        }
        return replace(micro, **own)

    def attach(self, model: PreTrainedModel) -> None:
        """Exchange heads for positions in the attention of this model. Other models in this process are not
        affected.
        """
        # The name of the implementation stays: transformers compares it, for example to find flash
        # attention's kernels.
        name = model.config._attn_implementation
        core, members = ALL_ATTENTION_FUNCTIONS[name], WeakSet(model.modules())
        layers: dict[int, nn.Module] = {}

        def attention(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **more: Any
        ) -> tuple[Tensor, Tensor | None]:
            if module not in members:
                return core(module, query, key, value, mask, **more)
            if mask is not None:  # it would have been made from this process's positions alone
                raise LarkError(MASKED.format(parts=self.parts, model=type(model).__name__, attention=name))
            if len(query) not in layers:
                layers[len(query)] = self._layer(model, core, len(query))
            exchanged: tuple[Tensor, Tensor | None] = layers[len(query)](
                module, query, key, value, None, **more
            )
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
        """Attach, and raise unless the model's hidden states are those of the whole sequence in one
        process.
        """
        backbone, half = model.base_model, half_only(model)
        vocabulary = int(model.config.get_text_config().vocab_size)
        ids = torch.randint(vocabulary, (1, 12 * self.parts), generator=torch.Generator().manual_seed(0)).to(
            model.device
        )
        first = 7 if packed else ids.shape[1]
        positions = (
            torch.cat([torch.arange(first), torch.arange(ids.shape[1] - first)]).unsqueeze(0).to(model.device)
        )
        segments = (
            Segments.of([first, ids.shape[1] - first]).to(model.device).arguments(backbone) if packed else {}
        )

        def hidden(part: slice) -> Tensor:
            with torch.autocast(model.device.type, torch.bfloat16, enabled=half):
                output = backbone(
                    input_ids=ids[:, part], position_ids=positions[:, part], use_cache=False, **segments
                )
            states: Tensor = output.last_hidden_state
            return states.float()

        own = slice(12 * self.part, 12 * (self.part + 1))
        training = model.training
        model.eval()
        whole = hidden(slice(None))[:, own]
        self.attach(model)
        try:
            error = float((hidden(own) - whole).abs().max() / whole.abs().max().clamp(min=1.0))
        except (RuntimeError, TypeError, ValueError, AssertionError) as failure:
            raise LarkError(
                f"hardware.sequence_parallel={self.parts} does not work with {type(model).__name__} and"
                f" {model.config._attn_implementation} attention ({first_line(failure)}). Set"
                " hardware.sequence_parallel=1."
            ) from failure
        model.train(training)
        if error > (5e-2 if half or model.dtype == torch.bfloat16 else 1e-4):
            raise LarkError(
                f"hardware.sequence_parallel={self.parts} changes the hidden states of {type(model).__name__}"
                f" with {model.config._attn_implementation} attention by {error:.1e}. Set"
                " hardware.sequence_parallel=1."
            )
