"""The plan of a run, as one graph: each step's artifacts, what they depend on, and where their model comes
from.

Everything here is decided from the configuration alone, before anything runs. `dry_run=true` prints the
plan, the planner estimates its cost, the pipeline carries it out. The steps of scoring are in
operations/score.py, those of analyses in analysis_plan.py.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from lark.config import STAGES, Config
from lark.config.checks import one_of
from lark.evaluation.grade import METRICS
from lark.evaluation.shards import GENERATIONS
from lark.generation.engine import ENGINES
from lark.pipeline.analysis_plan import ANALYSES, analysis_steps
from lark.pipeline.checks import check_teaching
from lark.pipeline.fingerprints import answers_part, questions_part, selection_part, training_part
from lark.pipeline.operations.evaluate import GENERATE, GRADE
from lark.pipeline.operations.score import scoring_steps
from lark.pipeline.operations.select import SELECT
from lark.pipeline.operations.train import TRAIN
from lark.pipeline.plan_base import PlanBase
from lark.pipeline.registry import OPERATIONS
from lark.scoring.methods import METHODS
from lark.scoring.own_method import is_own, method_of
from lark.selection.rules import WEIGHTINGS
from lark.selection.write import SELECTION
from lark.store.store import Artifact, Checksums
from lark.training.checkpoints import CHECKPOINT
from lark.work.operation import Step

WITH_STEPS = {operation.stage for operation in OPERATIONS}
STAGES_WITH_STEPS = [stage for stage in STAGES if stage in WITH_STEPS]
FORCEABLE = tuple(
    dict.fromkeys([*STAGES_WITH_STEPS, *(operation.name for operation in OPERATIONS), *ANALYSES])
)
"""Values of `force=`: stages, operations and analyses."""


def make_plan(config: Config, checksums: Checksums, elsewhere: bool = False) -> list[Step]:
    """The steps of a run, in order; each depends only on earlier ones.

    `elsewhere`: plan for a pool that is not on this machine; it is then identified by its path alone.
    """
    check_names(config)
    check_teaching(config)
    base = PlanBase(config, checksums, elsewhere, scoring_steps)
    steps = _base_model_steps(base) if config.weighting_name is None else _training_steps(base)
    return _with_conversions(steps, base.conversions)


def fetched_plan(config: Config, checksums: Checksums, elsewhere: bool = False) -> list[Step]:
    """The same, for a run that starts now: the benchmarks that it needs are downloaded first, because a
    benchmark that is here is identified by its problems, and one that is not by its source.
    """
    plan = make_plan(config, checksums, elsewhere)
    fetches = dict.fromkeys(step.operation.fetch for step in wanted(plan, config.stages))
    # A list, not a generator: all of them are downloaded, not only up to the first that was missing.
    missing = [fetch(config) for fetch in fetches if fetch is not None]
    return make_plan(config, checksums, elsewhere) if any(missing) else plan


def wanted(plan: Sequence[Step], stages: Sequence[str]) -> list[Step]:
    """The steps of these stages, and those they depend on."""
    steps: list[Step] = []
    needed: set[Path] = set()
    # Backwards: what a step needs is known before the steps that make it are reached.
    for step in reversed(plan):
        made = {artifact.folder for artifact in step.artifacts}
        if step.stage in stages or needed & made:
            steps.insert(0, step)
            needed |= {source.folder for source in step.needs}
    return steps


def check_names(config: Config) -> None:
    """Refuse unknown names of methods, weightings, engines and analyses, and unknown values of `force`."""
    if config.weighting_name is not None:
        if not is_own(config.method):
            one_of("method", config.method.name, tuple(METHODS))
        method_of(config.method).check(config.method.options)
        one_of("method.weighting", config.method.weighting, tuple(WEIGHTINGS))
    one_of("weighting", config.weighting, ("auto", *WEIGHTINGS))
    one_of("engine.name", config.engine.name, tuple(ENGINES))
    if config.analysis.name is not None:
        one_of("analysis.name", config.analysis.name, tuple(ANALYSES))
    for name in config.force:
        one_of("force", name, FORCEABLE)


def _base_model_steps(base: PlanBase) -> list[Step]:
    """A run that trains nothing. It needs the pool only for an analysis."""
    evaluation = _evaluation_steps(base, None)
    analysis = analysis_steps(base, None)
    if not analysis:
        return evaluation
    return [*evaluation, *base.pool_steps, *analysis]


def _training_steps(base: PlanBase) -> list[Step]:
    """A run that scores, selects, trains and evaluates; the base model is evaluated too, for comparison."""
    config = base.config
    evaluation = _evaluation_steps(base, None)
    scoring = scoring_steps(base)
    selection = _selection_artifact(base, scoring)
    part = {"student": base.identity, "training": training_part(config.training, base.checksums)}
    checkpoint = Artifact(CHECKPOINT, _model_name(config), part, {"selection": selection})
    scored = {step.key for step in scoring}
    return [
        *base.pool_steps,
        *scoring,
        Step(SELECT, (selection,)),
        Step(TRAIN, (checkpoint,), base.weights),
        *evaluation,
        *_evaluation_steps(base, checkpoint),
        # An analysis may need a table that scoring makes anyway.
        *(step for step in analysis_steps(base, checkpoint) if step.key not in scored),
    ]


def _with_conversions(steps: list[Step], conversions: Sequence[Step]) -> list[Step]:
    """The steps, with each conversion before the first step that needs it."""
    for conversion in conversions:
        converted = conversion.artifacts[0]
        first = next((i for i, step in enumerate(steps) if converted in step.needs), None)
        if first is not None:
            steps.insert(first, conversion)
    return steps


def _selection_artifact(base: PlanBase, scoring: Sequence[Step]) -> Artifact:
    config = base.config
    inputs = base.method_tables(scoring)
    name = f"{base.name}-{config.method.key}-{config.weighting_name}{_variant(config)}-{config.budget.name}"
    return Artifact(SELECTION, name, selection_part(config, base.checksums), inputs)


def _model_name(config: Config) -> str:
    weighting = "" if config.weighting == "auto" else f"-{config.weighting}"
    return f"{config.student.name}-{config.method.key}{weighting}{_variant(config)}-{config.budget.name}"


def _variant(config: Config) -> str:
    """The part of a name for settings that most runs do not change."""
    shared = "-shared" if config.share_weights else ""
    teacher = "" if config.method.teacher is None else f"-teacher-{config.method.teacher}"
    return f"{shared}{teacher}"


def _evaluation_steps(base: PlanBase, checkpoint: Artifact | None) -> list[Step]:
    """Generation and grading are separate steps, so that a fix to a grader or a gold answer costs no GPU
    time. `checkpoint`: the trained student; None evaluates the base model.
    """
    config = base.config
    student = dict(base.identity)
    inputs: dict[str, Artifact] = {}
    name = f"{config.student.name}-base"
    weights = base.weights
    which: Literal["base", "trained"] = "base"
    if checkpoint is not None:
        del student["weights"]  # the checkpoint's take their place
        inputs = {"checkpoint": checkpoint}
        name = checkpoint.name
        weights = checkpoint
        which = "trained"
    generations = []
    metrics = []
    for task_name, task in config.benchmark.tasks.items():
        part = {
            "student": student,
            "task": questions_part(task_name, task),
            "decoding": asdict(config.benchmark.decoding),
            "engine": config.engine.name,
        }
        generated = Artifact(GENERATIONS, f"{name}-{task_name}", part, inputs)
        answers = answers_part(task_name, task)
        generations.append(generated)
        metrics.append(Artifact(METRICS, f"{name}-{task_name}", answers, {GENERATIONS.name: generated}))
    labels = tuple(config.benchmark.tasks)
    return [
        Step(GENERATE, tuple(generations), weights, labels, model=which),
        Step(GRADE, tuple(metrics), labels=labels, model=which, apart=True),
    ]
