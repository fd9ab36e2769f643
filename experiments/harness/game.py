"""Carry out a comparison heat by heat, or replay its finished part. Decisions depend only on stored
results, so a killed comparison resumes where it was, and its report needs nothing but the store.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import checks, results
from experiments.harness.command import command_scores, scores_artifact
from experiments.harness.contest import Contest, Entrant, contest_of
from experiments.harness.fitting import Schedule, schedule
from experiments.harness.halving import Heat, Results, tournament
from experiments.harness.lanes import lanes
from experiments.harness.sweep import Sweep, Trial
from lark.reading.untrusted import read_object
from lark.selection.paired import Floats
from lark.store.integrity import verify
from lark.store.store import Artifact, Kind, write_text
from lark.training.checkpoints import CHECKPOINT

log = logging.getLogger(__name__)

SCHEDULE = Kind("compare", 1, "schedule.json")
"""The schedule of a comparison, decided once: the planner may measure this machine differently next time."""
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
    heats: list[Heat] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Entrants that could not be trained or evaluated, and why."""
    missing: int = 0
    """Runs of the current heat that do not exist yet."""
    stopped: str = ""
    """Why the last heats were left out."""

    @property
    def finished(self) -> bool:
        return bool(self.heats) and not self.missing and (not self.heats[-1].ahead or bool(self.stopped))

    @property
    def tables(self) -> dict[str, Floats]:
        """Results [S, P] of each entrant."""
        checks.have_same_problems(self.scores)
        return {name: np.stack(scores) for name, scores in self.scores.items()}

    @property
    def runs(self) -> list[Trial]:
        """All runs so far, entrant by entrant."""
        return list(chain.from_iterable(self.trials.values()))

    @property
    def seconds(self) -> float:
        """Time that all runs so far took."""
        seconds = results.seconds(self.contest.sweep, self.runs)
        if self.contest.config.compare.criterion == "command":
            store = self.contest.sweep.store
            seconds += sum(store.manifest(scores_artifact(trial)).seconds for trial in self.runs)
        return seconds

    def is_untrained(self, trial: Trial) -> bool:
        """True if the student of a run is the base model, because its learning rate was 0."""
        checkpoint = trial.artifact(CHECKPOINT)
        assert checkpoint is not None
        steps = self.contest.sweep.store.manifest(checkpoint).counts.get("steps")
        return steps == 1 and trial.config.training.warmup > 0

    def entrant(self, name: str) -> Entrant:
        return next(entrant for entrant in self.contest.entrants if entrant.name == name)

    def play(
        self,
        perform: Perform,
        announce: Callable[[int, Heat], None] | None = None,
        prepare: Callable[[list[Run]], None] | None = None,
    ) -> "Game":
        """Go through the heats. `prepare` may make the runs of a heat before `perform` is called with them
        one by one, in any order; `announce` is called with each heat when it is judged.
        """

        def train(running: Sequence[str], first: int, last: int) -> Results | None:
            new_runs = len(running) * (last - first)
            # The first heat always runs: before it, only the planner's estimate is known.
            if self.heats and self._out_of_time(new_runs):
                return None
            runs = []
            for name, seed in product(running, range(first + 1, last + 1)):
                entrant = self.entrant(name)
                runs.append((entrant, seed, self.contest.run(entrant, seed)))
            if prepare is not None:
                prepare(runs)
            for run in runs:
                self._make(run, perform)
            all_failed = self.failed.keys() >= set(running)
            if self.missing or all_failed or len(self.scores) < 2:
                return None
            return self.tables

        for number, heat in enumerate(tournament(self.schedule.entrants, self.schedule.design, train)):
            self.heats.append(heat)
            if announce is not None:
                announce(number, heat)
        return self

    def _make(self, run: Run, perform: Perform) -> None:
        """Make a run, unless its entrant failed with an earlier seed."""
        entrant, _, trial = run
        if entrant.name in self.failed:
            return
        error = perform(*run)
        score = score_of(self.contest, trial)
        if score is not None:
            self.scores.setdefault(entrant.name, []).append(score)
            self.trials.setdefault(entrant.name, []).append(trial)
        elif error is None:
            self.missing += 1
        else:
            # The entrant's earlier runs stay, because all heats compare the same entrants.
            self.failed[entrant.name] = error

    def _out_of_time(self, new_runs: int) -> bool:
        """Stop before a heat that would exceed compare.budget_hours, given the time of the runs so far."""
        limit = self.contest.config.compare.budget_hours
        hours = self.seconds / 3600 / self.schedule.lanes * (1 + new_runs / len(self.runs))
        if not limit or hours <= limit:
            return False
        self.stopped = (
            f"It ended after heat {len(self.heats)} of {len(self.schedule.seeds)}: with the next, it would"
            f" have taken {hours:.1f} hours, more than compare.budget_hours={limit:g}."
        )
        return True


def score_of(contest: Contest, trial: Trial) -> Floats | None:
    """What a run is ranked by, per problem; higher is better. None if it is not finished."""
    criterion = contest.config.compare.criterion
    if criterion == "command":
        return command_scores(contest.sweep, trial)
    if criterion == "loss":
        losses = results.losses(contest.sweep, trial)
        return None if losses is None else -losses
    if criterion == "token_accuracy":
        return results.token_accuracies(contest.sweep, trial)
    return results.accuracies(contest.sweep, trial, single=criterion == "samples")


def schedule_artifact(contest: Contest) -> Artifact:
    """Depends on everything that the user chose, and not on the machine."""
    config = contest.config
    students: dict[str, list[str]] = {}
    for entrant in contest.entrants:
        fingerprints = students[entrant.name] = []
        for step in entrant.trial.plan:
            if step.makes(CHECKPOINT):
                fingerprints += [artifact.fingerprint for artifact in step.artifacts]
    # Held-out questions are the benchmark unless one is named; then only the decoding can be chosen.
    benchmark: dict[str, Any] = {"decoding": asdict(config.benchmark.decoding)}
    if contest.named:
        benchmark = asdict(config.benchmark)
    compare = asdict(config.compare)
    if config.compare.criterion != "command":  # comparisons that were started before have no such settings
        del compare["command"], compare["command_minutes"]
    part = {"entrants": students, "compare": compare, "benchmark": benchmark}
    return Artifact(SCHEDULE, f"{config.student.name}-{config.pool.label}", part)


def stored_schedule(contest: Contest) -> Schedule | None:
    """The schedule of a comparison that was started."""
    artifact = schedule_artifact(contest)
    store = contest.sweep.store
    if store.state(artifact) != "finished":
        return None
    verify(store.path(artifact))
    values = read_object(store.path(artifact) / SCHEDULE.file)
    return Schedule(
        questions=values["questions"],
        entrants=tuple(values["entrants"]),
        seeds=tuple(values["seeds"]),
        halve=values["halve"],
        hours=values["hours"],
        trimmed=tuple(values["trimmed"]),
        lanes=values.get("lanes", 1),
    )


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
    made = [artifact for step in trial.steps for artifact in step.artifacts]
    if trial.config.compare.criterion == "command":
        made.append(scores_artifact(trial))
    for artifact in made:
        error = sweep.store.manifest(artifact).error
        # An interrupted run is not a failure: the same command resumes it.
        if error not in (None, KeyboardInterrupt.__name__):
            return error
    return None
