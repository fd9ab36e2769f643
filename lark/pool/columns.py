"""A row of a pool under our names for its columns."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from lark.config import Source
from lark.errors import LarkError
from lark.pool.checks import check_not_list, missing_column
from lark.pool.messages import REASONING
from lark.reading.fields import FALSE, TRUE, Fields, is_blank
from lark.reading.rows import Row

NAMES = {
    "question_id": ("question_id", "problem_id", "example_id", "instance_id"),
    "candidate_id": ("candidate_id",),
    "teacher": ("teacher", "model", "model_id", "model_name", "generation_model", "generator"),
    "rollout": ("rollout",),
    "system": ("system",),
    "question": ("question", "problem"),
    "response": ("response", "completion"),
    "thinking": REASONING,
    "answer": ("answer",),
    "correct": ("correct", "is_correct", "passed", "resolved", "success", "reward", "score"),
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
CERTAIN = {"question_id", "problem_id", "teacher", "correct"}
"""Names of ids, teachers and verdicts that mean nothing else. Under the other names, a value of another kind
is not used: a `model` may be a description, a `score` the quality of a web page.
"""
LAYOUT_NAMES = {
    "row_id": ("question_id", ("question_id", "problem_id", "uuid", "id")),
    "pair_question": ("question", ("question", "problem", "prompt", "input", "query", "instruction")),
    "pair_response": (
        "response",
        ("response", "completion", "output", "generated_solution", "llm_response", "attempt"),
    ),
    "pair_thinking": ("thinking", (*REASONING, "thinking_trajectories")),
    "pair_system": ("system", ("system", "system_prompt")),
    "pair_answer": ("answer", ("answer", "expected_answer", "final_answer")),
    "pair_calls": ("response", ("answers",)),
}
"""Columns with more names in one layout: the key of `pool.fields` that sets another, and the names."""
TRAJECTORY = re.compile(
    r"(?:.+_)?(?:thinking_trajector(?:y|ies)|thinking|reasoning|reasoning_content|response|completion|attempt"
    r"|output|generation|generated_solution)s?(?:_?\d{1,3})?"
    r"|(?:.+_)?solution_?\d{1,3}|messages|conversations"
)
"""Names of columns that hold trajectories. If one of them is not used, the summary says so."""
SHORTEST = 20
"""Characters of a text that may be a trajectory rather than a label."""
LONGEST_NAME = 200
"""Characters of a teacher's name in a column that may hold something else."""
FLAGS = {"on", "off", "true", "false", "yes", "no", "none", "low", "medium", "high"}
"""Values of a column like `reasoning` that say how a teacher was asked to think, not what it thought."""


class Columns:
    """A row under our names. Remembers which columns were used, so that others can be reported."""

    def __init__(
        self, row: Row, source: Source, correct_from: float = 1.0, filters: dict[Any, Any] | None = None
    ) -> None:
        self.row = row
        self.where = row.where
        self.format = source.format
        self.fields = source.fields
        self.responses = source.responses
        self.correct_from = correct_from
        """The least number that is the verdict of a correct trajectory."""
        self.filters = {} if filters is None else filters
        """The first filter in each file of lm-eval."""
        self.used: set[str] = set()
        self.without: list[str] = []
        """Why parts of the row have no trajectory."""

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

    def missing(self, name: str) -> LarkError:
        """The refusal of a row without this column."""
        return missing_column(name, self.row)

    def require_names(self, names: Iterable[str]) -> None:
        """Refuse a row without these columns, whatever their values are."""
        for name in names:
            if name not in self.row.values:
                raise self.missing(name)

    def require(self, name: str) -> Any:
        """The value of a column that must be there."""
        value = self.get(name)
        if value is None:
            raise self.missing(name)
        return value

    def text(self, name: str) -> str:
        """The value of a column that must be text. It may be blank."""
        value = self.require(name)
        stored = str(self.stored(name))
        check_not_list(value, name, stored, self.where)
        return Fields({stored: value}, self.where).optional_text(stored) or ""

    def optional(self, name: str) -> str | None:
        """The value of a column that may be missing; blank text is missing."""
        value = self.get(name)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        stored = str(self.stored(name))
        text = Fields({stored: value}, self.where).optional_text(stored)
        return text if text and text.strip() else None

    def thinking(self, name: str = "thinking") -> str | None:
        """The reasoning in a column. `reasoning: on` is a setting of the teacher and not used."""
        stored = self.stored(name)
        if stored is not None and _is_flag(self.row.values[stored]):
            return None
        return self.optional(name)

    def stored(self, name: str) -> str | None:
        """The name under which the row has a value for our column `name`."""
        key, names = LAYOUT_NAMES[name] if name in LAYOUT_NAMES else (name, NAMES[name])
        if key in self.fields:
            names = (self.fields[key],)
        for stored in names:
            value = self.row.values.get(stored)
            if value is not None and (key not in KINDS or self._is_used(key, stored, value)):
                return stored
        return None

    def _is_used(self, name: str, stored: str, value: Any) -> bool:
        """Whether a label in a column with one of its names is meant. The paper's pool has certain names."""
        return self.is_certain(name, stored) or (self.format != "rsr" and KINDS[name](value))

    def is_certain(self, name: str, stored: str) -> bool:
        """Whether a column is ours by its name alone, or because `pool.fields` names it."""
        return stored in CERTAIN or self.fields.get(name) == stored

    def label(self, name: str) -> Any:
        """The label of a row that is one trajectory. Lists in columns with common names have other values."""
        stored = self.stored(name)
        if stored is None:
            return None
        value = self.row.values[stored]
        is_several = isinstance(value, list) and len(value) != 1
        if is_several and name in KINDS and not self.is_certain(name, stored):
            return None
        return self.get(name)

    def is_first_filter(self, name: Any) -> bool:
        """Whether no earlier row of this file has another filter of lm-eval."""
        return bool(self.filters.setdefault(self.row.path, name) == name)

    def unused(self) -> Iterator[str]:
        """Columns with a value that were not used."""
        for name, value in self.row.values.items():
            if name not in self.used and not is_blank(value):
                yield str(name)

    def lost(self) -> Iterator[str]:
        """Unused columns that may hold trajectories."""
        for name in self.unused():
            value = self.row.values.get(name)
            is_long = isinstance(value, str) and len(value) >= SHORTEST
            if TRAJECTORY.fullmatch(name) and (is_long or isinstance(value, list)):
                yield name


def _is_verdict(value: Any) -> bool:
    """Whether a value may be a verdict: true, false or a number from -1 to 1, or a list of them."""
    if isinstance(value, list):
        return bool(value) and all(_is_verdict(item) for item in value)
    if isinstance(value, str):
        return value.strip().lower() in (*TRUE, *FALSE) or _is_small(value)
    return isinstance(value, int | float) and -1 <= value <= 1


def _is_small(text: str) -> bool:
    """Whether a text is a number from -1 to 1, as in a CSV file."""
    try:
        return -1 <= float(text) <= 1
    except ValueError:
        return False


def _is_name(value: Any) -> bool:
    """Whether a value may be a teacher's name, or a list of them."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, str) for item in value)
    return isinstance(value, str) and 0 < len(value.strip()) <= LONGEST_NAME and "\n" not in value


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


KINDS = {"correct": _is_verdict, "teacher": _is_name, "question_id": _is_id}
"""Values that are used under the names that may mean something else."""


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in FLAGS)
