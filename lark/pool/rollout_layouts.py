"""Layouts of rollouts: rows that other tools write while they sample, each with its own verdict."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from lark.pool.checks import without_request
from lark.pool.cleaning import has_no_text
from lark.pool.columns import Columns
from lark.pool.drafts import DraftTrajectory, as_object, one, or_else
from lark.pool.generation_lists import CUT_OFF
from lark.pool.hashing import hash64
from lark.pool.messages import Message, Turns, normalised, turns
from lark.pool.response_items import response_messages
from lark.reading.fields import Fields

DATED = re.compile(r"(.+)_\d{8}_\d{6}")
"""A folder of reasoning-gym-eval: teacher and date."""


def is_nemo_gym(columns: Columns) -> bool:
    return {"responses_create_params", "response"} <= columns.row.values.keys()


def nemo_gym(columns: Columns) -> Iterator[DraftTrajectory]:
    """A rollout of NeMo Gym: what was asked and answered as items of the Responses API, and a reward."""
    values = columns.row.values
    columns.used |= {"responses_create_params", "response", "_ng_task_index", "_ng_rollout_index"}
    asked = as_object(values["responses_create_params"])
    answered = as_object(values["response"])
    stored = asked.get("input")
    items = [{"role": "user", "content": stored}] if isinstance(stored, str) else stored or []
    messages = response_messages([*items, *(answered.get("output") or [])])
    if not any(message["role"] == "assistant" for message in messages):
        columns.without.append("no response")
        return
    name = "responses_create_params and response"
    exchange = turns(
        normalised(messages, columns.where, name), columns.where, name,
        asked.get("instructions"), asked.get("tools"),
    )  # fmt: skip
    draft = one(columns, exchange)
    yield replace(
        draft,
        question_id=or_else(draft.question_id, values.get("_ng_task_index")),
        rollout=or_else(draft.rollout, values.get("_ng_rollout_index")),
        teacher=draft.teacher or answered.get("model"),
        answer=_one_answer(columns.get("pair_answer")),
        complete=not answered.get("incomplete_details"),
    )


def _one_answer(stored: Any) -> Any:
    """The gold answer, if there is one: some environments have lists of several, or objects."""
    return None if isinstance(stored, list | dict | bool) else stored


def is_taught(columns: Columns) -> bool:
    return {"question", "response", "teacher", "rollout", "finish_reason", "key"} <= columns.row.values.keys()


def taught(columns: Columns) -> Iterator[DraftTrajectory]:
    """A rollout of `stages=[teach]`. One that was cut off in its reasoning has no answer to train on."""
    columns.used |= {*MADE, "finish_reason", "pass_rate"}
    response = columns.text("response")
    is_cut = columns.row.values.get("finish_reason") in CUT_OFF
    if has_no_text(response):
        columns.without.append("cut off in the reasoning" if is_cut else "an empty answer")
        return
    exchange = Turns(columns.text("question"), response, columns.optional("system"), columns.thinking())
    rate = columns.row.values.get("pass_rate")
    yield replace(one(columns, exchange), complete=not is_cut, pass_rate=rate)


MADE = (
    *("key", "seed", "cost", "n_tokens", "n_prompt_tokens", "model", "logprobs", "temperature", "top_p"),
    *("top_k", "max_new_tokens"),
)
"""How a rollout was made; nothing that a student is trained on."""


def is_openai_batch(columns: Columns) -> bool:
    return "custom_id" in columns.row.values and "response" in columns.row.values


def openai_batch(columns: Columns) -> Iterator[DraftTrajectory]:
    """A line of an OpenAI batch output, joined with its request (lark/pool/batch_requests.py)."""
    values = columns.row.values
    columns.used |= {"id", "custom_id", "response", "error", "request"}
    body = as_object(as_object(values["response"]).get("body"))
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
    for choice in map(as_object, body.get("choices") or []):
        message = choice.get("message") or {"content": choice.get("text")}
        yield [{"role": "assistant", **message}], choice.get("finish_reason") not in CUT_OFF


def is_reasoning_gym(columns: Columns) -> bool:
    results = columns.row.values.get("results")
    return isinstance(results, list) and bool(results) and "completions" in as_object(results[0])


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
