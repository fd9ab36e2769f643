"""Checks of config values beyond their types. Each failure is reported in one sentence."""

import math
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from lark.errors import LarkError


def require(condition: bool, key: str, value: object, what: str) -> None:
    if not condition:
        raise LarkError(f"{key}={value}: {what}.")


def one_of(key: str, value: object, options: tuple[str, ...]) -> None:
    require(value in options, key, value, f"choose one of {', '.join(options)}")


class Section:
    """The checks of one section of the settings, such as `training`."""

    def __init__(self, name: str, owner: object) -> None:
        self.name = name
        self.owner = owner

    def require(self, key: str, condition: bool, what: str) -> None:
        require(condition, f"{self.name}.{key}", getattr(self.owner, key), what)

    def one_of(self, key: str, options: tuple[str, ...]) -> None:
        one_of(f"{self.name}.{key}", getattr(self.owner, key), options)

    def at_least(self, least: int, *keys: str) -> None:
        for key in keys:
            self.require(key, getattr(self.owner, key) >= least, f"must be at least {least}")

    def not_negative(self, *keys: str) -> None:
        for key in keys:
            self.require(key, getattr(self.owner, key) >= 0, "must not be negative")

    def seed(self, key: str) -> None:
        seed(f"{self.name}.{key}", getattr(self.owner, key))

    def plain_name(self, key: str = "name") -> None:
        plain_name(f"{self.name}.{key}", getattr(self.owner, key))


LONGEST_NAME = 100


def plain_name(key: str, value: str) -> None:
    """Require a value that can be part of a folder's name."""
    plain = re.fullmatch(r"\w[\w.+-]*", value) is not None
    rule = "is used in folder names: use letters, digits, . + - and _, starting with a letter or digit"
    require(plain, key, value, rule)
    _short(key, value, LONGEST_NAME)


def text_name(key: str, value: str | None) -> None:
    """Require a value that fits on a line: a teacher's name, or a name for a tracker."""
    if value is None:
        return
    is_line = value.isprintable() and value.strip() != ""
    require(is_line, key, repr(value), "must be text on one line")
    _short(key, value, 2 * LONGEST_NAME)


def _short(key: str, value: str, limit: int) -> None:
    rule = f"has {len(value)} characters; use at most {limit}"
    require(len(value) <= limit, key, f"{value[:20]}…", rule)


LONGEST_SHOWN = 200
"""Characters of a path in a message."""


def cluster_address(key: str, value: str) -> None:
    """Require host:port of a Ray cluster."""
    host, _, port = value.rpartition(":")
    require(
        "://" not in value,
        key,
        value,
        "give host:port of the cluster's head, for example node0:6379, and run this on a node of the cluster;"
        " clients outside of it (ray://) and the dashboard (http://) are not supported",
    )
    valid = bool(host) and re.fullmatch(r"[0-9]{1,5}", port) is not None and 0 < int(port) < 65536
    require(valid, key, value, "must be host:port of the Ray cluster, with a port from 1 to 65535")


def user_path(key: str, value: str) -> Path:
    """A path as users type it: `~` is their home. It need not exist, but must be one that the file system
    can be asked for.
    """
    try:
        path = Path(value).expanduser()
        path.exists()
    except (OSError, RuntimeError) as error:
        raise _unreadable(key, value, error) from error
    return path


def _unreadable(key: str, value: str, error: OSError | RuntimeError) -> LarkError:
    if not isinstance(error, OSError):
        return LarkError(f"{key}={value}: there is no such user ({error}).")
    shown = value if len(value) <= LONGEST_SHOWN else f"{value[:LONGEST_SHOWN]}…"
    return LarkError(f"{key}={shown}: not a path that can be read ({error.strerror}). Set the right path.")


def seed(key: str, value: int) -> None:
    """Require a number that every random generator accepts."""
    require(0 <= value < 2**32, key, value, "must be from 0 to 2^32 - 1")


def check_values(owner: Any, prefix: str = "") -> None:
    """Refuse, in all settings: numbers that are not finite or that no counter holds, text that no file can
    contain, and the home of an unknown user.
    """
    values = vars(owner) if is_dataclass(owner) else owner
    # The items of a list have its key.
    items = values.items() if isinstance(values, Mapping) else zip(repeat(""), values)
    for name, value in items:
        key = ".".join(str(part) for part in (prefix, name) if part)
        if is_dataclass(value) or isinstance(value, Mapping | list | tuple):
            check_values(value, key)
        else:
            _check_value(key, value)


def _check_value(key: str, value: object) -> None:
    if isinstance(value, float):
        require(math.isfinite(value), key, value, "must be a finite number")
    elif isinstance(value, int):
        require(abs(value) < 2**63, key, f"{str(value)[:20]}…", "is too large")
    elif isinstance(value, str):
        # Bytes of the command line that are not UTF-8 arrive as surrogates.
        is_text = not any("\ud800" <= character <= "\udfff" for character in value)
        require(is_text, key, repr(value[:60]), "contains bytes that are not text")
        if value.startswith("~"):
            user_path(key, value)


def sampling_temperature(key: str, value: float) -> None:
    """Require a temperature that all engines apply as it is: vLLM raises those below 0.01, and quotients
    must not overflow.
    """
    require(value == 0 or 0.01 <= value <= 1000, key, value, "must be 0 (greedy), or from 0.01 to 1000")
