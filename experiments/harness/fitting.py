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
        once: dict[tuple[str, ...], float] = {}
        for name in entrants:
            once |= self.shared[name]
        runs = sorted((self.run[name] for name in entrants), reverse=True)
        total = sum(once.values())
        done = 0
        for count, seeds in zip(design.entrants(len(entrants)), design.seeds, strict=True):
            total += sum(runs[:count]) * (seeds - done)
            done = seeds
        return total / 3600


def schedule(contest: Contest) -> Schedule:
    """The schedule of a contest, trimmed to compare.budget_hours. Raises an error if nothing fits."""
    settings = contest.config.compare
    lengths = whole_pool(contest)
    questions = min(settings.questions, _available(contest.config, lengths))
    _check_questions(contest.config, questions)
    full = Schedule(
        questions=questions,
        entrants=tuple(entrant.name for entrant in contest.entrants),
        seeds=tuple(settings.seeds),
        halve=settings.design == "halving",
    )
    try:
        hardware = throughput(contest.config)
        return fit(
            full, lambda questions: costs(contest, questions, lengths, hardware), settings.budget_hours
        )
    except LarkError:
        if settings.budget_hours:
            raise
        return full  # the student's size is unknown; without a limit, that is no reason to stop


def whole_pool(contest: Contest) -> PoolLengths:
    """Lengths of all trajectories that can be used."""
    pool = source(contest.config.pool, contest.config.compare.questions)
    return pool_lengths(replace(contest.config, pool=pool))


def _available(config: Config, lengths: PoolLengths) -> int:
    """Questions of the pool; of a pool that is generated, as many as needed."""
    return config.compare.questions if config.pool.is_generated else lengths.questions


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
    questions. Questions go first, then entrants, then seeds, because that is the order of what they decide.
    """

    def hours(schedule: Schedule) -> float:
        return costs(schedule.questions).hours(schedule.entrants, schedule.design)

    def fits(schedule: Schedule) -> bool:
        return not limit or hours(schedule) <= limit

    fitted = full
    while not fits(fitted) and fitted.questions > LEAST_QUESTIONS:
        fitted = replace(fitted, questions=max(LEAST_QUESTIONS, int(fitted.questions * STEP)))
    while not fits(fitted) and len(fitted.entrants) > 2:
        fitted = replace(fitted, entrants=fitted.entrants[:-1])
    while not fits(fitted) and fitted.seeds[-1] > 2:
        fitted = replace(fitted, seeds=fitted.seeds[:-1] or (fitted.seeds[0] - 1,))
    # Fewer seeds may leave room for entrants again.
    for count in range(len(full.entrants), len(fitted.entrants), -1):
        larger = replace(fitted, entrants=full.entrants[:count])
        if fits(larger):
            fitted = larger
            break
    if not fits(fitted):
        raise LarkError(_too_long(fitted, hours(fitted), limit))
    return replace(fitted, hours=hours(fitted), trimmed=tuple(_trimmed(full, fitted)))


def _trimmed(full: Schedule, fitted: Schedule) -> list[str]:
    """What `fitted` leaves out of `full`, in words."""
    parts = []
    if fitted.questions < full.questions:
        parts.append(f"{fitted.questions} questions instead of {full.questions}")
    if len(fitted.entrants) < len(full.entrants):
        parts.append(f"without {', '.join(full.entrants[len(fitted.entrants) :])}")
    if fitted.seeds != full.seeds:
        parts.append(f"{counted(fitted.seeds[-1], 'training seed')} instead of up to {full.seeds[-1]}")
    return parts


def _too_long(smallest: Schedule, hours: float, limit: float) -> str:
    return (
        f"compare.budget_hours={limit:g}: {len(smallest.entrants)} entrants with {smallest.seeds[-1]}"
        f" training seeds on {smallest.questions} questions would take {duration(3600 * hours)} by the"
        f" planner's estimate, and the limit is {duration(3600 * limit)}. Raise it, or make a run shorter:"
        " training.epochs, benchmark.decoding.samples, benchmark.decoding.max_new_tokens, training=lora, a"
        " shorter student.max_length."
    )


def costs(contest: Contest, questions: int, lengths: PoolLengths, hardware: Throughput) -> Costs:
    """Estimates for all entrants on this many questions."""
    shared: dict[str, dict[tuple[str, ...], float]] = {}
    run: dict[str, float] = {}
    disk = 0.0
    held_out = max(1, round(questions * contest.config.compare.held_out))
    training = replace(lengths, questions=max(1, questions - held_out))
    for entrant in contest.entrants:
        config = _sized(contest, entrant, held_out)
        steps = wanted(entrant.trial.plan, config.stages)
        shared[entrant.name] = {}
        run[entrant.name] = 0.0
        for part in estimate(config, steps, training, hardware):
            disk = max(disk, part.kept_gib)
            if _per_run(part.step):
                run[entrant.name] += part.seconds
            else:
                shared[entrant.name][part.step.key] = part.seconds
    return Costs(shared, run, disk)


def _sized(contest: Contest, entrant: Entrant, problems: int) -> Config:
    """An entrant's settings with a benchmark of this many problems, which need not exist yet."""
    config = entrant.config
    if contest.named:
        return replace(config, stages=contest.stages)
    task = Task("Held out", "held-out/questions", answer_format=config.pool.answer_format, count=problems)
    return replace(config, stages=contest.stages, benchmark=replace(config.benchmark, tasks={TASK: task}))


def _per_run(step: Step) -> bool:
    """Whether a step depends on the training seed."""
    return step.makes(CHECKPOINT) or step.model == "trained"
