"""The trainers that a training set can be exported for: the fields of a line, and what each does with a
weight.

docs/train-jsonl.md has the same facts as a table, with the versions they were checked with.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lark.export.checks import refuse_tools, require_one_kind
from lark.export.examples import Contents, ExportExample, Message, is_context

Line = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """One trainer."""

    label: str
    convert: Callable[[ExportExample, Contents], Line]
    """The fields of a line, without the weight."""
    weights: Literal["used", "own code", "ignored"]
    """used: the trainer multiplies the loss by `weight`. own code: only with the trainer in
    docs/train-jsonl.md.
    """
    settings: Callable[[Contents, str], str] = lambda contents, file: ""
    """Settings of the trainer, as text; gets the name of the exported file."""
    check: Callable[[Contents], None] = lambda contents: None
    """Raises LarkError for a training set that the trainer cannot represent."""
    template_thinks: bool = True
    """Whether the model's chat template decides what happens with `reasoning_content`."""


def _line(messages: list[Message], example: ExportExample) -> Line:
    return {"messages": messages, **({} if example.tools is None else {"tools": example.tools})}


def _as_it_is(example: ExportExample, contents: Contents) -> Line:
    return _line(example.messages, example)


def _fireworks(example: ExportExample, contents: Contents) -> Line:
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


def _without(key: str, message: Message) -> Message:
    return {name: value for name, value in message.items() if name != key}


def _without_weights(messages: list[Message]) -> list[Message]:
    return [_without("weight", message) for message in messages]


def _trl(example: ExportExample, contents: Contents) -> Line:
    """Prompt and completion if only the last message is trained on; otherwise the conversation."""
    line = _line(_without_weights(example.messages), example)
    # One form for the whole file: all lines of a dataset have the same columns.
    if contents.last_only == contents.examples:
        messages = line.pop("messages")
        return {"prompt": messages[:-1], "completion": messages[-1:], **line}
    return line


def _axolotl(example: ExportExample, contents: Contents) -> Line:
    messages = _without_weights(example.messages)
    for message, original in zip(messages, example.messages, strict=True):
        if is_context(original):
            message["train"] = False
    return _line(messages, example)


def _llama_factory(example: ExportExample, contents: Contents) -> Line:
    """Thinking is text in LLaMA-Factory: its converter reads only the role and the content of a message."""
    messages = []
    for message in map(thinking_as_text, example.messages):
        messages.append({"role": message["role"], "content": message.get("content") or ""})
    return {"messages": messages}


def thinking_as_text(message: Message) -> Message:
    """The message with its `reasoning_content` written into its content, as <think>…</think>."""
    if not message.get("reasoning_content"):
        return message
    thinking = str(message["reasoning_content"]).strip()
    content = str(message.get("content") or "").lstrip()
    rest = _without("reasoning_content", message)
    return {**rest, "content": f"<think>\n{thinking}\n</think>\n\n{content}"}


def _together(example: ExportExample, contents: Contents) -> Line:
    """If one message has a weight, Together trains on all messages without one: then give all of them one."""
    messages = list(map(_arguments_as_text, _without_weights(example.messages)))
    if any("weight" in message for message in example.messages):
        for message, original in zip(messages, example.messages, strict=True):
            is_trained_on = original["role"] == "assistant" and not is_context(original)
            message["weight"] = int(is_trained_on)
    return _line(messages, example)


def _is_one_kind(contents: Contents) -> bool:
    """True if all conversations are trained on in their last message, or all in every assistant message."""
    return contents.examples in (contents.last_only, contents.every_turn)


def _check_trl(contents: Contents) -> None:
    require_one_kind(_is_one_kind(contents), "TRL")


def _check_llama_factory(contents: Contents) -> None:
    require_one_kind(_is_one_kind(contents), "LLaMA-Factory")
    refuse_tools(contents.tools, contents.examples)


def _trl_settings(contents: Contents, file: str) -> str:
    if contents.last_only == contents.examples:
        return "The file has `prompt` and `completion`: SFTTrainer computes the loss on the completion only."
    return "Set SFTConfig(assistant_only_loss=True), so that the loss covers the assistant's messages only."


def _axolotl_settings(contents: Contents, file: str) -> str:
    masked = "" if contents.every_turn == contents.examples else "\n    message_field_training: train"
    return (
        f"In the configuration:\n\ndatasets:\n  - path: {file}\n    ds_type: json\n    type:"
        f" chat_template{masked}"
    )


def _llama_factory_settings(contents: Contents, file: str) -> str:
    # ShareGPT's form, with OpenAI's names of keys and roles.
    entry = {
        "file_name": file,
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": {
            "role_tag": "role",
            "content_tag": "content",
            "user_tag": "user",
            "assistant_tag": "assistant",
            "system_tag": "system",
        },
    }
    text = f"In data/dataset_info.json:\n\n{json.dumps({'lark': entry}, ensure_ascii=False)}"
    if contents.every_turn == contents.examples:
        return text
    return f"{text}\n\nSet mask_history: true, so that only the last message is trained on."


TARGETS = {
    "messages": Target("any trainer that reads messages", _as_it_is, "used"),
    "fireworks": Target("Fireworks", _fireworks, "used"),
    "trl": Target("TRL's SFTTrainer", _trl, "own code", _trl_settings, _check_trl),
    "axolotl": Target("axolotl", _axolotl, "ignored", _axolotl_settings),
    "llama_factory": Target(
        "LLaMA-Factory",
        _llama_factory,
        "ignored",
        _llama_factory_settings,
        _check_llama_factory,
        template_thinks=False,
    ),
    "together": Target("Together", _together, "ignored", template_thinks=False),
}
"""Values of `--for`."""
