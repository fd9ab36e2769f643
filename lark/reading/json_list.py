"""The items of a JSON list, one at a time: such files are too large to load as a whole."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from lark.errors import LarkError
from lark.reading.compressed import opened
from lark.reading.untrusted import DECODER, problem

SPACE = " \t\r\n"
"""White space in JSON."""
SPACES = re.compile(f"[{SPACE}]*")
LONGEST_ITEM = 1 << 28
"""Characters of the longest item. A longer one would fill the memory."""


def json_array(path: Path, chunk: int = 1 << 20) -> Iterator[Any]:
    """Yield the items of a JSON list. `chunk`: characters that are read at a time."""
    try:
        with opened(path) as binary, io.TextIOWrapper(binary, encoding="utf-8-sig") as handle:
            yield from _List(path, handle, chunk).items()
    except UnicodeDecodeError as error:
        raise LarkError(f"{path}: {problem(error)}.") from error


class _List:
    """A list that is decoded item by item from the part of its text that is in memory."""

    def __init__(self, path: Path, handle: TextIO, chunk: int) -> None:
        self.path = path
        self.handle = handle
        self.chunk = chunk
        self.text = handle.read(chunk)
        self.at = 0
        """Where the next item, or the comma before it, starts in the text."""
        self.count = 0
        """Items so far."""

    def items(self) -> Iterator[Any]:
        self._skip_space()
        if not self.text.startswith("[", self.at):
            raise LarkError(f"{self.path}: a JSON list is expected, one item per question.")
        self.at += 1
        while not self._is_at_end():
            yield self._item()
        self._require_end()

    def _is_at_end(self) -> bool:
        self._skip_space()
        while self.at == len(self.text) and self._read_more():
            self._skip_space()
        return self.text.startswith("]", self.at)

    def _item(self) -> Any:
        """The next item. If it is not complete, more of the file is read and it is decoded again."""
        while True:
            try:
                item, self.at = DECODER.raw_decode(self.text, self._start())
            except (ValueError, RecursionError) as error:
                # Broken syntax may be an item that continues in the next chunk; other errors stay errors.
                if isinstance(error, json.JSONDecodeError) and self._read_more():
                    continue
                raise self._refused(error) from error
            self.count += 1
            return item

    def _refused(self, error: Exception) -> LarkError:
        # Without the column: the text is a chunk, in which it means nothing.
        reason = problem(error)
        if isinstance(error, json.JSONDecodeError):
            reason = f"broken JSON ({error.msg})"
        return LarkError(f"{self.path}, item {self.count + 1}: {reason}.")

    def _start(self) -> int:
        """The start of the next item: after a comma, unless it is the first."""
        if self.count == 0:
            return self.at
        if not self.text.startswith(",", self.at):
            raise json.JSONDecodeError("Expecting ',' or ']'", self.text, self.at)
        return _after_space(self.text, self.at + 1)

    def _read_more(self) -> bool:
        """Append to the text, without what is decoded; False at the end of the file."""
        rest = self.text[self.at :]
        if len(rest) >= LONGEST_ITEM:
            return False
        # At least as much as there is, so that an item of any length is decoded a few times only.
        more = self.handle.read(max(self.chunk, len(rest)))
        if not more:
            return False
        self.text = rest + more
        self.at = 0
        return True

    def _skip_space(self) -> None:
        self.at = _after_space(self.text, self.at)

    def _require_end(self) -> None:
        """Refuse anything after the list: a second list, as in concatenated files, would be lost."""
        rest = self.text[self.at + 1 :]
        while not rest.strip(SPACE):
            rest = self.handle.read(self.chunk)
            if not rest:
                return
        raise LarkError(
            f"{self.path}: unexpected {rest.lstrip(SPACE)[:20]!r} after the list of {self.count} items. Put"
            " all items into one list."
        )


def _after_space(text: str, at: int) -> int:
    match = SPACES.match(text, at)
    return match.end() if match else at
