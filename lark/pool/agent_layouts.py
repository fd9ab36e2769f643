"""Layouts of agents: trajectories in ATIF (Harbor), and sessions of Claude Code and Codex."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lark.pool.columns import Columns
from lark.pool.drafts import DraftTrajectory, as_object, one
from lark.pool.messages import Message, normalised, turns
from lark.pool.response_items import response_messages, result_text
from lark.reading.fields import Fields
from lark.reading.untrusted import parsed, readable_object

SESSION = "session"
"""The column that holds the events of a session, once `sessions.gathered` has joined its lines."""
CONTEXT = re.compile(
    r"\s*<(?:user_instructions|environment_context|system-reminder|command-name|local-command)"
)
"""Beginnings of user turns that the tool writes, not the user."""


def is_atif(columns: Columns) -> bool:
    values = columns.row.values
    is_named = str(values.get("schema_version", "")).startswith("ATIF")
    return "steps" in values and ("agent" in values or is_named)


def atif(columns: Columns) -> Iterator[DraftTrajectory]:
    """A trajectory in the Agent Trajectory Interchange Format, with Harbor's verdict if it is beside it."""
    values = columns.row.values
    columns.used |= {"schema_version", "session_id", "agent", "steps"}
    steps = Fields(values, columns.where).json_list("steps")
    messages: list[Message] = []
    for step in steps:
        messages += _atif_step(step if isinstance(step, dict) else {})
    exchange = turns(normalised(messages, columns.where, "steps"), columns.where, "steps")
    agent = values.get("agent")
    agent = parsed(agent) if isinstance(agent, str) else agent
    agent = agent if isinstance(agent, dict) else {}
    result = trial_result(columns.row.path) if columns.row.path else {}
    draft = one(columns, exchange)
    rewards = (result.get("verifier_result") or {}).get("rewards") or {}
    yield replace(
        draft,
        question_id=draft.question_id or result.get("task_name"),
        candidate_id=draft.candidate_id or result.get("trial_name") or values.get("session_id"),
        teacher=draft.teacher or agent.get("model_name") or agent.get("name"),
        correct=rewards.get("reward", next(iter(rewards.values()), None))
        if draft.correct is None
        else draft.correct,
    )


def _atif_step(step: Mapping[str, Any]) -> Iterator[Message]:
    """The messages of a step: what was said, and the results of its calls."""
    text = result_text(step.get("message"))
    if step.get("source") != "agent":
        yield {"role": step.get("source") or "user", "content": text}
        return
    turn: Message = {"role": "assistant", "content": text}
    if step.get("reasoning_content"):
        turn["reasoning_content"] = step["reasoning_content"]
    calls = step.get("tool_calls") or []
    if calls:
        turn["tool_calls"] = [_atif_call(call) for call in calls]
    yield turn
    for result in (step.get("observation") or {}).get("results") or []:
        content = result_text(result.get("content"))
        if calls:
            yield {"role": "tool", "tool_call_id": result.get("source_call_id"), "content": content}
        elif content:
            # An agent that writes commands as text has no calls: the terminal answers as the user.
            yield {"role": "user", "content": content}


def _atif_call(call: Mapping[str, Any]) -> Message:
    return {
        "id": call.get("tool_call_id"),
        "name": call.get("function_name"),
        "arguments": call.get("arguments"),
    }


def trial_result(path: Path) -> Mapping[str, Any]:
    """The result of Harbor's trial that a trajectory belongs to; empty without one."""
    for file in results_beside(path):
        return readable_object(file) or {}
    return {}


def results_beside(path: Path) -> list[Path]:
    """Harbor's `result.json` for a trajectory in `<trial>/agent/trajectory.json`, or in the same folder."""
    if not path.name.startswith("trajectory"):
        return []
    files = (path.parent / "result.json", path.parent.parent / "result.json")
    return [file for file in files if file.is_file()][:1]


def is_session(columns: Columns) -> bool:
    return SESSION in columns.row.values and isinstance(columns.row.values[SESSION], list)


def session(columns: Columns) -> Iterator[DraftTrajectory]:
    """A session of Claude Code or Codex: the lines of its file."""
    events = [event for event in columns.row.values[SESSION] if isinstance(event, dict)]
    columns.used.add(SESSION)
    is_codex = any(event.get("type") in ("session_meta", "response_item") for event in events)
    messages = _codex_messages(events) if is_codex else _claude_messages(events)
    started = [number for number, message in enumerate(messages) if message["role"] == "user"]
    if not started or not any(message["role"] == "assistant" for message in messages):
        columns.without.append("a session without a question or an answer")
        return
    exchange = turns(
        normalised(list(_paired(messages[started[0] :])), columns.where, SESSION), columns.where, SESSION
    )
    yield DraftTrajectory(exchange, candidate_id=columns.row.values.get("id"), teacher=_model(events))


def _model(events: Sequence[Mapping[str, Any]]) -> str | None:
    """The model that answers most of a session's turns."""
    names: list[str] = []
    for event in events:
        for holder in (event.get("message"), event.get("payload")):
            name = holder.get("model") if isinstance(holder, dict) else None
            if isinstance(name, str) and name and name != "<synthetic>":
                names.append(name)
    return max(sorted(set(names)), key=names.count) if names else None


def _codex_messages(events: Sequence[Mapping[str, Any]]) -> list[Message]:
    items = [event.get("payload") for event in events if event.get("type") == "response_item"]
    messages = response_messages(items)
    return [message for message in messages if not _is_written_by_tool(message)]


def _is_written_by_tool(message: Message) -> bool:
    """Whether a user turn is the tool's: its context, or the names of commands."""
    if message["role"] not in ("user", "developer", "system"):
        return False
    text = result_text(message["content"])
    return message["role"] != "user" or not isinstance(text, str) or CONTEXT.match(text) is not None


def _claude_messages(events: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The main line of a session of Claude Code, without those of its subagents. An answer is stored as one
    line per content block; lines with the same id are one turn.
    """
    messages: list[Message] = []
    last: Any = None
    for event in events:
        stored = as_object(event.get("message"))
        is_turn = event.get("type") in ("user", "assistant") and bool(stored)
        if not is_turn or event.get("isSidechain") or event.get("isMeta"):
            continue
        content = stored.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        if event["type"] == "user":
            messages += _claude_user(blocks)
            last = None
            continue
        if stored.get("model") == "<synthetic>":
            continue
        if last is None or stored.get("id") != last:
            messages.append({"role": "assistant", "content": ""})
        last = stored.get("id") or last
        _add_blocks(messages[-1], blocks)
    return messages


def _claude_user(blocks: Sequence[Any]) -> Iterator[Message]:
    """A line of the user: results of tools, and text."""
    texts = []
    for block in blocks:
        if block.get("type") == "tool_result":
            content = result_text(block.get("content"))
            text = content if isinstance(content, str) else "[not text]"
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}
        elif block.get("type") == "text" and not CONTEXT.match(block.get("text") or ""):
            texts.append(block["text"])
    text = "\n\n".join(texts)
    if text.strip():
        yield {"role": "user", "content": text}


def _add_blocks(turn: Message, blocks: Sequence[Mapping[str, Any]]) -> None:
    for block in blocks:
        match block.get("type"):
            case "text":
                turn["content"] = "\n\n".join(filter(None, (turn["content"], block.get("text"))))
            case "thinking":
                thoughts = (turn.get("reasoning_content"), block.get("thinking"))
                turn["reasoning_content"] = "\n\n".join(filter(None, thoughts))
            case "tool_use":
                call = {"id": block.get("id"), "name": block.get("name"), "arguments": block.get("input")}
                turn.setdefault("tool_calls", []).append(call)
            case _:
                pass


def _paired(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages with the results of the calls right before them. A session that was interrupted or
    compacted has results without calls, which are left out, and turns without content.
    """
    calls: set[Any] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in calls:
                continue
            calls.discard(message["tool_call_id"])
        elif message["role"] != "assistant":
            calls = set()
        else:
            if not (message["content"] or message.get("tool_calls")):
                continue
            calls = {call["id"] for call in message.get("tool_calls", [])}
        yield message
