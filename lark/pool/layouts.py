"""The layouts of rows in public datasets, and how each becomes trajectories: one entry of `LAYOUTS` each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lark.config import Source
from lark.pool.agent_layouts import SESSION, atif, is_atif, is_session, session
from lark.pool.checks import (
    check_generations,
    check_settings,
    check_text_or_messages,
    no_teachers,
)
from lark.pool.columns import NAMES, Columns
from lark.pool.drafts import DraftTrajectory, Read, one, shaped
from lark.pool.eval_layouts import every_eval, inspect, is_every_eval, is_inspect, is_lm_eval, lm_eval
from lark.pool.generation_lists import LISTS, Labels, aligned, listed
from lark.pool.messages import Message, Turns, normalised, turns
from lark.pool.rollout_layouts import (
    is_nemo_gym,
    is_openai_batch,
    is_reasoning_gym,
    is_taught,
    nemo_gym,
    openai_batch,
    reasoning_gym,
    taught,
)
from lark.pool.teachers import TeacherColumns, find_teachers
from lark.pool.unused_keys import unused_keys
from lark.reading.fields import Fields
from lark.reading.untrusted import parsed


@dataclass(frozen=True)
class Layout:
    """One form of rows."""

    name: str
    detects: Callable[[Columns], bool]
    read: Read


def drafts(columns: Columns, source: Source) -> tuple[Layout, Iterator[DraftTrajectory]]:
    """The layout of a row and its trajectories."""
    if source.layout or source.responses:
        layout = LAYOUTS[source.layout or "teachers"]
    else:
        layout = next(candidate for candidate in LAYOUTS.values() if candidate.detects(columns))
    return layout, layout.read(columns)


def check(source: Source) -> None:
    """Refuse unknown layouts and unknown names in `fields`."""
    check_settings(source, LAYOUTS, NAMES)


def _chat(name: str) -> Callable[[Columns], Iterator[DraftTrajectory]]:
    """Messages in the column `name`, in OpenAI's or ShareGPT's form."""

    def read(columns: Columns) -> Iterator[DraftTrajectory]:
        stored = columns.require(name)
        messages = normalised(stored, columns.where, name)
        has_system = bool(messages) and messages[0]["role"] == "system"
        system = None if has_system else columns.optional("system")
        exchange = turns(messages, columns.where, name, system, columns.get("tools"))
        yield one(columns, replace(exchange, unused=unused_keys(stored, name)))

    return read


def _columns(columns: Columns) -> Iterator[DraftTrajectory]:
    system = Fields({"system": columns.get("system")}, columns.where).optional_text("system")
    question = columns.text("question")
    response = columns.text("response")
    yield one(columns, Turns(question, response, system, columns.thinking()))


def _prompt_completion(columns: Columns) -> Iterator[DraftTrajectory]:
    """TRL's prompt and completion, each as text or as messages."""
    prompt = _messages(columns, "prompt", columns.require("prompt"), "user")
    completion = _messages(columns, "completion", columns.require("completion"), "assistant")
    system = columns.optional("system")
    tools = columns.get("tools")
    name = "prompt and completion"
    yield one(columns, turns([*prompt, *completion], columns.where, name, system, tools))


def _messages(columns: Columns, name: str, value: Any, role: str) -> list[Message]:
    """A text as one message, or messages, which may be stored as JSON text."""
    if isinstance(value, str):
        # A question may begin with a bracket too, so only a list of messages is read as one.
        messages = parsed(value) if value.lstrip().startswith("[") else None
        value = messages if _is_chat(messages) else [{"role": role, "content": value}]
    stored = str(columns.stored(name))
    check_text_or_messages(value, stored, columns.where)
    return normalised(value, columns.where, stored)


def _is_chat(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    are_messages = (isinstance(item, dict) and ("role" in item or "from" in item) for item in value)
    return bool(value) and all(are_messages)


def _generations(columns: Columns) -> Iterator[DraftTrajectory]:
    """A question with a list of generations and lists of verdicts, as in OpenR1-Math."""
    question = columns.text("question")
    if not (columns.has("generations") or _lacks_list(columns)):
        raise columns.missing("generations")
    generations = listed(columns, "generations")
    check_generations(generations, columns.where)
    system = columns.optional("system")
    tools = columns.get("tools")
    answer = columns.get("answer")
    question_id = columns.get("row_id")
    lists = {name: aligned(columns, name, len(generations)) for name in LISTS}
    for number, generation in enumerate(generations):
        where = f"{columns.where}, generation {number + 1}"
        message = generation if isinstance(generation, dict) else {"content": generation}
        messages = [{"role": "user", "content": question}, {"role": "assistant", **message}]
        exchange = normalised(messages, where, "generations")
        labels = Labels(columns, {name: values[number] for name, values in lists.items()}, where)
        yield DraftTrajectory(
            turns(exchange, columns.where, "generations", system, tools),
            question_id=question_id,
            candidate_id=labels.values["candidate_id"],
            teacher=labels.values["teacher"],
            rollout=number,
            answer=answer,
            correct=labels.verdict,
            complete=labels.is_complete,
        )


def _lacks_list(columns: Columns) -> bool:
    """Whether the row has a column for generations, but no trajectory in it or in another column."""
    name = columns.fields.get("generations", "generations")
    if name not in columns.row.values or not columns.has("question"):
        return False
    return not any(columns.has(other) for other in ("response", "messages", "conversations"))


def _teacher_columns(columns: Columns) -> Iterator[DraftTrajectory]:
    """A question with columns for several teachers, as in s1K-1.1."""
    teachers = find_teachers(columns)
    if not teachers:
        raise no_teachers(columns.row, LAYOUTS)
    asked = "pair_question" if columns.has("pair_question") else "question"
    shared = one(columns, Turns(columns.text(asked), "", columns.optional("system")))
    stored = columns.stored("correct")
    if stored is not None and not columns.is_certain("correct", stored):
        shared = replace(shared, correct=None)  # the score of a question is not that of its responses
    if not any(teacher.thought for teacher in teachers):
        shared = replace(shared, answer=columns.get("pair_answer"))
    for teacher in teachers:
        yield from _of_teacher(columns, teacher, shared)


def _of_teacher(
    columns: Columns, teacher: TeacherColumns, shared: DraftTrajectory
) -> Iterator[DraftTrajectory]:
    """The trajectory of one teacher. A teacher without text has none in this row."""
    columns.used |= teacher.names
    fields = Fields(columns.row.values, columns.where)
    thinking = fields.optional_text(teacher.thought) if teacher.thought else None
    response = fields.optional_text(teacher.attempt) or ""
    if not (thinking or response):
        return
    if thinking is not None and not thinking.strip():
        thinking = None
    grade = columns.row.values[teacher.grade] if teacher.grade else shared.correct
    yield replace(
        shared,
        turns=replace(shared.turns, response=response, thinking=thinking),
        candidate_id=teacher.candidate,
        teacher=teacher.teacher,
        rollout=teacher.number or 0,
        correct=grade,
        complete=bool(response.strip()),
    )


def _pair(columns: Columns) -> Iterator[DraftTrajectory]:
    """A question and a response under other names, each as text or as messages."""
    name = columns.stored("pair_question")
    if name is None:
        raise columns.missing("question")
    question = _pair_question(columns, name)
    answer_name, answer = _pair_answer(columns)
    messages = [*_messages(columns, "pair_question", question, "user"), *answer]
    thinking = columns.thinking("pair_thinking")
    if thinking and messages[-1]["role"] == "assistant":
        messages[-1] = {"reasoning_content": thinking, **messages[-1]}
    system = columns.optional("pair_system")
    exchange = turns(messages, columns.where, f"{name} and {answer_name}", system, columns.get("tools"))
    draft = one(columns, exchange)
    yield replace(draft, answer=columns.get("pair_answer"))


def _pair_question(columns: Columns, name: str) -> Any:
    """The question. Alpaca has its task in `instruction`, and in `input` what the task is about."""
    question = columns.get("pair_question")
    if not (name == "input" and isinstance(question, str) and columns.row.values.get("instruction")):
        return question
    columns.used.add("instruction")
    instruction = Fields(columns.row.values, columns.where).optional_text("instruction")
    return f"{instruction}\n\n{question}".strip()


def _pair_answer(columns: Columns) -> tuple[str, list[Message]]:
    """The response and the name of its column. Tool calls alone are a response too."""
    response = columns.stored("pair_response")
    if response is not None:
        return response, _messages(columns, "pair_response", columns.get("pair_response"), "assistant")
    calls = columns.stored("pair_calls")
    if calls is None:
        raise columns.missing("response")
    message = {"role": "assistant", "tool_calls": columns.get("pair_calls")}
    return calls, normalised([message], columns.where, calls)


def _is_pair(columns: Columns) -> bool:
    if columns.has("question", "response") or not columns.has("pair_question"):
        return False
    calls = columns.stored("pair_calls")
    has_calls = calls is not None and columns.has("tools") and _is_calls(columns.row.values[calls])
    return columns.has("pair_response") or has_calls


def _is_calls(value: Any) -> bool:
    """Whether a value is a list of tool calls, or JSON text of one."""
    if isinstance(value, str):
        value = parsed(value)
    if not isinstance(value, list):
        return False
    return bool(value) and all(isinstance(call, dict) and "name" in call for call in value)


def _is_openthoughts3(columns: Columns) -> bool:
    return columns.has("conversations") and {"difficulty", "domain"} <= columns.row.values.keys()


def _is_generations(columns: Columns) -> bool:
    # A row with an empty list is a mistake in this layout, not a row of another one.
    return columns.has("generations", "question") or _lacks_list(columns)


def _is_prompt_completion(columns: Columns) -> bool:
    return columns.has("prompt", "completion") and not columns.has("question")


def _is_teachers(columns: Columns) -> bool:
    is_ours = columns.has("question") and not columns.has("response")
    is_other = columns.has("pair_question") and not columns.has("pair_response")
    return (is_ours or is_other) and bool(find_teachers(columns))


# The first layout that detects a row reads it, so the order matters: logs of tools also have columns like
# `messages` or `response`, datasets with `generations` also have `messages` with one of them, and any row can
# be read as `columns`, which then reports what is missing.
_IN_ORDER = (
    Layout("session", is_session, shaped(session, SESSION)),
    Layout("atif", is_atif, shaped(atif, "agent", "steps")),
    Layout("inspect", is_inspect, shaped(inspect, "eval", "samples")),
    Layout("every_eval", is_every_eval, shaped(every_eval, "sample_id", "input", "evaluation")),
    Layout("lm_eval", is_lm_eval, shaped(lm_eval, "doc_id", "doc", "arguments", "resps")),
    Layout("taught", is_taught, taught),
    Layout("nemo_gym", is_nemo_gym, shaped(nemo_gym, "responses_create_params", "response")),
    Layout("openai_batch", is_openai_batch, shaped(openai_batch, "custom_id", "response")),
    Layout("reasoning_gym", is_reasoning_gym, shaped(reasoning_gym, "results")),
    Layout("generations", _is_generations, _generations),
    Layout("messages", lambda columns: columns.has("messages"), _chat("messages")),
    Layout("openthoughts3", _is_openthoughts3, _chat("conversations")),
    Layout("conversations", lambda columns: columns.has("conversations"), _chat("conversations")),
    Layout("prompt_completion", _is_prompt_completion, _prompt_completion),
    Layout("teachers", _is_teachers, _teacher_columns),
    Layout("pairs", _is_pair, _pair),
    Layout("columns", lambda columns: True, _columns),
)
LAYOUTS = {layout.name: layout for layout in _IN_ORDER}
"""Layouts by their names in `pool.layout`, in the order in which they are tried."""
