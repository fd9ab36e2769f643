"""Markdown and YAML from untrusted text. A teacher's name or a pool's path may contain anything."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from lark.printing import visible

LONGEST_VALUE = 200
"""Characters of a value in a table; longer ones are cut."""


def text(value: object) -> str:
    """A value as inline Markdown that renders as itself: no markup, link, HTML, table cell or line break."""
    printable = (character if character.isprintable() else " " for character in str(value))
    line = " ".join("".join(printable).split())
    if len(line) > LONGEST_VALUE:
        line = line[: LONGEST_VALUE - 1] + "…"
    # Every ASCII punctuation mark may be escaped, so none has to be looked up in the rules of a renderer.
    return re.sub(r"([!-+./:-@\[-`{-~])", r"\\\1", line)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header)]
    for row in rows:
        lines.append([text(cell) for cell in row])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def fenced(code: str, language: str = "") -> str:
    """A code block. Its fence is longer than any row of backticks in the code."""
    longest = max(map(len, re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{visible(code.rstrip())}\n{fence}"


def front_matter(values: Mapping[str, Any], to_fill_in: Mapping[str, str]) -> str:
    """The metadata block that hubs read. Fields to fill in are comments."""
    dumped = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=False, width=float("inf"))
    comments = "".join(f"# {key}: {hint}\n" for key, hint in to_fill_in.items())
    return f"---\n{comments}{dumped}---\n"


def metadata(card: str) -> dict[str, Any]:
    """The metadata of a card; empty if it has none or cannot be read."""
    match = re.match(r"\A---\s*\n(.*?)\n---\s*(?:\n|\Z)", card, re.DOTALL)
    try:
        values = yaml.safe_load(match[1]) if match else None
    except yaml.YAMLError:
        return {}
    return dict(values) if isinstance(values, dict) else {}


def with_licence(card: str, licence: str) -> str:
    """The card with a licence in its metadata; replaces the field to fill in."""
    line = yaml.safe_dump({"license": licence}, width=float("inf"))
    body = f"---\n---\n{card}"
    if card.startswith("---\n"):
        body = re.sub(r"(?m)^#? ?license:.*\n", "", card, count=1)
    return body.replace("---\n", f"---\n{line}", 1)
