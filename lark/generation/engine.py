"""What generates text. One small interface; hf works everywhere, vllm is the fast one, sglang its stand-in."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from lark import config
from lark.errors import LarkError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Sampling:
    """How answers are sampled; the same for all requests of a call."""

    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    samples: int
    stop_ids: tuple[int, ...]
    schema: Mapping[str, Any] | None = None
    """JSON schema of the answer. vllm and sglang obey any; hf one that leaves finitely many answers (see `documents`)."""


@dataclass(frozen=True)
class Request:
    """A prompt, and the seed of its samples: they depend on nothing else in the call, as far as the engine allows."""

    prompt: tuple[int, ...]
    seed: int
    max_new_tokens: int
    """As configured, or what the prompt leaves of the student's context."""


@dataclass(frozen=True)
class Generation:
    """One sample. `finish_reason` is "stop" (it ended itself) or "length" (it was cut off)."""

    text: str
    finish_reason: str
    n_tokens: int


class Engine(Protocol):
    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, list[Generation]]]:
        """(number of the request, its `sampling.samples` generations), each as soon as the engine tells, in any order.

        Give it everything there is to do in one call: hf and vllm then never hold a batch up for its slowest sequence.
        Called through `generate` below.
        """
        ...

    def close(self) -> None:
        """Give back memory and end every process that was started."""
        ...


def generate(engine: Engine, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, list[Generation]]]:
    """`Engine.generate`. Greedy samples are all the same: one is made and repeated (and vLLM refuses to make more)."""
    repeated = sampling.samples if sampling.temperature == 0 else 1
    for index, samples in engine.generate(requests, replace(sampling, samples=sampling.samples // repeated)):
        yield index, samples * repeated


def answers(engine: Engine, requests: Sequence[Request], sampling: Sampling) -> list[list[Generation]]:
    """`generate` to its end, in the order of the requests."""
    done = dict(generate(engine, requests, sampling))
    return [done[i] for i in range(len(requests))]


def start(
    engine: config.Engine, student: config.Student, model: str, tokenizer: "PreTrainedTokenizerBase", device: str
) -> Engine:
    """The configured engine with the weights at `model`; `student` says their precision, context and revision."""
    # Engines are heavy: load only the one that is used.
    if engine.name == "hf":
        from lark.generation.hf import HFEngine  # noqa: PLC0415

        return HFEngine(engine, student, model, tokenizer, device)
    if engine.name == "vllm":
        from lark.generation.vllm import VLLMEngine  # noqa: PLC0415

        return VLLMEngine(engine, student, model, tokenizer, device)
    if engine.name == "sglang":
        from lark.generation.sglang import SGLangEngine  # noqa: PLC0415

        return SGLangEngine(engine, student, model, tokenizer, device)
    raise LarkError(f"engine={engine.name} is not known: choose hf, vllm or sglang.")


def decode(
    tokenizer: "PreTrainedTokenizerBase", tokens: Sequence[Sequence[int]], finished: Sequence[str], stop_ids: Sequence[int]
) -> list[Generation]:
    """Token ids to text, in one way for all engines: without the token that ended it, without special tokens."""
    ends = [reason == "stop" and len(ids) > 0 and ids[-1] in stop_ids for ids, reason in zip(tokens, finished, strict=True)]
    texts = tokenizer.batch_decode(
        [list(ids[:-1]) if end else list(ids) for ids, end in zip(tokens, ends, strict=True)], skip_special_tokens=True
    )
    return [Generation(text, reason, len(ids)) for text, reason, ids in zip(texts, finished, tokens, strict=True)]


def constraint(schema: Mapping[str, Any] | None) -> list[str] | dict[str, Any] | None:
    """What an engine with constrained decoding is told: every answer, where they can be counted, the schema otherwise.

    Under a schema xgrammar would write 0.6 as 0.59999999999999998. None: anything is allowed.
    """
    if schema is None:
        return None
    return documents(schema) or dict(schema)


def documents(schema: Mapping[str, Any]) -> list[str] | None:
    """Every JSON text that an object schema of enumerations allows, or None if it allows anything else."""
    properties = schema.get("properties", {})
    if not properties or any("enum" not in value for value in properties.values()):
        return None
    values = itertools.product(*(value["enum"] for value in properties.values()))
    return [json.dumps(dict(zip(properties, chosen, strict=True))) for chosen in values]
