"""Recompute activations in the backward pass, where gradients of a whole trajectory would not fit into
memory otherwise.
"""

from typing import TYPE_CHECKING

from transformers.modeling_layers import GradientCheckpointingLayer

from lark.errors import LarkError
from lark.models.load import text_part

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def recompute_activations(model: "PreTrainedModel") -> None:
    """Enable gradient checkpointing. It works only in training mode, where dropout would make the loss
    random.
    """
    _refuse_dropout(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    # Its hook on the embedding is for reentrant checkpoints, and stops forward mode.
    model.disable_input_require_grads()
    model.train()


def keep_activations(model: "PreTrainedModel", count: int) -> None:
    """Keep the activations of the last `count` layers, in a model whose layers recompute them."""
    text = text_part(model).modules()
    layers = [module for module in text if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers[len(layers) - count :]:
        layer.gradient_checkpointing = False


def _refuse_dropout(model: "PreTrainedModel") -> None:
    for key, value in model.config.to_dict().items():
        if "drop" in key and isinstance(value, float) and value > 0:
            raise LarkError(
                f"Exact gradients of a student with {key} > 0 would be random:"
                " set it to 0 in its config.json."
            )
