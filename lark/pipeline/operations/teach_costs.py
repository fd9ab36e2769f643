"""What the teachers of a run cost: tokens, time of devices, and money."""

from dataclasses import replace

import numpy as np

from lark.config import EngineSettings
from lark.config.teacher import Teacher
from lark.generation.engine import shared_gpus
from lark.models.shapes import shape_of
from lark.planner import costs
from lark.planner.decoding import Decoder
from lark.planner.estimates import Estimate, Planner, precision_bytes
from lark.planner.lengths import CHARACTERS, TEMPLATE_CHARACTERS
from lark.teaching.size import Size, size_of
from lark.work.machine import GIB
from lark.work.operation import Step

ROLLOUT_TOKENS = 8000
"""Assumed length of a rollout if the limit is higher: long reasoning, as in the paper."""
QUESTION_CHARACTERS = 400
"""Assumed length of a question with its instruction."""
ENDPOINT_RATE = 40.0
"""Tokens per second and request in flight that an endpoint is assumed to generate."""


def teach_cost(planner: Planner, step: Step) -> Estimate | None:
    """Cost of asking one teacher. None if its shape is unknown."""
    (name,) = step.labels
    teacher = planner.config.teacher[name]
    size = size_of(step.artifacts[0], planner.config)
    length = size.tokens or min(teacher.max_new_tokens, ROLLOUT_TOKENS)
    if teacher.is_local:
        length = min(length, teacher.context)
    tokens = _limited(planner, size.rollouts * length)
    work = _work(name, teacher, size, tokens)
    if not teacher.is_local:
        seconds = tokens / (ENDPOINT_RATE * teacher.concurrency)
        made = planner.made(step, work, 0.0, seconds, 0.0, 0.0, devices=1)
        return replace(made, device_hours=0.0, shards=size.questions)
    return _local(planner, step, work, size, tokens, int(max(1, length)))


def _local(
    planner: Planner, step: Step, work: str, size: Size, tokens: float, length: int
) -> Estimate | None:
    """The cost of a model that is run here."""
    (name,) = step.labels
    teacher = planner.config.teacher[name]
    shape = shape_of(teacher.local_model(name))
    if shape is None:
        return None
    engine = _engine(planner, teacher)
    element = precision_bytes(teacher.dtype)
    decoder = Decoder(engine, engine.tensor_parallel, shape, element, planner.hardware, teacher.context)
    prompt = (QUESTION_CHARACTERS + TEMPLATE_CHARACTERS) / CHARACTERS
    flops = costs.forward_flops(shape, np.array([1.0]), np.array([1.0])).forward * tokens
    seconds = decoder.seconds(tokens / length, prompt, length, flops) if tokens else 0.0
    made = planner.made(step, work, flops, seconds, decoder.needed_bytes / GIB, decoder.weights / GIB)
    return replace(made, shards=size.questions)


def _engine(planner: Planner, teacher: Teacher) -> EngineSettings:
    gpus = shared_gpus(teacher.engine, teacher.tensor_parallel, planner.hardware.machine.device)
    return replace(planner.config.engine, name=teacher.engine, tensor_parallel=gpus)


def _limited(planner: Planner, tokens: float) -> float:
    limit = planner.config.teach.limit_tokens
    return tokens if limit is None else min(tokens, limit)


def _work(name: str, teacher: Teacher, size: Size, tokens: float) -> str:
    """The work in words: rollouts, tokens and money."""
    prompt = (QUESTION_CHARACTERS + TEMPLATE_CHARACTERS) / CHARACTERS * size.rollouts
    money = (prompt * teacher.price.input + tokens * teacher.price.output) / 1e6
    about = "about " if size.tokens else "up to "
    most = "at most " if size.is_most else ""
    parts = [f"{name}: {most}{size.rollouts:,} rollouts", f"{about}{tokens:,.0f} tokens"]
    if money:
        parts.append(f"cost {about}{money:,.2f}")
    return ", ".join(parts)
