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

from experiments.harness.sweep import Sweep, Trial
from lark.config import Benchmark, Config, HeldOut, Method, Task
from lark.errors import LarkError
from lark.evaluation.benchmarks import is_here, load
from lark.names import is_demo, override_key
from lark.pipeline.plan import make_plan
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
        """Whether the user named a benchmark."""
        return any(
            key in ("benchmark", "benchmark.tasks") or key.startswith("benchmark.tasks.")
            for key in keys(self.sweep)
        )

    @property
    def graded(self) -> bool:
        """Whether held-out questions are the benchmark."""
        return not self.named and self.config.compare.criterion != "loss"

    @cached_property
    def checksums(self) -> Checksums:
        return Checksums(self.config.outputs_path)

    @cached_property
    def held_out(self) -> Artifact:
        return held_out_artifact(self.config, self.questions, self.graded, self.checksums)

    def prepare(self) -> Split:
        """Hold out questions, unless that is done."""
        self.sweep.store.ensure(
            (self.held_out,),
            lambda folders: [
                write_held_out(self.config, self.questions, self.graded, folder) for folder in folders
            ],
        )
        if self.named and (few := self._few_problems()):
            raise LarkError(f"The benchmark has {counted(few, 'problem')}: a comparison needs at least 2.")
        if not self.measures_loss and self.config.compare.trajectories:
            why = "No trajectory of a held-out question is correct"
            if self.config.compare.criterion == "loss":
                raise LarkError(
                    f"{why}, so compare.criterion=loss has nothing to measure: compare by accuracy."
                )
            log.warning("%s, so their loss is not measured.", why)
        return self.split

    def _few_problems(self) -> int:
        """The number of the benchmark's problems, if it is known and below 2; otherwise 0."""
        tasks = self.config.benchmark.tasks
        if not all(is_here(name, task) for name, task in tasks.items()):
            return 0
        count = sum(len(load(name, task)) for name, task in tasks.items())
        return count if count < 2 else 0

    @cached_property
    def measures_loss(self) -> bool:
        """Whether there are held-out trajectories. Before questions are held out: whether there should be."""
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
        return set(contaminated(pool, self.benchmark)) & set(split.training)

    @property
    def evaluates(self) -> bool:
        """Whether there is a benchmark to answer."""
        return self.named or self.graded

    @cached_property
    def benchmark(self) -> Benchmark:
        own = self.config.benchmark
        if self.named:
            return own
        path = self.sweep.store.path(self.held_out) / PROBLEMS
        task = Task("Held out", str(path), answer_format=self.config.pool.answer_format, id_field="id")
        return replace(own, name=TASK, tasks={TASK: task})

    def run(self, entrant: Entrant, seed: int) -> Trial:
        """The run of an entrant with a training seed."""
        config, (training, method) = entrant.config, (entrant.config.training, entrant.config.method)
        folder = self.sweep.store.path(self.held_out)
        measured = HeldOut(str(folder / TRAJECTORIES), NEVER) if self.measures_loss else training.held_out
        settled = replace(
            config,
            pool=replace(source(config.pool, self.questions), ids=list(self.split.training)),
            benchmark=self.benchmark,
            training=replace(training, seed=seed, held_out=measured),
            method=_seeded(method, seed),
            stages=["train", *(["evaluate"] if self.evaluates else [])],
        )
        typed = (*entrant.trial.overrides, f"training.seed={seed}")
        return Trial(typed, settled, tuple(make_plan(settled, self.checksums)))

    def command(self, entrant: Entrant) -> str:
        """The command of a run with an entrant's settings on the whole pool."""
        typed, overrides = (
            [argument for argument in arguments if override_key(argument).split(".")[0] not in ELSEWHERE]
            for arguments in (self.sweep.arguments, entrant.trial.overrides)
        )
        once = [argument for argument in typed if override_key(argument) not in map(override_key, overrides)]
        pool = self.config.pool
        fewer = (
            not is_demo(pool.format) and pool.questions is not None and pool.questions < self.questions
        )  # student=smollm2
        return shlex.join(
            ["python", "run.py", *once, *overrides, *(["pool.questions=null"] if fewer else [])]
        )


def keys(sweep: Sweep) -> list[str]:
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
    if "pool.questions" in keys(sweep):
        raise LarkError("pool.questions has no effect on a comparison: set compare.questions instead.")
    if "training.seed" in keys(sweep):
        raise LarkError(
            "training.seed has no effect on a comparison, which sets the seeds itself: compare.seeds says how"
            " many."
        )
    if "stages" in keys(sweep):
        raise LarkError(
            "stages has no effect on a comparison, which trains and evaluates every entrant. Leave it out."
        )
    students = {trial.config.student.name for trial in sweep.trials}
    if len(students) > 1:
        raise LarkError(
            f"student={','.join(sorted(students))}: methods are compared for one student at a time; choose"
            " one."
        )
    if any(trial.config.weighting_name is None for trial in sweep.trials):
        raise LarkError(
            "method=base trains nothing, so it cannot be compared; the base model is evaluated anyway. Leave"
            " it out."
        )
    trials = [*sweep.trials, *_reversed(sweep)]
    entrants = [Entrant(name, trial) for name, trial in zip(_names(trials), trials, strict=True)]
    for one, other in combinations(entrants, 2):
        if _unseeded(one.config) == _unseeded(other.config):
            raise LarkError(
                f"{one.name} and {other.name} are the same entrant: leave one out. Seeds are set by the"
                " comparison (compare.seeds)."
            )
    if len(entrants) < 2:
        raise LarkError("There is only one entrant: name at least two methods, such as method=random,lark.")
    chosen = tuple(entrant for entrant in entrants if only is None or entrant.name in only)
    return Contest(sweep, chosen, entrants[0].config.compare.questions if questions is None else questions)


def _reversed(sweep: Sweep) -> list[Trial]:
    """The trials of `compare.reverse`, each the reverse of one of the sweep's."""
    wanted = sweep.trials[0].config.compare.reverse
    if not wanted:
        return []
    unknown = sorted(set(wanted) - {trial.config.method.name for trial in sweep.trials})
    if unknown:
        raise LarkError(
            f"compare.reverse: {', '.join(unknown)} is not among the methods that are compared; add it to"
            " method=…"
        )
    there, found = [trial.config for trial in sweep.trials], []
    for trial in sweep.trials:
        way = not trial.config.method.reverse
        config = replace(trial.config, method=replace(trial.config.method, reverse=way))
        if trial.config.method.name in wanted and config not in there:
            kept = [override for override in trial.overrides if override_key(override) != "method.reverse"]
            found.append(Trial((*kept, f"method.reverse={str(way).lower()}"), config, trial.plan))
    return found


def _names(trials: Sequence[Trial]) -> list[str]:
    """The method's label, with the settings that distinguish trials of the same method."""
    labels = [trial.config.method.title for trial in trials]
    if len({trial.config.budget.name for trial in trials}) > 1:
        labels = [
            f"{label} B={trial.config.budget.size}" for label, trial in zip(labels, trials, strict=True)
        ]
    known = ("method", "budget.size", "student", "method.reverse")
    others = [[o for o in trial.overrides if override_key(o) not in known] for trial in trials]
    varied = {override_key(o) for each in others for o in each if any(o not in other for other in others)}
    labels = [
        " ".join([label, *(o.split(".")[-1] for o in each if override_key(o) in varied)])
        for label, each in zip(labels, others, strict=True)
    ]
    counts, seen = Counter(labels), Counter[str]()
    names = []
    for label in labels:
        seen[label] += 1
        names.append(label if counts[label] == 1 else f"{label} ({seen[label]})")
    return names
