"""`make compare`: which selection method should this student be trained with? A tournament on a part of the
pool.

    python -m experiments run compare pool=files pool.path=my_pool.jsonl student=own student.path=my/student …

The sweep's trials are the entrants: methods, budgets, or anything else that is swept over. docs/compare.md
explains the design.
"""

import logging
import time
from functools import partial

import pandas as pd

from experiments.harness import lanes, results, verdict
from experiments.harness.both_accuracies import DEFINITIONS, OtherAccuracy, disagreement_words, other_accuracy
from experiments.harness.carrying import carry_out
from experiments.harness.command import command_scores, measure
from experiments.harness.comparison_figure import comparison_figure
from experiments.harness.comparison_tables import entrants_table, pairs_table, runs_and_pairs
from experiments.harness.contest import Contest, Entrant, contest_of
from experiments.harness.fitting import Schedule, costs, schedule, whole_pool
from experiments.harness.game import Game, Run, decide_schedule, replay, score_of, stored_schedule
from experiments.harness.halving import Heat
from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, Trial
from lark.errors import LarkError
from lark.output.tables import MISSING, Cell
from lark.planner.report import duration, size
from lark.planner.throughput import throughput
from lark.printing import counted, text_table
from lark.selection.paired import Comparison
from lark.selection.write import SELECTION

log = logging.getLogger(__name__)
TITLE = "Which method for this student?"
OLDER = (
    "trained by an older version, which did not measure token accuracy: add force=[train] once, or choose"
    " another compare.criterion"
)


def conduct(sweep: Sweep) -> list[str]:
    """Run the tournament. Return the errors of entrants that failed."""
    contest = contest_of(sweep)
    if contest.config.dry_run:
        log.info("%s", describe(sweep))
        return []
    decided = decide_schedule(contest)
    contest = contest_of(sweep, decided.questions, decided.entrants)
    contest.prepare()
    log.info("%s\n%s", announcement(decided), _on(contest))
    game = Game(contest, decided)
    at_once = lanes.lanes(entrant.config for entrant in contest.entrants)
    shown: set[tuple[str, int]] = set()

    def perform(entrant: Entrant, seed: int, trial: Trial) -> str | None:
        started = time.time()
        try:
            carry_out(trial, f"compare/{trial.config.student.name}/{entrant.name}-seed{seed}")
            if trial.config.compare.criterion == "command":
                measure(sweep, trial)
        except LarkError as error:
            log.info("%s, seed %d: failed: %s", entrant.name, seed, error)
            return str(error)
        criterion = trial.config.compare.criterion
        if criterion == "token_accuracy" and results.token_accuracies(sweep, trial) is None:
            return OLDER
        if (entrant.name, seed) not in shown:
            took = duration(time.time() - started)
            log.info("%s, seed %d: %s (%s)", entrant.name, seed, _scores(sweep, trial), took)
        return None

    def side_by_side(runs: list[Run]) -> None:
        """Make the runs of a heat in lanes. `perform` then finds them; it makes those again that a lane could
        not make, or reports why.
        """
        unfinished = [run for run in runs if score_of(contest, run[2]) is None]
        if at_once == 1 or len(unfinished) < 2:
            return
        lanes.fork([partial(perform, *run) for run in unfinished], at_once)
        for entrant, seed, trial in unfinished:
            if score_of(contest, trial) is not None:
                shown.add((entrant.name, seed))

    def announce(number: int, heat: Heat) -> None:
        log.info("%s", verdict.heat_line(game, number, heat))

    game.play(perform, announce, side_by_side)
    log.info("\n%s\n", verdict.sentence(game))
    other = other_accuracy(game)
    if other:
        log.info("%s\n", _both(game, other))
    command = verdict.next_command(game)
    if command:
        log.info("The full run with %s:\n  %s\n", game.heats[-1].leader, command)
    return [f"{sweep.title}: {name}: {error}" for name, error in game.failed.items()]


def _scores(sweep: Sweep, trial: Trial) -> str:
    """A run's results, for the log."""
    parts = []
    accuracies = results.accuracies(sweep, trial)
    if accuracies is not None:
        parts.append(f"Acc@{trial.config.benchmark.decoding.samples} {100 * accuracies.mean():.1f}%")
    single = results.accuracies(sweep, trial, single=True)
    if single is not None:
        parts.append(f"pass@1 {100 * single.mean():.1f}%")
    if trial.config.compare.criterion == "command":
        scores = command_scores(sweep, trial)
        if scores is not None:
            parts.append(f"score {scores.mean():.4f}")
    losses = results.losses(sweep, trial)
    if losses is not None:
        parts.append(f"held-out loss {losses.mean():.3f}")
    token_accuracies = results.token_accuracies(sweep, trial)
    if token_accuracies is not None:
        parts.append(f"held-out token accuracy {100 * token_accuracies.mean():.1f}%")
    return ", ".join(parts)


def announcement(decided: Schedule) -> str:
    """The heats and runs that follow, and what was trimmed to fit the time."""
    sizes = " → ".join(map(str, decided.design.entrants(len(decided.entrants))))
    seeds = " → ".join(map(str, decided.seeds))
    seed_word = "seed" if decided.seeds == (1,) else "seeds"
    text = (
        f"Comparing {', '.join(decided.entrants)}: {counted(len(decided.seeds), 'heat')} with at most {sizes}"
        f" entrants and {seeds} training {seed_word} each, {counted(decided.runs, 'training run')}"
    )
    if decided.hours is not None:
        text += f", at most {duration(decided.hours * 3600)} by the planner's estimate"
    text += "."
    if decided.trimmed:
        text += f" To fit compare.budget_hours: {'; '.join(decided.trimmed)}."
    return text


def _on(contest: Contest) -> str:
    use = "whose loss is measured"
    if contest.graded:
        use = "which are the benchmark"
    elif contest.config.compare.criterion == "command":
        use = "which are not trained on"
    split = contest.split
    return (
        f"Training on {len(split.training)} questions of the pool; {len(split.held_out)} are held out, {use}."
    )


def describe(sweep: Sweep) -> str:
    """The plan: what would be run, and its cost."""
    contest = contest_of(sweep)
    decided = stored_schedule(contest) or schedule(contest)
    if decided.hours is None:
        return announcement(decided)
    cost = costs(contest, decided.questions, whole_pool(contest), throughput(contest.config))
    rows = []
    for name in decided.entrants:
        once = sum(cost.shared[name].values())
        rows.append([name, duration(once), duration(cost.run[name])])
    table = text_table(["entrant", "once (scoring, base model)", "each run (training, evaluation)"], rows)
    disk = f"On disk: {size(cost.disk_gib * decided.runs)} of trained students."
    return f"{announcement(decided)}\n\n{table}\n\nEntrants share what they do once. {disk}"


def render(sweep: Sweep) -> Report:
    game = replay(sweep)
    if game is None or not game.scores:
        rows = [[Cell(entrant.name), MISSING] for entrant in contest_of(sweep).entrants]
        table = Table(["entrant", "verdict"], rows)
        return Report(TITLE, CAPTION, pd.DataFrame(), [table], measured=False, scope=_scope(sweep))
    comparison = verdict.latest(game)
    agreement = verdict.loss_agreement(game)
    other = other_accuracy(game)
    notes = [f"**{verdict.sentence(game)}**"]
    if other:
        notes.append(_both(game, other))
    command = verdict.next_command(game)
    if command:
        notes.append(f"The full run with {game.heats[-1].leader}: `{command}`")
    if agreement:
        notes.append(verdict.agreement_words(agreement))
    notes += _notes(game, comparison)
    tables = [entrants_table(game, comparison, agreement, other)]
    figure = None
    if comparison:
        tables.append(pairs_table(game, comparison))
        figure = comparison_figure(game, comparison, agreement)
    data = runs_and_pairs(game, comparison)
    return Report(TITLE, CAPTION, data, tables, figure, notes, scope=_scope(sweep))


def _both(game: Game, other: OtherAccuracy) -> str:
    """Both accuracies, defined, and whether they agree."""
    definitions = DEFINITIONS.format(k=game.contest.config.benchmark.decoding.samples)
    return f"{disagreement_words(other)} {definitions}"


CAPTION = (
    "Each entrant is trained with several seeds on the same questions and measured on the same problems."
    " Intervals are over problems and training seeds. A difference is called significant if chance would"
    " produce any such difference among all entrants in at most 5% of comparisons; other differences are ties"
    " as far as this comparison can tell. It says which method suits this student, this pool and this recipe,"
    " at this size; not which is best elsewhere."
)


def _scope(sweep: Sweep) -> str:
    config = sweep.trials[0].config
    if config.student.is_bundled:
        return (
            "These are the demo's numbers (a 1M-parameter student on generated arithmetic), not the paper's."
        )
    return f"Student: {config.student.name}. Pool: {config.pool.name}."


def _notes(game: Game, comparison: Comparison | None) -> list[str]:
    contest = game.contest
    split = contest.split
    notes = [announcement(game.schedule), _on(contest), *_same_selections(game)]
    near = contest.near_duplicates(split)
    if near:
        notes.append(
            f"{len(near)} of the {len(split.training)} training questions are nearly the same as a problem of"
            f" the benchmark (similarity at least {contest.config.pool.similarity}); pool.decontaminate=true"
            " leaves them out."
        )
    if comparison is not None and comparison.seed_deviation is not None:
        units = verdict.Units.of(game)
        deviation = abs(units.factor) * comparison.seed_deviation
        spread = f"±{deviation:.{units.digits}f} {units.unit}"
        if not deviation:
            spread = "less than single answers do: too little to measure"
        notes.append(
            f"Training with another seed changes an entrant's mean by {spread} (standard deviation, pooled"
            " over entrants)."
        )
    notes += [f"{name} failed: {error}" for name, error in game.failed.items()]
    return notes


def _same_selections(game: Game) -> list[str]:
    """A sentence for entrants that were trained on the same texts with the same weights."""
    groups = dict[str, list[str]]()
    for name, trials in game.trials.items():
        selection = trials[0].artifact(SELECTION)
        if selection is not None:
            files = game.contest.sweep.store.manifest(selection).files
            _, _, digest = files.get("train.jsonl", (0, 0, name))
            groups.setdefault(digest, []).append(name)
    sentences = []
    for names in groups.values():
        if len(names) > 1:
            sentences.append(
                f"{' and '.join(names)} selected the same texts with the same weights, so they differ only by"
                " chance."
            )
    return sentences
