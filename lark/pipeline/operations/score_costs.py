"""What the scoring operations cost: the planner's estimates of their work, memory and disk space."""

from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np

from lark.generation.engine import shared_gpus
from lark.models.pass_memory import forward_bytes, score_bytes
from lark.models.shapes import shape_of
from lark.planner import costs
from lark.planner.costs import Flops
from lark.planner.decoding import Decoder
from lark.planner.estimates import Estimate, Planner, precision_bytes
from lark.planner.lengths import CHARACTERS
from lark.planner.throughput import START_SECONDS
from lark.pool import trajectories as pools
from lark.scoring import shards
from lark.scoring.pass_sizes import CPU_TOKENS, batch_tokens
from lark.scoring.sources import FEATURES_TABLE, TOKENS
from lark.training.memory import TrainingSetup, activation_bytes
from lark.work.machine import GIB
from lark.work.operation import Step

TOKENISED_PER_SECOND = 1_000_000
"""Tokens per second of one thread (measured: experiments/bench/tokenising.py)."""
SERIAL_SHARE = 0.1
"""Share of tokenising that stays on one thread (measured there too)."""
JUDGE_PROMPT_TOKENS = 450
"""Assumed tokens of a judge's prompt without the question and the response."""
JUDGE_ANSWER_TOKENS = 120
"""Assumed tokens of its JSON."""
STATISTICS_BYTES = 18
"""Bytes of a token's statistics on disk (measured: experiments/bench/tokens.py)."""
PAPER_SCORE_SECONDS = 1.32
"""Seconds per sample on 8 A100 (App. D.1)."""


def lengths_cost(planner: Planner, step: Step) -> Estimate:
    tokens = planner.lengths.tokens
    threads = planner.hardware.machine.threads * planner.hardware.machine.processes
    slowdown = SERIAL_SHARE + (1 - SERIAL_SHARE) / threads
    seconds = START_SECONDS["cpu"] + tokens / TOKENISED_PER_SECOND * slowdown
    work = f"{tokens:,.0f} tokens"
    if planner.lengths.part is not None:
        work = f"{planner.lengths.described}, {work}"
    estimate = planner.made(step, work, 0.0, seconds, 1.0, 1.0, devices=1)
    characters = max(1.0, float(planner.lengths.response.mean()) * CHARACTERS)
    # A shard is a row group of the pool, which is limited in rows and in characters.
    rows = min(pools.ROWS_IN_MEMORY, max(1.0, pools.CHARACTERS_IN_MEMORY / characters))
    return replace(estimate, shards=ceil(planner.lengths.trajectories / rows))


def score_cost(planner: Planner, step: Step) -> Estimate:
    lengths = planner.lengths
    tokens = _pass_tokens(planner)
    share = 1.0 if tokens is None else lengths.shared(tokens)
    flops = costs.forward_flops(planner.shape, lengths.total, lengths.response, share)
    paper = ""
    if planner.is_papers:
        per_sample = flops.forward * lengths.repeat / lengths.trajectories
        seconds = per_sample / planner.hardware.rate("forward", planner.shape, 1)
        paper = f"{PAPER_SCORE_SECONDS} s per sample (ours {seconds:.2f} s of one GPU)"
    estimate = _pass_cost(planner, step, flops, shards.cost(lengths.total), paper, tokens)
    return replace(estimate, kept_gib=_statistics_bytes(planner, step) / GIB)


def _statistics_bytes(planner: Planner, step: Step) -> float:
    """Disk space of the statistics of tokens, if they are kept."""
    if not step.makes(TOKENS):
        return 0.0
    lengths = planner.lengths
    questions = planner.config.scoring.token_questions
    share = 1.0 if questions is None else min(1.0, questions / lengths.questions)
    return STATISTICS_BYTES * float(lengths.response.sum()) * lengths.repeat * share


def local_cost(planner: Planner, step: Step) -> Estimate:
    lengths = planner.lengths
    context = planner.config.scoring.local_context
    flops = costs.local_flops(planner.shape, lengths.total, lengths.response, context)
    return _pass_cost(planner, step, flops, lengths.total + context * lengths.response)


def unprompted_cost(planner: Planner, step: Step) -> Estimate:
    response = planner.lengths.response
    flops = costs.forward_flops(planner.shape, response, response)
    return _pass_cost(planner, step, flops, shards.cost(response), tokens=_pass_tokens(planner))


def gram_cost(planner: Planner, step: Step) -> Estimate:
    lengths = planner.lengths
    sketch = _sketch(planner, planner.config.sketch.gram)
    flops = costs.gram_flops(planner.shape, lengths.total, lengths.response, sketch)
    estimate = _pass_cost(planner, step, Flops(flops, 0.0), shards.cost(lengths.total))
    tokens = max(_batch_tokens(planner), int(lengths.total.max()))
    sketched = _sketched_bytes(planner, sketch, tokens)
    return replace(estimate, memory_gib=estimate.memory_gib + sketched / GIB)


def exact_cost(planner: Planner, step: Step) -> Estimate:
    config = planner.config
    lengths = planner.lengths
    shape = planner.shape
    is_half = config.student.dtype != "float32"
    cuda = planner.hardware.machine.device == "cuda"
    sketch = _sketch(planner, config.sketch.exact)
    flops = costs.exact_flops(shape, lengths.total, lengths.response, sketch, cuda) * lengths.repeat
    weights = shape.parameters * precision_bytes(config.student.dtype)
    tokens = max(config.hardware.train_tokens, int(lengths.total.max()))
    # Adapters of rank 1 in place of none: the head has no gradient then.
    setup = TrainingSetup(1, 0, tokens, cuda, bf16=is_half, lora=1, cuda=cuda)
    # On CPU in float32, the forward and the backward pass each have their own copy (cpu_linear.py).
    copies = 1 if cuda or is_half else 2
    sketched = _sketched_bytes(planner, sketch, tokens)
    memory = (copies * weights + activation_bytes(shape, setup) + sketched) / GIB
    seconds = planner.seconds("training", flops, weights)
    work = f"{lengths.described}, {lengths.tokens:,.0f} tokens, forward and backward"
    estimate = planner.made(step, work, flops, seconds, memory, weights / GIB)
    features = 2.0 * config.sketch.features * lengths.trajectories if step.makes(FEATURES_TABLE) else 0.0
    return replace(estimate, kept_gib=features / GIB, shards=_shards(planner, shards.cost(lengths.total)))


def _sketch(planner: Planner, size: int | None) -> costs.SketchShape:
    settings = planner.config.sketch
    return costs.SketchShape.of(planner.shape, size, settings.words, settings.states)


def _sketched_bytes(planner: Planner, sketch: costs.SketchShape, tokens: int) -> float:
    """Memory of a sketcher: the sketched inputs of all output projections for a batch, and the gradients of
    the questions that are in memory together.
    """
    shape = planner.shape
    batch = 4.0 * tokens * (2 * shape.layers * sketch.size + sketch.words + 2 * shape.hidden)
    question = 4.0 * sketch.numbers(shape) * planner.lengths.candidates
    return batch + max(float(shards.SKETCH_BYTES), question)


def influence_cost(planner: Planner, step: Step) -> Estimate:
    """Only a validation set of its own needs the student. Its trajectories count as the pool's."""
    lengths = planner.lengths
    validation = planner.config.method.validation
    if validation.path is None:
        work = f"{lengths.trajectories:,} cosines"
        return planner.made(step, work, 0.0, START_SECONDS["cpu"], 1.0, 1.0, devices=1)
    machine = planner.hardware.machine
    sketch = _sketch(planner, planner.config.sketch.exact)
    total = costs.exact_flops(
        planner.shape, lengths.total, lengths.response, sketch, machine.device == "cuda"
    )
    flops = total / len(lengths.total) * validation.questions
    weights = planner.shape.parameters * precision_bytes(planner.config.student.dtype)
    # `seconds` divides by all devices of the machine, and this step runs on one.
    seconds = planner.seconds("training", flops * machine.world, weights)
    work = f"{validation.questions} trajectories"
    return planner.made(step, work, flops, seconds, 2 * weights / GIB, weights / GIB, devices=1)


def judge_cost(planner: Planner, step: Step) -> Estimate | None:
    """The judge reads every trajectory after its prompt and answers in a few lines. None if its shape is
    unknown.
    """
    judge = planner.config.method.judge
    lengths = planner.lengths
    shape = shape_of(judge.model)
    if shape is None:
        return None
    gpus = shared_gpus(planner.config.engine.name, judge.tensor_parallel, planner.hardware.machine.device)
    prompts = np.minimum(lengths.total + JUDGE_PROMPT_TOKENS, judge.max_length)
    flops = costs.forward_flops(shape, prompts, np.ones_like(prompts)).forward * lengths.repeat
    element = precision_bytes(judge.dtype)
    decoder = Decoder(planner.config.engine, gpus, shape, element, planner.hardware, judge.max_length)
    answer = min(JUDGE_ANSWER_TOKENS, judge.max_new_tokens)
    answering = decoder.seconds(lengths.trajectories, float(prompts.mean()), answer, 0.0)
    rate = planner.hardware.rate("forward", shape, half=judge.dtype != "float32")
    seconds = flops / rate + answering
    work = f"{lengths.trajectories:,} verdicts of {Path(judge.path).name}"
    memory = decoder.needed_bytes / GIB
    estimate = planner.made(step, work, flops, seconds, memory, decoder.weights / GIB)
    return replace(estimate, shards=lengths.trajectories)


def _batch_tokens(planner: Planner) -> int:
    """Tokens of a scoring batch."""
    config = planner.config
    is_gpu = planner.hardware.machine.device == "cuda"
    memory = planner.hardware.memory_gib if is_gpu else 0.0
    return batch_tokens(config.hardware, config.student, planner.shape, memory)


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
    """Cost of one pass of the student over the pool. `load`: cost of each trajectory, by which shards are
    cut. `tokens`: see `_pass_tokens`.
    """
    lengths = planner.lengths
    shape = planner.shape
    flops = operations.forward * lengths.repeat
    element = precision_bytes(planner.config.student.dtype)
    weights = shape.parameters * element
    batch = _batch_tokens(planner)
    longest = int(lengths.total.max())
    # The hidden states of a batch that is run in several passes are kept, and then joined.
    hidden = 0.0 if tokens is None else 2.0 * max(batch, longest) * shape.hidden * element
    scores = score_bytes(shape, planner.config.student.attention, longest)
    one_pass = forward_bytes(shape, max(tokens or batch, longest), element, scores)
    memory = (weights + hidden + one_pass) / GIB
    work = f"{lengths.described}, {lengths.tokens:,.0f} tokens"
    seconds = planner.seconds("forward", flops, weights)
    estimate = planner.made(step, work, flops, seconds, memory, weights / GIB, paper)
    return replace(estimate, shards=_shards(planner, load))


def _shards(planner: Planner, load: np.ndarray) -> int:
    lengths = planner.lengths
    total = float(load.sum()) * lengths.repeat
    return shards.number(total, lengths.trajectories, planner.config.scoring.shard_tokens)
