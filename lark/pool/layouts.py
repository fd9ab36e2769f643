"""What rows of public datasets look like, and how each layout becomes trajectories. A layout is one entry of `LAYOUTS`.

A row is read through `Columns`, which finds our names among the stored ones and remembers which columns were used, so that
nothing is left out without being reported.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lark.config import Source
from lark.config.checks import one_of
from lark.errors import LarkError
from lark.pool.messages import REASONING, Turns, listed, normalised, turns, unused_keys
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
    "row_id": ("question_id", "problem_id", "uuid", "id"),
}
"""Our columns and their accepted names, unless `pool.fields` sets another."""
RENAMED = tuple(name for name in NAMES if name != "row_id")
"""Columns that `pool.fields` can name."""
TRAJECTORIES = ("messages", "conversations", "generations", "completion", "response")
"""Columns that hold trajectories. If one of them is not used, the summary says so."""


def is_blank(value: Any) -> bool:
    """Whether a value is missing: null, empty, or NaN, which is how tables store a missing number."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or value in ("", [], {})


class Columns:
    """A row under our names."""

    def __init__(self, row: Row, fields: Mapping[str, str]) -> None:
        self.row = row
        self.where = row.where
        self.fields = fields
        self.used: set[str] = set()

    def get(self, name: str) -> Any:
        """The value of our column `name`, or None. The column counts as used."""
        stored = self._stored(name)
        if stored is None:
            return None
        self.used.add(stored)
        return self.row.values[stored]

    def has(self, *names: str) -> bool:
        """Whether the row has a value in all of these columns."""
        return all(self._stored(name) is not None for name in names)

    def text(self, name: str) -> str:
        """The value of a column that must be text."""
        value = self.get(name)
        if value is None:
            raise LarkError(
                f"{self.where}: there is no `{name}`; the row has {', '.join(map(str, self.row.values))}. Name the column with "
                f"pool.fields.{name}=<column>, or the layout of the rows with pool.layout ({', '.join(LAYOUTS)})."
            )
        if not isinstance(value, str):
            raise LarkError(f"{self.where}: `{name}` must be a string, not {quoted(value)}.")
        return value

    def optional(self, name: str) -> str | None:
        """The value of a column that may be missing; blank text is missing."""
        value = self.get(name)
        if not isinstance(value, str | None):
            raise LarkError(f"{self.where}: `{name}` must be a string, not {described(value)}.")
        return value if value and value.strip() else None

    def _stored(self, name: str) -> str | None:
        key = "question_id" if name == "row_id" else name
        names = (self.fields[key],) if key in self.fields else NAMES[name]
        return next((n for n in names if self.row.values.get(n) is not None), None)

    def unused(self) -> Iterator[str]:
        """Columns with a value that were not used."""
        return (str(name) for name, value in self.row.values.items() if name not in self.used and not is_blank(value))


@dataclass(frozen=True)
class Draft:
    """A trajectory as a layout reads it, before its ids and verdicts are checked."""

    turns: Turns
    question_id: Any = None
    candidate_id: Any = None
    teacher: Any = None
    rollout: Any = None
    answer: Any = None
    correct: Any = None
    complete: bool = True
    """False: the teacher was cut off."""


@dataclass(frozen=True)
class Layout:
    """One form of rows."""

    name: str
    detects: Callable[[Columns], bool]
    read: Callable[[Columns], Iterator[Draft]]


def drafts(columns: Columns, source: Source) -> tuple[Layout, Iterator[Draft]]:
    """The layout of a row and its trajectories."""
    layout = LAYOUTS[source.layout] if source.layout else next(known for known in LAYOUTS.values() if known.detects(columns))
    return layout, layout.read(columns)


def check(source: Source, key: str = "pool") -> None:
    """Refuse unknown layouts and unknown names in `fields`."""
    if source.layout is not None:
        one_of(f"{key}.layout", source.layout, tuple(LAYOUTS))
    for name in source.fields:
        if name not in RENAMED:
            raise LarkError(f"{key}.fields.{name}: there is no such column here; choose one of {', '.join(RENAMED)}.")


def _one(columns: Columns, found: Turns) -> Draft:
    """A row that is one trajectory."""
    return Draft(
        found,
        **{name: columns.get(name) for name in ("question_id", "candidate_id", "teacher", "rollout", "answer", "correct")},
    )


def _chat(name: str) -> Callable[[Columns], Iterator[Draft]]:
    """Messages in the column `name`, in OpenAI's or ShareGPT's form."""

    def read(columns: Columns) -> Iterator[Draft]:
        stored = columns.get(name)
        if stored is None:
            columns.text(name)  # raises
        messages = normalised(stored, columns.where, name)
        system = None if messages and messages[0]["role"] == "system" else columns.optional("system")
        found = turns(messages, columns.where, name, system, columns.get("tools"))
        yield _one(columns, replace(found, unused=unused_keys(stored, name)))

    return read


def _columns(columns: Columns) -> Iterator[Draft]:
    system = columns.get("system")
    if not isinstance(system, str | None):
        raise LarkError(f"{columns.where}: `system` must be a string.")
    found = Turns(columns.text("question"), columns.text("response"), system, columns.optional("thinking"))
    yield _one(columns, found)


def _prompt_completion(columns: Columns) -> Iterator[Draft]:
    """TRL's prompt and completion, each as text or as messages."""
    messages = []
    for name, role in (("prompt", "user"), ("completion", "assistant")):
        value = columns.get(name)
        if value is None:
            columns.text(name)  # raises
        text = isinstance(value, str) and not value.lstrip().startswith('[{"')
        messages += [{"role": role, "content": value}] if text else normalised(value, columns.where, name)
    yield _one(
        columns, turns(messages, columns.where, "prompt and completion", columns.optional("system"), columns.get("tools"))
    )


def _generations(columns: Columns) -> Iterator[Draft]:
    """A question with a list of generations and lists of verdicts, as in OpenR1-Math."""
    where, question = columns.where, columns.text("question")
    generations = listed(columns.get("generations"), where, "generations")
    if not generations:
        raise LarkError(f"{where}: `generations` is empty. Add the question's trajectories, or remove the row.")
    system, (tools, answer, question_id) = columns.optional("system"), map(columns.get, ("tools", "answer", "row_id"))
    lists = {name: _aligned(columns, name, len(generations)) for name in LISTS}
    for i, generation in enumerate(generations):
        message = generation if isinstance(generation, dict) else {"content": generation}
        place = f"{where}, generation {i + 1}"
        exchange = normalised([{"role": "user", "content": question}, {"role": "assistant", **message}], place, "generations")
        verdicts = [values[i] for name, values in lists.items() if name in VERDICTS and values[i] is not None]
        cut_off = lists["finish_reasons"][i] == "length" if lists["complete"][i] is None else not is_true(lists["complete"][i])
        yield Draft(
            turns(exchange, where, "generations", system, tools),
            question_id=question_id,
            candidate_id=lists["candidate_id"][i],
            teacher=lists["teacher"][i],
            rollout=i,
            answer=answer,
            correct=any(map(is_true, verdicts)) if verdicts else None,
            complete=not cut_off,
        )


VERDICTS = ("correct", "verdicts", "more_verdicts")
LISTS = ("candidate_id", "teacher", *VERDICTS, "complete", "finish_reasons")
"""Columns with one value per generation. `teacher` and `correct` may also be one value for all."""


def _aligned(columns: Columns, name: str, length: int) -> list[Any]:
    """One value for each generation; None without the column."""
    stored = columns.get(name)
    if stored is None or (name in ("teacher", "correct") and not isinstance(stored, list)):
        return [stored] * length
    values = listed(stored, columns.where, name)
    if len(values) != length:
        raise LarkError(
            f"{columns.where}: {length} generations, but `{_shown(columns, name)}` has {len(values)} values. Give one value per "
            "generation, or remove the list."
        )
    return values


def _shown(columns: Columns, name: str) -> str:
    return columns.fields.get(name, NAMES[name][0])


def is_true(value: Any) -> bool:
    return value is True or str(value).strip().lower() in ("true", "1", "1.0", "yes")


THOUGHTS = ("_thinking_trajectory", "_thinking", "_reasoning_content", "_reasoning")
ATTEMPTS = ("_attempt", "_response", "_solution")
GRADES = ("_grade", "_correct")
"""Endings of the columns of one teacher: `deepseek_thinking_trajectory`, `deepseek_attempt`, `deepseek_grade`."""


def _teachers(columns: Columns) -> dict[str, tuple[str, str]]:
    """The columns with the reasoning and the response of each teacher. A teacher has both."""
    names = [name for name in columns.row.values if isinstance(name, str)]
    found: dict[str, tuple[str, str]] = {}
    for ending in THOUGHTS:
        for name in names:
            teacher = name.removesuffix(ending)
            attempt = next((teacher + end for end in ATTEMPTS if teacher + end in columns.row.values), None)
            if teacher and teacher != name and attempt and teacher not in found:
                found[teacher] = (name, attempt)
    return found


def _teacher_columns(columns: Columns) -> Iterator[Draft]:
    """A question with columns for several teachers, as in s1K-1.1. A teacher without text has no trajectory in this row."""
    question, system = columns.text("question"), columns.optional("system")
    teachers = _teachers(columns)
    if not teachers:
        raise LarkError(
            f"{columns.where}: no column pair like `deepseek_thinking_trajectory` and `deepseek_attempt`; the row has "
            f"{', '.join(map(str, columns.row.values))}. Choose another pool.layout ({', '.join(LAYOUTS)})."
        )
    shared = _one(columns, Turns(question, ""))
    for teacher, (thought, attempt) in teachers.items():
        columns.used |= {thought, attempt}
        thinking, response = (columns.row.values[name] for name in (thought, attempt))
        for name, value in ((thought, thinking), (attempt, response)):
            if not isinstance(value, str | None):
                raise LarkError(f"{columns.where}: `{name}` must be a string, not {described(value)}.")
        if not (thinking or response):
            continue
        grade = next((teacher + end for end in GRADES if columns.row.values.get(teacher + end) is not None), None)
        columns.used |= {grade} if grade else set()
        yield replace(
            shared,
            turns=Turns(question, response or "", system, thinking if thinking and thinking.strip() else None),
            candidate_id=teacher,
            teacher=teacher,
            rollout=0,
            correct=shared.correct if grade is None else columns.row.values[grade],
            complete=bool(response and response.strip()),
        )


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("generations", lambda columns: columns.has("generations", "question"), _generations),
        Layout("messages", lambda columns: columns.has("messages"), _chat("messages")),
        Layout(
            "openthoughts3",
            lambda columns: columns.has("conversations") and {"difficulty", "domain"} <= columns.row.values.keys(),
            _chat("conversations"),
        ),
        Layout("conversations", lambda columns: columns.has("conversations"), _chat("conversations")),
        Layout(
            "prompt_completion",
            lambda columns: columns.has("prompt", "completion") and not columns.has("question"),
            _prompt_completion,
        ),
        Layout(
            "teachers",
            lambda columns: columns.has("question") and not columns.has("response") and bool(_teachers(columns)),
            _teacher_columns,
        ),
        Layout("columns", lambda columns: True, _columns),
    )
}
"""In the order of detection: the first that fits. `columns` fits any row and reports what is missing."""
