"""The operations that compute what methods need to know about a trajectory: its length, its statistics
under the student, indicators of its text, whether it is correct, a judge's opinion.
"""

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
from lark.scoring import judge, shards
from lark.scoring.correctness import write_correctness
from lark.scoring.influence import validation_set
from lark.scoring.methods import FEATURES_TABLE, TOKENS
from lark.scoring.pass_sizes import CPU_TOKENS
from lark.scoring.text import write_indicators
from lark.work.machine import Machine
from lark.work.operation import EXPANDABLE, Counts, Operation, Settings, Step

log = logging.getLogger(__name__)

TOKENISE, SERIAL = 1_000_000, 0.1
"""Tokens per second of one thread, and the share of the work that stays on one (measured:
experiments/bench/tokenising.py).
"""
JUDGE_TOKENS, JUDGE_ANSWER = 450, 120
"""Assumed tokens of a judge's prompt without the question and the response, and of its JSON."""
TOKEN_BYTES = 18
"""Bytes of a token's statistics on disk (measured: experiments/bench/tokens.py)."""
PAPER_SCORE_SECONDS = 1.32
"""Seconds per sample on 8 A100 (App. D.1)."""
CUT = (
    "%d of %d trajectories are cut at student.max_length=%d; %d of them have no response left and cannot be"
    " selected"
)


def _report_truncation(config: Config, counts: Counts, made: bool) -> None:
    if counts["truncated"]:
        log.warning(
            CUT,
            counts["truncated"],
            counts["trajectories"],
            config.student.max_length,
            counts["without_response"],
        )


def _lengths_cost(planner: Planner, step: Step) -> Estimate:
    threads = planner.hardware.machine.threads * planner.hardware.machine.processes
    seconds = START_SECONDS["cpu"] + planner.lengths.tokens / TOKENISE * (SERIAL + (1 - SERIAL) / threads)
    made = planner.made(step, f"{planner.lengths.tokens:,.0f} tokens", 0.0, seconds, 1.0, 1.0, devices=1)
    text = max(1.0, float(planner.lengths.response.mean()) * CHARACTERS)
    rows = min(pools.ROWS_IN_MEMORY, max(1.0, pools.CHARACTERS_IN_MEMORY / text))
    return replace(
        made, shards=ceil(planner.lengths.trajectories / rows)
    )  # a shard is a row group of the pool


def _score_cost(planner: Planner, step: Step) -> Estimate:
    lengths, tokens = planner.lengths, _pass_tokens(planner)
    share = 1.0 if tokens is None else lengths.shared(tokens)
    flops = costs.forward_flops(planner.shape, lengths.total, lengths.response, share)
    own = (
        flops.forward
        * lengths.repeat
        / lengths.trajectories
        / planner.hardware.rate("forward", planner.shape, 1)
    )
    paper = f"{PAPER_SCORE_SECONDS} s per sample (ours {own:.2f} s of one GPU)" if planner.is_papers else ""
    made = _pass_cost(planner, step, flops, shards.cost(lengths.total), paper, tokens)
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
    flops = costs.forward_flops(planner.shape, response, response)
    return _pass_cost(planner, step, flops, shards.cost(response), tokens=_pass_tokens(planner))


def _gram_cost(planner: Planner, step: Step) -> Estimate:
    lengths, sketch = planner.lengths, _sketch(planner, planner.config.sketch.gram)
    flops = costs.gram_flops(planner.shape, lengths.total, lengths.response, sketch)
    found = _pass_cost(planner, step, Flops(flops, 0.0), shards.cost(lengths.total))
    batch = max(planner.config.hardware.score_tokens, int(lengths.total.max()))
    # the sketched inputs of all output projections, and the gradients of a group of questions
    kept = 4.0 * batch * (2 * planner.shape.layers * sketch.size + sketch.words + 2 * planner.shape.hidden)
    return replace(found, memory_gib=found.memory_gib + (kept + _group_bytes(planner, sketch)) / GIB)


def _exact_cost(planner: Planner, step: Step) -> Estimate:
    shape, lengths, config = planner.shape, planner.lengths, planner.config
    sketch, cuda = _sketch(planner, config.sketch.exact), planner.hardware.machine.device == "cuda"
    flops = costs.exact_flops(shape, lengths.total, lengths.response, sketch, cuda) * lengths.repeat
    weights = shape.parameters * precision_bytes(config.student.dtype)
    tokens = max(config.hardware.train_tokens, int(lengths.total.max()))
    # Adapters of rank 1 in place of none: the head has no gradient then.
    setup = costs.TrainingSetup(1, 0, tokens, cuda, bf16=config.student.dtype != "float32", lora=1, cuda=cuda)
    kept = 4.0 * tokens * (2 * shape.layers * sketch.size + sketch.words + 2 * shape.hidden) + _group_bytes(
        planner, sketch
    )
    layouts = (
        1 if cuda or config.student.dtype != "float32" else 2
    )  # on CPU, both directions have their own (cpu_linear.py)
    memory = (layouts * weights + costs.activation_bytes(shape, setup) + kept) / GIB
    work = f"{lengths.trajectories:,} trajectories, {lengths.tokens:,.0f} tokens, forward and backward"
    stored = 2.0 * config.sketch.features * lengths.trajectories if step.makes(FEATURES_TABLE) else 0.0
    found = planner.made(
        step, work, flops, planner.seconds("training", flops, weights), memory, weights / GIB
    )
    return replace(found, kept_gib=stored / GIB, shards=_shards(planner, shards.cost(lengths.total)))


def _sketch(planner: Planner, size: int | None) -> costs.SketchShape:
    asked = planner.config.sketch
    return costs.SketchShape.of(planner.shape, size, asked.words, asked.states)


def _group_bytes(planner: Planner, sketch: costs.SketchShape) -> float:
    """Sketches of the questions that are in memory together."""
    return max(float(shards.SKETCH_BYTES), 4.0 * sketch.numbers(planner.shape) * planner.lengths.candidates)


def _influence_cost(planner: Planner, step: Step) -> Estimate:
    """Only a validation set of its own needs the student. Its trajectories are assumed to be like the
    pool's.
    """
    asked, lengths, cuda = (
        planner.config.method.validation,
        planner.lengths,
        planner.hardware.machine.device == "cuda",
    )
    if asked.path is None:
        return planner.made(
            step, f"{lengths.trajectories:,} cosines", 0.0, START_SECONDS["cpu"], 1.0, 1.0, devices=1
        )
    sketch = _sketch(planner, planner.config.sketch.exact)
    each = costs.exact_flops(planner.shape, lengths.total, lengths.response, sketch, cuda) / len(
        lengths.total
    )
    weights = planner.shape.parameters * precision_bytes(planner.config.student.dtype)
    flops = each * asked.questions
    seconds = planner.seconds("training", flops * planner.hardware.machine.world, weights)
    return planner.made(
        step, f"{asked.questions} trajectories", flops, seconds, 2 * weights / GIB, weights / GIB, devices=1
    )


def _exact_remedies(config: Config, machine: Machine, longest: int) -> Iterator[Settings]:
    tokens = config.hardware.train_tokens
    smaller: list[Settings] = [{"hardware.train_tokens": longest}] if tokens > longest else []
    yield from smaller
    shorter = remedies.shorter(min(longest, config.student.max_length), "hardware.train_tokens", tokens)
    yield from remedies.combined(
        [{}, *smaller, *shorter], remedies.half("student.dtype", config.student.dtype)
    )


def _check_validation(config: Config, machine: Machine) -> None:
    if config.method.validation.path is not None:
        validation_set(config)


def _pass_tokens(planner: Planner) -> int | None:
    """Tokens of one forward pass, if a batch is run in several (lark/scoring/forward.py)."""
    return CPU_TOKENS if planner.hardware.machine.device == "cpu" else None


def _pass_cost(
    planner: Planner,
    step: Step,
    operations: Flops,
    load: np.ndarray,
    paper: str = "",
    tokens: int | None = None,
) -> Estimate:
    """Cost of one pass of the student over the pool. `load`: of each trajectory, as shards are cut by it.
    `tokens`: see `_pass_tokens`.
    """
    lengths, shape = planner.lengths, planner.shape
    flops = operations.forward * lengths.repeat
    element = precision_bytes(planner.config.student.dtype)
    weights = shape.parameters * element
    batch, longest = planner.config.hardware.score_tokens, int(lengths.total.max())
    # The hidden states of a batch that is run in several passes are kept, and then joined.
    hidden = 2.0 * max(batch, longest) * shape.hidden * element if tokens is not None else 0.0
    memory = (weights + hidden + costs.forward_bytes(shape, max(tokens or batch, longest), element)) / GIB
    work = f"{lengths.trajectories:,} trajectories, {lengths.tokens:,.0f} tokens"
    made = planner.made(
        step, work, flops, planner.seconds("forward", flops, weights), memory, weights / GIB, paper
    )
    return replace(made, shards=_shards(planner, load))


def _shards(planner: Planner, load: np.ndarray) -> int:
    lengths = planner.lengths
    return shards.number(
        float(load.sum()) * lengths.repeat, lengths.trajectories, planner.config.scoring.shard_tokens
    )


def _pass_remedies(config: Config, machine: Machine, longest: int) -> Iterator[Settings]:
    tokens = config.hardware.score_tokens
    smaller: list[Settings] = [{"hardware.score_tokens": longest}] if tokens > longest else []
    yield from smaller
    shorter = remedies.shorter(min(longest, config.student.max_length), "hardware.score_tokens", tokens)
    yield from remedies.combined(
        [{}, *smaller, *shorter], remedies.half("student.dtype", config.student.dtype)
    )


def _judge_gpus(config: Config) -> int:
    return config.method.judge.tensor_parallel if ENGINES[config.engine.name].shares_model else 1


def _check_judge(config: Config, machine: Machine) -> None:
    judged = config.method.judge
    check_context(judged.model)
    gpus = shared_gpus(config.engine.name, judged.tensor_parallel, machine.device)
    check_engine(config.engine, machine, {"method.judge.tensor_parallel": gpus})


def _judge_cost(planner: Planner, step: Step) -> Estimate | None:
    """The judge reads every trajectory after its prompt and answers in a few lines. None if its shape is
    unknown.
    """
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
    return replace(
        planner.made(step, work, flops, seconds, memory, weights / GIB), shards=lengths.trajectories
    )


def _judge_remedies(config: Config, machine: Machine, longest: int) -> Iterator[Settings]:
    judged = config.method.judge
    shared = remedies.shared_model(
        config, machine, judged.model, "method.judge.tensor_parallel", _judge_gpus(config)
    )
    return remedies.combined(remedies.half("method.judge.dtype", judged.dtype), shared)


LENGTHS = Operation(
    "lengths",
    "score",
    "lark.scoring.worker:lengths",
    processes="one",
    on_cpu=True,
    collect=shards.collect_lengths,
    notice=_report_truncation,
    cost=_lengths_cost,
)
SCORE = Operation(
    "score", "score", "lark.scoring.worker:score", allocator=EXPANDABLE, collect=shards.collect, cost=_score_cost,
    remedies=_pass_remedies, settings=("scoring.rank_clip",),
)  # fmt: skip
LOCAL = Operation(
    "local", "score", "lark.scoring.worker:local", allocator=EXPANDABLE, collect=shards.collect, cost=_local_cost,
    remedies=_pass_remedies, settings=("scoring.local_context", "scoring.local_steps"),
)  # fmt: skip
UNPROMPTED = Operation(
    "unprompted", "score", "lark.scoring.worker:unprompted", allocator=EXPANDABLE, collect=shards.collect,
    cost=_unprompted_cost, remedies=_pass_remedies,
)  # fmt: skip
GRAM = Operation(
    "gram",
    "score",
    "lark.scoring.gradient_worker:gram",
    allocator=EXPANDABLE,
    collect=shards.collect,
    cost=_gram_cost,
    remedies=_pass_remedies,
    settings=("sketch",),
)
EXACT = Operation(
    "exact",
    "score",
    "lark.scoring.gradient_worker:exact",
    allocator=EXPANDABLE,
    collect=shards.collect,
    cost=_exact_cost,
    remedies=_exact_remedies,
    settings=("sketch",),
)
INFLUENCE = Operation(
    "influence", "score", "lark.scoring.gradient_worker:influence", processes="one", allocator=EXPANDABLE,
    check=_check_validation, cost=_influence_cost, settings=("method.validation",),
)  # fmt: skip
TEXT = Operation("text", "score", write_indicators)
CORRECTNESS = Operation("correctness", "score", write_correctness)
JUDGE = Operation(
    "judge", "score", "lark.scoring.judge_worker:judge_pool", processes="sharing", gpus=_judge_gpus,
    collect=judge.collect, check=_check_judge, forget=judge.forget, cost=_judge_cost, remedies=_judge_remedies,
    settings=("method.judge",),
)  # fmt: skip

OPERATIONS = (LENGTHS, SCORE, UNPROMPTED, GRAM, EXACT, INFLUENCE, LOCAL, TEXT, CORRECTNESS, JUDGE)
