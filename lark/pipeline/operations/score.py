"""The operations that compute what methods need to know about a trajectory: its length, its statistics
under the student, indicators of its text, whether it is correct, a judge's opinion.
"""

import logging
from collections.abc import Iterator
from functools import partial

from lark.config import Config
from lark.generation.engine import ENGINES, check_engine, shared_gpus
from lark.models.students import check_context
from lark.pipeline.operations import score_costs
from lark.planner import remedies
from lark.scoring import judge, merging
from lark.scoring.correctness import write_correctness
from lark.scoring.influence import validation_set
from lark.scoring.text import write_indicators
from lark.work.machine import Machine
from lark.work.operation import EXPANDABLE, Counts, Operation, Settings

log = logging.getLogger(__name__)

TRUNCATED = (
    "%(truncated)d of %(trajectories)d trajectories are cut at student.max_length=%(max_length)d;"
    " %(without_response)d of them have no response left and cannot be selected"
)


def _report_truncation(config: Config, counts: Counts, made: bool) -> None:
    if counts["truncated"]:
        log.warning(TRUNCATED, {**counts, "max_length": config.student.max_length})


def _check_validation(config: Config, machine: Machine) -> None:
    if config.method.validation.path is not None:
        validation_set(config)


def _smaller_batches(name: str, config: Config, machine: Machine, longest: int) -> Iterator[Settings]:
    """Remedies for passes whose batches have `hardware.<name>` tokens, the least intrusive first: smaller
    batches, shorter trajectories, half the precision.
    """
    key = f"hardware.{name}"
    tokens = getattr(config.hardware, name)
    smaller: list[Settings] = [{key: longest}] if tokens > longest else []
    yield from smaller
    shorter = remedies.shorter(min(longest, config.student.max_length), key, tokens)
    halves = remedies.half("student.dtype", config.student.dtype)
    yield from remedies.combined([{}, *smaller, *shorter], halves)


def _judge_gpus(config: Config) -> int:
    return config.method.judge.tensor_parallel if ENGINES[config.engine.name].shares_model else 1


def _check_judge(config: Config, machine: Machine) -> None:
    settings = config.method.judge
    check_context(settings.model)
    gpus = shared_gpus(config.engine.name, settings.tensor_parallel, machine.device)
    check_engine(config.engine, machine, {"method.judge.tensor_parallel": gpus})


def _judge_remedies(config: Config, machine: Machine, longest: int) -> Iterator[Settings]:
    settings = config.method.judge
    halves = remedies.half("method.judge.dtype", settings.dtype)
    key = "method.judge.tensor_parallel"
    shared = remedies.shared_model(config, machine, settings.model, key, _judge_gpus(config))
    return remedies.combined(halves, shared)


_pass_remedies = partial(_smaller_batches, "score_tokens")

LENGTHS = Operation(
    "lengths",
    "score",
    "lark.scoring.worker:lengths",
    processes="one",
    on_cpu=True,
    collect=merging.collect_lengths,
    notice=_report_truncation,
    cost=score_costs.lengths_cost,
)
SCORE = Operation(
    "score",
    "score",
    "lark.scoring.worker:score",
    allocator=EXPANDABLE,
    collect=merging.collect,
    cost=score_costs.score_cost,
    remedies=_pass_remedies,
    settings=("scoring.rank_clip",),
)
LOCAL = Operation(
    "local",
    "score",
    "lark.scoring.worker:local",
    allocator=EXPANDABLE,
    collect=merging.collect,
    cost=score_costs.local_cost,
    remedies=_pass_remedies,
    settings=("scoring.local_context", "scoring.local_steps"),
)
UNPROMPTED = Operation(
    "unprompted",
    "score",
    "lark.scoring.worker:unprompted",
    allocator=EXPANDABLE,
    collect=merging.collect,
    cost=score_costs.unprompted_cost,
    remedies=_pass_remedies,
)
GRAM = Operation(
    "gram",
    "score",
    "lark.scoring.gradient_worker:gram",
    allocator=EXPANDABLE,
    collect=merging.collect,
    cost=score_costs.gram_cost,
    remedies=_pass_remedies,
    settings=("sketch",),
)
EXACT = Operation(
    "exact",
    "score",
    "lark.scoring.gradient_worker:exact",
    allocator=EXPANDABLE,
    collect=merging.collect,
    cost=score_costs.exact_cost,
    remedies=partial(_smaller_batches, "train_tokens"),  # it has a backward pass
    settings=("sketch",),
)
INFLUENCE = Operation(
    "influence",
    "score",
    "lark.scoring.gradient_worker:influence",
    processes="one",
    allocator=EXPANDABLE,
    check=_check_validation,
    cost=score_costs.influence_cost,
    settings=("method.validation",),
)
TEXT = Operation("text", "score", write_indicators)
CORRECTNESS = Operation("correctness", "score", write_correctness)
JUDGE = Operation(
    "judge",
    "score",
    "lark.scoring.judge_worker:judge_pool",
    processes="sharing",
    gpus=_judge_gpus,
    collect=judge.collect,
    check=_check_judge,
    forget=judge.forget,
    cost=score_costs.judge_cost,
    remedies=_judge_remedies,
    settings=("method.judge",),
)

OPERATIONS = (LENGTHS, SCORE, UNPROMPTED, GRAM, EXACT, INFLUENCE, LOCAL, TEXT, CORRECTNESS, JUDGE)
