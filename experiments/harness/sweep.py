"""An experiment's trials and their artifacts in the store.

Trials are found by composing them as Hydra does; their artifacts come from the plan, never from the names
of folders.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from experiments.harness import checks
from lark import config as conf
from lark.config import Config
from lark.config.cli import as_hydra_reads
from lark.config.method import REVERSED
from lark.evaluation.grade import METRICS
from lark.evaluation.metrics import BenchmarkMetrics
from lark.evaluation.resampled import Resampled, resampled
from lark.names import override_key
from lark.output.accuracies import metrics_of
from lark.pipeline.plan import fetched_plan, make_plan, wanted
from lark.store.integrity import verify
from lark.store.store import Artifact, Checksums, Kind, Store
from lark.work.operation import Step

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
PAPER = ROOT / "experiments" / "paper"

NAMES = """
    pipeline table1 ablation_score ablation_weighting landscape loss_reduction teacher_utility token_level
    kappa theory surrogate contamination cost budget_scaling case_study
"""
ORDER = tuple(NAMES.split())
"""Order of the experiments in the paper, in `make reports` and in the index."""
BEYOND = ("compare", "seeds", "noise", "regime", "check_published")
"""Experiments that are not in the paper. `make reports` leaves them out."""
WITHOUT_EFFECT = ("experiment", "scale", "outputs", "tracking", "hardware", "hydra", "force")
"""Settings that cannot change a result, so a report does not call them changes."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One run of run.py within a sweep."""

    overrides: tuple[str, ...]
    """The sweep's values for this trial: `student=demo`, `method=lark`, `budget.size=3`."""
    config: Config
    plan: tuple[Step, ...]
    """All of its steps."""

    @property
    def steps(self) -> list[Step]:
        """The steps that run, given the stages of the experiment."""
        return wanted(self.plan, self.config.stages)

    def artifact(self, kind: Kind) -> Artifact | None:
        """The trial's artifact of a kind."""
        for step in self.plan:
            for artifact in step.artifacts:
                if artifact.kind == kind:
                    return artifact
        return None


@dataclass(frozen=True)
class Sweep:
    """An experiment at a scale."""

    name: str
    scale: str
    overrides: tuple[str, ...]
    """Settings that the user changed."""
    trials: tuple[Trial, ...]
    store: Store
    arguments: tuple[str, ...] = ()
    """Everything that the user typed after the experiment's name, as Hydra reads it."""
    launcher: Mapping[str, Any] = field(default_factory=dict)
    """Settings of Hydra's launcher (`hydra.launcher`), for jobs of a cluster."""

    @property
    def title(self) -> str:
        """Its name on the command line and in file names."""
        return dashed(self.name)

    @property
    def like_the_paper(self) -> bool:
        """Whether our numbers can be compared with the paper's, so that their difference is meaningful."""
        return self.scale == "paper" and all(_is_elsewhere(override) for override in self.overrides)

    def pending(self, step: Step) -> list[Artifact]:
        """The artifacts of a step that are not finished."""
        return [artifact for artifact in step.artifacts if self.store.state(artifact) != "finished"]

    def folder(self, trial: Trial, kind: Kind) -> Path | None:
        """The folder of a trial's artifact of a kind, if it is finished. Its file is verified: reports read
        it.

        The files of a kind that has many are large; who reads one of them verifies it.
        """
        artifact = trial.artifact(kind)
        if artifact is None or self.store.state(artifact) != "finished":
            return None
        if kind.file:
            verify(self.store.path(artifact), kind.file)
        return self.store.path(artifact)

    def metrics(self, trial: Trial, trained: bool = True) -> dict[str, BenchmarkMetrics]:
        """Metrics by benchmark, of the trained student or of the base model, without benchmarks that are
        not evaluated yet.
        """
        grader = trial.config.benchmark.grader
        graded = self._graded(trial, trained)
        return {task: metrics_of(self.store, artifact, grader) for task, artifact in graded}

    def samples(self, trial: Trial, trained: bool = True) -> dict[str, Resampled]:
        """pass@1 and other readings of the same samples, by benchmark."""
        grader = trial.config.benchmark.grader
        graded = self._graded(trial, trained)
        return {task: resampled(self.store.path(artifact), grader) for task, artifact in graded}

    def _graded(self, trial: Trial, trained: bool) -> Iterator[tuple[str, Artifact]]:
        """The benchmarks that are evaluated, with their metrics."""
        model = "trained" if trained else "base"
        for step in trial.plan:
            if not step.makes(METRICS) or step.model != model:
                continue
            for task, artifact in zip(step.labels, step.artifacts, strict=True):
                if self.store.state(artifact) == "finished":
                    yield task, artifact


def _is_elsewhere(override: str) -> bool:
    """True if an override changes only file locations or the engine; the experiment is then still the
    paper's.
    """
    key = override_key(override)
    return key.endswith(".path") or key == "pool.format" or key.split(".")[0] == "engine"


def dashed(name: str) -> str:
    return name.replace("_", "-")


def available() -> list[str]:
    """All experiments: the paper's in its order, then those that go beyond it, then others."""
    names = {path.stem for path in (CONF / "experiment").glob("*.yaml")}
    ordered = [name for name in (*ORDER, *BEYOND) if name in names]
    return ordered + sorted(names.difference(ordered))


def find(name: str) -> str:
    """The experiment of a name in either spelling."""
    checks.is_known(dashed(name), [dashed(experiment) for experiment in available()])
    return name.replace("-", "_")


def compose_sweep(name: str, arguments: Sequence[str] = (), starts: bool = False) -> Sweep:
    """The trials of an experiment, given what the user typed after its name.

    `starts`: it runs now, so the benchmarks that it needs are downloaded.
    """
    conf.register()
    for argument in arguments:
        checks.is_a_setting(argument)
        checks.names_no_experiment(argument, override_key(argument), dashed(name))
    settings = as_hydra_reads([f"experiment={name}", *arguments])
    whole, batch, configs = _composed(name, settings)
    outputs = configs[0].outputs_path
    checksums = Checksums(outputs)  # shared: most trials read the same files
    make = fetched_plan if starts else make_plan
    trials = []
    for overrides, config in zip(batch, configs, strict=True):
        varied = tuple(override for override in overrides if override not in settings)
        trials.append(Trial(varied, config, tuple(make(config, checksums, elsewhere=True))))
    return Sweep(
        name=name,
        scale=whole.scale,
        overrides=_changes(whole, settings, arguments),
        trials=tuple(trials),
        store=Store(outputs),
        arguments=tuple(settings[1:]),
        launcher=_launcher(whole),
    )


def _changes(whole: DictConfig, settings: Sequence[str], arguments: Sequence[str]) -> tuple[str, ...]:
    """The settings that the user typed, without those that cannot change a result and the scale's own
    benchmark.
    """
    typed = {override_key(as_hydra_reads([argument])[0]) for argument in arguments}
    benchmark = OmegaConf.select(whole, f"experiment.scales.{whole.scale}.benchmark", default=whole.scale)
    changes = []
    for setting in settings:
        key = override_key(setting)
        is_changed = key in typed and setting != f"benchmark={benchmark}"
        if is_changed and key.split(".")[0] not in WITHOUT_EFFECT:
            changes.append(setting)
    return tuple(changes)


@contextmanager
def _errors_as_sentences() -> Iterator[None]:
    """Report errors of Hydra and its libraries as one sentence."""
    try:
        yield
    except Exception as error:
        checks.is_not_of_hydra(error)
        raise


def _composed(name: str, settings: Sequence[str]) -> tuple[DictConfig, list[list[str]], list[Config]]:
    """The sweep's own configuration, and the overrides and the configuration of each of its trials."""
    with _errors_as_sentences(), initialize_config_dir(str(CONF), version_base="1.3"):
        parser = OverridesParser.create()
        swept = [setting for setting in settings if parser.parse_override(setting).is_sweep_override()]
        checks.has_one_scale(swept)
        single = [setting for setting in settings if setting not in swept]
        whole = compose("config", overrides=single, return_hydra_config=True)
        checks.has_scale(whole.scale, list(whole.experiment.scales), dashed(name))
        params = [f"{key}={value}" for key, value in whole.hydra.sweeper.params.items()]
        # As in Hydra's own sweeper, what the user typed replaces the sweep's values of the same key.
        parsed = parser.parse_overrides([*params, *settings])
        (batch,) = BasicSweeper.split_arguments(parsed, max_batch_size=None)
        checks.has_trials(batch, swept)
        configs = [conf.load(compose("config", overrides=overrides)) for overrides in batch]
    return whole, batch, configs


def _launcher(whole: DictConfig) -> dict[str, Any]:
    """Settings of Hydra's launcher, without those that refer to other settings."""
    launcher = OmegaConf.to_container(whole.hydra.launcher, resolve=False)
    assert isinstance(launcher, dict)
    return {str(key): value for key, value in launcher.items() if not str(value).startswith("${")}


def published(name: str) -> pd.DataFrame:
    """The paper's numbers in experiments/paper/<name>.csv."""
    return pd.read_csv(PAPER / f"{name}.csv", comment="#")


def published_values(experiment: str) -> pd.Series:
    """The numbers of an experiment in the paper's text and captions, by quantity
    (experiments/paper/figures.csv).
    """
    return published("figures").set_index(["experiment", "quantity"])["value"].loc[experiment]


def method_label(name: str) -> str:
    """The method's name in tables, from its name in folders: `LARK`, or `LARK (reversed)` for
    lark-reversed.
    """
    file = CONF / "method" / f"{name.removesuffix(REVERSED)}.yaml"
    # A user's method has its file elsewhere, or none.
    label = str(OmegaConf.load(file).label) if file.exists() else name.removesuffix(REVERSED)
    return f"{label} (reversed)" if name.endswith(REVERSED) else label
