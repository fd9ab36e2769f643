"""Tokenise text that other people wrote, so that none of it becomes a control token.

A question, a teacher's response or a benchmark problem may contain `<|im_end|>` or another string that the
tokenizer reads as a control token. Such a text could close its turn, open another one, or teach the student
to stop. `Literal.shield` marks every such string in a field before the template is rendered, and
`Literal.tokenise` cuts the rendered text at the marks: the two halves of `<|im_end|>` are then ordinary
text. Control tokens that the template itself writes have no mark.
"""

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from lark.errors import LarkError
from lark.models.tokenise import joined, tokenise

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARK = "\ufdd0"
"""A noncharacter: it is not valid in any text that is meant to be exchanged."""
THINKING_TAGS = ("<think>", "</think>")
"""Tokens of some tokenizers that do not end a turn. A response that contains them as text means the tokens.
"""
BARRED = re.compile(r"<[|｜].+[|｜]>", re.DOTALL)
"""Names of control tokens, such as the headers of tool calls. Not all tokenizers call them special."""
NAME_KEYS = frozenset({"role", "type"})
"""Keys of a message whose values are names that templates compare. Other values of them are text."""


class Literal:
    """A tokenizer, and the strings that it would read as control tokens."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", control_ids: Iterable[int] = ()) -> None:
        """`control_ids`: tokens to treat as control tokens in addition to those that are called special or
        look like `<|…|>`.
        """
        self.tokenizer = tokenizer
        special = set(tokenizer.all_special_ids) | set(control_ids)
        for id, token in tokenizer.added_tokens_decoder.items():
            if token.special or BARRED.fullmatch(token.content):
                special.add(id)
        self.control: dict[int, str] = {}
        """Control tokens by id. One character cannot be cut in two, so it is not shielded."""
        for id in special:
            name = str(tokenizer.convert_ids_to_tokens(id))
            if name not in THINKING_TAGS and len(name) > 1:
                self.control[id] = name
        # The longest first: a regular expression takes the first alternative that matches.
        names = sorted(set(self.control.values()), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names))) if names else None

    def shield(self, value: Any) -> Any:
        """A text, or all texts in a message, with a mark inside every string that would become a control
        token.
        """
        if isinstance(value, str):
            return self._shielded(value)
        if isinstance(value, Mapping):
            return dict(self._shielded_item(key, item) for key, item in value.items())
        if isinstance(value, Sequence):
            return [self.shield(item) for item in value]
        return value

    def _shielded_item(self, key: Any, value: Any) -> tuple[Any, Any]:
        """Keys too: those of a tool call's arguments are text that someone else wrote."""
        is_name = key in NAME_KEYS and isinstance(value, str) and value.isalpha()
        return self.shield(key), value if is_name else self.shield(value)

    def _shielded(self, text: str) -> str:
        text = text.replace(MARK, "\ufffd")
        pattern = self._pattern
        while pattern is not None and pattern.search(text):  # again: two control tokens may overlap
            text = pattern.sub(lambda match: match[0][0] + MARK + match[0][1:], text)
        return text

    def tokenise(self, text: str) -> list[int]:
        """Token ids of a rendered text. No token is added."""
        return list(self.tokenise_many([text])[0])

    def tokenise_many(self, texts: Sequence[str]) -> list["array[int]"]:
        """`tokenise` for many texts, which are tokenised together on all threads."""
        cut = [text.split(MARK) for text in texts]
        tokens = tokenise(self.tokenizer, chain.from_iterable(cut))
        encoded = []
        for pieces in cut:
            parts = islice(tokens, len(pieces))  # `tokens` is one stream of the pieces of all texts
            encoded.append(joined(part.ids for part in parts))
        return encoded

    def tokenise_field(self, text: str) -> list[int]:
        """Token ids of a text that someone else wrote."""
        ids = self.tokenise(self.shield(text))
        self.check(ids)
        return ids

    def check(self, ids: Sequence[int]) -> None:
        """Refuse ids of a field that contain a control token in spite of the marks (a tokenizer that
        normalises text).
        """
        control = set(ids) & self.control.keys()
        if control:
            names = ", ".join(sorted(self.control[id] for id in control))
            raise LarkError(
                f"The tokenizer of {self.tokenizer.name_or_path} turns ordinary text into the control token"
                f" {names}. Remove the trajectories that contain it: pool.special_tokens=drop."
            )

    def offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of a shielded text, and the start and end of each token in the text without marks."""
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        start = 0
        pieces = text.split(MARK)
        for piece, tokens in zip(pieces, tokenise(self.tokenizer, pieces, offsets=True), strict=True):
            ids += tokens.ids
            spans += [(start + first, start + last) for first, last in tokens.offsets or ()]
            start += len(piece)
        return ids, spans


def unshield(text: str) -> str:
    return text.replace(MARK, "")
