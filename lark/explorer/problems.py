"""Errors of reading the store, as sentences for a page."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from lark.errors import LarkError, first_line
from lark.reading.untrusted import regular

READ_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    RecursionError,
    pa.ArrowException,
)
"""Errors of reading a damaged, half-written or vanished file. (JSON, YAML and Unicode errors are
ValueErrors, or below.)
"""


class PageError(LarkError):
    """A page, or a part of it, cannot be shown. `status` is the HTTP status."""

    def __init__(self, sentence: str, status: int = 404) -> None:
        super().__init__(sentence)
        self.status = status


@contextlib.contextmanager
def reading(path: Path, what: str | None = None) -> Iterator[None]:
    """Turn any error of reading a file of the store into a sentence that names the file (without the path
    to the store).
    """
    try:
        regular(path)
        yield
    except READ_ERRORS as error:
        raise _problem(error, what or "/".join(path.parts[-3:])) from error


def _problem(error: BaseException, name: str) -> PageError:
    if isinstance(error, FileNotFoundError):
        return PageError(f"{name} does not exist (yet, or any more).")
    if isinstance(error, json.JSONDecodeError):
        return PageError(f"{name} is not complete or is damaged: line {error.lineno} is not JSON.", 503)
    return PageError(f"{name} cannot be read: {first_line(error)}", 503)


def check_number(number: int, count: int, owner: str) -> None:
    """Refuse a number that the owner ("This pool has 6 questions") does not have."""
    if not 0 <= number < count:
        raise PageError(f"{owner}; there is no number {number}.")
