"""Layouts of evaluation logs: lm-eval, Inspect, Every Eval Ever. Verdicts are those of their scorers."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lark.pool.checks import not_generated
from lark.pool.columns import Columns
from lark.pool.drafts import DraftTrajectory, as_object, first, or_else
from lark.pool.generation_lists import CUT_OFF
from lark.pool.messages import Message, Turns, normalised, turns
from lark.reading.fields import Fields
from lark.reading.untrusted import parsed

SAMPLES = re.compile(r"samples_(.+?)_\d{4}-\d\d-\d\dT.*")
"""A file of lm-eval's samples: task and date."""
INSPECT_VALUES = {"C": True, "I": False, "N": False}
"""Inspect's scores as letters: correct, incorrect, no answer. (P, partial, is 0.5.)"""


def is_every_eval(columns: Columns) -> bool:
    return {"evaluation_id", "sample_id", "evaluation", "input"} <= columns.row.values.keys()


def every_eval(columns: Columns) -> Iterator[DraftTrajectory]:
    """An instance of Every Eval Ever: a sample of an evaluation, in one turn or several."""
    values = columns.row.values
    columns.used |= {"input", "output", "messages", "interactions", "evaluation", "sample_id", "model_id"}
    asked = as_object(values["input"])
    verdict = as_object(values["evaluation"])
    name = values.get("evaluation_name")
    columns.used.add("evaluation_name")
    draft = DraftTrajectory(
        Turns("", ""),
        question_id=f"{name}:{values['sample_id']}" if name else values["sample_id"],
        teacher=values.get("model_id"),
        answer=first(asked.get("reference")),
        correct=or_else(verdict.get("is_correct"), verdict.get("score")),
    )
    messages = values.get("messages") or values.get("interactions")
    if messages:
        chat = normalised(
            [_every_message(as_object(message)) for message in messages], columns.where, "messages"
        )
        yield replace(draft, turns=turns(chat, columns.where, "messages"))
        return
    output = as_object(values.get("output"))
    thoughts = output.get("reasoning_trace")
    thoughts = thoughts if isinstance(thoughts, list) else [thoughts]
    responses = output.get("raw")
    for number, response in enumerate(responses if isinstance(responses, list) else [responses]):
        thought = thoughts[number] if number < len(thoughts) else None
        parts = Fields({"raw": response, "reasoning_trace": thought}, f"{columns.where}, `output`")
        question = Fields(asked, f"{columns.where}, `input`").text("raw")
        exchange = Turns(
            question, parts.optional_text("raw") or "", None, parts.optional_text("reasoning_trace")
        )
        yield replace(draft, turns=exchange)


def _every_message(message: Mapping[str, Any]) -> Message:
    plain = {
        "role": message.get("role"),
        "content": message.get("content") or "",
        "reasoning_content": message.get("reasoning_trace"),
        "tool_calls": message.get("tool_calls"),
        "tool_call_id": first(message.get("tool_call_id")),
    }
    return {key: value for key, value in plain.items() if value is not None}


def is_lm_eval(columns: Columns) -> bool:
    return {"doc_id", "doc", "arguments", "resps"} <= columns.row.values.keys()


def lm_eval(columns: Columns) -> Iterator[DraftTrajectory]:
    """A sample that lm-eval logs (`--log_samples`). With several filters, the same answers are in the file
    once for each: those of the filter `none` or of the first one are read.
    """
    values = columns.row.values
    columns.used |= {"doc_id", "doc", "arguments", "resps", "filtered_resps", "target", "filter", "metrics"}
    metrics = [name for name in values.get("metrics") or [] if name in values]
    columns.used |= set(metrics)
    if not columns.is_first_filter(values.get("filter")):
        columns.without.append("another filter of lm-eval on the same answers")
        return
    answers = first(values["resps"])
    question, system = _lm_eval_question(columns)
    for rollout, answer in enumerate(answers if isinstance(answers, list) else [answers]):
        if not isinstance(answer, str):
            raise not_generated(columns.where)
        yield DraftTrajectory(
            Turns(question, answer, system),
            question_id=_lm_eval_id(columns),
            teacher=columns.label("teacher") or _lm_eval_teacher(columns),
            rollout=rollout,
            answer=columns.get("answer") or values.get("target"),
            correct=values[metrics[0]] if metrics else columns.label("correct"),
        )


def _lm_eval_question(columns: Columns) -> tuple[str, str | None]:
    """The document's question, without the examples that lm-eval puts before it; or else the prompt."""
    document = as_object(columns.row.values["doc"])
    for name in (columns.fields.get("question", "question"), "problem"):
        if isinstance(document.get(name), str) and not document.get("choices"):
            return document[name], None
    arguments = columns.row.values["arguments"]
    prompt: Any = arguments
    while isinstance(prompt, list | dict) and prompt:
        prompt = next(iter(prompt.values())) if isinstance(prompt, dict) else prompt[0]
    messages = parsed(prompt) if isinstance(prompt, str) and prompt.startswith("[{") else None
    if isinstance(messages, list) and messages:
        system = messages[0].get("content") if messages[0].get("role") == "system" else None
        return str(messages[-1].get("content")), system
    return str(prompt), None


def _lm_eval_id(columns: Columns) -> Any:
    path = columns.row.path
    match = SAMPLES.fullmatch(path.name) if path else None
    return f"{match[1]}-{columns.row.values['doc_id']}" if match else None


def _lm_eval_teacher(columns: Columns) -> str | None:
    path = columns.row.path
    if path is None or not SAMPLES.fullmatch(path.name):
        return None
    return path.parent.name.replace("__", "/")


def is_inspect(columns: Columns) -> bool:
    return {"eval", "samples"} <= columns.row.values.keys()


def inspect(columns: Columns) -> Iterator[DraftTrajectory]:
    """Samples of an Inspect log: a `.eval` file, or a log in JSON."""
    values = columns.row.values
    columns.used |= values.keys()
    task = as_object(values["eval"])
    for number, sample in enumerate(Fields(values, columns.where).objects("samples"), start=1):
        where = columns.where if len(values["samples"]) == 1 else f"{columns.where}, sample {number}"
        if sample.get("error"):
            columns.without.append("an error in place of a response")
            continue
        messages = [_inspect_message(as_object(message)) for message in sample.get("messages") or []]
        epoch = sample.get("epoch") or 1
        output = as_object(sample.get("output"))
        stop = as_object(first(output.get("choices"))).get("stop_reason")
        yield DraftTrajectory(
            turns(normalised(messages, where, "messages"), where, "messages"),
            question_id=f"{task.get('task', 'task')}-{sample.get('id')}",
            teacher=task.get("model") or output.get("model"),
            rollout=epoch - 1,
            answer=first(sample.get("target")),
            correct=_inspect_verdict(sample.get("scores")),
            complete=not sample.get("limit") and stop not in CUT_OFF,
        )


def _inspect_message(message: Mapping[str, Any]) -> Message:
    plain: Message = {"role": message.get("role"), "content": message.get("content")}
    if isinstance(plain["content"], list):
        plain["content"] = [_inspect_part(part) for part in plain["content"]]
    if message.get("role") == "tool":
        plain["tool_call_id"] = message.get("tool_call_id")
        plain["name"] = message.get("function")
    calls = message.get("tool_calls") or []
    if calls:
        plain["tool_calls"] = [_inspect_call(as_object(call)) for call in calls]
    return plain


def _inspect_part(part: Any) -> Any:
    """A content part. Redacted reasoning is not text; its summary is what can be read of it."""
    if isinstance(part, dict) and part.get("type") == "reasoning" and part.get("redacted"):
        return {"type": "reasoning", "reasoning": part.get("summary") or ""}
    return part


def _inspect_call(call: Mapping[str, Any]) -> Message:
    return {"id": call.get("id"), "name": call.get("function"), "arguments": call.get("arguments")}


def _inspect_verdict(scores: Any) -> Any:
    """The value of the first scorer. One that is an object has no single verdict."""
    first: Any = next(iter(as_object(scores).values()), None)
    value = as_object(first).get("value")
    if value == "P":
        return 0.5
    if isinstance(value, str) and value in INSPECT_VALUES:
        return INSPECT_VALUES[value]
    return None if isinstance(value, Sequence | Mapping) else value
