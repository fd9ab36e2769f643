"""The scoring steps: each makes a table that some methods need (`Method.needs`)."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lark.models.students import weights_identity
from lark.pipeline.fingerprints import local_steps_part, sketch_part
from lark.pipeline.operations.score import (
    CORRECTNESS,
    EXACT,
    GRAM,
    INFLUENCE,
    JUDGE,
    LOCAL,
    SCORE,
    TEXT,
    UNPROMPTED,
)
from lark.pipeline.plan_base import PlanBase
from lark.pool.trajectory import VERDICTS_VERSION
from lark.scoring.influence import validation_file
from lark.scoring.methods import METHODS
from lark.scoring.sources import (
    CORRECTNESS_TABLE,
    ENTROPY_TABLE,
    EXACT_TABLE,
    FEATURES_TABLE,
    GRAM_TABLE,
    INFLUENCE_TABLE,
    JUDGE_TABLE,
    LOCAL_TABLE,
    SCORES_TABLE,
    TEXT_TABLE,
    TOKENS,
    TOP50_TABLE,
    UNPROMPTED_TABLE,
)
from lark.store.store import Artifact
from lark.work.operation import Step


def scoring_steps(base: PlanBase) -> list[Step]:
    """Only the steps that the method needs. The forward pass is shared by all methods and budgets."""
    needs = set(METHODS[base.config.method.name].needs)
    if base.config.scoring.tokens:
        needs.add("statistics")
    # One pass may serve several needs; it is planned once.
    passes = dict.fromkeys(step for need, step in SCORING.items() if need in needs)
    return [base.lengths, *(step(base) for step in passes)]


def _score(base: PlanBase) -> Step:
    scoring = base.config.scoring
    needs = METHODS[base.config.method.name].needs
    tables = [base.table(SCORES_TABLE, {"rank_clip": scoring.rank_clip})]
    if "entropy" in needs:
        tables.append(base.table(ENTROPY_TABLE))
    if "top50" in needs:
        tables.append(base.table(TOP50_TABLE))
    if scoring.tokens:
        number = scoring.token_questions
        tables.append(base.table(TOKENS, {} if number is None else {"questions": number}))
    return base.student_pass(SCORE, *tables)


def _local(base: PlanBase) -> Step:
    part = {"local_context": base.config.scoring.local_context, **local_steps_part(base.config)}
    return base.student_pass(LOCAL, base.table(LOCAL_TABLE, part))


def _unprompted(base: PlanBase) -> Step:
    return base.student_pass(UNPROMPTED, base.table(UNPROMPTED_TABLE))


def _gram(base: PlanBase) -> Step:
    return base.student_pass(GRAM, base.table(GRAM_TABLE, {"sketch": sketch_part(base.config, "gram")}))


def _exact(base: PlanBase) -> Step:
    part = {"sketch": sketch_part(base.config, "exact")}
    tables = [base.table(EXACT_TABLE, part)]
    if "influence" in METHODS[base.config.method.name].needs:
        tables.append(base.table(FEATURES_TABLE, {**part, "features": base.config.sketch.features}))
    return base.student_pass(EXACT, *tables)


def _influence(base: PlanBase) -> Step:
    validation = base.config.method.validation
    part: dict[str, Any] = {
        "questions": validation.questions,
        "seed": validation.seed,
        "verdicts": VERDICTS_VERSION,
    }
    if validation.path is not None:
        part["validation"] = base.checksums(validation_file(validation))
    features = _exact(base).artifacts[-1]
    inputs = {"pool": base.pool, FEATURES_TABLE.name: features}
    return Step(INFLUENCE, (Artifact(INFLUENCE_TABLE, base.name, part, inputs),), base.weights)


def _correctness(base: PlanBase) -> Step:
    pool = base.config.pool
    part = {"verdicts": VERDICTS_VERSION, "answer_format": pool.answer_format}
    return Step(CORRECTNESS, (Artifact(CORRECTNESS_TABLE, pool.name, part, {"pool": base.pool}),))


def _text(base: PlanBase) -> Step:
    return Step(TEXT, (Artifact(TEXT_TABLE, base.config.pool.name, {}, {"pool": base.pool}),))


def _judge(base: PlanBase) -> Step:
    """The verdicts of a judge model on a pool. They do not depend on the student."""
    judge = base.config.method.judge
    # The judge's weights are identified by their content, wherever they are and however they are divided.
    elsewhere = ("path", "revision", "tensor_parallel")
    settings = {key: value for key, value in asdict(judge).items() if key not in elsewhere}
    part = {
        "judge": weights_identity(judge.model, base.checksums),
        **settings,
        "engine": base.config.engine.name,
    }
    name = f"{base.config.pool.name}-{Path(judge.path).name}"
    verdicts = Artifact(JUDGE_TABLE, name, part, {"pool": base.pool})
    return Step(JUDGE, (verdicts,), base.weights_of(judge.model))


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
