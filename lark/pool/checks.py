"""Refusals of a pool's rows, each with its sentence. (Types of values are in reading/fields.py.)"""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

from lark import config as conf
from lark.config import Source
from lark.config.checks import one_of
from lark.errors import LarkError, first_line
from lark.pool.trajectory import Trajectory
from lark.printing import some
from lark.reading.rows import Row
from lark.reading.untrusted import described, quoted
from lark.reading.values import is_invisible

Message = dict[str, Any]

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


def check_settings(source: Source, layouts: Collection[str], columns: Collection[str]) -> None:
    """Refuse unknown layouts, unknown names in `fields`, and one column for two parts of a trajectory."""
    if source.layout is not None:
        one_of("pool.layout", source.layout, tuple(layouts))
    for name in source.fields:
        _check_name(name, columns)
    texts = [name for name in source.fields if name in PARTS]
    for name, other in combinations(texts, 2):
        if source.fields[name] == source.fields[other] and PARTS[name] != PARTS[other]:
            raise LarkError(
                f"pool.fields.{name} and pool.fields.{other} both name the column {source.fields[name]!r}."
                f" Name the column of the {PARTS[name]} and that of the {PARTS[other]}."
            )


def _check_name(name: str, columns: Collection[str]) -> None:
    if name not in columns:
        raise LarkError(
            f"pool.fields.{name}: there is no such column here; choose one of {', '.join(columns)}."
        )


def check_fields_used(pool: conf.Pool, unused: Collection[str]) -> None:
    """Refuse names in pool.fields whose column no row has."""
    for name in sorted(unused):
        raise LarkError(
            f"pool.fields.{name}={pool.fields[name]}: no row of {pool.path} has such a column. Correct the"
            " name."
        )


def check_ids(pool: conf.Pool, questions: Collection[str]) -> None:
    """Refuse ids in pool.ids that the pool does not have."""
    unknown = [identity for identity in dict.fromkeys(pool.ids) if identity not in questions]
    if unknown:
        raise LarkError(
            f"pool.ids: {some(unknown)} not found in {pool.path or pool.name}, which has the ids"
            f" {some(sorted(questions))}."
        )


def missing_column(name: str, row: Row) -> LarkError:
    lists = [key for key, value in row.values.items() if _has_rows(value)]
    if lists:
        return _object_of_lists(row, lists)
    return LarkError(
        f"{row.where}: there is no `{name}`; the row has {', '.join(map(str, row.values))}."
        f" Name the column with pool.fields.{name}=<column>, or the layout of the rows with"
        " pool.layout (see docs/own-pool.md)."
    )


def _has_rows(value: Any) -> bool:
    """Whether a value is a list of objects that may be the rows of a pool."""
    return isinstance(value, list) and len(value) > 1 and all(isinstance(item, dict) for item in value)


def _object_of_lists(row: Row, lists: Sequence[str]) -> LarkError:
    """An object around the list of rows, as many tools write it."""
    name = lists[0]
    return LarkError(
        f"{row.where}: this is one object, whose `{name}` is a list of {len(row.values[name]):,} objects. A"
        f" pool is a list of rows, or one row per line. If `{name}` has the rows, write them to a file of"
        f" their own: jq -c '.{name}[]' <file> > rows.jsonl"
    )


def check_not_list(value: Any, name: str, stored: str, where: str) -> None:
    """Refuse several values where one text is expected. `stored`: the column's name in the row."""
    if isinstance(value, list):
        generations = f"several trajectories use pool.fields.generations={stored}; for "
        advice = generations if name == "response" else ""
        raise LarkError(
            f"{where}: `{stored}` must be a string, not a list. For {advice}messages use"
            " pool.fields.prompt and pool.fields.completion."
        )


def check_text_or_messages(value: Any, stored: str, where: str) -> None:
    """Refuse a number, a boolean or an object where a text is expected, or a list of messages."""
    if not isinstance(value, str | list):
        raise LarkError(f"{where}: `{stored}` must be a text or a list of messages, not {quoted(value)}.")


def check_question(question: str, where: str) -> None:
    if is_invisible(question):
        raise LarkError(f"{where}: the question is empty. Remove the row, or give the question's text.")


def empty_response(where: str, has_control_token: bool) -> LarkError:
    reason = " (text like a control token does not count)" if has_control_token else ""
    return LarkError(
        f"{where}: the response is empty{reason}. Remove the trajectory, give its text, or drop such"
        " trajectories with pool.incomplete=drop."
    )


def another_text(where: str, trajectory: Trajectory) -> LarkError:
    return LarkError(
        f"{where}: candidate {trajectory.candidate_id!r} of question {trajectory.question_id!r} has another "
        "question text than the candidates before it. Give different questions different ids."
    )


def check_new(key: int, before: Collection[int], where: str, trajectory: Trajectory) -> None:
    """Refuse a candidate that appears a second time. `key`: a hash of its ids."""
    if key in before:
        raise LarkError(
            f"{where}: candidate {trajectory.candidate_id!r} of question {trajectory.question_id!r} appears "
            "a second time. Give every trajectory of a question its own candidate_id."
        )


def no_verdict(where: str, trajectory: Trajectory) -> LarkError:
    return LarkError(
        f"{where}: pool.correct_only=true, but question {trajectory.question_id!r} has neither `answer` nor"
        " `correct`: give one of them, use pool.labels=vote or pool.unknown=drop, or set"
        " pool.correct_only=false."
    )


def check_generations(generations: Sequence[Any], where: str) -> None:
    """Refuse an empty list, objects without a text, and several texts in the place of one."""
    if not generations:
        raise LarkError(
            f"{where}: `generations` is empty. Add the question's trajectories, or remove the row."
        )
    for number, generation in enumerate(generations, start=1):
        _check_one_text(generation, f"{where}, generation {number}")
        _check_has_text(generation, f"{where}, generation {number}")


def _check_one_text(generation: Any, where: str) -> None:
    # Several texts could be joined, but no teacher wrote the result.
    if isinstance(generation, list) and not all(isinstance(part, dict) for part in generation):
        raise LarkError(
            f"{where}: it is a list of texts, not a text. Write `generations` as one list of all samples of"
            " the question, and name their teachers in `teacher`, a list of the same length."
        )


def _check_has_text(generation: Any, where: str) -> None:
    if isinstance(generation, dict) and not {"content", "value", "tool_calls"} & set(generation):
        raise LarkError(
            f"{where}: it is an object with {', '.join(map(str, generation)) or 'nothing in it'}, not a text."
            " Write the text, or a message with `content`."
        )


def check_length(values: Sequence[Any], generations: int, name: str, where: str) -> None:
    """Refuse a list next to the generations that has another length."""
    if len(values) != generations:
        raise LarkError(
            f"{where}: {generations} generations, but `{name}` has {len(values)} values."
            " Give one value per generation, or remove the list."
        )


def no_teachers(row: Row, layouts: Mapping[str, Any]) -> LarkError:
    return LarkError(
        f"{row.where}: no column pair like `deepseek_thinking_trajectory` and `deepseek_attempt`; the row has"
        f" {', '.join(map(str, row.values))}. Choose another pool.layout ({', '.join(layouts)})."
    )


def without_request(identity: Any, where: str) -> LarkError:
    """A line of a batch output whose request is not known."""
    return LarkError(
        f"{where}: a batch output has no questions, and there is no request {quoted(identity)}. Name the file"
        " of its requests with pool.requests=<file>."
    )


def not_a_log(error: Exception, where: str) -> LarkError:
    """A row that has the columns of a tool's log, with other values in them."""
    return LarkError(
        f"{where}: its columns are those of a log, but not its values ({first_line(error)}). Remove the"
        " row, or"
        " name another layout with pool.layout (see docs/own-pool.md)."
    )


def not_generated(where: str) -> LarkError:
    return LarkError(
        f"{where}: the sample has no text, only likelihoods of given choices. Use a task of lm-eval that"
        " generates (output_type: generate_until)."
    )


# Messages


def not_json(error: Exception, value: str, where: str) -> LarkError:
    """A value that cannot be stored as JSON text. `value`: a noun for it."""
    if isinstance(error, RecursionError):
        return LarkError(f"{where}: {value} is nested too deeply. Remove the trajectory.")
    return LarkError(f"{where}: {value} is not JSON ({first_line(error)}). Store it as JSON text.")


def check_turns(messages: Sequence[Message], start: int, end: int, name: str, where: str) -> None:
    """Refuse a conversation that does not have a user turn at `start` and an assistant turn before `end`."""
    if end < start + 2 or messages[start]["role"] != "user":
        roles = ", ".join(message["role"] for message in messages)
        raise LarkError(
            f"{where}: `{name}` must be an optional system turn, one user turn, one assistant turn, and"
            f" optionally more turns; it has {roles or 'none'}."
        )


def unknown_role(stored: Any, roles: Collection[str], where: str) -> LarkError:
    return LarkError(f"{where}: the role {quoted(stored)} is not known. Use one of {', '.join(roles)}.")


def check_same(texts: Sequence[Any], kind: str, names: str, where: str) -> None:
    """Refuse different values for one thing under several names."""
    if any(text != texts[0] for text in texts):
        raise LarkError(f"{where}: different {kind} in {names}. Keep one of them.")


def check_no_reasoning(reasoning: str, role: str, where: str) -> None:
    if reasoning.strip():
        raise LarkError(
            f"{where}: a content part with reasoning in a {role} turn. Remove it, or write it as text."
        )


def check_part_type(kind: Any, kinds: Collection[str], where: str) -> None:
    """Refuse a content part of another type than text."""
    if kind not in kinds:
        raise LarkError(
            f"{where}: a content part of type {quoted(kind)}. Only text can be used: remove the part or the"
            " trajectory."
        )


def check_part_text(text: Any, where: str) -> None:
    if not isinstance(text, str):
        raise LarkError(f'{where}: a content part without a `text`. Write {{"type": "text", "text": …}}.')


def check_call_name(name: Any, number: int, where: str) -> None:
    if not isinstance(name, str) or not name:
        raise LarkError(f'{where}: tool call {number} has no name. Write {{"name": …, "arguments": {{…}}}}.')


def check_arguments(arguments: Any, number: int, where: str) -> None:
    """Refuse arguments of a tool call that have no names."""
    if not isinstance(arguments, dict):
        raise LarkError(
            f"{where}: the arguments of tool call {number} must be an object, not {described(arguments)}."
        )


def check_pending(pending: float, where: str) -> None:
    """Refuse a tool's result that does not follow a call."""
    if pending == 0:
        raise LarkError(
            f"{where}: a tool result without a call. Add the call (`tool_calls`) to the assistant turn before"
            " it, or remove the result."
        )


def check_answered(answered: str | None, calls: Collection[str], where: str) -> None:
    """Refuse the result of another call. `calls`: ids of the calls before it; empty if they have none."""
    if answered is not None and calls and answered not in calls:
        raise LarkError(
            f"{where}: the result of the call {quoted(answered)}, but the calls before it are"
            f" {', '.join(sorted(calls))[:80]}. Correct `tool_call_id`, or remove it."
        )


def another_rollout(row: Row, verdict: Row) -> LarkError:
    return LarkError(
        f"{verdict.where}: this verdict is not that of {row.where}. Verify the rollouts again with"
        " force=[verify_rollouts]."
    )
