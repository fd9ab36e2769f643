"""Read and check the rows of a training set (`train.jsonl`), and weights of their tokens. Imports no model
code: the user's own files are read before a run.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from lark.errors import LarkError
from lark.models.dialogue import Dialogue, check_messages
from lark.reading.rows import Row as Line
from lark.reading.rows import jsonl_rows
from lark.reading.untrusted import quoted, require_characters

TOKEN_WEIGHTS = "token_weights"
LARGEST_WEIGHT = 1e6
"""Of a token. A larger one would only make the loss overflow."""
Key = tuple[str, str]
"""question_id and candidate_id. Joined, the ids of two trajectories may be the same text."""
NEEDED = ("question_id", "candidate_id", "weight", "messages")


@dataclass(frozen=True)
class Row:
    """A trajectory with its weight."""

    question_id: str
    candidate_id: str
    weight: float
    """w = B_n q."""
    dialogue: Dialogue
    token_weights: tuple[float, ...] | None = None
    """One per response token; None: all are 1."""

    @property
    def key(self) -> Key:
        return self.question_id, self.candidate_id

    @property
    def name(self) -> str:
        return shown(self.key)


def shown(key: Key) -> str:
    """A trajectory's name in messages. Nothing may be looked up by it."""
    return "/".join(key)


def read_rows(path: Path) -> Iterator[Row]:
    """Rows in the file's order. Errors name the line."""
    seen: set[Key] = set()
    for record in jsonl_rows(path):
        row = _row(record)
        if row.key in seen:
            raise LarkError(
                f"{record.where}: duplicate trajectory {row.name}; merge its lines into one, with one weight."
            )
        seen.add(row.key)
        yield row
    if not seen:
        raise LarkError(f"{path} is empty: a training set needs at least one trajectory.")


def _row(record: Line) -> Row:
    values, where = record.values, record.where
    missing = [name for name in NEEDED if values.get(name) is None]
    if missing:
        raise LarkError(
            f"{where}: there is no `{missing[0]}`; a line of a training set has {', '.join(NEEDED)}."
        )
    for name in ("question_id", "candidate_id"):
        value = values[name]
        if (
            isinstance(value, bool | list | dict)
            or not str(value).strip()
            or (isinstance(value, float) and not isfinite(value))
        ):
            raise LarkError(f"{where}: `{name}` must be text or a number, not {quoted(value)}.")
    question_id, candidate_id = str(values["question_id"]), str(values["candidate_id"])
    weight = _weight(values["weight"], shown((question_id, candidate_id)), where)
    require_characters(values, where)
    tokens = None if values.get(TOKEN_WEIGHTS) is None else _token_weights(values[TOKEN_WEIGHTS], where)
    return Row(question_id, candidate_id, weight, _dialogue(values, where), tokens)


def read_token_weights(path: Path) -> dict[Key, tuple[float, ...]]:
    """The weights of tokens in a file, by question and candidate. Other fields of its lines are ignored."""
    found: dict[Key, tuple[float, ...]] = {}
    for record in jsonl_rows(path):
        missing = [
            name for name in ("question_id", "candidate_id", TOKEN_WEIGHTS) if record.values.get(name) is None
        ]
        if missing:
            raise LarkError(
                f"{record.where}: there is no `{missing[0]}`; a line has question_id, candidate_id and"
                f" {TOKEN_WEIGHTS}. Leave out trajectories whose tokens all count 1."
            )
        key = str(record.values["question_id"]), str(record.values["candidate_id"])
        if key in found:
            raise LarkError(f"{record.where}: duplicate trajectory {shown(key)}; merge its lines into one.")
        found[key] = _token_weights(record.values[TOKEN_WEIGHTS], record.where)
    if not found:
        raise LarkError(
            f"{path} is empty: give the weights of at least one trajectory, or leave out"
            " training.token_weights."
        )
    return found


def _token_weights(values: Any, where: str) -> tuple[float, ...]:
    if not isinstance(values, list):
        raise LarkError(f"{where}: `{TOKEN_WEIGHTS}` must be a list of numbers, not {values!r:.40}.")
    for position, value in enumerate(values):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= LARGEST_WEIGHT:  # false for NaN
            raise LarkError(
                f"{where}: `{TOKEN_WEIGHTS}` has {value!r:.40} at position {position}; weights are numbers"
                f" from 0 to {LARGEST_WEIGHT:g}."
            )
    return tuple(float(value) for value in values)


def _weight(value: Any, name: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise LarkError(f"{where}: the weight of {name} must be a number, not {value!r:.40}.")
    if not -sys.float_info.max <= value <= sys.float_info.max:  # false for NaN
        raise LarkError(f"{where}: the weight of {name} is {value!r:.40}; a weight must be finite.")
    if value < 0:
        raise LarkError(
            f"{where}: the weight of {name} is {value}; a weight is a share and must not be negative."
        )
    return float(value)


def _dialogue(values: Mapping[str, Any], where: str) -> Dialogue:
    """The conversation of a line: messages that end with an assistant turn, of which at least one carries
    loss.
    """
    messages, tools = values["messages"], values.get("tools")
    check_messages(messages, where)
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise LarkError(
            f"{where}: `tools` must be a list of objects, one description per tool, not {quoted(tools)}."
        )
    dialogue = Dialogue(messages, tools)
    roles = [message["role"] for message in messages]
    if "user" not in roles or roles[-1] != "assistant" or not dialogue.turns:
        raise LarkError(
            f"{where}: `messages` must have a user turn and end with an assistant turn that is trained on"
            f" (with a weight other than 0); it has {', '.join(roles) or 'no messages'}."
        )
    return dialogue
