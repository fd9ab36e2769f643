"""The plan of a run, as one graph: each step's artifacts, what they depend on, and where their model comes
from.

Everything here is decided from the configuration alone, before anything runs. `dry_run=true` prints the
plan, the planner estimates its cost, the pipeline carries it out.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

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
from lark.config import STAGES, Config, Student, Task, Training
from lark.config.checks import one_of
from lark.errors import LarkError
from lark.evaluation import benchmarks
from lark.evaluation.grade import METRICS
from lark.evaluation.shards import GENERATIONS
from lark.generation.engine import ENGINES
from lark.models.students import CONVERTED, location, packaged_file, tokenizer_identity, weights_identity
from lark.pipeline.operations.analyse import (
    CONTAMINATION,
    ESTIMATES,
    GRADIENTS,
    JACOBIANS,
    KAPPA,
    TEACHERS,
    TIMING,
)
from lark.pipeline.operations.evaluate import GENERATE, GRADE
from lark.pipeline.operations.pool import POOL
from lark.pipeline.operations.score import (
    CORRECTNESS,
    EXACT,
    GRAM,
    INFLUENCE,
    JUDGE,
    LENGTHS,
    LOCAL,
    SCORE,
    TEXT,
    UNPROMPTED,
)
from lark.pipeline.operations.select import SELECT
from lark.pipeline.operations.student import CONVERT
from lark.pipeline.operations.train import TRAIN
from lark.pipeline.registry import OPERATIONS
from lark.pool import trajectories as pools
from lark.pool.identity import pool_identity
from lark.pool.noise import DAMAGE
from lark.pool.trajectory import VERDICTS
from lark.scoring.external_scores import scores_file
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
    LENGTHS_TABLE,
    LOCAL_TABLE,
    SCORES_TABLE,
    SOURCES,
    TEXT_TABLE,
    TOKENS,
    TOP50_TABLE,
    UNPROMPTED_TABLE,
)
from lark.selection.rules import WEIGHTINGS
from lark.selection.write import SELECTION
from lark.store.store import Artifact, Checksums
from lark.training.checkpoints import CHECKPOINT
from lark.work.operation import Step

SPEED_ONLY = ("name", "questions", "packing", "gradient_checkpointing", "liger", "checkpoints")
"""Training settings that cannot change the trained weights."""


def make_plan(config: Config, checksums: Checksums, elsewhere: bool = False) -> list[Step]:
    """The steps of a run, in order; each depends only on earlier ones.

    `elsewhere`: plan for a pool that is not on this machine; it is then identified by its path alone.
    """
    check_names(config)
    return _Plan(config, checksums, elsewhere).steps()


def fetched_plan(config: Config, checksums: Checksums, elsewhere: bool = False) -> list[Step]:
    """The same, for a run that starts now: the benchmarks that it needs are downloaded first, because a
    benchmark that is here is identified by its problems, and one that is not by its source.
    """
    plan = make_plan(config, checksums, elsewhere)
    fetches = dict.fromkeys(step.operation.fetch for step in wanted(plan, config.stages))
    missing = [fetch(config) for fetch in fetches if fetch is not None]
    return make_plan(config, checksums, elsewhere) if any(missing) else plan


def wanted(plan: Sequence[Step], stages: Sequence[str]) -> list[Step]:
    """The steps of these stages, and those they depend on."""
    kept: list[Step] = []
    needed: set[Path] = set()
    for step in reversed(plan):
        if step.stage in stages or needed & {artifact.folder for artifact in step.artifacts}:
            kept.insert(0, step)
            needed |= {source.folder for source in step.needs}
    return kept


def check_names(config: Config) -> None:
    """Refuse unknown names of methods, weightings, engines and analyses, and unknown values of `force`."""
    if config.weighting_name is not None:
        one_of("method", config.method.name, tuple(METHODS))
        METHODS[config.method.name].check(config.method.options)
        one_of("method.weighting", config.method.weighting, tuple(WEIGHTINGS))
    one_of("weighting", config.weighting, ("auto", *WEIGHTINGS))
    one_of("engine.name", config.engine.name, tuple(ENGINES))
    if config.analysis.name is not None:
        one_of("analysis.name", config.analysis.name, tuple(ANALYSES))
    for name in config.force:
        one_of("force", name, FORCEABLE)


class _Plan:
    """The steps of one configuration, and the artifacts that several of them share."""

    def __init__(self, config: Config, checksums: Checksums, elsewhere: bool) -> None:
        self.config, self.checksums, self.elsewhere = config, checksums, elsewhere
        self.converted: list[Step] = []
        """Conversions of packaged models, collected while the plan is made."""
        self.checkpoint: Artifact | None = None
        """The trained student. None if the method trains none."""
        self.name = f"{config.student.name}-{config.pool.name}"
        self.weights = self.weights_of(config.student)
        self.identity = weights_identity(config.student, checksums)
        self.pool = self.pool_artifact()
        part = tokenizer_identity(config.student, checksums)
        self.lengths = Step(
            LENGTHS, (Artifact(LENGTHS_TABLE, self.name, part, {"pool": self.pool}),), self.weights
        )

    def steps(self) -> list[Step]:
        config, pool = self.config, Step(POOL, (self.pool,))
        base = self.evaluation(None)
        if config.weighting_name is None:
            analysis = self.analysis()
            return self.with_conversions([*base, *([pool, *analysis] if analysis else [])])
        scoring = self.scoring()
        selection = Step(SELECT, (self.selection_artifact(scoring),))
        part = {"student": self.identity, "training": _training_part(config.training, self.checksums)}
        self.checkpoint = Artifact(CHECKPOINT, self.model_name(), part, {"selection": selection.artifacts[0]})
        train = Step(TRAIN, (self.checkpoint,), self.weights)
        trained = self.evaluation(self.checkpoint)
        planned = {step.key for step in scoring}
        analysis = [step for step in self.analysis() if step.key not in planned]
        return self.with_conversions([pool, *scoring, selection, train, *base, *trained, *analysis])

    def weights_of(self, model: Student) -> str | Artifact:
        """Where a model's weights are. A packaged model is converted first."""
        file = packaged_file(model)
        if file is None:
            return location(model)
        for step in self.converted:
            if step.weights == str(file):  # the student and the judge are the same model
                return step.artifacts[0]
        # A judge shares the folder of the student with the same path.
        name = model.name if model is self.config.student else model.path
        artifact = Artifact(CONVERTED, name, {"gguf": self.checksums(file)})
        self.converted.append(Step(CONVERT, (artifact,), str(file)))
        return artifact

    def with_conversions(self, steps: list[Step]) -> list[Step]:
        """The steps, with each conversion before the first step that needs it."""
        for conversion in self.converted:
            first = next((i for i, step in enumerate(steps) if conversion.artifacts[0] in step.needs), None)
            if first is not None:
                steps.insert(first, conversion)
        return steps

    def pool_artifact(self) -> Artifact:
        pool = self.config.pool
        part = pool_identity(pool, self.checksums, self.elsewhere)
        if pool.correct_only or pool.labels == "vote":
            part["verdicts"] = VERDICTS
        if pool.noise_share:
            part["damage"] = DAMAGE
        if pool.decontaminate:
            part["benchmarks"] = {
                name: _questions(name, task) for name, task in self.config.benchmark.tasks.items()
            }
        return Artifact(pools.POOL, pool.name, part)

    def scoring(self) -> list[Step]:
        """Only the steps that the method needs. The forward pass is shared by all methods and budgets."""
        needed = METHODS[self.config.method.name].needs | (
            {"statistics"} if self.config.scoring.tokens else set()
        )
        passes = dict.fromkeys(step for source, step in SCORING.items() if source in needed)  # each once
        return [self.lengths, *(step(self) for step in passes)]

    def pool_and_lengths(self) -> dict[str, Artifact]:
        return {artifact.kind.name: artifact for artifact in (self.pool, *self.lengths.artifacts)}

    def score(self) -> Step:
        part = {**self.identity, "rank_clip": self.config.scoring.rank_clip}
        outputs = [Artifact(SCORES_TABLE, self.name, part, self.pool_and_lengths())]
        if "entropy" in METHODS[self.config.method.name].needs:
            outputs.append(Artifact(ENTROPY_TABLE, self.name, self.identity, self.pool_and_lengths()))
        if "top50" in METHODS[self.config.method.name].needs:
            outputs.append(Artifact(TOP50_TABLE, self.name, self.identity, self.pool_and_lengths()))
        if self.config.scoring.tokens:
            number = self.config.scoring.token_questions
            part = {**self.identity, **({} if number is None else {"questions": number})}
            outputs.append(Artifact(TOKENS, self.name, part, self.pool_and_lengths()))
        return Step(SCORE, tuple(outputs), self.weights, tuple(output.kind.name for output in outputs))

    def local(self) -> Step:
        part = {**self.identity, "local_context": self.config.scoring.local_context, **self.local_steps()}
        local = Artifact(LOCAL_TABLE, self.name, part, self.pool_and_lengths())
        return Step(LOCAL, (local,), self.weights, (local.kind.name,))

    def local_steps(self) -> dict[str, str]:
        """Part of a fingerprint only if it is not at its default: earlier artifacts have no such setting."""
        split = self.config.scoring.local_steps
        return {} if split == "sentences" else {"local_steps": split}

    def unprompted(self) -> Step:
        table = Artifact(UNPROMPTED_TABLE, self.name, self.identity, self.pool_and_lengths())
        return Step(UNPROMPTED, (table,), self.weights, (table.kind.name,))

    def gram(self) -> Step:
        part = {**self.identity, "sketch": self.sketch("gram")}
        table = Artifact(GRAM_TABLE, self.name, part, self.pool_and_lengths())
        return Step(GRAM, (table,), self.weights, (table.kind.name,))

    def exact(self) -> Step:
        part = {**self.identity, "sketch": self.sketch("exact")}
        outputs = [Artifact(EXACT_TABLE, self.name, part, self.pool_and_lengths())]
        if "influence" in METHODS[self.config.method.name].needs:
            features = {**part, "features": self.config.sketch.features}
            outputs.append(Artifact(FEATURES_TABLE, self.name, features, self.pool_and_lengths()))
        return Step(EXACT, tuple(outputs), self.weights, tuple(output.kind.name for output in outputs))

    def influence(self) -> Step:
        asked = self.config.method.validation
        part: dict[str, Any] = {"questions": asked.questions, "seed": asked.seed, "verdicts": VERDICTS}
        if asked.path is not None:
            part["validation"] = self.checksums(validation_file(asked))
        *_, features = self.exact().artifacts
        table = Artifact(INFLUENCE_TABLE, self.name, part, {"pool": self.pool, FEATURES_TABLE.name: features})
        return Step(INFLUENCE, (table,), self.weights)

    def sketch(self, size: str) -> dict[str, Any]:
        """The settings of a sketch that can change its result."""
        sketch = self.config.sketch
        return {
            "size": getattr(sketch, size),
            "words": sketch.words,
            "states": sketch.states,
            "seed": sketch.seed,
        }

    def correctness(self) -> Step:
        part = {"verdicts": VERDICTS, "answer_format": self.config.pool.answer_format}
        return Step(
            CORRECTNESS, (Artifact(CORRECTNESS_TABLE, self.config.pool.name, part, {"pool": self.pool}),)
        )

    def text(self) -> Step:
        return Step(TEXT, (Artifact(TEXT_TABLE, self.config.pool.name, {}, {"pool": self.pool}),))

    def judge(self) -> Step:
        """The verdicts of a judge model on a pool. They do not depend on the student."""
        judge = self.config.method.judge
        settings = {
            key: value
            for key, value in asdict(judge).items()
            if key not in ("path", "revision", "tensor_parallel")
        }
        part = {
            "judge": weights_identity(judge.model, self.checksums),
            **settings,
            "engine": self.config.engine.name,
        }
        name = f"{self.config.pool.name}-{Path(judge.path).name}"
        return Step(
            JUDGE, (Artifact(JUDGE_TABLE, name, part, {"pool": self.pool}),), self.weights_of(judge.model)
        )

    def selection_artifact(self, scoring: Sequence[Step]) -> Artifact:
        method, budget, weighting = self.config.method, self.config.budget, self.config.weighting_name
        options = METHODS[method.name].check(method.options)
        part: dict[str, Any] = {
            "method": method.name,
            "weighting": weighting,
            "budget": budget.identity,
            **options,
        }
        if method.reverse:
            part["reverse"] = True
        if self.config.share_weights:
            part["share_weights"] = True
        if self.config.whole_weights != "uniform" and weighting != "uniform":
            part["whole_weights"] = self.config.whole_weights
        if method.teacher is not None:
            part["teacher"] = method.teacher
        needs = METHODS[method.name].needs
        if "external" in needs:
            part |= {
                "scores": self.checksums(scores_file(method)),
                "higher_is_better": method.higher_is_better,
            }
        known = [artifact for step in scoring for artifact in step.artifacts]
        kinds = {
            LENGTHS_TABLE,
            *(SOURCES[source].kind for source in needs),
        }  # not those of scoring.tokens alone
        inputs = {
            "pool": self.pool,
            **{artifact.kind.name: artifact for artifact in known if artifact.kind in kinds},
        }
        name = f"{self.name}-{method.key}-{weighting}{self.shared_name()}{self.teacher_name()}-{budget.name}"
        return Artifact(SELECTION, name, part, inputs)

    def evaluation(self, checkpoint: Artifact | None) -> list[Step]:
        """Generation and grading are separate steps, so that a fix to a grader or a gold answer costs no
        GPU time.
        """
        config, names = self.config, tuple(self.config.benchmark.tasks)
        model = f"{config.student.name}-base" if checkpoint is None else checkpoint.name
        student = (
            self.identity
            if checkpoint is None
            else {k: v for k, v in self.identity.items() if k != "weights"}
        )
        inputs = {} if checkpoint is None else {"checkpoint": checkpoint}
        generations, metrics = [], []
        for name, task in config.benchmark.tasks.items():
            part = {
                "student": student,
                "task": _questions(name, task),
                "decoding": asdict(config.benchmark.decoding),
                "engine": config.engine.name,
            }
            generated = Artifact(GENERATIONS, f"{model}-{name}", part, inputs)
            generations.append(generated)
            metrics.append(
                Artifact(METRICS, f"{model}-{name}", _answers(name, task), {GENERATIONS.name: generated})
            )
        which: Literal["base", "trained"] = "base" if checkpoint is None else "trained"
        weights = self.weights if checkpoint is None else checkpoint
        return [
            Step(GENERATE, tuple(generations), weights, names, model=which),
            Step(GRADE, tuple(metrics), labels=names, model=which, apart=True),
        ]

    def analysis(self) -> list[Step]:
        """The steps of `analysis.name`."""
        asked = self.config.analysis.name
        return [] if asked is None else ANALYSES[asked](self)

    def contamination(self) -> list[Step]:
        benchmark = self.config.benchmark
        tasks = {
            name: {**_questions(name, task), **_answers(name, task), "label": task.label}
            for name, task in benchmark.tasks.items()
        }
        name = f"contamination-{self.config.pool.name}-{benchmark.name}"
        part = {"analysis": "contamination", "tasks": tasks}
        return [Step(CONTAMINATION, (Artifact(CONTAMINATION_TABLE, name, part, {"pool": self.pool}),))]

    def kappa(self) -> list[Step]:
        checkpoint = self.checkpoint
        if checkpoint is None:
            raise LarkError(
                f"analysis.name=kappa follows a training run, and method={self.config.method.name} has none: "
                "choose another method."
            )
        if self.config.training.snapshots < 2:
            raise LarkError(
                "analysis.name=kappa measures the student at several training steps: add"
                " training.snapshots=11 (or another number, at least 2)."
            )
        inputs = {"checkpoint": checkpoint, "selection": checkpoint.inputs["selection"]}
        part = {"analysis": "kappa", "dtype": self.config.analysis.dtype}
        return [Step(KAPPA, (Artifact(KAPPA_TABLE, f"kappa-{checkpoint.name}", part, inputs),), self.weights)]

    def gradients(self, purpose: str = "gradients", may_be_sketched: bool = True) -> list[Step]:
        """Exact gradients, shared by the surrogate, the landscape and the theory."""
        quick = self.config.analysis.quick
        if quick and not may_be_sketched:
            raise LarkError(
                f"analysis.quick=true sketches gradients, and analysis.name={purpose} needs exact ones:"
                " remove it, or choose analysis.name=gradients."
            )
        part = {**self.sampled("gradients"), **({"quick": self.sketch("exact")} if quick else {})}
        name = f"gradients-{'quick-' if quick else ''}{self.name}"
        return [
            Step(
                GRADIENTS,
                (Artifact(GRADIENTS_TABLE, name, part, {"pool": self.pool}),),
                self.weights,
                purpose=purpose,
            )
        ]

    def sampled(self, analysis: str) -> dict[str, Any]:
        """What the gradients of a sample of questions depend on."""
        asked = self.config.analysis
        return {
            "analysis": analysis,
            **self.identity,
            "dtype": asked.dtype,
            "questions": asked.questions,
            "seed": asked.seed,
        }

    def surrogate(self) -> list[Step]:
        """Exact gradients, and the scores that estimate the same from sketches."""
        part = {**self.sampled("estimates"), "gram": self.sketch("gram"), "exact": self.sketch("exact")}
        estimates = Artifact(ESTIMATES_TABLE, f"estimates-{self.name}", part, {"pool": self.pool})
        return [
            *self.gradients("surrogate", may_be_sketched=False),
            Step(ESTIMATES, (estimates,), self.weights, purpose="surrogate"),
        ]

    def grace(self) -> list[Step]:
        part = {**self.sampled("grace"), "sketch": self.sketch("exact")}
        teachers = Artifact(TEACHERS_TABLE, f"grace-{self.name}", part, {"pool": self.pool})
        return [Step(TEACHERS, (teachers,), self.weights, purpose="grace")]

    def theory(self) -> list[Step]:
        asked, (gradients,) = self.config.analysis, self.gradients("theory", may_be_sketched=False)
        part = {
            "analysis": "jacobians",
            "questions": asked.jacobians,
            "iterations": asked.iterations,
            "seed": asked.seed,
        }
        inputs = {"pool": self.pool, "gradients": gradients.artifacts[0]}
        jacobians = Artifact(JACOBIANS_TABLE, f"jacobians-{self.name}", part, inputs)
        return [gradients, Step(JACOBIANS, (jacobians,), self.weights, purpose="theory")]

    def timing(self) -> list[Step]:
        """A measurement of this machine. Repeat it with force=[cost]; changing the hardware settings does
        not repeat it.
        """
        asked = self.config.analysis
        scoring = {key: value for key, value in asdict(self.config.scoring).items() if key != "local_steps"}
        scoring |= self.local_steps()
        part = {
            **self.identity, "samples": asked.samples, "rounds": asked.rounds, "scoring": scoring,
            "judge": asdict(self.config.method.judge),
        }  # fmt: skip
        judge, inputs = self.weights_of(self.config.method.judge.model), self.pool_and_lengths()
        if isinstance(judge, Artifact):
            inputs[CONVERTED_JUDGE] = judge
        return [self.lengths, Step(TIMING, (Artifact(TIMINGS, self.name, part, inputs),), self.weights)]

    def model_name(self) -> str:
        weighting = "" if self.config.weighting == "auto" else f"-{self.config.weighting}"
        method = self.config.method.key
        return f"{self.config.student.name}-{method}{weighting}{self.shared_name()}{self.teacher_name()}-{self.config.budget.name}"

    def shared_name(self) -> str:
        return "-shared" if self.config.share_weights else ""

    def teacher_name(self) -> str:
        return "" if self.config.method.teacher is None else f"-teacher-{self.config.method.teacher}"


SCORING: dict[str, Callable[[_Plan], Step]] = {
    "correctness": _Plan.correctness,
    "statistics": _Plan.score,
    "entropy": _Plan.score,
    "top50": _Plan.score,
    "unprompted": _Plan.unprompted,
    "gram": _Plan.gram,
    "exact": _Plan.exact,
    "influence": _Plan.influence,
    "local": _Plan.local,
    "text": _Plan.text,
    "judge": _Plan.judge,
}
"""What a method may need (`Method.needs`) and the steps that make it, in order. The lengths are always
made.
"""

ANALYSES: dict[str, Callable[[_Plan], list[Step]]] = {
    "gradients": _Plan.gradients,
    "surrogate": _Plan.surrogate,
    "theory": _Plan.theory,
    "grace": _Plan.grace,
    "kappa": _Plan.kappa,
    "contamination": _Plan.contamination,
    "cost": _Plan.timing,
}
"""Values of `analysis.name` and their steps."""

FORCEABLE = tuple(dict.fromkeys([
    *(stage for stage in STAGES if any(operation.stage == stage for operation in OPERATIONS)),
    *(operation.name for operation in OPERATIONS), *ANALYSES,
]))  # fmt: skip
"""Values of `force=`: stages, operations and analyses."""


def _questions(name: str, task: Task) -> dict[str, Any]:
    """Everything in a task that can change a student's answers: the problems and the system prompt."""
    problems = benchmarks.load_if_here(name, task)
    if problems is None:
        return {
            key: value for key, value in asdict(task).items() if key not in ("label", "count", "public")
        } | {"name": name}
    return {"questions": _digest((p.id, p.question) for p in problems), "answer_format": task.answer_format}


def _answers(name: str, task: Task) -> dict[str, Any]:
    """Everything else in a task that can change their grades."""
    problems = benchmarks.load_if_here(name, task)
    return {} if problems is None else {"answers": _digest((p.id, p.answer, p.level) for p in problems)}


def _digest(rows: Iterable[Sequence[Any]]) -> str:
    return hashlib.sha256(json.dumps(list(rows)).encode()).hexdigest()[:16]


def _training_part(training: Training, checksums: Checksums) -> dict[str, Any]:
    """Settings that can change the weights, and, only if requested, the curves and snapshots that must then
    exist.
    """
    part = {key: value for key, value in asdict(training).items() if key not in SPEED_ONLY}
    held_out = training.held_out.path
    if training.lora.bits is None:
        del part["lora"]["bits"]
    asked = {
        "lora": training.lora.rank > 0,
        "snapshots": training.snapshots > 0,
        "early_snapshots": training.early_snapshots > 0,
        "held_out": held_out is not None,
        "objective": training.objective != "nll",
        "token_weights": training.token_weights is not None,
    }
    if held_out not in (None, "selection"):
        part["held_out"]["path"] = checksums(Path(str(held_out)).expanduser())
    if training.token_weights is not None:
        part["token_weights"] = checksums(Path(training.token_weights).expanduser())
    return {key: value for key, value in part.items() if asked.get(key, True)}
