"""The trainers that a training set can be exported for: the fields of a line, and what each does with a
weight.

docs/train-jsonl.md has the same facts as a table, with the versions they were checked with.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lark.errors import LarkError
from lark.export.examples import Example, Message, Overview, is_context

Line = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """One trainer."""

    label: str
    convert: Callable[[Example, Overview], Line]
    """The fields of a line, without the weight."""
    weights: Literal["used", "own code", "ignored"]
    """used: the trainer multiplies the loss by `weight`. own code: only with the trainer in
    docs/train-jsonl.md.
    """
    check: Callable[[Overview], None]
    """Raises LarkError for a training set that the trainer cannot represent."""
    settings: Callable[[Overview, str], str]
    """What to set in the trainer; gets the name of the exported file."""
    template_thinks: bool = True
    """Whether the model's chat template decides what happens with `reasoning_content`."""


def _line(messages: list[Message], example: Example) -> Line:
    return {"messages": messages, **({} if example.tools is None else {"tools": example.tools})}


def _as_it_is(example: Example, found: Overview) -> Line:
    return _line(example.messages, example)


def _fireworks(example: Example, found: Overview) -> Line:
    return _line(list(map(_arguments_as_text, example.messages)), example)


def _arguments_as_text(message: Message) -> Message:
    """The message with the arguments of its tool calls as JSON text, which is OpenAI's format and that of
    hosted trainers.
    """
    calls = message.get("tool_calls")
    return {**message, "tool_calls": list(map(_call_with_text, calls))} if calls else message


def _call_with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function", {})
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _without_weights(messages: list[Message]) -> list[Message]:
    return [{key: value for key, value in message.items() if key != "weight"} for message in messages]


def _trl(example: Example, found: Overview) -> Line:
    """Prompt and completion if only the last message is trained on; otherwise the conversation."""
    line = _line(_without_weights(example.messages), example)
    if found.last_only == found.examples:
        messages = line.pop("messages")
        return {"prompt": messages[:-1], "completion": messages[-1:], **line}
    return line


def _axolotl(example: Example, found: Overview) -> Line:
    messages = [
        {**message, "train": False} if is_context(original) else message
        for message, original in zip(_without_weights(example.messages), example.messages, strict=True)
    ]
    return _line(messages, example)


def _llama_factory(example: Example, found: Overview) -> Line:
    """Thinking is text in LLaMA-Factory: its converter reads only the role and the content of a message."""
    messages = [thinking_as_text(message) for message in example.messages]
    return {
        "messages": [
            {"role": message["role"], "content": message.get("content") or ""} for message in messages
        ]
    }


def thinking_as_text(message: Message) -> Message:
    """The message with its `reasoning_content` written into its content, as <think>…</think>."""
    if not message.get("reasoning_content"):
        return message
    thinking, content = str(message["reasoning_content"]).strip(), str(message.get("content") or "").lstrip()
    rest = {key: value for key, value in message.items() if key != "reasoning_content"}
    return {**rest, "content": f"<think>\n{thinking}\n</think>\n\n{content}"}


def _together(example: Example, found: Overview) -> Line:
    """If one message has a weight, Together trains on all messages without one: then give all of them one."""
    messages = list(map(_arguments_as_text, _without_weights(example.messages)))
    if any("weight" in message for message in example.messages):
        trained = [m["role"] == "assistant" and not is_context(m) for m in example.messages]
        messages = [{**message, "weight": int(loss)} for message, loss in zip(messages, trained, strict=True)]
    return _line(messages, example)


def _anything(found: Overview) -> None:
    """Every training set can be represented."""


def _one_kind(found: Overview, name: str) -> None:
    if found.examples not in (found.last_only, found.every_turn):
        raise LarkError(
            f"{name} cannot leave out single assistant messages: in this training set, some conversations are"
            " trained on in their last message only and others in all of them. Export for axolotl, Fireworks"
            " or Together, which can."
        )


def _check_trl(found: Overview) -> None:
    _one_kind(found, "TRL")


def _check_llama_factory(found: Overview) -> None:
    _one_kind(found, "LLaMA-Factory")
    if found.tools:
        raise LarkError(
            f"{found.tools} of {found.examples} examples use tools, and LLaMA-Factory's format cannot store a"
            " tool call next to text or thinking. Export for TRL, axolotl, Fireworks or Together."
        )


def _nothing(found: Overview, file: str) -> str:
    return ""


def _trl_settings(found: Overview, file: str) -> str:
    if found.last_only == found.examples:
        return "The file has `prompt` and `completion`: SFTTrainer computes the loss on the completion only."
    return "Set SFTConfig(assistant_only_loss=True), so that the loss covers the assistant's messages only."


def _axolotl_settings(found: Overview, file: str) -> str:
    masked = "" if found.every_turn == found.examples else "\n    message_field_training: train"
    return (
        f"In the configuration:\n\ndatasets:\n  - path: {file}\n    ds_type: json\n    type:"
        f" chat_template{masked}"
    )


def _llama_factory_settings(found: Overview, file: str) -> str:
    tags = {
        name: name.removesuffix("_tag")
        for name in ("role_tag", "content_tag", "user_tag", "assistant_tag", "system_tag")
    }
    entry = {
        "lark": {
            "file_name": file,
            "formatting": "sharegpt",
            "columns": {"messages": "messages"},
            "tags": tags,
        }
    }
    masked = (
        ""
        if found.every_turn == found.examples
        else "\n\nSet mask_history: true, so that only the last message is trained on."
    )
    return f"In data/dataset_info.json:\n\n{json.dumps(entry, ensure_ascii=False)}{masked}"


TARGETS = {
    "messages": Target("any trainer that reads messages", _as_it_is, "used", _anything, _nothing),
    "fireworks": Target("Fireworks", _fireworks, "used", _anything, _nothing),
    "trl": Target("TRL's SFTTrainer", _trl, "own code", _check_trl, _trl_settings),
    "axolotl": Target("axolotl", _axolotl, "ignored", _anything, _axolotl_settings),
    "llama_factory": Target(
        "LLaMA-Factory", _llama_factory, "ignored", _check_llama_factory, _llama_factory_settings, False
    ),
    "together": Target("Together", _together, "ignored", _anything, _nothing, False),
}
"""Values of `--for`."""
