"""What a run consists of: each stage's artifact, what it depends on, and how it is made.

Everything here is decided from the configuration alone, before anything runs: `dry_run=true` prints it, the pipeline
carries it out. VERSIONS are raised by hand when the meaning of a stage's output changes.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lark.config import Config, Method, Task, Training
from lark.errors import LarkError
from lark.evaluation import benchmarks
from lark.evaluation.benchmarks import Problem
from lark.models.students import CONVERSION, location, packaged_file, tokenizer_identity, weights_identity
from lark.pool import trajectories as pools
from lark.runtime.store import Artifact, Checksums
from lark.scoring.methods import METHODS

VERSIONS = {
    "pool": 3, "lengths": 2, "scores": 1, "tokens": 1, "local": 1, "text": 1, "judge": 2, "selection": 1, "checkpoint": 1,
    "generations": 2, "metrics": 2, "analysis": 1, "cost": 1,
}  # fmt: skip

VERDICTS = 2
"""Of lark/pool/trajectories.py:verdict. Only a pool that is filtered by them depends on it."""

SPEED_ONLY = ("name", "questions", "packing", "gradient_checkpointing", "liger", "checkpoints")
"""Training settings that cannot change the trained weights."""


@dataclass(frozen=True)
class Step:
    """Artifacts that one builder makes together."""

    stage: str
    """The stage as the user types it."""
    task: str
    """What makes it: a function of the pipeline, or a worker's task."""
    artifacts: tuple[Artifact, ...]
    sources: Mapping[str, str | Artifact] = field(default_factory=dict)
    """Inputs that are in no fingerprint: where the student's weights are. Their identity is in the artifacts' `depends`."""
    tasks: tuple[str, ...] = ()
    """What each artifact is of several made together: the benchmarks of an evaluation, the outputs of a scoring pass."""

    @property
    def inputs(self) -> Mapping[str, Artifact]:
        """By name; where each benchmark has its own, by name and benchmark (`generations:aime24`)."""
        if self.task == "grade":
            return {f"{k}:{t}": v for a, t in zip(self.artifacts, self.tasks, strict=True) for k, v in a.inputs.items()}
        return self.artifacts[0].inputs


def make_plan(config: Config, checksums: Checksums) -> list[Step]:
    """The steps of a run, in order; each depends only on earlier ones."""
    return _with_packaged_student(config, checksums, _steps(config, checksums))


def _with_packaged_student(config: Config, checksums: Checksums, steps: list[Step]) -> list[Step]:
    """A student that comes in a package is converted before the first step that needs it, and all take its weights from there."""
    file = packaged_file(config.student)
    if file is None:
        return steps
    part = {"gguf": checksums(file)}
    artifact = Artifact("student", config.student.name, CONVERSION, part)
    converted = [replace(s, sources={**s.sources, "student": artifact}) if "student" in s.sources else s for s in steps]
    first = next(index for index, step in enumerate(steps) if "student" in step.sources)
    return [*converted[:first], Step("student", "student", (artifact,), {"gguf": str(file)}), *converted[first:]]


def _steps(config: Config, checksums: Checksums) -> list[Step]:
    student = location(config.student)
    pool = Step("pool", "pool", (pool_artifact(config, checksums),))
    base = _evaluation(config, checksums, None, student)
    if config.weighting_name is None:
        analysis = _analysis(config, checksums, pool.artifacts[0], None, student)
        return [*base, *([pool, *analysis] if analysis else [])]
    scoring = _scoring(config, checksums, pool.artifacts[0])
    selection = Step("select", "select", (_selection(config, checksums, pool.artifacts[0], scoring),))
    checkpoint = Artifact(
        "checkpoint", _model_name(config), VERSIONS["checkpoint"],
        {"student": weights_identity(config.student, checksums), "training": _training_part(config.training, checksums)},
        {"selection": selection.artifacts[0]},
    )  # fmt: skip
    train = Step("train", "train", (checkpoint,), {"student": student})
    analysis = (
        [_cost(config, checksums, scoring)]
        if config.analysis.name == "cost"
        else _analysis(config, checksums, pool.artifacts[0], checkpoint, student)
    )
    return [pool, *scoring, selection, train, *base, *_evaluation(config, checksums, checkpoint, student), *analysis]


def wanted(plan: Sequence[Step], stages: Sequence[str]) -> list[Step]:
    """The steps of these stages, and those they depend on."""
    kept: set[int] = set()
    needed: set[Path] = set()
    for index in reversed(range(len(plan))):
        step = plan[index]
        if step.stage in stages or needed & {artifact.folder for artifact in step.artifacts}:
            kept.add(index)
            needed |= {source.folder for artifact in step.artifacts for source in artifact.inputs.values()}
            needed |= {source.folder for source in step.sources.values() if isinstance(source, Artifact)}
    return [plan[index] for index in sorted(kept)]


def pool_artifact(config: Config, checksums: Checksums) -> Artifact:
    part = asdict(config.pool)
    if config.pool.correct_only:
        part["verdicts"] = VERDICTS
    files = pools.source_files(config.pool)
    if files:
        root = os.path.commonpath([path.parent for path in files])
        part["path"] = {path.relative_to(root).as_posix(): checksums(path) for path in files}
    return Artifact("pool", config.pool.name, VERSIONS["pool"], part)


def _scoring(config: Config, checksums: Checksums, pool: Artifact) -> list[Step]:
    """Only what the method needs; the forward pass is shared by every method and budget."""
    needs = METHODS[config.method.name].needs
    name = f"{config.student.name}-{config.pool.name}"
    student = {"student": location(config.student)}
    tokens = tokenizer_identity(config.student, checksums)
    lengths = Step("score", "lengths", (Artifact("lengths", name, VERSIONS["lengths"], tokens, {"pool": pool}),), student)
    steps = [lengths] if needs & {"lengths", "statistics", "local"} else []
    inputs = {"pool": pool, "lengths": lengths.artifacts[0]}
    weights = weights_identity(config.student, checksums)
    if "statistics" in needs or config.scoring.tokens:
        part = {**weights, "rank_clip": config.scoring.rank_clip}
        outputs = [Artifact("scores", name, VERSIONS["scores"], part, inputs)]
        if config.scoring.tokens:
            outputs.append(Artifact("tokens", name, VERSIONS["tokens"], weights, inputs))
        steps.append(Step("score", "score", tuple(outputs), student, tuple(output.stage for output in outputs)))
    if "local" in needs:
        part = {**weights, "local_context": config.scoring.local_context}
        local = Artifact("local", name, VERSIONS["local"], part, inputs)
        steps.append(Step("score", "local", (local,), student, ("local",)))
    if "text" in needs:
        steps.append(Step("score", "text", (Artifact("text", config.pool.name, VERSIONS["text"], {}, {"pool": pool}),)))
    if "judge" in needs:
        steps.append(_judge(config, checksums, pool))
    return steps


def _judge(config: Config, checksums: Checksums, pool: Artifact) -> Step:
    """The verdicts of a judge model on a pool. They do not depend on the student."""
    judge = config.method.judge
    settings = {key: value for key, value in asdict(judge).items() if key not in ("path", "revision", "tensor_parallel")}
    part = {"judge": weights_identity(judge.model, checksums), **settings, "engine": config.engine.name}
    name = f"{config.pool.name}-{Path(judge.path).name}"
    artifact = Artifact("judge", name, VERSIONS["judge"], part, {"pool": pool})
    return Step("score", "judge", (artifact,), {"student": location(judge.model)})


def _selection(config: Config, checksums: Checksums, pool: Artifact, scoring: Sequence[Step]) -> Artifact:
    method = config.method
    part: dict[str, Any] = {"method": method.name, "weighting": config.weighting_name, "budget": config.budget.size}
    if method.name == "random":
        part["seed"] = method.seed
    if method.teacher is not None:
        part["teacher"] = method.teacher
    if method.name == "external":
        part |= {"scores": checksums(scores_file(method)), "higher_is_better": method.higher_is_better}
    needs = METHODS[method.name].needs
    used = [step for step in scoring if step.task != "score" or "statistics" in needs]  # not a pass for its tokens alone
    inputs = {"pool": pool, **{step.artifacts[0].stage: step.artifacts[0] for step in used}}
    name = f"{method.name}-{config.weighting_name}{_teacher_name(config)}-B{config.budget.size}"
    prefix = f"{config.student.name}-{config.pool.name}" if needs & {"lengths", "statistics", "local"} else config.pool.name
    return Artifact("selection", f"{prefix}-{name}", VERSIONS["selection"], part, inputs)


def scores_file(method: Method) -> Path:
    """Where another tool's scores are (method=external)."""
    if not method.path:
        raise LarkError("method=external needs method.path=<Parquet or CSV with question_id, candidate_id, score>.")
    path = Path(method.path).expanduser()
    if not path.is_file():
        what = "this is a folder; name the file" if path.is_dir() else "there is no such file"
        raise LarkError(f"method.path={path}: {what}.")
    return path


def _evaluation(config: Config, checksums: Checksums, checkpoint: Artifact | None, student: str) -> list[Step]:
    """Generation and grading are apart, so that a grader's fix, or a gold answer's, costs no GPU time."""
    names = tuple(config.benchmark.tasks)
    model = config.student.name + "-base" if checkpoint is None else checkpoint.name
    identity = weights_identity(config.student, checksums)
    generations, metrics = [], []
    for name in names:
        task = config.benchmark.tasks[name]
        part = {
            "student": identity if checkpoint is None else {k: v for k, v in identity.items() if k != "weights"},
            "task": _questions(name, task),
            "decoding": asdict(config.benchmark.decoding),
            "engine": config.engine.name,
        }
        inputs = {} if checkpoint is None else {"checkpoint": checkpoint}
        generated = Artifact("generations", f"{model}-{name}", VERSIONS["generations"], part, inputs)
        generations.append(generated)
        inputs = {"generations": generated}
        metrics.append(Artifact("metrics", f"{model}-{name}", VERSIONS["metrics"], _answers(name, task), inputs))
    sources = {"student": student}
    return [
        Step("evaluate", "generate", tuple(generations), sources, names),
        Step("evaluate", "grade", tuple(metrics), {}, names),
    ]


def _analysis(config: Config, checksums: Checksums, pool: Artifact, checkpoint: Artifact | None, student: str) -> list[Step]:
    """What `analysis.name` asks for. Exact gradients are shared by the surrogate, the landscape and the theory."""
    asked, sources, version = config.analysis, {"student": student}, VERSIONS["analysis"]
    if asked.name is None:
        return []
    if asked.name == "contamination":
        tasks = {
            name: {**_questions(name, task), **_answers(name, task), "label": task.label}
            for name, task in config.benchmark.tasks.items()
        }
        name = f"contamination-{config.pool.name}-{config.benchmark.name}"
        audit = Artifact("analysis", name, version, {"analysis": "contamination", "tasks": tasks}, {"pool": pool})
        return [Step("analyse", "contamination", (audit,))]
    if asked.name == "kappa":
        if checkpoint is None:
            raise LarkError(f"analysis.name=kappa follows a training run, and method={config.method.name} has none.")
        if config.training.snapshots < 2:
            raise LarkError(
                "analysis.name=kappa measures the student along its training: add training.snapshots=11 (or another number), the "
                "students on the way that are kept."
            )
        inputs = {"checkpoint": checkpoint, "selection": checkpoint.inputs["selection"]}
        rates = Artifact("analysis", f"kappa-{checkpoint.name}", version, {"analysis": "kappa", "dtype": asked.dtype}, inputs)
        return [Step("analyse", "kappa", (rates,), sources)]
    if asked.name not in ("gradients", "theory"):
        return []
    identity = {**weights_identity(config.student, checksums), "dtype": asked.dtype}
    part = {"analysis": "gradients", **identity, "questions": asked.questions, "seed": asked.seed}
    name = f"{config.student.name}-{config.pool.name}"
    gradients = Artifact("analysis", f"gradients-{name}", version, part, {"pool": pool})
    steps = [Step("analyse", "gradients", (gradients,), sources)]
    if asked.name == "theory":
        more = {"analysis": "jacobians", "questions": asked.jacobians, "iterations": asked.iterations, "seed": asked.seed}
        inputs = {"pool": pool, "gradients": gradients}
        steps.append(Step("analyse", "jacobians", (Artifact("analysis", f"jacobians-{name}", version, more, inputs),), sources))
    return steps


def _cost(config: Config, checksums: Checksums, scoring: Sequence[Step]) -> Step:
    """A measurement of this machine: it is repeated with force=[cost], not by changing the hardware's settings."""
    (lengths,) = (step.artifacts[0] for step in scoring if step.task == "lengths")
    measured = {"samples": config.analysis.samples, "rounds": config.analysis.rounds, "scoring": asdict(config.scoring)}
    part = {**weights_identity(config.student, checksums), **measured, "judge": asdict(config.method.judge)}
    inputs = {"pool": lengths.inputs["pool"], "lengths": lengths}
    return Step(
        "analyse",
        "cost",
        (Artifact("cost", lengths.name, VERSIONS["cost"], part, inputs),),
        {"student": location(config.student)},
    )


def _questions(name: str, task: Task) -> dict[str, Any]:
    """What can change a student's answers: the problems it is asked, and the system prompt."""
    problems = _problems(name, task)
    if problems is None:
        return {key: value for key, value in asdict(task).items() if key not in ("label", "count")} | {"name": name}
    return {"questions": _digest((p.id, p.question) for p in problems), "answer_format": task.answer_format}


def _answers(name: str, task: Task) -> dict[str, Any]:
    """What can change their grades besides."""
    problems = _problems(name, task)
    return {} if problems is None else {"answers": _digest((p.id, p.answer, p.level) for p in problems)}


def _problems(name: str, task: Task) -> list[Problem] | None:
    """None for one that is not here: it is known by where it is to come from. What is wrong with it, the pipeline tells."""
    try:
        return benchmarks.load(name, task) if benchmarks.is_here(task) else None
    except LarkError:
        return None


def _digest(rows: Iterable[Sequence[Any]]) -> str:
    return hashlib.sha256(json.dumps(list(rows)).encode()).hexdigest()[:16]


def _training_part(training: Training, checksums: Checksums) -> dict[str, Any]:
    """What can change the weights; and, only when they are asked for, the curves and snapshots that must then be there."""
    part = {key: value for key, value in asdict(training).items() if key not in SPEED_ONLY}
    held_out = training.held_out.path
    asked = {"lora": training.lora.rank > 0, "snapshots": training.snapshots > 0, "held_out": held_out is not None}
    if held_out not in (None, "selection"):
        part["held_out"]["path"] = checksums(Path(str(held_out)).expanduser())
    return {key: value for key, value in part.items() if asked.get(key, True)}


def _model_name(config: Config) -> str:
    weighting = "" if config.weighting.name == "auto" else f"-{config.weighting.name}"
    return f"{config.student.name}-{config.method.name}{weighting}{_teacher_name(config)}-B{config.budget.size}"


def _teacher_name(config: Config) -> str:
    return "" if config.method.teacher is None else f"-teacher-{config.method.teacher}"
