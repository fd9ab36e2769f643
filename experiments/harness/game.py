"""Carry out a comparison round by round, or replay what is finished of it. Decisions depend only on stored
results, so a killed comparison resumes where it was, and its report needs nothing but the store.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from experiments.harness import results
from experiments.harness.contest import Contest, Entrant, contest_of
from experiments.harness.fitting import Schedule, schedule
from experiments.harness.halving import Round, judge
from experiments.harness.lanes import lanes
from experiments.harness.paired import Floats
from experiments.harness.sweep import Sweep, Trial
from lark.reading.untrusted import read_object
from lark.store.integrity import verify
from lark.store.store import Artifact, Kind, write_text
from lark.training.checkpoints import CHECKPOINT

log = logging.getLogger(__name__)

SCHEDULE = Kind("compare", 1, "schedule.json")
"""What a comparison does, decided once: the planner's measurement of this machine may differ the next time.
"""
Perform = Callable[[Entrant, int, Trial], str | None]
"""Makes a run and returns the error that stopped it, or None."""
Run = tuple[Entrant, int, Trial]


@dataclass
class Game:
    """A comparison as far as it has come."""

    contest: Contest
    schedule: Schedule
    scores: dict[str, list[Floats]] = field(default_factory=dict)
    """By entrant and seed: what it is ranked by, per problem; higher is better."""
    trials: dict[str, list[Trial]] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Entrants that could not be trained or evaluated, and why."""
    missing: int = 0
    """Runs of the current round that do not exist yet."""
    stopped: str = ""
    """Why the last rounds were left out."""

    @property
    def found(self) -> bool:
        return bool(self.scores)

    @property
    def finished(self) -> bool:
        return bool(self.rounds) and not self.missing and (not self.rounds[-1].ahead or bool(self.stopped))

    @property
    def tables(self) -> dict[str, Floats]:
        """Results [S, P] of each entrant."""
        return {name: np.stack(each) for name, each in self.scores.items()}

    @property
    def seconds(self) -> float:
        """Time that all runs so far took."""
        return results.seconds(
            self.contest.sweep, [trial for trials in self.trials.values() for trial in trials]
        )

    def is_untrained(self, trial: Trial) -> bool:
        """Whether the student of a run is the base model, because its learning rate was 0."""
        checkpoint = trial.artifact(CHECKPOINT)
        assert checkpoint is not None
        steps = self.contest.sweep.store.manifest(checkpoint).counts.get("steps")
        return steps == 1 and trial.config.training.warmup > 0

    def entrant(self, name: str) -> Entrant:
        return next(entrant for entrant in self.contest.entrants if entrant.name == name)

    def play(
        self,
        perform: Perform,
        told: Callable[[int, Round], None] | None = None,
        ahead: Callable[[list[Run]], None] | None = None,
    ) -> "Game":
        """Go through the rounds. `ahead` may make the runs of a round before they are asked for one by one,
        in any order; `told` is called with each round when it is judged.
        """
        running, done, design = self.schedule.entrants, 0, self.schedule.design
        for number, seeds in enumerate(design.seeds):
            if number and self._out_of_time(len(running) * (seeds - done), number):
                break
            runs = [self._planned(name, seed) for name in running for seed in range(done + 1, seeds + 1)]
            if ahead is not None:
                ahead(runs)
            for entrant, seed, trial in runs:
                if entrant.name not in self.failed:
                    self._run(entrant, seed, trial, perform)
            running, done = tuple(name for name in running if name not in self.failed), seeds
            if self.missing or len(self.scores) < 2 or not running:
                break
            before = self.rounds[-1] if self.rounds else None
            self.rounds.append(judge(self.tables, running, number, design, before))
            if told is not None:
                told(number, self.rounds[-1])
            running = self.rounds[-1].ahead
            if not running:
                break
        return self

    def _planned(self, name: str, seed: int) -> Run:
        entrant = self.entrant(name)
        return entrant, seed, self.contest.run(entrant, seed)

    def _run(self, entrant: Entrant, seed: int, trial: Trial, perform: Perform) -> None:
        name, error = entrant.name, perform(entrant, seed, trial)
        score = score_of(self.contest, trial)
        if error is None and score is None:
            self.missing += 1
        elif score is None:
            self.failed[name] = str(error)  # its earlier runs stay: rounds compare the same entrants
        else:
            self.scores.setdefault(name, []).append(score)
            self.trials.setdefault(name, []).append(trial)

    def _out_of_time(self, runs: int, number: int) -> bool:
        """Whether the next round would exceed compare.budget_hours, by the time that the runs so far took."""
        limit, done = self.contest.config.compare.budget_hours, sum(map(len, self.trials.values()))
        needed = self.seconds / 3600 / self.schedule.lanes * (1 + runs / done)
        if not limit or needed <= limit:
            return False
        self.stopped = (
            f"It ended after round {number} of {len(self.schedule.seeds)}: with the next, it would have taken"
            f" {needed:.1f} hours, more than compare.budget_hours={limit:g}."
        )
        return True


def score_of(contest: Contest, trial: Trial) -> Floats | None:
    """What a run is ranked by, per problem; higher is better. None if it is not finished."""
    criterion = contest.config.compare.criterion
    if criterion == "loss":
        found = results.losses(contest.sweep, trial)
        return None if found is None else -found
    return results.accuracies(contest.sweep, trial, single=criterion == "samples")


def schedule_artifact(contest: Contest) -> Artifact:
    """Depends on everything that the user chose, and not on the machine."""
    plans = {e.name: [a.fingerprint for step in e.trial.plan if step.makes(CHECKPOINT) for a in step.artifacts]
             for e in contest.entrants}  # fmt: skip
    benchmark = (
        asdict(contest.config.benchmark)
        if contest.named
        else {"decoding": asdict(contest.config.benchmark.decoding)}
    )
    part = {"entrants": plans, "compare": asdict(contest.config.compare), "benchmark": benchmark}
    return Artifact(SCHEDULE, f"{contest.config.student.name}-{contest.config.pool.name}", part)


def stored_schedule(contest: Contest) -> Schedule | None:
    """The schedule of a comparison that was started."""
    artifact = schedule_artifact(contest)
    store = contest.sweep.store
    if store.state(artifact) != "finished":
        return None
    verify(store.path(artifact))
    values = read_object(store.path(artifact) / SCHEDULE.file)
    return Schedule(
        values["questions"], tuple(values["entrants"]), tuple(values["seeds"]), values["halve"], values["hours"],
        tuple(values["trimmed"]), values.get("lanes", 1),
    )  # fmt: skip


def decide_schedule(contest: Contest) -> Schedule:
    """The schedule of a comparison, decided now unless it was started before."""

    def write(folders: list[Path]) -> list[dict[str, object]]:
        decided = replace(schedule(contest), lanes=lanes(entrant.config for entrant in contest.entrants))
        write_text(folders[0] / SCHEDULE.file, json.dumps(asdict(decided), indent=2) + "\n")
        return [{"runs": decided.runs, "hours": decided.hours}]

    contest.sweep.store.ensure((schedule_artifact(contest),), write)
    stored = stored_schedule(contest)
    assert stored is not None
    return stored


def replay(sweep: Sweep) -> Game | None:
    """What is finished of a comparison. None: it was not started."""
    contest = contest_of(sweep)
    stored = stored_schedule(contest)
    if stored is None:
        return None
    contest = contest_of(sweep, stored.questions, stored.entrants)
    if sweep.store.state(contest.held_out) != "finished":
        return None
    return Game(contest, stored).play(lambda entrant, seed, trial: _recorded_error(sweep, trial))


def _recorded_error(sweep: Sweep, trial: Trial) -> str | None:
    """The error in the manifests of a run's artifacts, if it has one."""
    manifests = (sweep.store.manifest(artifact) for step in trial.steps for artifact in step.artifacts)
    return next(
        (
            manifest.error
            for manifest in manifests
            if manifest.error not in (None, KeyboardInterrupt.__name__)
        ),
        None,
    )
