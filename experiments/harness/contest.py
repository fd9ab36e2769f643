"""The entrants of a comparison and their runs: what each one is trained and evaluated on.

An entrant is a trial of the sweep: a method and a budget, and whatever else was swept over. Its runs differ
from the trial in three ways: they train on a part of the pool, they are evaluated on the rest of it (unless
a benchmark is named), and each has its own training seed.
"""

import logging
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path

from experiments.harness import checks
from experiments.harness.sweep import Sweep, Trial
from lark.config import Benchmark, Config, HeldOut, Method, Task
from lark.config.compare import MEASURED
from lark.errors import LarkError
from lark.evaluation.benchmarks import is_here, load
from lark.names import override_key
from lark.pipeline.plan import make_plan
from lark.pool.read import question_texts
from lark.printing import counted
from lark.selection.held_out import PROBLEMS, TRAJECTORIES, Split, held_out_artifact, source, write_held_out
from lark.store.store import Artifact, Checksums

log = logging.getLogger(__name__)

NEVER = 10**9
"""Steps between two measurements of the held-out loss: only the first and the last step are measured."""
TASK = "held_out"
ELSEWHERE = ("experiment", "scale", "compare", "hydra", "tracking", "dry_run", "force", "stages")
"""Settings that the command of a full run leaves out."""


@dataclass(frozen=True, eq=False)
class Entrant:
    """One of the alternatives that are compared."""

    name: str
    """Unique; for tables."""
    trial: Trial
    """Its settings, before the pool is split."""

    @property
    def config(self) -> Config:
        return self.trial.config


@dataclass(frozen=True, eq=False)
class Contest:
    """The entrants of a sweep on a number of the pool's questions."""

    sweep: Sweep
    entrants: tuple[Entrant, ...]
    questions: int

    @property
    def config(self) -> Config:
        """Settings that all entrants share."""
        return self.entrants[0].config

    @property
    def named(self) -> bool:
        """True if the user named a benchmark."""
        names = ("benchmark", "benchmark.tasks")
        return any(key in names or key.startswith("benchmark.tasks.") for key in typed_keys(self.sweep))

    @property
    def graded(self) -> bool:
        """True if held-out questions are the benchmark."""
        return not self.named and self.config.compare.criterion not in (*MEASURED, "command")

    @cached_property
    def checksums(self) -> Checksums:
        return Checksums(self.config.outputs_path)

    @cached_property
    def held_out(self) -> Artifact:
        return held_out_artifact(self.config, self.questions, self.graded, self.checksums)

    def prepare(self) -> Split:
        """Hold out questions, unless that is done."""

        def write(folders: list[Path]) -> list[dict[str, object]]:
            return [write_held_out(self.config, self.questions, self.graded, folder) for folder in folders]

        self.sweep.store.ensure((self.held_out,), write)
        if self.named:
            self._require_problems()
        if self.config.compare.trajectories and not self.measures_loss:
            self._without_loss()
        return self.split

    def _require_problems(self) -> None:
        """Refuse a benchmark with fewer than two problems. One that is not here yet is not counted."""
        tasks = self.config.benchmark.tasks
        if not all(is_here(name, task) for name, task in tasks.items()):
            return
        problems = sum(len(load(name, task)) for name, task in tasks.items())
        if problems < 2:
            raise LarkError(
                f"The benchmark has {counted(problems, 'problem')}: a comparison needs at least 2."
            )

    def _without_loss(self) -> None:
        reason = "No trajectory of a held-out question is correct"
        criterion = self.config.compare.criterion
        if criterion in MEASURED:
            raise LarkError(
                f"{reason}, so compare.criterion={criterion} has nothing to measure: compare by accuracy."
            )
        log.warning("%s, so their loss is not measured.", reason)

    @cached_property
    def measures_loss(self) -> bool:
        """True if there are held-out trajectories; before questions are held out, if there should be."""
        path = self.sweep.store.path(self.held_out) / TRAJECTORIES
        return bool(self.config.compare.trajectories) and not (path.is_file() and path.stat().st_size == 0)

    @cached_property
    def split(self) -> Split:
        split = Split.read(self.sweep.store.path(self.held_out))
        if not self.config.pool.decontaminate:
            return split
        repeated = self.near_duplicates(split)
        return Split(tuple(id_ for id_ in split.training if id_ not in repeated), split.held_out)

    def near_duplicates(self, split: Split) -> set[str]:
        """Training questions that are like a problem of the benchmark (pool.similarity)."""
        from lark.analysis.contamination import contaminated  # noqa: PLC0415  # imports scipy

        if not self.evaluates:
            return set()
        pool = replace(source(self.config.pool, self.questions), ids=list(split.training))
        return set(contaminated(question_texts(pool), pool, self.benchmark)) & set(split.training)

    @property
    def stages(self) -> list[str]:
        """The stages of a run."""
        stages = ["train"]
        if self.evaluates:
            stages.append("evaluate")
        return stages

    @property
    def evaluates(self) -> bool:
        """True if there is a benchmark to answer."""
        return self.named or self.graded

    @cached_property
    def benchmark(self) -> Benchmark:
        benchmark = self.config.benchmark
        if self.named:
            return benchmark
        path = self.sweep.store.path(self.held_out) / PROBLEMS
        task = Task("Held out", str(path), answer_format=self.config.pool.answer_format, id_field="id")
        return replace(benchmark, name=TASK, tasks={TASK: task})

    def run(self, entrant: Entrant, seed: int) -> Trial:
        """The run of an entrant with a training seed."""
        config = entrant.config
        held_out = config.training.held_out
        if self.measures_loss:
            held_out = HeldOut(str(self.sweep.store.path(self.held_out) / TRAJECTORIES), NEVER)
        # Everything but the seed is the same in all runs of an entrant, so they share its scores.
        settled = replace(
            config,
            pool=replace(source(config.pool, self.questions), ids=list(self.split.training)),
            benchmark=self.benchmark,
            training=replace(config.training, seed=seed, held_out=held_out),
            method=_seeded(config.method, seed),
            stages=self.stages,
        )
        overrides = (*entrant.trial.overrides, f"training.seed={seed}")
        return Trial(overrides, settled, tuple(make_plan(settled, self.checksums)))

    def command(self, entrant: Entrant) -> str:
        """The command of a run with an entrant's settings on the whole pool."""
        overrides = _for_a_run(entrant.trial.overrides)
        varied = {override_key(override) for override in overrides}
        shared = [a for a in _for_a_run(self.sweep.arguments) if override_key(a) not in varied]
        words = ["python", "run.py", *shared, *overrides]
        pool = self.config.pool
        # A student may come with a smaller pool.questions (student=smollm2), which the full run must lift.
        is_smaller = pool.questions is not None and pool.questions < self.questions
        if is_smaller and not pool.is_generated:
            words.append("pool.questions=null")
        return shlex.join(words)


def _for_a_run(arguments: Sequence[str]) -> list[str]:
    """The settings that also apply to a single run."""
    return [argument for argument in arguments if override_key(argument).split(".")[0] not in ELSEWHERE]


def typed_keys(sweep: Sweep) -> list[str]:
    """The settings that the user typed."""
    return [override_key(argument) for argument in sweep.arguments]


def _seeded(method: Method, seed: int) -> Method:
    """A method that draws at random draws again with each training seed, unless its own seed was set."""
    if "seed" not in method.options or method.options["seed"] != method.seed:
        return replace(method, seed=seed)
    return replace(method, seed=seed, options={**method.options, "seed": seed})


def _unseeded(config: Config) -> Config:
    """The settings without seeds that every run replaces."""
    return replace(config, method=_seeded(config.method, 0))


def contest_of(sweep: Sweep, questions: int | None = None, only: Sequence[str] | None = None) -> Contest:
    """The contest of a sweep's trials, on `questions` of the pool. `only`: names of the entrants that take
    part.
    """
    checks.leaves_to_comparison(typed_keys(sweep))
    checks.has_one_student(sweep.trials)
    checks.all_train(sweep.trials)
    trials = [*sweep.trials, *_reversed(sweep)]
    entrants = [Entrant(name, trial) for name, trial in zip(_names(trials), trials, strict=True)]
    checks.several_entrants(entrants)
    for one, other in combinations(entrants, 2):
        checks.different_entrants(one, other, _unseeded(one.config) == _unseeded(other.config))
    selected = tuple(entrant for entrant in entrants if only is None or entrant.name in only)
    if questions is None:
        questions = entrants[0].config.compare.questions
    return Contest(sweep, selected, questions)


def _reversed(sweep: Sweep) -> list[Trial]:
    """The trials of `compare.reverse`, each the reverse of one of the sweep's."""
    names = sweep.trials[0].config.compare.reverse
    checks.reverses_entrants(names, sweep.trials)
    # `method.reverse=true,false` may have made some of them already.
    configs = [trial.config for trial in sweep.trials]
    trials = []
    for trial in sweep.trials:
        reverse = not trial.config.method.reverse
        config = replace(trial.config, method=replace(trial.config.method, reverse=reverse))
        if trial.config.method.name in names and config not in configs:
            overrides = [o for o in trial.overrides if override_key(o) != "method.reverse"]
            overrides.append(f"method.reverse={str(reverse).lower()}")
            trials.append(Trial(tuple(overrides), config, trial.plan))
    return trials


def _names(trials: Sequence[Trial]) -> list[str]:
    """The method's label, with the settings that distinguish trials of the same method."""
    budgets = {trial.config.budget.name for trial in trials}
    varied = _varied(trials)
    labels = []
    for trial in trials:
        words = [trial.config.method.title]
        if len(budgets) > 1:
            words.append(f"B={trial.config.budget.size}")
        for override in trial.overrides:
            if override_key(override) in varied:
                words.append(override.split(".")[-1])
        labels.append(" ".join(words))
    counts = Counter(labels)
    numbers = Counter[str]()
    names = []
    for label in labels:
        numbers[label] += 1
        names.append(label if counts[label] == 1 else f"{label} ({numbers[label]})")
    return names


def _varied(trials: Sequence[Trial]) -> set[str]:
    """Settings that are not the same in all trials, and that the label does not contain anyway."""
    counts = Counter[str]()
    for trial in trials:
        counts.update(set(trial.overrides))
    varied = {override_key(override) for override, count in counts.items() if count < len(trials)}
    return varied - {"method", "budget.size", "student", "method.reverse"}
