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
            old = (self.keys, self.values)
            self.lazy_initialization(key_states, value_states)
            self.stores = (_room(key_states, end), _room(value_states, end))
            for store, part in zip(self.stores, old, strict=True):
                if used and part is not None:
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
    indices = [index for _, index in parts]
    for layers in zip(*(cache.layers for cache, _ in parts), strict=True):
        layer = GrowingLayer()
        keys = _joined([part.keys for part in layers], indices, columns)
        values = _joined([part.values for part in layers], indices, columns)
        layer.lazy_initialization(keys, values)
        layer.stores = (keys, values)
        layer.keys = keys[:, :, :columns]
        layer.values = values[:, :, :columns]
        joined.layers.append(layer)
    return joined


def _joined(parts: Sequence[Tensor], indices: Sequence[Tensor], columns: int) -> Tensor:
    """Rows `indices` of several tensors [b, h, n, d], with room for more tokens."""
    _, heads, _, size = parts[0].shape
    store = parts[0].new_empty(sum(map(len, indices)), heads, columns + SPARE, size)
    start = 0
    for states, index in zip(parts, indices, strict=True):
        length = states.shape[2]
        width = min(columns, length)
        block = store[start : start + len(index)]
        block[:, :, : columns - width] = 0
        block[:, :, columns - width : columns] = states[:, :, length - width :].index_select(0, index)
        start += len(index)
    return store


def right_aligned(mask: Tensor, columns: int) -> Tensor:
    """A mask [b, n], cut or padded on the left to `columns`."""
    width = mask.shape[1]
    if width >= columns:
        return mask[:, width - columns :]
    return torch.nn.functional.pad(mask, (columns - width, 0))
