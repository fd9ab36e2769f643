"""Layouts of rollouts and of evaluation logs: rows that other tools write, each with its own verdict."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lark.pool.checks import not_generated, without_request
from lark.pool.columns import Columns
from lark.pool.drafts import DraftTrajectory, one
from lark.pool.generation_lists import CUT_OFF
from lark.pool.hashing import hash64
from lark.pool.messages import Message, Turns, normalised, turns
from lark.pool.response_items import response_messages
from lark.reading.fields import Fields
from lark.reading.untrusted import parsed

DATED = re.compile(r"(.+)_\d{8}_\d{6}")
"""A folder of reasoning-gym-eval: teacher and date."""
SAMPLES = re.compile(r"samples_(.+?)_\d{4}-\d\d-\d\dT.*")
"""A file of lm-eval's samples: task and date."""
INSPECT_VALUES = {"C": True, "I": False, "N": False}
"""Inspect's scores as letters: correct, incorrect, no answer. (P, partial, is 0.5.)"""


def _object(value: Any) -> Mapping[str, Any]:
    """A value as an object, which may be stored as JSON text; empty if it is something else."""
    if isinstance(value, str):
        value = parsed(value)
    return value if isinstance(value, dict) else {}


def _first(value: Any) -> Any:
    """The first value of a list, or the value itself."""
    if isinstance(value, list):
        return value[0] if value else None
    return value


def is_nemo_gym(columns: Columns) -> bool:
    return {"responses_create_params", "response"} <= columns.row.values.keys()


def nemo_gym(columns: Columns) -> Iterator[DraftTrajectory]:
    """A rollout of NeMo Gym: what was asked and answered as items of the Responses API, and a reward."""
    values = columns.row.values
    columns.used |= {"responses_create_params", "response", "_ng_task_index", "_ng_rollout_index"}
    asked = _object(values["responses_create_params"])
    answered = _object(values["response"])
    stored = asked.get("input")
    items = [{"role": "user", "content": stored}] if isinstance(stored, str) else stored or []
    messages = response_messages([*items, *(answered.get("output") or [])])
    name = "responses_create_params and response"
    exchange = turns(
        normalised(messages, columns.where, name), columns.where, name,
        asked.get("instructions"), asked.get("tools"),
    )  # fmt: skip
    draft = one(columns, exchange)
    yield replace(
        draft,
        question_id=_if_none(draft.question_id, values.get("_ng_task_index")),
        rollout=_if_none(draft.rollout, values.get("_ng_rollout_index")),
        teacher=draft.teacher or answered.get("model"),
        answer=columns.get("pair_answer"),
        complete=not answered.get("incomplete_details"),
    )


def _if_none(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def is_openai_batch(columns: Columns) -> bool:
    return "custom_id" in columns.row.values and "response" in columns.row.values


def openai_batch(columns: Columns) -> Iterator[DraftTrajectory]:
    """A line of an OpenAI batch output, joined with its request (lark/pool/batches.py)."""
    values = columns.row.values
    columns.used |= {"id", "custom_id", "response", "error", "request"}
    body = _object(_object(values["response"]).get("body"))
    if values.get("error") or not (body.get("choices") or body.get("output")):
        columns.without.append("an error in place of a response")
        return
    request = values.get("request")
    if not isinstance(request, dict):
        raise without_request(values["custom_id"], columns.where)
    draft = one(columns, Turns("", ""))
    for number, (answer, is_complete) in enumerate(_batch_answers(body)):
        asked = request.get("messages") or request.get("input") or request.get("prompt")
        asked = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        exchange = normalised([*response_messages(asked or []), *answer], columns.where, "messages")
        identity = str(values["custom_id"]) + (f".{number}" if number else "")
        yield replace(
            draft,
            turns=turns(
                exchange, columns.where, "messages", request.get("instructions"), request.get("tools")
            ),
            candidate_id=identity,
            teacher=draft.teacher or body.get("model"),
            complete=is_complete,
        )


def _batch_answers(body: Mapping[str, Any]) -> Iterator[tuple[list[Message], bool]]:
    """The messages of each answer in a response's body, and whether it is complete."""
    if body.get("output"):
        yield response_messages(body["output"]), not body.get("incomplete_details")
    for choice in map(_object, body.get("choices") or []):
        message = choice.get("message") or {"content": choice.get("text")}
        yield [{"role": "assistant", **message}], choice.get("finish_reason") not in CUT_OFF


def is_reasoning_gym(columns: Columns) -> bool:
    results = columns.row.values.get("results")
    return isinstance(results, list) and bool(results) and "completions" in _object(results[0])


def reasoning_gym(columns: Columns) -> Iterator[DraftTrajectory]:
    """A result file of reasoning-gym-eval: one task, with the completions of one teacher."""
    values = columns.row.values
    columns.used |= {"results", "name", "system_prompt", "model"}
    system = columns.optional("system")
    teacher = values.get("model") or _dated_folder(columns)
    fields = Fields(values, columns.where)
    for number, result in enumerate(fields.objects("results"), start=1):
        where = f"{columns.where}, result {number}"
        question = Fields(result, where).text("question")
        identity = f"{values.get('name', 'task')}-{hash64(question):016x}"
        for rollout, completion in enumerate(Fields(result, where).objects("completions")):
            if completion.get("full_model_response") is None:
                columns.without.append("no response")
                continue
            response = Fields(completion, where).optional_text("full_model_response") or ""
            yield DraftTrajectory(
                Turns(question, response, values.get("system_prompt") or system),
                question_id=identity,
                teacher=teacher,
                rollout=rollout,
                answer=result.get("expected_answer"),
                correct=completion.get("score"),
            )


def _dated_folder(columns: Columns) -> str | None:
    """The teacher in a folder's name: `openai_o3-mini_20250315_181742` is openai/o3-mini."""
    for parent in columns.row.path.parents if columns.row.path else ():
        match = DATED.fullmatch(parent.name)
        if match:
            return match[1].replace("_", "/", 1)
    return None


def is_every_eval(columns: Columns) -> bool:
    return {"evaluation_id", "sample_id", "evaluation", "input"} <= columns.row.values.keys()


def every_eval(columns: Columns) -> Iterator[DraftTrajectory]:
    """An instance of Every Eval Ever: a sample of an evaluation, in one turn or several."""
    values = columns.row.values
    columns.used |= {"input", "output", "messages", "interactions", "evaluation", "sample_id", "model_id"}
    asked = _object(values["input"])
    verdict = _object(values["evaluation"])
    name = values.get("evaluation_name")
    columns.used.add("evaluation_name")
    draft = DraftTrajectory(
        Turns("", ""),
        question_id=f"{name}:{values['sample_id']}" if name else values["sample_id"],
        teacher=values.get("model_id"),
        answer=_first(asked.get("reference")),
        correct=_if_none(verdict.get("is_correct"), verdict.get("score")),
    )
    messages = values.get("messages") or values.get("interactions")
    if messages:
        chat = normalised(
            [_every_message(_object(message)) for message in messages], columns.where, "messages"
        )
        yield replace(draft, turns=turns(chat, columns.where, "messages"))
        return
    output = _object(values.get("output"))
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
        "tool_call_id": _first(message.get("tool_call_id")),
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
    answers = _first(values["resps"])
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
    document = _object(columns.row.values["doc"])
    for name in (columns.fields.get("question"), "question", "problem"):
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
    task = _object(values["eval"])
    for number, sample in enumerate(Fields(values, columns.where).objects("samples"), start=1):
        where = columns.where if len(values["samples"]) == 1 else f"{columns.where}, sample {number}"
        if sample.get("error"):
            columns.without.append("an error in place of a response")
            continue
        messages = [_inspect_message(_object(message)) for message in sample.get("messages") or []]
        epoch = sample.get("epoch") or 1
        output = _object(sample.get("output"))
        stop = _object(_first(output.get("choices"))).get("stop_reason")
        yield DraftTrajectory(
            turns(normalised(messages, where, "messages"), where, "messages"),
            question_id=f"{task.get('task', 'task')}-{sample.get('id')}",
            teacher=task.get("model") or output.get("model"),
            rollout=epoch - 1,
            answer=_first(sample.get("target")),
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
        plain["tool_calls"] = [_inspect_call(_object(call)) for call in calls]
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
    first: Any = next(iter(_object(scores).values()), None)
    value = _object(first).get("value")
    if value == "P":
        return 0.5
    if isinstance(value, str) and value in INSPECT_VALUES:
        return INSPECT_VALUES[value]
    return None if isinstance(value, Sequence | Mapping) else value
