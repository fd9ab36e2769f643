"""Checks of config values beyond their types. Each failure is reported in one sentence."""

import re

from lark.errors import LarkError


def require(condition: bool, key: str, value: object, what: str) -> None:
    if not condition:
        raise LarkError(f"{key}={value}: {what}.")


def one_of(key: str, value: object, options: tuple[str, ...]) -> None:
    require(value in options, key, value, f"choose one of {', '.join(options)}")


def plain_name(key: str, value: str) -> None:
    """Require a value that can be part of a folder's name."""
    plain = re.fullmatch(r"\w[\w.+-]*", value) is not None
    require(plain, key, value, "is used in folder names: use letters, digits, . + - and _, starting with a letter or digit")


def not_negative(group: str, owner: object, *keys: str) -> None:
    for key in keys:
        require(getattr(owner, key) >= 0, f"{group}.{key}", getattr(owner, key), "must not be negative")


def has_group(pattern: str) -> bool:
    try:
        return re.compile(pattern).groups >= 1
    except re.error:
        return False
