"""What is wrong with something that was read, as a sentence for the page."""

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
"""What reading a damaged, half-written or vanished file can raise. (JSON, YAML and Unicode errors are
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
    name = what or "/".join(path.parts[-3:])
    try:
        regular(path)
        yield
    except PageError:
        raise
    except FileNotFoundError as error:
        raise PageError(f"{name} does not exist (yet, or any more).") from error
    except json.JSONDecodeError as error:
        raise PageError(
            f"{name} is not complete or is damaged: line {error.lineno} is not JSON.", 503
        ) from error
    except READ_ERRORS as error:
        why = first_line(error) if str(error) else type(error).__name__
        raise PageError(f"{name} cannot be read: {why}", 503) from error
