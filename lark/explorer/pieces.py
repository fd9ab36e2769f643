"""Tokens as texts, put together so that a character that is split between tokens is kept whole."""

import codecs
from collections.abc import Iterable


def running_text(pieces: Iterable[bytes]) -> list[str]:
    """Each token's part of the text. A character that is split between tokens belongs to the token that
    completes it; a token that only starts or continues one is shown by its bytes, as ‹E2 82›.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    texts = []
    for piece in pieces:
        text = decoder.decode(piece)
        texts.append(text if text or not piece else _hex(piece))
    return texts


def single(piece: bytes) -> str:
    """A token alone, such as an alternative that was not chosen."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return _hex(piece)


def _hex(piece: bytes) -> str:
    return f"‹{piece.hex(' ').upper()}›"
