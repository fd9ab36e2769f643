"""The bytes of every token of a vocabulary in running text.

Joined and decoded as UTF-8, the bytes of a text's tokens give the text, including characters that are split
over several tokens. `tokenizer.decode([id])` cannot do this: it gives a replacement character for a part of
a character, and some tokenizers drop the space before a first word.
"""

import re

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""A token of sentencepiece for a single byte."""
BYTE_LEVEL = {character: byte for byte, character in bytes_to_unicode().items()}
"""The byte that each character of a byte-level token means."""
ANCHOR = "a"
"""A token before the one that is decoded, because decoders treat the first token of a text differently."""


def vocabulary_pieces(tokenizer: PreTrainedTokenizerBase) -> tuple[list[bytes], list[bool]]:
    """The bytes of each id, and whether it is a control token. Empty bytes for an id without a token."""
    added = {id: token.content for id, token in tokenizer.added_tokens_decoder.items()}
    names = {id: name for name, id in tokenizer.get_vocab().items()} | added
    pieces = [b""] * (max(names, default=-1) + 1)
    decoder = repr(tokenizer.backend_tokenizer.decoder) if tokenizer.is_fast else ""
    for id, name in names.items():
        pieces[id] = name.encode() if id in added else _piece(tokenizer, name, decoder)
    control = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    control |= set(tokenizer.all_special_ids)
    return pieces, [id in control for id in range(len(pieces))]


def _piece(tokenizer: PreTrainedTokenizerBase, name: str, decoder: str) -> bytes:
    """The bytes of a token of the vocabulary. `decoder`: the description of the tokenizer's decoder."""
    if "ByteLevel" in decoder and BYTE_LEVEL.keys() >= set(name):
        return bytes(BYTE_LEVEL[character] for character in name)
    match = BYTE.fullmatch(name)
    if "ByteFallback" in decoder and match is not None:
        return bytes([int(match[1], 16)])
    return _decoded(tokenizer, name).encode()


def _decoded(tokenizer: PreTrainedTokenizerBase, name: str) -> str:
    """A token's text after another token."""
    decoder = tokenizer.backend_tokenizer.decoder if tokenizer.is_fast else None
    join = tokenizer.convert_tokens_to_string if decoder is None else decoder.decode
    return str(join([ANCHOR, name])).removeprefix(ANCHOR)
