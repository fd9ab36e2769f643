"""The trainers that a training set can be exported for: the fields of a line, and what each does with a
weight.

docs/train-jsonl.md has the same facts as a table, with the versions they were checked with.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lark.export.checks import refuse_tools, require_one_kind
from lark.export.examples import Contents, ExportExample, Message, is_context, turn_weight
from lark.training.encoded_set import Example, token_shares

Line = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """One trainer."""

    label: str
    convert: Callable[[ExportExample, Contents], Line]
    """The fields of a line, without the weight. With `tokens`, the weight is in them."""
    weights: Literal["used", "own code", "ignored"]
    """used: the trainer multiplies the loss by `weight`. own code: only with WeightedSFTTrainer
    (lark/training/trl.py).
    """
    settings: Callable[[Contents, str], str] = lambda contents, file: ""
    """Settings of the trainer, as text; gets the name of the exported file."""
    check: Callable[[Contents], None] = lambda contents: None
    """Raises LarkError for a training set that the trainer cannot represent."""
    template_thinks: bool = True
    """Whether the model's chat template decides what happens with `reasoning_content`."""
    scales: bool = False
    """Whether the trainer multiplies the loss of single messages by any number."""
    tokens: Literal["counted", "written"] | None = None
    """What a line needs of the student's tokens, in which the weight is then measured: their number, or the
    tokens themselves.
    """


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


def _swift(example: ExportExample, contents: Contents) -> Line:
    """ms-swift sums its loss over tokens, each times the `loss_scale` of its message, and divides by the
    number of tokens with a label. So w n̄ / n makes that the sum of w ℓ, with n̄ in place of the batch's mean
    length.
    """
    assert example.encoded is not None
    mean_tokens = contents.tokens / contents.examples
    scale = example.weight * mean_tokens / example.encoded.n_response
    messages = _without_weights(list(map(thinking_as_text, map(_arguments_as_text, example.messages))))
    for message, original in zip(messages, example.messages, strict=True):
        if message["role"] == "assistant":
            message["loss_scale"] = scale * turn_weight(original)
    line = _line(messages, example)
    # One type for the column: the descriptions of different tools have different fields.
    return line if example.tools is None else {**line, "tools": json.dumps(example.tools, ensure_ascii=False)}


def _tinker(example: ExportExample, contents: Contents) -> Line:
    """tinker's Datum, whose cross-entropy is the sum over tokens of -weight · log p: here w ℓ."""
    encoded = example.encoded
    assert encoded is not None
    trained = Example(("", ""), encoded, example.weight, encoded.token_weights)
    ids = list(encoded.ids)
    inputs = {
        "target_tokens": {"data": ids[1:], "dtype": "int64", "shape": [len(ids) - 1]},
        "weights": {"data": token_shares(trained)[1:], "dtype": "float32", "shape": [len(ids) - 1]},
    }
    chunk = {"type": "encoded_text", "tokens": ids[:-1]}
    return {"model_input": {"chunks": [chunk]}, "loss_fn_inputs": inputs}


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


def _swift_settings(contents: Contents, file: str) -> str:
    return (
        f"Train with: swift sft --dataset {file} --is_binary_loss_scale false. Without that setting, ms-swift"
        " uses the weights as masks only. Its fused Liger loss is off with it."
    )


def _tinker_settings(contents: Contents, file: str) -> str:
    return (
        'Each line is a Datum for forward_backward(…, loss_fn="cross_entropy"), whose sum over a batch is'
        " Σ w ℓ. Divide the weights by the size of the batch for its mean."
    )


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
    "messages": Target("any trainer that reads messages", _as_it_is, "used", scales=True),
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
    "swift": Target(
        "ms-swift", _swift, "used", _swift_settings, template_thinks=False, scales=True, tokens="counted"
    ),
    "tinker": Target(
        "Tinker", _tinker, "used", _tinker_settings, template_thinks=False, scales=True, tokens="written"
    ),
    "together": Target("Together", _together, "ignored", template_thinks=False),
}
"""Values of `--for`."""
