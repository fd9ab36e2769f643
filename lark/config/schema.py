"""All settings of a run as one typed object, and its conversion from and to what Hydra composes."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from lark.config.analysis import Analysis
from lark.config.budget import Budget, budget_name
from lark.config.checks import check_values, one_of, require, user_path
from lark.config.compare import Compare
from lark.config.evaluation import Benchmark, EngineSettings
from lark.config.hardware import Experiment, Hardware, Planning, Tracking
from lark.config.method import Method, Scoring, Sketch, method_key
from lark.config.pool import Pool
from lark.config.precision import resolved
from lark.config.student import Student
from lark.config.teacher import Teacher, check_teachers, is_variable, key_refused
from lark.config.teaching import Questions, Teach
from lark.config.training import Training
from lark.errors import LarkError
from lark.names import file_name
from lark.secrets import add_variable, redact, secret_refused, settings_with_secrets

STAGES = ("teach", "pool", "score", "select", "train", "evaluate", "analyse", "report")
FETCH = "fetch"
"""A value of `stages` that only downloads the inputs of a run. A run without it downloads what it needs
itself.
"""
DEFAULT_SCALE = "demo"


@dataclass
class Config:
    """All settings of one run of run.py."""

    student: Student = MISSING
    questions: Questions = field(default_factory=Questions)
    teach: Teach = field(default_factory=Teach)
    pool: Pool = MISSING
    teacher: dict[str, Teacher] = field(default_factory=dict)
    """The teachers that answer questions, by name. `teacher=[a,b]` chooses files of conf/teacher."""
    method: Method = MISSING
    weighting: str = "auto"
    """How weight is distributed over the selected trajectories of a question. auto: the method's default."""
    share_weights: bool = False
    """Whether selected candidates of a question that are nearly identical share the weight of one, with any
    weighting.
    """
    whole_weights: str = "uniform"
    """Weights of a question whose budget takes every candidate, so that there is no threshold score
    (decision 4). uniform: equal. margins: the weighting's own, with a threshold of 1e-8 below the lowest
    score, as in the authors' code.
    """
    budget: Budget = field(default_factory=Budget)
    scoring: Scoring = field(default_factory=Scoring)
    sketch: Sketch = field(default_factory=Sketch)
    training: Training = MISSING
    benchmark: Benchmark = MISSING
    engine: EngineSettings = MISSING
    hardware: Hardware = MISSING
    planner: Planning = field(default_factory=Planning)
    tracking: Tracking = MISSING
    analysis: Analysis = field(default_factory=Analysis)
    experiment: Experiment = field(default_factory=Experiment)
    compare: Compare = field(default_factory=Compare)
    scale: str = DEFAULT_SCALE
    """Scale of an experiment: demo (minutes on this machine), paper, or another one that the experiment
    defines.
    """
    stages: list[str] = field(default_factory=lambda: list(STAGES))
    """Stages to run. Earlier stages that they depend on run too, unless they are finished. [fetch]:
    download all inputs.
    """
    force: list[str] = field(default_factory=list)
    """Stages, operations or analyses whose artifacts are rebuilt even if they are finished."""
    dry_run: bool = False
    """Print the plan and stop."""
    outputs: str = "outputs"
    """The folder of all artifacts."""

    def __post_init__(self) -> None:
        is_folder = self.outputs.strip() != ""
        require(is_folder, "outputs", repr(self.outputs), "give a folder, e.g. outputs=outputs")
        require(len(self.stages) > 0, "stages", "[]", f"name at least one of {', '.join(STAGES)}")
        for stage in self.stages:
            one_of("stages", stage, (FETCH, *STAGES))
        is_alone = FETCH not in self.stages or len(self.stages) == 1
        require(is_alone, "stages", self.stages, "fetch runs alone: run it first, then the other stages")
        check_teachers(self.teacher)
        self.questions.resolve()
        one_of("whole_weights", self.whole_weights, ("uniform", "margins"))
        has_experiment = self.experiment.name is not None
        if has_experiment:
            _ = self.budget.per_question  # an error if the budget is across questions
        is_scale = has_experiment or self.scale == DEFAULT_SCALE
        require(is_scale, "scale", self.scale, "only applies to an experiment: add experiment=<name>")

    @property
    def weighting_name(self) -> str | None:
        """The effective weighting: the requested one, or the method's default. None: no training, whatever
        is requested.
        """
        is_default = self.weighting == "auto" or self.method.weighting is None
        return self.method.weighting if is_default else self.weighting

    @property
    def only_fetches(self) -> bool:
        """Whether the run downloads its inputs and does nothing else."""
        return self.stages == [FETCH]

    @property
    def wants_report(self) -> bool:
        """Whether the summary is written at the end. The stage `report` has no operation and no artifact."""
        return "report" in self.stages

    @property
    def outputs_path(self) -> Path:
        # Unlike `resolve`, `realpath` accepts links in a circle.
        return Path(os.path.realpath(user_path("outputs", self.outputs)))


def register() -> None:
    """Register the schema with Hydra. Must run before @hydra.main composes."""
    ConfigStore.instance().store(name="schema", node=Config)


IN_FOLDER = {
    "student", "method", "method.reverse", "budget", "budget.size", "budget.total", "budget.tokens",
    "experiment", "scale", "outputs", "stages", "force", "dry_run",
}  # fmt: skip
"""Overrides that are already in the run folder's name, or that do not change the run."""


def others(overrides: Sequence[str]) -> str:
    """The other overrides of a trial, for its folder's name: `-weighting=kl`. Paths and long values are
    left out.
    """
    name = ""
    for override in overrides:
        key, has_value, value = override.lstrip("+").partition("=")
        is_named = key in IN_FOLDER or key.partition(".")[0] in ("tracking", "hardware", "planner")
        if key == "teacher":  # a list: [a,b]
            value = file_name(value.strip("[]").replace(",", "+"))[:60]
        elif not re.fullmatch(r"[\w.+-]{1,20}", value):
            continue
        if has_value and not is_named:
            name += f"-{key.rpartition('.')[2]}={value}"
    return name


def run_folder(student: str, method: str, rest: str = "") -> str:
    """The folder of a run below `outputs/runs`. Hydra creates it before any setting is checked."""
    return f"{file_name(str(student))}/{file_name(f'{method}-{rest}')}"


def folder_or(folder: str, otherwise: str) -> str:
    """A folder if it exists, else something else: for a path that is downloaded if it is not here."""
    return folder if Path(folder).is_dir() else otherwise


OmegaConf.register_new_resolver("run_folder", run_folder, replace=True)
OmegaConf.register_new_resolver("others", others, replace=True)
OmegaConf.register_new_resolver("folder_or", folder_or, replace=True)
OmegaConf.register_new_resolver("budget_name", budget_name, replace=True)
OmegaConf.register_new_resolver("method_key", method_key, replace=True)


def load(composed: DictConfig, run_folder: Path | None = None) -> Config:
    """Convert the composed configuration to checked, plain objects. `run_folder`: where Hydra has written
    its settings.
    """
    values: Any = OmegaConf.to_container(composed)
    _refuse_keys(values.get("teacher") or {}, run_folder)
    config = _plain_objects(composed)
    _refuse_unknown_keys(values, config)
    config.benchmark.leave_out()
    _resolve_precision(config)
    check_values(config)
    for teacher in config.teacher.values():
        if teacher.key is not None:
            add_variable(teacher.key)
    for key, secret in settings_with_secrets(values):
        _redact_files(run_folder)
        raise LarkError(secret_refused(key, secret))
    return config


def _resolve_precision(config: Config) -> None:
    """Replace every `auto` precision by the one that it stands for on this machine."""
    for model in (config.student, config.method.judge):
        model.dtype = resolved(model.dtype, config.hardware.device)
    if config.training.bf16 is None:
        config.training.bf16 = config.student.dtype == "bfloat16"


def _plain_objects(composed: DictConfig) -> Config:
    try:
        config = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise LarkError(_reason(error)) from error
    assert isinstance(config, Config)
    return config


def _reason(error: OmegaConfBaseException) -> str:
    key = error.full_key or "configuration"
    if isinstance(error, MissingMandatoryValue):
        return f"{key} has no value: add {key}=<value>."
    return f"{key}: {str(error).splitlines()[0]}"


def _refuse_unknown_keys(values: Any, config: Config) -> None:
    for key in _unknown(values, config):
        raise LarkError(
            f"+{key}: there is no such key, so it would have no effect; `--cfg job` lists all keys."
        )


def _refuse_keys(teachers: dict[str, Any], run_folder: Path | None) -> None:
    """Refuse a key where the name of its variable belongs, before anything else can repeat it."""
    for name, teacher in teachers.items():
        key = teacher.get("key")
        if isinstance(key, str) and not is_variable(key):
            _redact_files(run_folder, key)
            raise LarkError(key_refused(f"teacher.{name}.key"))


def _redact_files(run_folder: Path | None, key: str | None = None) -> None:
    """Remove credentials from the settings that Hydra saves before the program starts. `key`: one that is
    not recognised by itself.
    """
    if run_folder is None:
        return
    for file in run_folder.glob(".hydra/*.yaml"):
        text = redact(file.read_text(encoding="utf-8"))
        if key:
            text = text.replace(key, "<redacted>")
        file.write_text(text, encoding="utf-8")


def _unknown(values: Any, read: object, prefix: str = "") -> Iterator[str]:
    """Keys that were added with `+` but are not in the schema."""
    attributes = vars(read) if is_dataclass(read) else read
    if not isinstance(values, dict) or not isinstance(attributes, dict):
        return
    names = set(attributes)
    if is_dataclass(read):
        # OmegaConf sets added keys as attributes too.
        names = {field.name for field in fields(read)}
    for key, value in values.items():
        if key in names:
            yield from _unknown(value, attributes[key], f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def from_dict(values: dict[str, Any]) -> Config:
    """Rebuild a configuration from the output of `dataclasses.asdict`, as workers do."""
    return load(OmegaConf.merge(OmegaConf.structured(Config), values))  # type: ignore[arg-type]
