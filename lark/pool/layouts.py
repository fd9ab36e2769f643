"""What rows of public datasets look like, and how each layout becomes trajectories. A layout is one entry
of `LAYOUTS`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from lark.config import Source
from lark.config.checks import one_of
from lark.errors import LarkError
from lark.pool.columns import NAMES, Columns, is_blank
from lark.pool.messages import Message, Turns, listed, normalised, turns, unused_keys
from lark.pool.teachers import find_teachers
from lark.reading.untrusted import described, parsed, quoted


@dataclass(frozen=True)
class DraftTrajectory:
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
    read: Callable[[Columns], Iterator[DraftTrajectory]]


PARTS = {
    "system": "system prompt",
    "question": "question",
    "prompt": "question",
    "thinking": "reasoning",
    "response": "response",
    "completion": "response",
    "generations": "response",
}
"""The part of a trajectory that a column holds. A column holds one."""


def drafts(columns: Columns, source: Source) -> tuple[Layout, Iterator[DraftTrajectory]]:
    """The layout of a row and its trajectories."""
    layout = (
        LAYOUTS[source.layout]
        if source.layout
        else next(known for known in LAYOUTS.values() if known.detects(columns))
    )
    return layout, layout.read(columns)


def check(source: Source) -> None:
    """Refuse unknown layouts and unknown names in `fields`."""
    if source.layout is not None:
        one_of("pool.layout", source.layout, tuple(LAYOUTS))
    for name in source.fields:
        if name not in NAMES:
            raise LarkError(
                f"pool.fields.{name}: there is no such column here; choose one of {', '.join(NAMES)}."
            )
    for name, other in combinations((name for name in source.fields if name in PARTS), 2):
        if source.fields[name] == source.fields[other] and PARTS[name] != PARTS[other]:
            raise LarkError(
                f"pool.fields.{name} and pool.fields.{other} both name the column {source.fields[name]!r}."
                f" Name the column of the {PARTS[name]} and that of the {PARTS[other]}."
            )


def _one(columns: Columns, found: Turns) -> DraftTrajectory:
    """A row that is one trajectory."""
    return DraftTrajectory(
        found,
        **{
            name: columns.get(name)
            for name in ("question_id", "candidate_id", "teacher", "rollout", "answer", "correct")
        },
    )


def _chat(name: str) -> Callable[[Columns], Iterator[DraftTrajectory]]:
    """Messages in the column `name`, in OpenAI's or ShareGPT's form."""

    def read(columns: Columns) -> Iterator[DraftTrajectory]:
        stored = columns.get(name)
        if stored is None:
            columns.text(name)  # raises
        messages = normalised(stored, columns.where, name)
        system = None if messages and messages[0]["role"] == "system" else columns.optional("system")
        found = turns(messages, columns.where, name, system, columns.get("tools"))
        yield _one(columns, replace(found, unused=unused_keys(stored, name)))

    return read


def _columns(columns: Columns) -> Iterator[DraftTrajectory]:
    system = columns.get("system")
    if not isinstance(system, str | None):
        raise LarkError(f"{columns.where}: `system` must be a string.")
    found = Turns(columns.text("question"), columns.text("response"), system, columns.thinking())
    yield _one(columns, found)


def _prompt_completion(columns: Columns) -> Iterator[DraftTrajectory]:
    """TRL's prompt and completion, each as text or as messages."""
    messages = []
    for name, role in (("prompt", "user"), ("completion", "assistant")):
        value = columns.get(name)
        if value is None:
            columns.text(name)  # raises
        messages += _turn(columns, name, value, role)
    yield _one(
        columns,
        turns(
            messages, columns.where, "prompt and completion", columns.optional("system"), columns.get("tools")
        ),
    )


def _turn(columns: Columns, name: str, value: Any, role: str) -> list[Message]:
    """A text as one message, or messages, which may be stored as JSON text."""
    if isinstance(value, str):
        listed = parsed(value) if value.lstrip().startswith("[") else None
        is_chat = isinstance(listed, list) and all(
            isinstance(m, dict) and ("role" in m or "from" in m) for m in listed
        )
        value = listed if is_chat and listed else [{"role": role, "content": value}]
    return normalised(value, columns.where, str(columns.stored(name)))


def _generations(columns: Columns) -> Iterator[DraftTrajectory]:
    """A question with a list of generations and lists of verdicts, as in OpenR1-Math."""
    where, question = columns.where, columns.text("question")
    if not (columns.has("generations") or _lacks_list(columns)):
        columns.text("generations")  # raises
    stored = columns.get("generations")
    generations = [] if stored is None else listed(stored, where, "generations")
    if not generations:
        raise LarkError(
            f"{where}: `generations` is empty. Add the question's trajectories, or remove the row."
        )
    system, (tools, answer, question_id) = (
        columns.optional("system"),
        map(columns.get, ("tools", "answer", "row_id")),
    )
    lists = {name: _aligned(columns, name, len(generations)) for name in LISTS}
    for i, generation in enumerate(generations):
        place = f"{where}, generation {i + 1}"
        _refuse_other_generations(generation, place)
        message = generation if isinstance(generation, dict) else {"content": generation}
        exchange = normalised(
            [{"role": "user", "content": question}, {"role": "assistant", **message}], place, "generations"
        )
        said = {
            name: truth(lists[name][i], str(columns.stored(name)), place)
            for name in (*VERDICT_COLUMNS, "complete")
        }
        verdicts = [said[name] for name in VERDICT_COLUMNS if said[name] is not None]
        cut_off = (
            str(lists["finish_reasons"][i]).lower() in CUT_OFF
            if said["complete"] is None
            else not said["complete"]
        )
        yield DraftTrajectory(
            turns(exchange, where, "generations", system, tools),
            question_id=question_id,
            candidate_id=lists["candidate_id"][i],
            teacher=lists["teacher"][i],
            rollout=i,
            answer=answer,
            correct=any(verdicts) if verdicts else None,
            complete=not cut_off,
        )


def _refuse_other_generations(generation: Any, where: str) -> None:
    """Refuse objects without a text, and several texts in the place of one: joined, no teacher wrote them."""
    if isinstance(generation, list) and not all(isinstance(part, dict) for part in generation):
        raise LarkError(
            f"{where}: it is a list of texts, not a text. Write `generations` as one list of all samples of"
            " the question, and name their teachers in `teacher`, a list of the same length."
        )
    if isinstance(generation, dict) and not {"content", "value", "tool_calls"} & set(generation):
        raise LarkError(
            f"{where}: it is an object with {', '.join(map(str, generation)) or 'nothing in it'}, not a text."
            " Write the text, or a message with `content`."
        )


def _lacks_list(columns: Columns) -> bool:
    """Whether the row has a column for generations, but no trajectory in it or in another column."""
    empty = columns.fields.get("generations", "generations") in columns.row.values and columns.has("question")
    return empty and not any(map(columns.has, ("response", "messages", "conversations")))


CUT_OFF = ("length", "max_tokens")
"""Finish reasons of a generation that reached the limit, as OpenAI and Anthropic write them."""
VERDICT_COLUMNS = ("correct", "verdicts", "more_verdicts")
LISTS = ("candidate_id", "teacher", *VERDICT_COLUMNS, "complete", "finish_reasons")
"""Columns with one value per generation. `teacher` and `correct` may also be one value for all."""


def _aligned(columns: Columns, name: str, length: int) -> list[Any]:
    """One value for each generation; None without the column."""
    stored = columns.get(name)
    if stored is None or (name in ("teacher", "correct") and not isinstance(stored, list)):
        return [stored] * length
    values = listed(stored, columns.where, str(columns.stored(name)))
    if len(values) != length:
        raise LarkError(
            f"{columns.where}: {length} generations, but `{columns.stored(name)}` has {len(values)} values."
            " Give one value per generation, or remove the list."
        )
    return values


def truth(value: Any, name: str, where: str) -> bool | None:
    """Parse a verdict; None if it is missing. (`bool("false")` would be True.)"""
    if is_blank(value):
        return None
    text = str(value).strip().lower()
    if text in ("true", "1", "1.0", "yes"):
        return True
    if text in ("false", "0", "0.0", "no"):
        return False
    raise LarkError(f"{where}: `{name}` must be true or false, not {quoted(value)}.")


def _teacher_columns(columns: Columns) -> Iterator[DraftTrajectory]:
    """A question with columns for several teachers, as in s1K-1.1. A teacher without text has no trajectory
    in this row.
    """
    question, system = columns.text("question"), columns.optional("system")
    teachers = find_teachers(columns)
    if not teachers:
        raise LarkError(
            f"{columns.where}: no column pair like `deepseek_thinking_trajectory` and `deepseek_attempt`; the"
            f" row has {', '.join(map(str, columns.row.values))}. Choose another pool.layout"
            f" ({', '.join(LAYOUTS)})."
        )
    shared = _one(columns, Turns(question, ""))
    if not any(each.thought for each in teachers):
        shared = replace(shared, answer=columns.get("pair_answer"))
    for each in teachers:
        names = [name for name in (each.thought, each.attempt) if name]
        columns.used |= {*names, *([each.grade] if each.grade else [])}
        for name in names:
            if not isinstance(columns.row.values[name], str | None):
                raise LarkError(
                    f"{columns.where}: `{name}` must be a string, not {described(columns.row.values[name])}."
                )
        thinking, response = (
            columns.row.values[name] if name else None for name in (each.thought, each.attempt)
        )
        if not (thinking or response):
            continue
        yield replace(
            shared,
            turns=Turns(
                question, response or "", system, thinking if thinking and thinking.strip() else None
            ),
            candidate_id=".".join(str(part) for part in (each.teacher, each.number) if part is not None),
            teacher=each.teacher,
            rollout=each.number or 0,
            correct=shared.correct if each.grade is None else columns.row.values[each.grade],
            complete=bool(response and response.strip()),
        )


def _pair(columns: Columns) -> Iterator[DraftTrajectory]:
    """A question and a response under other names, each as text or as messages. Tool calls alone are a
    response too.
    """
    name, question = columns.stored("pair_question"), columns.get("pair_question")
    if name is None or not (columns.has("pair_response") or columns.has("pair_calls")):
        columns.text("response" if name else "question")  # raises
    if name == "input" and isinstance(question, str) and columns.row.values.get("instruction"):  # Alpaca
        if not isinstance(instruction := columns.row.values["instruction"], str):
            raise LarkError(f"{columns.where}: `instruction` must be a string, not {described(instruction)}.")
        question = f"{instruction}\n\n{question}".strip()
        columns.used.add("instruction")
    if columns.has("pair_response"):
        answer = _turn(columns, "pair_response", columns.get("pair_response"), "assistant")
    else:
        calls = columns.get("pair_calls")
        answer = normalised(
            [{"role": "assistant", "tool_calls": calls}], columns.where, str(columns.stored("pair_calls"))
        )
    shown = f"{name} and {columns.stored('pair_response') or columns.stored('pair_calls')}"
    messages = [*_turn(columns, "pair_question", question, "user"), *answer]
    thinking = columns.thinking("pair_thinking")
    if thinking and messages[-1]["role"] == "assistant":
        messages[-1] = {"reasoning_content": thinking, **messages[-1]}
    found = turns(messages, columns.where, shown, columns.optional("pair_system"), columns.get("tools"))
    yield replace(
        _one(columns, found), teacher=columns.get("pair_teacher"), answer=columns.get("pair_answer")
    )


def _is_pair(columns: Columns) -> bool:
    calls = columns.stored("pair_calls")
    return columns.has("pair_question") and (
        columns.has("pair_response")
        or (calls is not None and columns.has("tools") and _is_calls(columns.row.values[calls]))
    )


def _is_calls(value: Any) -> bool:
    """Whether a value is a list of tool calls, or JSON text of one."""
    if isinstance(value, str):
        value = parsed(value)
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(call, dict) and "name" in call for call in value)
    )


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout(
            "generations",
            lambda columns: columns.has("generations", "question") or _lacks_list(columns),
            _generations,
        ),
        Layout("messages", lambda columns: columns.has("messages"), _chat("messages")),
        Layout(
            "openthoughts3",
            lambda columns: (
                columns.has("conversations") and {"difficulty", "domain"} <= columns.row.values.keys()
            ),
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
            lambda columns: (
                columns.has("question") and not columns.has("response") and bool(find_teachers(columns))
            ),
            _teacher_columns,
        ),
        Layout("pairs", lambda columns: not columns.has("question", "response") and _is_pair(columns), _pair),
        Layout("columns", lambda columns: True, _columns),
    )
}
"""In the order of detection: the first that fits. `columns` fits any row and reports what is missing."""
