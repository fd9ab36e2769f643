"""The KV cache of the hf engine: written in place, and joined from several batches in one copy.

transformers copies its cache as a whole for every token. On two cores this takes longer than a small
student's forward pass.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

SPARE = 32
"""Columns that are allocated in advance."""


class GrowingLayer(DynamicLayer):
    """Keys and values [b, h, n, d] of one layer: views of larger tensors with room for more tokens."""

    stores: tuple[Tensor, Tensor]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        used = self.get_seq_length()
        end = used + key_states.shape[-2]
        if not self.is_initialized or end > self.stores[0].shape[-2]:
            old = [part for part in (self.keys, self.values) if used and part is not None]
            self.lazy_initialization(key_states, value_states)
            self.stores = (_room(key_states, end), _room(value_states, end))
            for store, part in zip(self.stores, old, strict=False):
                store[:, :, :used] = part
        for store, states in zip(self.stores, (key_states, value_states), strict=True):
            store[:, :, used:end] = states
        self.keys, self.values = (store[:, :, :end] for store in self.stores)
        return self.keys, self.values


def _room(states: Tensor, columns: int) -> Tensor:
    rows, heads, _, size = states.shape
    return states.new_empty(rows, heads, columns + SPARE, size)


def new_cache() -> Cache:
    return Cache(layer_class_to_replicate=GrowingLayer)


def join(parts: Sequence[tuple[Cache, Tensor]], columns: int) -> Cache:
    """Join the chosen rows of several caches, aligned on the right and `columns` wide.

    Shorter rows are padded on the left. The attention mask hides the padding; it is zero, because a hidden
    NaN still spreads.
    """
    joined = new_cache()
    rows = sum(len(chosen) for _, chosen in parts)
    for depth in range(len(parts[0][0].layers)):
        layer = GrowingLayer()
        layers = [(cache.layers[depth], chosen) for cache, chosen in parts]
        stores: list[Tensor] = []
        for name in ("keys", "values"):
            like: Tensor = getattr(layers[0][0], name)
            store = like.new_empty(rows, like.shape[1], columns + SPARE, like.shape[3])
            start = 0
            for part, chosen in layers:
                states = getattr(part, name)
                width = min(columns, states.shape[2])
                block = store[start : start + len(chosen)]
                block[:, :, : columns - width] = 0
                block[:, :, columns - width : columns] = states[:, :, states.shape[2] - width :].index_select(
                    0, chosen
                )
                start += len(chosen)
            stores.append(store)
        layer.lazy_initialization(*stores)
        layer.stores = (stores[0], stores[1])
        layer.keys, layer.values = (store[:, :, :columns] for store in stores)
        joined.layers.append(layer)
    return joined


def right_aligned(mask: Tensor, columns: int) -> Tensor:
    """A mask [b, n], cut or padded on the left to `columns`."""
    width = mask.shape[1]
    return (
        mask[:, width - columns :]
        if width >= columns
        else torch.nn.functional.pad(mask, (columns - width, 0))
    )
