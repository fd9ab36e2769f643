"""Trim a comparison so that it fits into a number of hours, by the planner's estimate: fewer questions,
methods, then seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor

from experiments.harness.contest import TASK, Contest, Entrant
from experiments.harness.halving import Design
from lark.config import Config, Task
from lark.errors import LarkError
from lark.names import is_demo
from lark.pipeline.plan import wanted
from lark.planner.estimates import estimate
from lark.planner.lengths import PoolLengths, pool_lengths
from lark.planner.report import duration
from lark.planner.throughput import Throughput, throughput
from lark.printing import counted
from lark.selection.held_out import LEAST, source
from lark.training.checkpoints import CHECKPOINT
from lark.work.operation import Step

LEAST_QUESTIONS = 60
STEP = 0.8
"""Questions are reduced by this factor until the design fits."""


@dataclass(frozen=True)
class Schedule:
    """What a comparison does."""

    questions: int
    entrants: tuple[str, ...]
    seeds: tuple[int, ...]
    """Of each entrant after each heat."""
    halve: bool = True
    hours: float | None = None
    """The planner's estimate for the largest number of runs; None: unknown."""
    trimmed: tuple[str, ...] = field(default_factory=tuple)
    """What compare.budget_hours took away, as sentences."""
    lanes: int = 1
    """Runs that were made at once on the machine that decided this. Later decisions count on it, whatever
    the machine.
    """

    @property
    def design(self) -> Design:
        return Design(self.seeds, self.halve)

    @property
    def runs(self) -> int:
        return self.design.runs(len(self.entrants))


@dataclass(frozen=True)
class Costs:
    """Estimated seconds on a number of questions."""

    shared: Mapping[str, Mapping[tuple[str, ...], float]]
    """Of steps that all seeds of an entrant share, such as scoring; by their key, because entrants share
    them too.
    """
    run: Mapping[str, float]
    """Of one run of each entrant: training and evaluating."""
    disk_gib: float = 0.0
    """What one trained student keeps on disk."""

    def hours(self, entrants: Sequence[str], design: Design) -> float:
        """The longest that a design takes: the costliest entrants stay in it."""
        once = {key: seconds for name in entrants for key, seconds in self.shared[name].items()}
        each = sorted((self.run[name] for name in entrants), reverse=True)
        total, before = sum(once.values()), 0
        for count, seeds in zip(design.entrants(len(entrants)), design.seeds, strict=True):
            total += sum(each[:count]) * (seeds - before)
            before = seeds
        return total / 3600


def schedule(contest: Contest) -> Schedule:
    """The schedule of a contest, trimmed to compare.budget_hours. Raises an error if nothing fits."""
    asked = contest.config.compare
    names, halve = tuple(entrant.name for entrant in contest.entrants), asked.design == "halving"
    full = Schedule(asked.questions, names, tuple(asked.seeds), halve)
    lengths = whole_pool(contest)
    full = replace(full, questions=min(full.questions, _available(contest.config, lengths)))
    _check_questions(contest.config, full.questions)
    try:
        hardware = throughput(contest.config)
        return fit(full, lambda questions: costs(contest, questions, lengths, hardware), asked.budget_hours)
    except LarkError:
        if asked.budget_hours:
            raise
        return full  # the student's size is unknown; without a limit, that is no reason to stop


def whole_pool(contest: Contest) -> PoolLengths:
    """Lengths of all trajectories that can be used."""
    pool = source(contest.config.pool, contest.config.compare.questions)
    return pool_lengths(replace(contest.config, pool=pool))


def _available(config: Config, lengths: PoolLengths) -> int:
    """Questions of the pool; of a pool that is generated, as many as needed."""
    return config.compare.questions if is_demo(config.pool.format) else lengths.questions


def _check_questions(config: Config, questions: int) -> None:
    """Refuse a pool that is too small to be split, before its answers are looked at."""
    held = max(LEAST, floor(questions * config.compare.held_out))
    if questions < held + LEAST:
        raise LarkError(
            f"Pool {config.pool.name} has too few questions to compare methods:"
            f" {counted(questions, 'question')}, of which {held} would be held out and at least {LEAST}"
            " trained on. Use a pool with more questions."
        )


def fit(full: Schedule, costs: Callable[[int], Costs], limit: float) -> Schedule:
    """The largest schedule within `limit` hours (0: no limit). `costs` gives the costs on a number of
    questions.
    """
    now, said = full, list[str]()

    def hours(schedule: Schedule) -> float:
        return costs(schedule.questions).hours(schedule.entrants, schedule.design)

    while limit and hours(now) > limit and now.questions > LEAST_QUESTIONS:
        now = replace(now, questions=max(LEAST_QUESTIONS, int(now.questions * STEP)))
    if now.questions < full.questions:
        said.append(f"{now.questions} questions instead of {full.questions}")
    while limit and hours(now) > limit and len(now.entrants) > 2:
        now = replace(now, entrants=now.entrants[:-1])
    while limit and hours(now) > limit and now.seeds[-1] > 2:
        now = replace(now, seeds=now.seeds[:-1] if len(now.seeds) > 1 else (now.seeds[0] - 1,))
    for count in range(
        len(full.entrants), len(now.entrants), -1
    ):  # fewer seeds may leave room for entrants again
        if hours(again := replace(now, entrants=full.entrants[:count])) <= limit:
            now = again
            break
    if len(now.entrants) < len(full.entrants):
        said.append(f"without {', '.join(full.entrants[len(now.entrants) :])}")
    if now.seeds != full.seeds:
        said.append(f"{counted(now.seeds[-1], 'training seed')} instead of up to {full.seeds[-1]}")
    needed = hours(now)
    if limit and needed > limit:
        raise LarkError(
            f"compare.budget_hours={limit:g}: {len(now.entrants)} entrants with {now.seeds[-1]} training"
            f" seeds on {now.questions} questions would take {duration(3600 * needed)} by the planner's"
            f" estimate, and the limit is {duration(3600 * limit)}. Raise it, or make a run shorter:"
            " training.epochs, benchmark.decoding.samples, benchmark.decoding.max_new_tokens, training=lora,"
            " a shorter student.max_length."
        )
    return replace(now, hours=needed, trimmed=tuple(said))


def costs(contest: Contest, questions: int, lengths: PoolLengths, hardware: Throughput) -> Costs:
    """Estimates for all entrants on this many questions."""
    shared: dict[str, dict[tuple[str, ...], float]] = {}
    run: dict[str, float] = {}
    disk = 0.0
    held = max(1, round(questions * contest.config.compare.held_out))
    for entrant in contest.entrants:
        config = _sized(contest, entrant, held)
        steps = wanted(entrant.trial.plan, config.stages)
        found = estimate(config, steps, replace(lengths, questions=max(1, questions - held)), hardware)
        shared[entrant.name] = {e.step.key: e.seconds for e in found if not _per_run(e.step)}
        run[entrant.name] = sum(e.seconds for e in found if _per_run(e.step))
        disk = max(disk, *(e.kept_gib for e in found))
    return Costs(shared, run, disk)


def _sized(contest: Contest, entrant: Entrant, problems: int) -> Config:
    """An entrant's settings with a benchmark of this many problems, which need not exist yet."""
    config = entrant.config
    stages = ["train", *(["evaluate"] if contest.evaluates else [])]
    if contest.named:
        return replace(config, stages=stages)
    task = Task("Held out", "held-out/questions", answer_format=config.pool.answer_format, count=problems)
    return replace(config, stages=stages, benchmark=replace(config.benchmark, tasks={TASK: task}))


def _per_run(step: Step) -> bool:
    """Whether a step depends on the training seed."""
    return step.makes(CHECKPOINT) or step.model == "trained"
