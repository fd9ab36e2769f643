"""What the groups of options check besides types: one sentence each."""

import re

from lark.errors import LarkError


def require(condition: bool, key: str, value: object, what: str) -> None:
    if not condition:
        raise LarkError(f"{key}={value}: {what}.")


def one_of(key: str, value: object, options: tuple[str, ...]) -> None:
    require(value in options, key, value, f"choose one of {', '.join(options)}")


def has_group(pattern: str) -> bool:
    try:
        return re.compile(pattern).groups >= 1
    except re.error:
        return False
