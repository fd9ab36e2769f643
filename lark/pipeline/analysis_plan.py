"""The steps of `analysis.name`."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from lark.analysis.kinds import (
    CONTAMINATION_TABLE,
    CONVERTED_JUDGE,
    ESTIMATES_TABLE,
    GRADIENTS_TABLE,
    JACOBIANS_TABLE,
    KAPPA_TABLE,
    TEACHERS_TABLE,
    TIMINGS,
)
from lark.pipeline.checks import require_exact_gradients, require_training
from lark.pipeline.fingerprints import answers_part, local_steps_part, questions_part, sketch_part
from lark.pipeline.operations.analyse import (
    CONTAMINATION,
    ESTIMATES,
    GRADIENTS,
    JACOBIANS,
    KAPPA,
    TEACHERS,
    TIMING,
)
from lark.pipeline.operations.score import lengths_step
from lark.pipeline.plan_base import PlanBase
from lark.store.store import Artifact
from lark.work.operation import Step


def analysis_steps(base: PlanBase, checkpoint: Artifact | None) -> list[Step]:
    """The steps of the chosen analysis; none if none is chosen. `checkpoint`: the trained student, if the
    method trains one.
    """
    name = base.config.analysis.name
    return [] if name is None else ANALYSES[name](base, checkpoint)


def _contamination(base: PlanBase, checkpoint: Artifact | None) -> list[Step]:
    benchmark = base.config.benchmark
    tasks = {
        name: {**questions_part(name, task), **answers_part(name, task), "label": task.label}
        for name, task in benchmark.tasks.items()
    }
    name = f"contamination-{base.config.pool.label}-{benchmark.name}"
    part = {"analysis": "contamination", "tasks": tasks}
    return [Step(CONTAMINATION, (Artifact(CONTAMINATION_TABLE, name, part, {"pool": base.pool}),))]


def _kappa(base: PlanBase, checkpoint: Artifact | None) -> list[Step]:
    trained = require_training(base.config, checkpoint)
    inputs = {"checkpoint": trained, "selection": trained.inputs["selection"]}
    part = {"analysis": "kappa", "dtype": base.config.analysis.dtype}
    table = Artifact(KAPPA_TABLE, f"kappa-{trained.name}", part, inputs)
    return [Step(KAPPA, (table,), base.weights)]


def _gradients(base: PlanBase, checkpoint: Artifact | None) -> list[Step]:
    return [_gradients_step(base, "gradients")]


def _gradients_step(base: PlanBase, purpose: str) -> Step:
    """Exact gradients, shared by the surrogate, the landscape and the theory."""
    part = _sampled(base, "gradients")
    name = f"gradients-{base.name}"
    if base.config.analysis.quick:
        part["quick"] = sketch_part(base.config, "exact")
        name = f"gradients-quick-{base.name}"
    table = Artifact(GRADIENTS_TABLE, name, part, {"pool": base.pool})
    return Step(GRADIENTS, (table,), base.weights, purpose=purpose)


def _sampled(base: PlanBase, analysis: str) -> dict[str, Any]:
    """Part of the fingerprint of gradients of a sample of questions."""
    settings = base.config.analysis
    return {
        "analysis": analysis,
        **base.identity,
        "dtype": settings.dtype,
        "questions": settings.questions,
        "seed": settings.seed,
    }


def _surrogate(base: PlanBase, checkpoint: Artifact | None) -> list[Step]:
    """Exact gradients, and the scores that estimate the same from sketches."""
    require_exact_gradients(base.config, "surrogate")
    part = {
        **_sampled(base, "estimates"),
        "gram": sketch_part(base.config, "gram"),
        "exact": sketch_part(base.config, "exact"),
    }
    estimates = Artifact(ESTIMATES_TABLE, f"estimates-{base.name}", part, {"pool": base.pool})
    return [
        _gradients_step(base, "surrogate"),
        Step(ESTIMATES, (estimates,), base.weights, purpose="surrogate"),
    ]


def _grace(base: PlanBase, checkpoint: Artifact | None) -> list[Step]:
    part = {**_sampled(base, "grace"), "sketch": sketch_part(base.config, "exact")}
    teachers = Artifact(TEACHERS_TABLE, f"grace-{base.name}", part, {"pool": base.pool})
    return [Step(TEACHERS, (teachers,), base.weights, purpose="grace")]


def _theory(base: PlanBase, checkpoint: Artifact | None) -> list[Step]:
    require_exact_gradients(base.config, "theory")
    gradients = _gradients_step(base, "theory")
    settings = base.config.analysis
    part = {
        "analysis": "jacobians",
        "questions": settings.jacobians,
        "iterations": settings.iterations,
        "seed": settings.seed,
    }
    inputs = {"pool": base.pool, "gradients": gradients.artifacts[0]}
    jacobians = Artifact(JACOBIANS_TABLE, f"jacobians-{base.name}", part, inputs)
    return [gradients, Step(JACOBIANS, (jacobians,), base.weights, purpose="theory")]


def _timing(base: PlanBase, checkpoint: Artifact | None) -> list[Step]:
    """A measurement of this machine. Repeat it with force=[cost]; changing the hardware settings does not
    repeat it.
    """
    config = base.config
    scoring = asdict(config.scoring)
    del scoring["local_steps"], scoring["liger"], scoring["reuse"]
    scoring |= local_steps_part(config)
    part = {
        **base.identity,
        "samples": config.analysis.samples,
        "rounds": config.analysis.rounds,
        "scoring": scoring,
        "judge": asdict(config.method.judge),
    }
    inputs = dict(base.pool_and_lengths)
    judge = base.weights_of(config.method.judge.model)
    if isinstance(judge, Artifact):
        inputs[CONVERTED_JUDGE] = judge
    return [lengths_step(base), Step(TIMING, (Artifact(TIMINGS, base.name, part, inputs),), base.weights)]


ANALYSES: dict[str, Callable[[PlanBase, Artifact | None], list[Step]]] = {
    "gradients": _gradients,
    "surrogate": _surrogate,
    "theory": _theory,
    "grace": _grace,
    "kappa": _kappa,
    "contamination": _contamination,
    "cost": _timing,
}
"""Values of `analysis.name` and their steps."""
