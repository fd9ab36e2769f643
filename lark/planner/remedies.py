"""What would make a step fit: candidate settings in order, the least intrusive first, and the first of them that really fits.

A candidate is a few settings of the command line. It is tried by applying it and estimating the step again; none is named
that was not. Pure; the planner's advice.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import ceil
from typing import Any

from lark.config import Config
from lark.models.shapes import Shape
from lark.runtime.machine import Machine, zero_stage

Settings = Mapping[str, Any]

CONTEXTS = (32768, 16384, 8192, 4096, 2048)
LORA_RANK, LORA_RATE = 16, 1e-4
"""Adapters start at zero and need larger steps (conf/training/lora.yaml)."""
MEANING = {
    "training.lora.rank": "LoRA instead of full fine-tuning",
    "student.max_length": "longer trajectories are cut",
    "student.dtype": "half the precision",
    "analysis.dtype": "half the precision",
}
"""Of settings that change the result; the others change speed alone."""


def remedy(candidates: Iterable[Settings], fits: Callable[[Settings], bool], otherwise: str) -> str:
    """The first candidate that fits, as one would type it, and what it costs."""
    for settings in candidates:
        if fits(settings):
            changed = [key for key in settings if key in MEANING]
            typed = " ".join(f"{key}={_typed(value)}" for key, value in settings.items())
            meaning = f" ({', '.join(MEANING[key] for key in changed)})" if changed else ""
            return typed + meaning + (", or more GPUs" if changed == ["training.lora.rank"] else "")
    return otherwise


def candidates(task: str, config: Config, machine: Machine, shape: Shape, longest: int) -> Iterator[Settings]:
    """For a step of the plan. `longest`: tokens of the pool's longest trajectory; `shape`: of the model that the step loads."""
    if task == "lengths":
        return iter(())
    if task == "train":
        return _training(config, machine)
    if task in ("score", "local"):
        return _scoring(config, longest)
    if task in ("gradients", "jacobians", "kappa"):
        return _analysis(task, config, longest)
    return _engine(task, config, machine, shape)


def last_resort(task: str, machine: Machine, needed_gib: float) -> str:
    """Where no setting helps."""
    memory = f"with more memory (about {ceil(needed_gib)} GiB)"
    if machine.device == "cpu":
        return f"a smaller student or a machine {memory}"
    # A GPU that scores or analyses has the whole student: others beside it save time, not memory.
    return f"more GPUs or a device {memory}" if task in ("train", "generate", "judge") else f"a device {memory}"


def applied(config: Config, settings: Settings) -> Config:
    """The configuration with these settings, checked like one that was typed."""
    for key, value in settings.items():
        config = _replaced(config, ["engine", "name"] if key == "engine" else key.split("."), value)
    return config


def _training(config: Config, machine: Machine) -> Iterator[Settings]:
    hardware, longest = config.hardware, config.student.max_length
    now = zero_stage(config, machine.device, machine.world)
    stages = [stage for stage in (2, 3) if machine.world > 1 and stage > now]  # one process has nothing to shard
    shared = [{}, *({"hardware.zero": stage} for stage in stages)]
    packs = [{"hardware.train_tokens": longest}] if hardware.train_tokens > longest else []
    lengths = [{}, *packs, *_shorter(longest, "hardware.train_tokens", hardware.train_tokens)]
    adapters = (
        [{}] if config.training.lora.rank else [{}, {"training.lora.rank": LORA_RANK, "training.learning_rate": LORA_RATE}]
    )
    recomputed = [{}] if config.training.gradient_checkpointing else [{}, {"training.gradient_checkpointing": True}]
    return _combined(adapters, lengths, shared, recomputed)


def _scoring(config: Config, longest: int) -> Iterator[Settings]:
    tokens = config.hardware.score_tokens
    smaller: list[Settings] = [{"hardware.score_tokens": longest}] if tokens > longest else []
    yield from smaller
    shorter = _shorter(min(longest, config.student.max_length), "hardware.score_tokens", tokens)
    yield from _combined([{}, *smaller, *shorter], _half("student.dtype", config.student.dtype))


def _analysis(task: str, config: Config, longest: int) -> Iterator[Settings]:
    """Less room for gradients, which costs passes; smaller batches; then what costs precision or text."""
    room, tokens = config.hardware.gradient_gib, config.hardware.train_tokens
    smaller: list[Settings] = [{}]
    if task == "gradients" and not config.hardware.gradient_scratch:
        smaller += [{"hardware.gradient_gib": room / 2**n} for n in range(1, 6)]
    if task == "kappa" and tokens > longest:
        smaller.append({"hardware.train_tokens": longest})
    cut = min(longest, config.student.max_length)
    shorter = _shorter(cut, "hardware.train_tokens", tokens) if task == "kappa" else _shorter(cut)
    return _combined([{}, *shorter], _half("analysis.dtype", config.analysis.dtype), smaller)


def _engine(task: str, config: Config, machine: Machine, shape: Shape) -> Iterator[Settings]:
    """A model that several GPUs of a node share, with an engine that can."""
    key = "engine.tensor_parallel" if task == "generate" else "method.judge.tensor_parallel"
    whole = config.engine.name == "hf"
    now = 1 if whole else config.engine.tensor_parallel if task == "generate" else config.method.judge.tensor_parallel
    gpus = machine.processes if machine.device == "cuda" else 1
    counts = [n for n in range(now + 1, gpus + 1) if gpus % n == 0 and shape.heads % n == 0]
    shared: list[Settings] = [{}, *({**({"engine": "vllm"} if whole else {}), key: count} for count in counts)]
    if task == "generate":
        half, shorter = _half("student.dtype", config.student.dtype), _shorter(config.student.max_length)
        return _combined([{}, *shorter], half, shared)
    return _combined(_half("method.judge.dtype", config.method.judge.dtype), shared)


def _half(key: str, dtype: str) -> list[Settings]:
    return [{}, {key: "bfloat16"}] if dtype == "float32" else [{}]


def _shorter(longest: int, batch: str = "", tokens: int = 0) -> list[Settings]:
    """Shorter contexts, with batches that are no larger than them."""
    return [{"student.max_length": n, **({batch: n} if tokens > n else {})} for n in CONTEXTS if n < longest]


def _combined(*axes: Iterable[Settings]) -> Iterator[Settings]:
    """Every combination but that of no change; what comes last varies first."""
    for parts in product(*axes):
        settings = {key: value for part in parts for key, value in part.items()}
        if settings:
            yield settings


def _replaced(part: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    return replace(part, **{name: _replaced(getattr(part, name), rest, value) if rest else value})


def _typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
