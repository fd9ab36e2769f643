"""`make compare`: which selection method should this student be trained with? A tournament on a part of the
pool.

    python -m experiments run compare pool=files pool.path=my_pool.jsonl student=own student.path=my/student …

The sweep's trials are the entrants: methods, budgets, or anything else that is swept over. docs/compare.md
explains the design.
"""

import logging
import time
from collections.abc import Mapping
from functools import partial

import pandas as pd

from experiments.harness import lanes, results, verdict
from experiments.harness.carrying import carry_out
from experiments.harness.comparison_figure import comparison_figure
from experiments.harness.contest import Contest, Entrant, contest_of
from experiments.harness.fitting import Schedule, costs, schedule, whole_pool
from experiments.harness.game import Game, Run, decide_schedule, replay, score_of, stored_schedule
from experiments.harness.paired import Comparison
from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, Trial
from lark.errors import LarkError
from lark.evaluation.grade import METRICS
from lark.names import is_demo
from lark.output.tables import MISSING, Cell
from lark.planner.report import duration, size
from lark.planner.throughput import throughput
from lark.printing import counted, text_table
from lark.selection.write import SELECTION

log = logging.getLogger(__name__)
TITLE = "Which method for this student?"


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
    game, at_once = Game(contest, decided), lanes.lanes(entrant.config for entrant in contest.entrants)
    shown: set[tuple[str, int]] = set()

    def perform(entrant: Entrant, seed: int, trial: Trial) -> str | None:
        started = time.time()
        try:
            carry_out(trial, f"compare/{trial.config.student.name}/{entrant.name}-seed{seed}")
        except LarkError as error:
            log.info("%s, seed %d: failed: %s", entrant.name, seed, error)
            return str(error)
        if (entrant.name, seed) not in shown:
            took = duration(time.time() - started)
            log.info("%s, seed %d: %s (%s)", entrant.name, seed, _shown(sweep, trial), took)
        return None

    def side_by_side(runs: list[Run]) -> None:
        """Make the runs of a round in lanes. `perform` then finds them; what a lane could not make, it
        makes again, or says why.
        """
        left = [run for run in runs if score_of(contest, run[2]) is None]
        if at_once == 1 or len(left) < 2:
            return
        lanes.fork([partial(perform, *run) for run in left], at_once)
        shown.update(
            (entrant.name, seed) for entrant, seed, trial in left if score_of(contest, trial) is not None
        )

    game.play(
        perform, lambda number, judged: log.info("%s", verdict.told(game, number, judged)), side_by_side
    )
    log.info("\n%s\n", verdict.sentence(game))
    if command := verdict.next_command(game):
        log.info("The full run with %s:\n  %s\n", game.rounds[-1].leader, command)
    return [f"{sweep.title}: {name}: {error}" for name, error in game.failed.items()]


def _shown(sweep: Sweep, trial: Trial) -> str:
    found, loss = (
        results.accuracies(sweep, trial) if _evaluates(trial) else None,
        results.losses(sweep, trial),
    )
    k = trial.config.benchmark.decoding.samples
    parts = [f"Acc@{k} {100 * found.mean():.1f}%"] if found is not None else []
    parts += [f"held-out loss {loss.mean():.3f}"] if loss is not None else []
    return ", ".join(parts)


def _evaluates(trial: Trial) -> bool:
    return any(step.makes(METRICS) for step in trial.steps)


def announcement(decided: Schedule) -> str:
    """What is about to happen, and what was trimmed."""
    time_ = (
        ""
        if decided.hours is None
        else f", at most {duration(decided.hours * 3600)} by the planner's estimate"
    )
    sizes = " → ".join(map(str, decided.design.entrants(len(decided.entrants))))
    rounds = counted(len(decided.seeds), "round")
    said = (
        f"Comparing {', '.join(decided.entrants)}: {rounds} with at most {sizes} entrants and"
        f" {' → '.join(map(str, decided.seeds))} training {'seed' if decided.seeds == (1,) else 'seeds'}"
        f" each, {counted(decided.runs, 'training run')}{time_}."
    )
    return said + (f" To fit compare.budget_hours: {'; '.join(decided.trimmed)}." if decided.trimmed else "")


def _on(contest: Contest) -> str:
    use = "which are the benchmark" if contest.graded else "whose loss is measured"
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
    found = costs(contest, decided.questions, whole_pool(contest), throughput(contest.config))
    rows = [
        [name, duration(sum(found.shared[name].values())), duration(found.run[name])]
        for name in decided.entrants
    ]
    table = text_table(["entrant", "once (scoring, base model)", "each run (training, evaluation)"], rows)
    disk = f"On disk: {size(found.disk_gib * decided.runs)} of trained students."
    return f"{announcement(decided)}\n\n{table}\n\nEntrants share what they do once. {disk}"


def render(sweep: Sweep) -> Report:
    game = replay(sweep)
    if game is None or not game.found:
        names = [entrant.name for entrant in contest_of(sweep).entrants]
        table = Table(["entrant", "verdict"], [[Cell(name), MISSING] for name in names])
        return Report(TITLE, CAPTION, pd.DataFrame(), [table], found=False, scope=_scope(sweep))
    found = verdict.latest(game)
    notes = [f"**{verdict.sentence(game)}**"]
    if command := verdict.next_command(game):
        notes.append(f"The full run with {game.rounds[-1].leader}: `{command}`")
    agreed = verdict.agreement(game)
    notes += [verdict.agreement_words(agreed)] if agreed else []
    notes += _notes(game, found)
    tables = [_table(game, found, agreed)] + ([_pairs(game, found)] if found else [])
    return Report(
        TITLE,
        CAPTION,
        _data(game, found),
        tables,
        comparison_figure(game, found, agreed, _base(game)) if found else None,
        notes,
        scope=_scope(sweep),
    )


CAPTION = (
    "Each entrant is trained with several seeds on the same questions and measured on the same problems."
    " Intervals are over problems and training seeds. A difference is called real if chance would produce any"
    " such difference among all entrants in at most 5% of comparisons; other differences are ties as far as"
    " this comparison can tell. It says which method suits this student, this pool and this recipe, at this"
    " size; not which is best elsewhere."
)


def _scope(sweep: Sweep) -> str:
    config = sweep.trials[0].config
    if is_demo(config.student.name):
        return (
            "These are the demo's numbers (a 1M-parameter student on generated arithmetic), not the paper's."
        )
    return f"Student: {config.student.name}. Pool: {config.pool.name}."


def _notes(game: Game, found: Comparison | None) -> list[str]:
    contest, decided = game.contest, game.schedule
    split = contest.split
    notes = [announcement(decided), _on(contest), *_same_selections(game)]
    near = contest.near_duplicates(split)
    if near:
        notes.append(
            f"{len(near)} of the {len(split.training)} training questions are nearly the same as a problem of"
            f" the benchmark (similarity at least {contest.config.pool.similarity}); pool.decontaminate=true"
            " leaves them out."
        )
    if found is not None and found.seed_deviation is not None:
        scale = verdict.Scale.of(contest.config.compare.criterion)
        spread = f"±{abs(scale.factor) * found.seed_deviation:.{scale.digits}f} {scale.unit}"
        spread = spread if found.seed_deviation else "less than single answers do: too little to measure"
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
            _, _, digest = game.contest.sweep.store.manifest(selection).files.get("train.jsonl", (0, 0, name))
            groups.setdefault(digest, []).append(name)
    same = [" and ".join(names) for names in groups.values() if len(names) > 1]
    return [
        f"{names} selected the same texts with the same weights, so they differ only by chance."
        for names in same
    ]


def _base(game: Game) -> float | None:
    """Mean accuracy of the untrained student."""
    trials = [trial for each in game.trials.values() for trial in each]
    if not game.contest.evaluates or not trials:
        return None
    single = game.contest.config.compare.criterion == "samples"
    found = results.accuracies(game.contest.sweep, trials[0], single=single, trained=False)
    return None if found is None else float(found.mean())


def _table(game: Game, found: Comparison | None, agreed: verdict.Agreement | None) -> Table:
    scale, criterion = (
        verdict.Scale.of(game.contest.config.compare.criterion),
        game.contest.config.compare.criterion,
    )
    header = [
        "rank",
        "entrant",
        "seeds",
        verdict.criterion_words(game),
        "minus the leader",
        "95% interval",
        "verdict",
    ]
    header += ["held-out loss"] if agreed else []
    rows = []
    order = [found.names[k] for k in found.order] if found else list(game.scores)
    leader = game.rounds[-1].leader if game.rounds else order[0]
    order = [leader, *(name for name in order if name != leader)]
    for rank, name in enumerate(order, 1):
        k, lead = (found.names.index(name), found.names.index(leader)) if found else (0, 0)
        mean = scale.value(found.means[k]) if found else "–"
        gap = [MISSING, MISSING]
        if found and name != leader:
            gap = [
                Cell(scale.difference(found.difference[k, lead])),
                Cell(scale.interval(found.low[k, lead], found.high[k, lead])),
            ]
        row = [
            Cell(str(rank)),
            Cell(name),
            Cell(str(len(game.scores[name]))),
            Cell(mean, name == leader),
            *gap,
        ]
        row.append(Cell(verdict.status(game, name)))
        rows.append([*row, *([Cell(f"{agreed.losses[name]:.3f}")] if agreed else [])])
    for name in game.failed.keys() - game.scores.keys():
        rows.append(
            [
                MISSING,
                Cell(name),
                *[MISSING] * (len(header) - 3 - bool(agreed)),
                Cell("failed"),
                *[MISSING] * bool(agreed),
            ]
        )
    base = _base(game) if criterion != "loss" else None
    if base is not None:
        rows.append(
            [MISSING, Cell("Base model"), MISSING, Cell(scale.value(base)), *[MISSING] * (len(header) - 4)]
        )
    return Table(header, rows, labels=2)


def _pairs(game: Game, found: Comparison) -> Table:
    scale, real = verdict.Scale.of(game.contest.config.compare.criterion), verdict.real_pairs(game, found)
    rows = []
    for place, i in enumerate(found.order):
        for j in found.order[place + 1 :]:
            difference, interval = (
                scale.difference(found.difference[i, j]),
                scale.interval(found.low[i, j], found.high[i, j]),
            )
            word = "real" if real[i][j] or real[j][i] else "not clear"
            rows.append(
                [Cell(found.names[i]), Cell(found.names[j]), Cell(difference), Cell(interval), Cell(word)]
            )
    return Table(
        ["entrant", "minus", "difference", "95% interval", "difference is"], rows, "All pairs.", labels=2
    )


def _data(game: Game, found: Comparison | None) -> pd.DataFrame:
    """Runs first, then pairs."""
    sweep, rows = game.contest.sweep, list[Mapping[str, object]]()
    for name, trials in game.trials.items():
        for trial in trials:
            accuracy = results.accuracies(sweep, trial) if _evaluates(trial) else None
            single = results.accuracies(sweep, trial, single=True) if _evaluates(trial) else None
            loss = results.losses(sweep, trial)
            numbers = {"accuracy": accuracy, "samples": single, "loss": loss}
            means = {key: None if value is None else float(value.mean()) for key, value in numbers.items()}
            rows.append({"row": "run", "entrant": name, "seed": trial.config.training.seed, **means})
    if found is not None:
        real = verdict.real_pairs(game, found)
        rows += [
            {
                "row": "pair",
                "entrant": found.names[i],
                "minus": found.names[j],
                "difference": found.difference[i, j],
                "low": found.low[i, j],
                "high": found.high[i, j],
                "real": real[i][j] or real[j][i],
            }
            for place, i in enumerate(found.order)
            for j in found.order[place + 1 :]
        ]
    return pd.DataFrame(rows)
