"""Parse JSON from untrusted sources. Whatever is wrong with it becomes a LarkError that names the place."""

import json
from pathlib import Path
from typing import Any

from lark.errors import LarkError

BOM = b"\xef\xbb\xbf"


class DuplicateKeyError(ValueError):
    """An object has the same key twice: JSON readers disagree on which value counts."""


def parse(data: str | bytes, where: str) -> Any:
    """The value of a JSON text. `where` is its location, for the error message."""
    try:
        text = data if isinstance(data, str) else data.removeprefix(BOM).decode("utf-8")
        return DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise LarkError(f"{where}: {problem(error)}.") from error


def parsed(data: str | bytes) -> Any:
    """The value of a JSON text, or None if it is not JSON."""
    try:
        return parse(data, "")
    except LarkError:
        return None


def parse_object(data: str | bytes, where: str) -> dict[str, Any]:
    """`parse`, for a text that must be an object."""
    values = parse(data, where)
    if not isinstance(values, dict):
        raise LarkError(f"{where}: a JSON object is expected, {{…}}, not {described(values)}.")
    return values


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises LarkError, also if the file cannot be read."""
    try:
        if not (path.is_file() or path.is_dir()) and path.exists():  # reading a named pipe would wait for a writer
            raise LarkError(f"{path}: is a pipe, a socket or a device, not a file. Move it away.")
        data = path.read_bytes()
    except OSError as error:
        raise LarkError(f"{path}: cannot be read ({error.strerror or error}).") from error
    return parse_object(data, str(path))


def readable_object(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None if the file is missing or damaged."""
    try:
        return read_object(path)
    except LarkError:
        return None


def problem(error: Exception) -> str:
    """What is wrong with a JSON text, as a phrase."""
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 (byte 0x{error.object[error.start]:02x} at position {error.start}); convert the file to UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"broken JSON ({error.msg.removesuffix(' at')} at column {error.colno})"
    if isinstance(error, RecursionError):
        return "the JSON is nested too deeply"
    if isinstance(error, DuplicateKeyError):
        return f"broken JSON ({error})"
    return "a number in the JSON has too many digits"


def require_characters(value: Any, where: str) -> None:
    """Refuse lone surrogates (halves of characters) in a parsed value: JSON can contain them, but no file or tokenizer can."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise LarkError(f"{where}: lone surrogate {half!r} (half a character). Write the whole character.") from error
    except RecursionError as error:
        raise LarkError(f"{where}: {problem(error)}.") from error


def described(value: Any) -> str:
    """A value of the wrong type, for messages."""
    kinds = {list: "a list", dict: "an object", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null" if value is None else type(value).__name__)


def quoted(value: Any, longest: int = 40) -> str:
    """A value for messages: text and numbers as they are, anything else by its type."""
    return f"{value!r:.{longest}}" if isinstance(value, str | int | float) else described(value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise DuplicateKeyError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} appears twice")
    return values


DECODER = json.JSONDecoder(object_pairs_hook=_unique)
"""Refuses duplicate keys. Raises ValueError or RecursionError."""
