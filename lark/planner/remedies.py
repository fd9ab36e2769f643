"""Settings that make a step fit: candidates in order, the least intrusive first, and the first of them that
fits.

Each operation lists its candidates (`Operation.remedies`), built from the functions here. Each is tried by
applying it and estimating the step again; only one that fits is named. Pure functions; the planner's
advice.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from math import ceil
from typing import Any

from lark.config import Config, Student
from lark.generation.engine import ENGINES
from lark.models.shapes import shape_of
from lark.work.machine import Machine
from lark.work.operation import Settings

CONTEXTS = (32768, 16384, 8192, 4096, 2048)
MEANING = {
    "training.lora.rank": "LoRA instead of full fine-tuning",
    "training.lora.bits": "the frozen weights in 4 bits",
    "student.max_length": "longer trajectories are cut",
    "student.dtype": "half the precision",
    "analysis.dtype": "half the precision",
    "hardware.offload": "slower, with at least 20 bytes per parameter in the host's memory",
    "method.judge.dtype": "half the precision",
}
"""Effects of settings on the result, and costs that are not obvious."""


def remedy(candidates: Iterable[Settings], fits: Callable[[Settings], bool], otherwise: str) -> str:
    """The first candidate that fits, as the user would type it, with its effects."""
    for settings in candidates:
        if not fits(settings):
            continue
        typed = " ".join(f"{key}={_typed(value)}" for key, value in settings.items())
        effects = [MEANING[key] for key in settings if key in MEANING]
        meaning = f" ({', '.join(effects)})" if effects else ""
        # Adapters are another training: whoever wants full fine-tuning needs more GPUs.
        only_adapters = effects == [MEANING["training.lora.rank"]]
        return typed + meaning + (", or more GPUs" if only_adapters else "")
    return otherwise


def last_resort(machine: Machine, needed_gib: float, more_gpus: bool, model: str = "student") -> str:
    """Advice if no setting helps. `more_gpus`: whether several GPUs can hold one model; if not, they save
    time, not memory.
    """
    memory = f"with more memory (about {ceil(needed_gib)} GiB)"
    if machine.device == "cpu":
        return f"a smaller {model} or a machine {memory}"
    return f"more GPUs or a device {memory}" if more_gpus else f"a device {memory}"


def applied(config: Config, settings: Settings) -> Config:
    """The configuration with these settings, checked as if the user had typed them."""
    for key, value in settings.items():
        path = ["engine", "name"] if key == "engine" else key.split(".")
        config = _replaced(config, path, value)
    return config


def half(key: str, dtype: str) -> list[Settings]:
    return [{}, {key: "bfloat16"}] if dtype == "float32" else [{}]


def shorter(longest: int, batch: str = "", tokens: int = 0) -> list[Settings]:
    """Shorter contexts, with batches that are no larger."""
    candidates: list[Settings] = []
    for context in CONTEXTS:
        if context < longest:
            smaller_batch = {batch: context} if tokens > context else {}
            candidates.append({"student.max_length": context, **smaller_batch})
    return candidates


def shared_model(config: Config, machine: Machine, model: Student, key: str, now: int) -> list[Settings]:
    """Settings of `key` that share a model among more GPUs of a node than `now`, with an engine that
    supports it.
    """
    shape = shape_of(model)
    if shape is None or machine.device != "cuda":
        return [{}]
    gpus = machine.processes
    # Engines divide attention heads evenly, and all GPUs of a node are used.
    counts = [n for n in range(now + 1, gpus + 1) if gpus % n == 0 and shape.heads % n == 0]
    engine = {} if ENGINES[config.engine.name].shares_model else {"engine": "vllm"}
    return [{}, *({**engine, key: count} for count in counts)]


def combined(*axes: Iterable[Settings]) -> Iterator[Settings]:
    """Every combination except the one without a change; the last axis varies fastest."""
    for parts in product(*axes):
        settings: dict[str, Any] = {}
        for part in parts:
            settings |= part
        if settings:
            yield settings


def _replaced(part: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    if rest:
        value = _replaced(getattr(part, name), rest, value)
    return replace(part, **{name: value})


def _typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
