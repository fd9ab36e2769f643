"""Weights of assistant turns, under the names that trainers give them: ms-swift's `loss_scale` and `loss`,
LLaMA-Factory's `loss_weight`, OpenAI's `weight`, axolotl's `train` and Tinker's `trainable`.
"""

from collections.abc import Mapping
from typing import Any

from lark.models.dialogue import LARGEST_WEIGHT
from lark.pool.checks import check_same
from lark.reading.fields import Fields, is_blank

NUMBERS = ("weight", "loss_scale", "loss_weight")
SWITCHES = ("loss", "train", "trainable")
WEIGHT_KEYS = frozenset((*NUMBERS, *SWITCHES))


def turn_weight(message: Mapping[str, Any], where: str) -> float:
    """The weight of an assistant turn's tokens: 0 masks the turn, 1 is a turn without such a key."""
    fields = Fields(message, where)
    if any(fields.truth(name) is False for name in SWITCHES):
        return 0.0
    weights = {name: _number(fields, name) for name in NUMBERS if not is_blank(message.get(name))}
    check_same([*weights.values()], "weights", " and ".join(weights), where)
    return next(iter(weights.values()), 1.0)


def _number(fields: Fields, name: str) -> float:
    if isinstance(fields.get(name), bool):  # a mask
        return float(fields.get(name))
    return fields.number(name, LARGEST_WEIGHT, "It is the weight of this message's tokens in training.")


def masks_nothing(key: str, value: Any) -> bool:
    """Whether a key says of a turn of another role what is true of it anyway: it is not trained on."""
    return key in WEIGHT_KEYS and not value
