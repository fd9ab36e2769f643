"""Checks of config values beyond their types. Each failure is reported in one sentence."""

import math
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from lark.errors import LarkError


def require(condition: bool, key: str, value: object, what: str) -> None:
    if not condition:
        raise LarkError(f"{key}={value}: {what}.")


def one_of(key: str, value: object, options: tuple[str, ...]) -> None:
    require(value in options, key, value, f"choose one of {', '.join(options)}")


LONGEST_NAME = 100


def plain_name(key: str, value: str) -> None:
    """Require a value that can be part of a folder's name."""
    plain = re.fullmatch(r"\w[\w.+-]*", value) is not None
    require(
        plain,
        key,
        value,
        "is used in folder names: use letters, digits, . + - and _, starting with a letter or digit",
    )
    require(
        len(value) <= LONGEST_NAME,
        key,
        f"{value[:20]}…",
        f"has {len(value)} characters; use at most {LONGEST_NAME}",
    )


LONGEST_SHOWN = 200
"""Characters of a path in a message."""


def text_name(key: str, value: str | None) -> None:
    """Require a value that fits on a line: a teacher's name, or a name for a tracker."""
    require(
        value is None or (value.isprintable() and value.strip() != ""),
        key,
        repr(value),
        "must be text on one line",
    )
    long = value is not None and len(value) > 2 * LONGEST_NAME
    require(
        not long,
        key,
        f"{(value or '')[:20]}…",
        f"has {len(value or '')} characters; use at most {2 * LONGEST_NAME}",
    )


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
    except RuntimeError as error:
        raise LarkError(f"{key}={value}: there is no such user ({error}).") from error
    except OSError as error:
        shown = value if len(value) <= LONGEST_SHOWN else f"{value[:LONGEST_SHOWN]}…"
        raise LarkError(
            f"{key}={shown}: not a path that can be read ({error.strerror}). Set the right path."
        ) from error
    return path


def seed(key: str, value: int) -> None:
    """Require a number that every random generator accepts."""
    require(0 <= value < 2**32, key, value, "must be from 0 to 2^32 - 1")


def check_values(owner: Any, prefix: str = "") -> None:
    """Refuse, in all settings: numbers that mean nothing or that no counter holds, and text that no file or
    path can contain.
    """
    values = vars(owner) if is_dataclass(owner) else owner
    items = values.items() if isinstance(values, Mapping) else ((None, item) for item in values)
    for name, value in items:
        key = prefix if name is None else f"{prefix}.{name}" if prefix else str(name)
        if is_dataclass(value) or isinstance(value, Mapping | list | tuple):
            check_values(value, key)
        elif isinstance(value, float):
            require(math.isfinite(value), key, value, "must be a finite number")
        elif isinstance(value, int):
            require(abs(value) < 2**63, key, f"{str(value)[:20]}…", "is too large")
        elif isinstance(value, str):
            broken = "\0" in value or any("\ud800" <= c <= "\udfff" for c in value)
            require(not broken, key, repr(value[:60]), "contains bytes that are not text")
            if value.startswith("~"):
                user_path(key, value)


def not_negative(group: str, owner: object, *keys: str) -> None:
    for key in keys:
        require(getattr(owner, key) >= 0, f"{group}.{key}", getattr(owner, key), "must not be negative")


def sampling_temperature(key: str, value: float) -> None:
    """Require a temperature that all engines apply as it is: vLLM raises those below 0.01, and quotients
    must not overflow.
    """
    require(value == 0 or 0.01 <= value <= 1000, key, value, "must be 0 (greedy), or from 0.01 to 1000")


def has_group(pattern: str) -> bool:
    try:
        return re.compile(pattern).groups >= 1
    except (re.error, RecursionError, OverflowError):
        return False
