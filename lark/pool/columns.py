"""A row of a pool under our names for its columns."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from lark.errors import LarkError
from lark.pool.messages import REASONING
from lark.reading.rows import Row
from lark.reading.untrusted import described, quoted

NAMES = {
    "question_id": ("question_id", "problem_id"),
    "candidate_id": ("candidate_id",),
    "teacher": ("teacher",),
    "rollout": ("rollout",),
    "system": ("system",),
    "question": ("question", "problem"),
    "response": ("response", "completion"),
    "thinking": REASONING,
    "answer": ("answer",),
    "correct": ("correct",),
    "messages": ("messages",),
    "conversations": ("conversations",),
    "tools": ("tools",),
    "prompt": ("prompt",),
    "completion": ("completion",),
    "generations": ("generations",),
    "verdicts": ("correctness_math_verify",),
    "more_verdicts": ("correctness_llama",),
    "complete": ("is_reasoning_complete",),
    "finish_reasons": ("finish_reasons",),
}
"""Our columns and their accepted names, unless `pool.fields` sets another."""
LAYOUT_NAMES = {
    "row_id": ("question_id", ("question_id", "problem_id", "uuid", "id")),
    "pair_question": ("question", ("question", "problem", "prompt", "input", "query", "instruction")),
    "pair_response": (
        "response",
        ("response", "completion", "output", "generated_solution", "llm_response", "attempt"),
    ),
    "pair_thinking": ("thinking", (*REASONING, "thinking_trajectories")),
    "pair_system": ("system", ("system", "system_prompt")),
    "pair_teacher": ("teacher", ("teacher", "generation_model", "generator")),
    "pair_answer": ("answer", ("answer", "expected_answer", "final_answer")),
    "pair_calls": ("response", ("answers",)),
}
"""Columns with more accepted names in one layout: the column of `pool.fields` that sets another name, and
the names.
"""
TRAJECTORY = re.compile(
    r"(?:.+_)?(?:thinking_trajector(?:y|ies)|thinking|reasoning|reasoning_content|response|completion|attempt|output|generation"
    r"|generated_solution)s?(?:_?\d{1,3})?|(?:.+_)?solution_?\d{1,3}|messages|conversations"
)
"""Names of columns that hold trajectories. If one of them is not used, the summary says so."""
SHORTEST = 20
"""Characters of a text that may be a trajectory rather than a label."""
FLAGS = {"on", "off", "true", "false", "yes", "no", "none", "low", "medium", "high"}
"""Values of a column like `reasoning` that say how a teacher was asked to think: they are not its thoughts.
"""


def is_blank(value: Any) -> bool:
    """Whether a value is missing: null, empty, or NaN, which is how tables store a missing number."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or value in ("", [], {})


def is_flag(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in FLAGS)


class Columns:
    """A row under our names. Remembers which columns were used, so that nothing is left out without being
    reported.
    """

    def __init__(self, row: Row, fields: Mapping[str, str]) -> None:
        self.row = row
        self.where = row.where
        self.fields = fields
        self.used: set[str] = set()

    def get(self, name: str) -> Any:
        """The value of our column `name`, or None. The column counts as used."""
        stored = self.stored(name)
        if stored is None:
            return None
        self.used.add(stored)
        return self.row.values[stored]

    def has(self, *names: str) -> bool:
        """Whether the row has a value in all of these columns."""
        return all(self.stored(name) is not None for name in names)

    def text(self, name: str) -> str:
        """The value of a column that must be text."""
        value = self.get(name)
        if value is None:
            raise LarkError(
                f"{self.where}: there is no `{name}`; the row has {', '.join(map(str, self.row.values))}."
                f" Name the column with pool.fields.{name}=<column>, or the layout of the rows with"
                " pool.layout (see docs/own-pool.md)."
            )
        if isinstance(value, list):
            stored = self.stored(name)
            several = (
                f"For several trajectories use pool.fields.generations={stored}; for"
                if name == "response"
                else "For"
            )
            raise LarkError(
                f"{self.where}: `{stored}` must be a string, not a list. {several} messages use"
                " pool.fields.prompt and pool.fields.completion."
            )
        if not isinstance(value, str):
            raise LarkError(f"{self.where}: `{name}` must be a string, not {quoted(value)}.")
        return value

    def optional(self, name: str) -> str | None:
        """The value of a column that may be missing; blank text is missing."""
        value = self.get(name)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, str | None):
            raise LarkError(f"{self.where}: `{self.stored(name)}` must be a string, not {described(value)}.")
        return value if value and value.strip() else None

    def thinking(self, name: str = "thinking") -> str | None:
        """The reasoning that is stored in a column. `reasoning: on` is a setting of the teacher and not
        used.
        """
        stored = self.stored(name)
        return None if stored is not None and is_flag(self.row.values[stored]) else self.optional(name)

    def stored(self, name: str) -> str | None:
        """The name under which the row has a value for our column `name`."""
        key, names = LAYOUT_NAMES[name] if name in LAYOUT_NAMES else (name, NAMES[name])
        names = (self.fields[key],) if key in self.fields else names
        return next((n for n in names if self.row.values.get(n) is not None), None)

    def unused(self) -> Iterator[str]:
        """Columns with a value that were not used."""
        return (
            str(name)
            for name, value in self.row.values.items()
            if name not in self.used and not is_blank(value)
        )

    def lost(self) -> Iterator[str]:
        """Unused columns that may hold trajectories."""
        for name in self.unused():
            value = self.row.values.get(name)
            if TRAJECTORY.fullmatch(name) and (
                isinstance(value, list) or (isinstance(value, str) and len(value) >= SHORTEST)
            ):
                yield name
