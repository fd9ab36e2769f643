"""Parse JSON and YAML from untrusted sources. Any error in JSON becomes a LarkError that names the place."""

import json
from pathlib import Path
from typing import Any

import yaml

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
        data = regular(path).read_bytes()
    except OSError as error:
        is_file = not isinstance(error, NotAFileError)
        reason = f"cannot be read ({error.strerror or error})" if is_file else f"{error}. Move it away"
        raise LarkError(f"{path}: {reason}.") from error
    return parse_object(data, str(path))


class NotAFileError(OSError):
    """Something else is in the place of a file."""


def regular(path: Path) -> Path:
    """The path, if it can be read without waiting: a named pipe waits for a writer, and a device may never
    end. A file that is missing, or a folder, is left to the code that opens it.
    """
    if not (path.is_file() or path.is_dir()) and path.exists():
        raise NotAFileError("is a pipe, a socket or a device, not a file")
    return path


def readable_object(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None if the file is missing or damaged."""
    try:
        return read_object(path)
    except LarkError:
        return None


def problem(error: Exception) -> str:
    """The error in a JSON text, as a phrase."""
    if isinstance(error, UnicodeEncodeError):
        half = error.object[error.start]
        return f"lone surrogate {half!r} (half a character). Write the whole character"
    if isinstance(error, UnicodeDecodeError):
        return (
            f"not UTF-8 (byte 0x{error.object[error.start]:02x} at position {error.start}); convert the file"
            " to UTF-8"
        )
    if isinstance(error, json.JSONDecodeError):
        return f"broken JSON ({error.msg.removesuffix(' at')} at column {error.colno})"
    if isinstance(error, RecursionError):
        return "the JSON is nested too deeply"
    if isinstance(error, DuplicateKeyError):
        return f"broken JSON ({error})"
    return "a number in the JSON has too many digits"


def require_characters(value: Any, where: str) -> None:
    """Refuse lone surrogates (halves of characters) in a parsed value: JSON can contain them, but no file
    or tokenizer can.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise LarkError(f"{where}: {problem(error)}.") from error


KINDS = {
    list: "a list",
    dict: "an object",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def described(value: Any) -> str:
    """A value of the wrong type, for messages."""
    return KINDS.get(type(value), type(value).__name__)


def quoted(value: Any, longest: int = 40) -> str:
    """A value for messages: text and numbers as they are, anything else by its type."""
    return f"{value!r:.{longest}}" if isinstance(value, str | int | float) else described(value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise DuplicateKeyError(f"the key {repeated!r} appears twice")
    return values


DECODER = json.JSONDecoder(object_pairs_hook=_unique)
"""Refuses duplicate keys. Raises ValueError or RecursionError."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML without merge keys (`<<`), which repeat what they name while the file is being read. Nothing
    here writes them.
    """

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Leave the keys as they are, so that `<<` is reported as an unknown key."""


ALIASED = 100_000
"""Values and characters that the aliases of a YAML file can add. A few lines of aliases can stand for
billions of values.
"""


def read_yaml(path: Path) -> Any:
    """The content of a YAML file as a tree: the target of an alias is copied, and a part that contains
    itself is cut off there. Raises ValueError if it is not YAML or far larger than the file, and OSError if
    the file cannot be read.
    """
    text = regular(path).read_text(encoding="utf-8")
    try:
        return _Tree(ALIASED + len(text)).copy(yaml.load(text, Loader=_Loader))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError("it is not YAML") from error


class _Tree:
    """Copies values that may share parts, up to a number of values and characters."""

    def __init__(self, remaining: int) -> None:
        self.remaining = remaining
        """Values and characters that may still be copied."""
        self.open: set[int] = set()
        """The containers that are being copied."""

    def copy(self, value: Any) -> Any:
        self.remaining -= 1
        if isinstance(value, str | bytes):
            self.remaining -= len(value)
        if self.remaining < 0:
            raise ValueError("its aliases stand for too many values")
        if not isinstance(value, dict | list | tuple | set):
            return value
        if id(value) in self.open:
            return "…"
        self.open.add(id(value))
        copied: Any
        if isinstance(value, dict):
            copied = {self.copy(key): self.copy(item) for key, item in value.items()}
        else:
            copied = [self.copy(item) for item in value]
        self.open.remove(id(value))
        return copied
