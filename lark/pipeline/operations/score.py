"""The operations that compute what methods need to know about a trajectory: its length, its statistics
under the student, indicators of its text, whether it is correct, a judge's opinion. `SCORING` has their
steps: each makes a table that some methods need (`SelectionMethod.needs`).
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from lark.config import Config
from lark.generation.engine import ENGINES, check_engine, shared_gpus
from lark.models.students import check_context, weights_identity
from lark.pipeline.fingerprints import local_steps_part, sketch_part
from lark.pipeline.operations import score_costs
from lark.pipeline.plan_base import PlanBase
from lark.planner import remedies
from lark.pool.trajectory import VERDICTS_VERSION
from lark.scoring import judge, merging, sources
from lark.scoring.correctness import write_correctness
from lark.scoring.influence import validation_file, validation_set
from lark.scoring.own_method import method_of
from lark.scoring.pass_sizes import BATCH_TOKENS
from lark.scoring.take_over import take_over
from lark.scoring.text import write_indicators
from lark.store.store import Artifact
from lark.work.machine import Machine
from lark.work.operation import EXPANDABLE, Counts, Operation, Settings, Step

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
    tokens = getattr(config.hardware, name) or BATCH_TOKENS[0]
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
# Passes of the student over the pool, in shards that all processes share.
IN_SHARDS: dict[str, Any] = {"allocator": EXPANDABLE, "prepare": take_over, "collect": merging.collect}
FORWARD: dict[str, Any] = {**IN_SHARDS, "remedies": _pass_remedies}

LENGTHS = Operation(
    "lengths", "score", "lark.scoring.token_counts:lengths", processes="one", on_cpu=True,
    prepare=take_over, collect=merging.collect_lengths, notice=_report_truncation,
    cost=score_costs.lengths_cost,
)  # fmt: skip
SCORE = Operation(
    "score", "score", "lark.scoring.worker:score", **FORWARD,
    cost=score_costs.score_cost, settings=("scoring.rank_clip", "scoring.liger"),
)  # fmt: skip
LOCAL = Operation(
    "local", "score", "lark.scoring.worker:local", **FORWARD,
    cost=score_costs.local_cost, settings=("scoring.local_context", "scoring.local_steps", "scoring.liger"),
)  # fmt: skip
UNPROMPTED = Operation(
    "unprompted", "score", "lark.scoring.worker:unprompted", **FORWARD,
    cost=score_costs.unprompted_cost, settings=("scoring.liger",),
)  # fmt: skip
GRAM = Operation(
    "gram", "score", "lark.scoring.gradient_worker:gram", **FORWARD,
    cost=score_costs.gram_cost, settings=("sketch",),
)  # fmt: skip
EXACT = Operation(
    "exact", "score", "lark.scoring.gradient_worker:exact", **IN_SHARDS,
    cost=score_costs.exact_cost, settings=("sketch",),
    remedies=partial(_smaller_batches, "train_tokens"),  # it has a backward pass
)  # fmt: skip
INFLUENCE = Operation(
    "influence", "score", "lark.scoring.gradient_worker:influence", processes="one", allocator=EXPANDABLE,
    check=_check_validation, cost=score_costs.influence_cost, settings=("method.validation",),
)  # fmt: skip
TEXT = Operation("text", "score", write_indicators, prepare=take_over)
CORRECTNESS = Operation("correctness", "score", write_correctness, prepare=take_over)
JUDGE = Operation(
    "judge", "score", "lark.scoring.judge_worker:judge_pool", processes="sharing", gpus=_judge_gpus,
    collect=judge.collect, check=_check_judge, forget=judge.forget, cost=score_costs.judge_cost,
    remedies=_judge_remedies, settings=("method.judge",),
)  # fmt: skip

OPERATIONS = (LENGTHS, SCORE, UNPROMPTED, GRAM, EXACT, INFLUENCE, LOCAL, TEXT, CORRECTNESS, JUDGE)


def lengths_step(base: PlanBase) -> Step:
    """The lengths are needed by every pass of the student and by every selection."""
    return Step(LENGTHS, (base.lengths,), base.weights)


def scoring_steps(base: PlanBase) -> list[Step]:
    """Only the steps that the method needs. The forward pass is shared by all methods and budgets."""
    needs = set(method_of(base.config.method).needs)
    if base.config.scoring.tokens:
        needs.add("statistics")
    # One pass may serve several needs; it is planned once.
    passes = dict.fromkeys(step for need, step in SCORING.items() if need in needs)
    return [lengths_step(base), *(step(base) for step in passes)]


def _score(base: PlanBase) -> Step:
    scoring = base.config.scoring
    needs = method_of(base.config.method).needs
    tables = [base.table(sources.SCORES_TABLE, {"rank_clip": scoring.rank_clip})]
    if "entropy" in needs:
        tables.append(base.table(sources.ENTROPY_TABLE))
    if "top50" in needs:
        tables.append(base.table(sources.TOP50_TABLE))
    if scoring.tokens:
        number = scoring.token_questions
        tables.append(base.table(sources.TOKENS, {} if number is None else {"questions": number}))
    return base.student_pass(SCORE, *tables)


def _local(base: PlanBase) -> Step:
    part = {"local_context": base.config.scoring.local_context, **local_steps_part(base.config)}
    return base.student_pass(LOCAL, base.table(sources.LOCAL_TABLE, part))


def _unprompted(base: PlanBase) -> Step:
    return base.student_pass(UNPROMPTED, base.table(sources.UNPROMPTED_TABLE))


def _gram(base: PlanBase) -> Step:
    return base.student_pass(
        GRAM, base.table(sources.GRAM_TABLE, {"sketch": sketch_part(base.config, "gram")})
    )


def _exact(base: PlanBase) -> Step:
    part = {"sketch": sketch_part(base.config, "exact")}
    tables = [base.table(sources.EXACT_TABLE, part)]
    if "influence" in method_of(base.config.method).needs:
        tables.append(base.table(sources.FEATURES_TABLE, {**part, "features": base.config.sketch.features}))
    return base.student_pass(EXACT, *tables)


def _influence(base: PlanBase) -> Step:
    validation = base.config.method.validation
    part = asdict(validation) | {"verdicts": VERDICTS_VERSION}
    if part.pop("path") is not None:
        part["validation"] = base.checksums(validation_file(validation))
    features = _exact(base).artifacts[-1]
    inputs = {"pool": base.pool, sources.FEATURES_TABLE.name: features}
    return Step(INFLUENCE, (Artifact(sources.INFLUENCE_TABLE, base.name, part, inputs),), base.weights)


def _correctness(base: PlanBase) -> Step:
    pool = base.config.pool
    part = {"verdicts": VERDICTS_VERSION, "answer_format": pool.answer_format}
    return Step(CORRECTNESS, (Artifact(sources.CORRECTNESS_TABLE, pool.label, part, {"pool": base.pool}),))


def _text(base: PlanBase) -> Step:
    return Step(TEXT, (Artifact(sources.TEXT_TABLE, base.config.pool.label, {}, {"pool": base.pool}),))


def _judge(base: PlanBase) -> Step:
    """The verdicts of a judge model on a pool. They do not depend on the student."""
    settings = base.config.method.judge
    # The judge's weights are identified by their content, wherever they are and however they are divided.
    elsewhere = ("path", "revision", "tensor_parallel")
    part = {
        "judge": weights_identity(settings.model, base.checksums),
        **{key: value for key, value in asdict(settings).items() if key not in elsewhere},
        "engine": base.config.engine.name,
    }
    name = f"{base.config.pool.label}-{Path(settings.path).name}"
    verdicts = Artifact(sources.JUDGE_TABLE, name, part, {"pool": base.pool})
    return Step(JUDGE, (verdicts,), base.weights_of(settings.model))


SCORING: dict[str, Callable[[PlanBase], Step]] = {
    "correctness": _correctness,
    "statistics": _score,
    "entropy": _score,
    "top50": _score,
    "unprompted": _unprompted,
    "gram": _gram,
    "exact": _exact,
    "influence": _influence,
    "local": _local,
    "text": _text,
    "judge": _judge,
}
"""Needs of methods and the steps that make it, in order. The lengths are always made."""
