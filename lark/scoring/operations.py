"""The operations that compute what methods need to know about a trajectory: its length, its statistics under the student,
indicators of its text, whether it is correct, a judge's opinion."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np

from lark.config import Config
from lark.generation.engine import ENGINES, check_engine, shared_gpus
from lark.models.shapes import shape_of
from lark.models.students import check_context
from lark.planner import costs, remedies
from lark.planner.costs import GIB, Flops
from lark.planner.estimates import START_SECONDS, Estimate, Planner, precision_bytes
from lark.planner.lengths import CHARACTERS
from lark.pool import trajectories as pools
from lark.runtime.machine import Machine
from lark.runtime.operation import EXPANDABLE, Counts, Operation, Settings, Step
from lark.scoring import judge, shards
from lark.scoring.correctness import write_correctness
from lark.scoring.methods import TOKENS
from lark.scoring.text import write_indicators

log = logging.getLogger(__name__)

TOKENISE, SERIAL = 1_000_000, 0.1
"""Tokens per second of one thread, and the share of the work that stays on one (measured: experiments/bench/tokenising.py)."""
JUDGE_TOKENS, JUDGE_ANSWER = 450, 120
"""Assumed tokens of a judge's prompt without the question and the response, and of its JSON."""
TOKEN_BYTES = 18
"""Bytes of a token's statistics on disk (measured: experiments/bench/tokens.py)."""
PAPER_SCORE_SECONDS = 1.32
"""Seconds per sample on 8 A100 (App. D.1)."""
CUT = "%d of %d trajectories are cut at student.max_length=%d; %d of them have no response left and cannot be selected"


def _report_truncation(config: Config, counts: Counts, made: bool) -> None:
    if counts["truncated"]:
        log.warning(CUT, counts["truncated"], counts["trajectories"], config.student.max_length, counts["without_response"])


def _lengths_cost(planner: Planner, step: Step) -> Estimate:
    threads = planner.hardware.machine.threads * planner.hardware.machine.processes
    seconds = START_SECONDS["cpu"] + planner.lengths.tokens / TOKENISE * (SERIAL + (1 - SERIAL) / threads)
    made = planner.made(step, f"{planner.lengths.tokens:,.0f} tokens", 0.0, seconds, 1.0, 1.0, devices=1)
    text = max(1.0, float(planner.lengths.response.mean()) * CHARACTERS)
    rows = min(pools.ROWS_IN_MEMORY, max(1.0, pools.CHARACTERS_IN_MEMORY / text))
    return replace(made, shards=ceil(planner.lengths.trajectories / rows))  # a shard is a row group of the pool


def _score_cost(planner: Planner, step: Step) -> Estimate:
    lengths = planner.lengths
    flops = costs.forward_flops(planner.shape, lengths.total, lengths.response)
    own = flops.forward * lengths.repeat / lengths.trajectories / planner.hardware.rate("forward", planner.shape, 1)
    paper = f"{PAPER_SCORE_SECONDS} s per sample (ours {own:.2f} s of one GPU)" if planner.is_papers else ""
    made = _pass_cost(planner, step, flops, shards.cost(lengths.total), paper)
    return replace(made, kept_gib=_token_bytes(planner, step) / GIB)


def _token_bytes(planner: Planner, step: Step) -> float:
    """Disk space of the statistics of tokens, if they are kept."""
    if not step.makes(TOKENS):
        return 0.0
    lengths, number = planner.lengths, planner.config.scoring.token_questions
    share = 1.0 if number is None else min(1.0, number / lengths.questions)
    return TOKEN_BYTES * float(lengths.response.sum()) * lengths.repeat * share


def _local_cost(planner: Planner, step: Step) -> Estimate:
    lengths, context = planner.lengths, planner.config.scoring.local_context
    work = costs.local_flops(planner.shape, lengths.total, lengths.response, context)
    return _pass_cost(planner, step, work, lengths.total + context * lengths.response)


def _unprompted_cost(planner: Planner, step: Step) -> Estimate:
    response = planner.lengths.response
    return _pass_cost(planner, step, costs.forward_flops(planner.shape, response, response), shards.cost(response))


def _pass_cost(planner: Planner, step: Step, operations: Flops, load: np.ndarray, paper: str = "") -> Estimate:
    """Cost of one pass of the student over the pool. `load`: of each trajectory, as shards are cut by it."""
    lengths, shape = planner.lengths, planner.shape
    flops = operations.forward * lengths.repeat
    element = precision_bytes(planner.config.student.dtype)
    weights = shape.parameters * element
    batch = max(planner.config.hardware.score_tokens, int(lengths.total.max()))
    memory = (weights + costs.forward_bytes(shape, batch, element)) / GIB
    work = f"{lengths.trajectories:,} trajectories, {lengths.tokens:,.0f} tokens"
    made = planner.made(step, work, flops, planner.seconds("forward", flops, weights), memory, weights / GIB, paper)
    wanted = ceil(float(load.sum()) * lengths.repeat / planner.config.scoring.shard_tokens)
    return replace(made, shards=min(lengths.trajectories, max(shards.LEAST_SHARDS, wanted)))


def _pass_remedies(config: Config, machine: Machine, longest: int) -> Iterator[Settings]:
    tokens = config.hardware.score_tokens
    smaller: list[Settings] = [{"hardware.score_tokens": longest}] if tokens > longest else []
    yield from smaller
    shorter = remedies.shorter(min(longest, config.student.max_length), "hardware.score_tokens", tokens)
    yield from remedies.combined([{}, *smaller, *shorter], remedies.half("student.dtype", config.student.dtype))


def _judge_gpus(config: Config) -> int:
    return config.method.judge.tensor_parallel if ENGINES[config.engine.name].shares_model else 1


def _check_judge(config: Config, machine: Machine) -> None:
    judged = config.method.judge
    check_context(judged.model)
    gpus = shared_gpus(config.engine.name, judged.tensor_parallel, machine.device)
    check_engine(config.engine, machine, {"method.judge.tensor_parallel": gpus})


def _judge_cost(planner: Planner, step: Step) -> Estimate | None:
    """The judge reads every trajectory after its prompt and answers in a few lines. None if its shape is unknown."""
    judged, lengths = planner.config.method.judge, planner.lengths
    gpus = shared_gpus(planner.config.engine.name, judged.tensor_parallel, planner.hardware.machine.device)
    shape = shape_of(judged.model)
    if shape is None:
        return None
    read = np.minimum(lengths.total + JUDGE_TOKENS, judged.max_length)
    flops = costs.forward_flops(shape, read, np.ones_like(read)).forward * lengths.repeat
    element = precision_bytes(judged.dtype)
    weights = shape.parameters * element / gpus
    kv = costs.kv_bytes_per_token(shape, element) / gpus
    engine = replace(planner.config.engine, tensor_parallel=gpus)
    written = lengths.trajectories * min(JUDGE_ANSWER, judged.max_new_tokens)
    answering = planner.generation_seconds(engine, shape, written, weights, kv, int(read.mean()), 0.0)
    memory = (weights + kv * judged.max_length) / GIB
    seconds = flops / planner.hardware.rate("forward", shape) + answering
    work = f"{lengths.trajectories:,} verdicts of {Path(judged.path).name}"
    return replace(planner.made(step, work, flops, seconds, memory, weights / GIB), shards=lengths.trajectories)


def _judge_remedies(config: Config, machine: Machine, longest: int) -> Iterator[Settings]:
    judged = config.method.judge
    shared = remedies.shared_model(config, machine, judged.model, "method.judge.tensor_parallel", _judge_gpus(config))
    return remedies.combined(remedies.half("method.judge.dtype", judged.dtype), shared)


LENGTHS = Operation(
    "lengths", "score", "lark.scoring.worker:lengths", processes="one", on_cpu=True, collect=shards.collect_lengths,
    notice=_report_truncation, cost=_lengths_cost,
)  # fmt: skip
SCORE = Operation(
    "score", "score", "lark.scoring.worker:score", allocator=EXPANDABLE, collect=shards.collect, cost=_score_cost,
    remedies=_pass_remedies,
)  # fmt: skip
LOCAL = Operation(
    "local", "score", "lark.scoring.worker:local", allocator=EXPANDABLE, collect=shards.collect, cost=_local_cost,
    remedies=_pass_remedies,
)  # fmt: skip
UNPROMPTED = Operation(
    "unprompted", "score", "lark.scoring.worker:unprompted", allocator=EXPANDABLE, collect=shards.collect,
    cost=_unprompted_cost, remedies=_pass_remedies,
)  # fmt: skip
TEXT = Operation("text", "score", write_indicators)
CORRECTNESS = Operation("correctness", "score", write_correctness)
JUDGE = Operation(
    "judge", "score", "lark.scoring.judge_worker:judge_pool", processes="sharing", gpus=_judge_gpus,
    collect=judge.collect, check=_check_judge, forget=judge.forget, cost=_judge_cost, remedies=_judge_remedies,
    model="judge", asks_judge=True,
)  # fmt: skip

OPERATIONS = (LENGTHS, SCORE, UNPROMPTED, LOCAL, TEXT, CORRECTNESS, JUDGE)
