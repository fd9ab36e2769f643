"""Tokenise many texts with all threads of the tokenizers library.

The library splits a batch of texts over RAYON_NUM_THREADS threads (set by launch.py). A fast tokenizer's
backend is called directly: `PreTrainedTokenizerBase.__call__` would convert every batch to Python lists of
ids, masks and types on one thread, which takes longer than tokenising and does not get faster with more
cores.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHARACTERS_AT_ONCE = 8_000_000
"""Characters in one batch, which bounds the memory of its results; one text may exceed it."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of one text."""

    ids: "array[int]"
    offsets: list[tuple[int, int]] | None = None
    """Start and end of each token in the text, if requested."""


def tokenise(
    tokenizer: "PreTrainedTokenizerBase", texts: Iterable[str], offsets: bool = False
) -> Iterator[Tokens]:
    """Yield the tokens of each text, in order, without the special tokens that the tokenizer would add.

    `offsets` needs a fast tokenizer.
    """
    encode = _by_backend if uses_backend(tokenizer) else _by_class
    for batch in _batches(texts):
        yield from encode(tokenizer, batch, offsets)


def joined(parts: Iterable[Sequence[int]]) -> "array[int]":
    """One sequence of the ids of several texts."""
    ids = array("i")
    for part in parts:
        ids.extend(part)
    return ids


def uses_backend(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether the tokenizer's class leaves encoding to the tokenizers library. A few classes change the
    text in Python first.
    """
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    for name in ("__call__", "_encode_plus", "_batch_encode_plus"):
        if getattr(type(tokenizer), name, None) is not getattr(PreTrainedTokenizerFast, name, None):
            return False
    return tokenizer.is_fast


def _by_backend(tokenizer: "PreTrainedTokenizerBase", texts: list[str], offsets: bool) -> Iterator[Tokens]:
    backend = tokenizer.backend_tokenizer
    # tokenizer.json may ask for truncation and padding; `PreTrainedTokenizerBase.__call__` turns them off
    # too.
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    encode = backend.encode_batch if offsets else backend.encode_batch_fast
    for encoding in encode(texts, add_special_tokens=False):
        yield Tokens(array("i", encoding.ids), encoding.offsets if offsets else None)


def _by_class(tokenizer: "PreTrainedTokenizerBase", texts: list[str], offsets: bool) -> Iterator[Tokens]:
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=offsets)
    spans = encoded["offset_mapping"] if offsets else [None] * len(texts)
    for ids, span in zip(encoded["input_ids"], spans, strict=True):
        yield Tokens(array("i", ids), span)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        if batch and characters + len(text) > CHARACTERS_AT_ONCE:
            yield batch
            batch = []
            characters = 0
        batch.append(text)
        characters += len(text)
    if batch:
        yield batch
