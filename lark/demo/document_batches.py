"""Documents of the pretraining corpus as padded batches of token ids."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from lark.demo.corpus import Document
from lark.demo.problems import seeded
from lark.demo.tokenizer import CONTEXT
from lark.models.chat import ChatFormat

IGNORED = -100


@dataclass(frozen=True)
class PaddedDocuments:
    """Right-padded documents. `labels` are the inputs shifted by one, `IGNORED` where nothing is learned."""

    inputs: Tensor
    labels: Tensor


def batches(
    source: Iterator[Document], chat: ChatFormat, tokens: int, seed: int
) -> Iterator[PaddedDocuments]:
    """Endless batches of about `tokens` slots. Documents of similar length are batched together, and none
    sees another.
    """
    rng = seeded("batches", seed)
    while True:
        # Sorting a chunk is enough for little padding, and the stream has no end.
        encoded = sorted(encode(list(islice(source, 4096)), chat), key=lambda pair: len(pair[0]))
        groups = []
        start = 0
        for end in range(1, len(encoded) + 1):
            if end == len(encoded) or (end - start + 1) * len(encoded[end][0]) > tokens:
                groups.append(encoded[start:end])
                start = end
        # The last group is cut short by the end of the chunk and would make a batch of a few documents.
        groups = groups[:-1] or groups
        rng.shuffle(groups)
        for group in groups:
            yield padded(group, chat.tokenizer.pad_token_id)


def encode(chunk: list[Document], chat: ChatFormat) -> list[tuple[list[int], list[int]]]:
    """Ids and labels of each document, its pieces tokenised separately and joined (as `lark.models.chat`
    does).
    """
    texts = [text for document in chunk for text, _ in document.pieces]
    pieces = iter(chat.tokenizer(texts, add_special_tokens=False)["input_ids"])
    encoded = []
    for document in chunk:
        ids: list[int] = []
        labels: list[int] = []
        for _, learned in document.pieces:
            piece = next(pieces)
            ids += piece
            labels += piece if learned else [IGNORED] * len(piece)
        encoded.append((ids[:CONTEXT], labels[:CONTEXT]))
    return encoded


def padded(group: list[tuple[list[int], list[int]]], pad: int) -> PaddedDocuments:
    length = max(len(ids) for ids, _ in group)
    inputs = torch.tensor([ids + [pad] * (length - len(ids)) for ids, _ in group])
    labels = torch.tensor([labels + [IGNORED] * (length - len(labels)) for _, labels in group])
    return PaddedDocuments(inputs[:, :-1].contiguous(), labels[:, 1:].contiguous())
