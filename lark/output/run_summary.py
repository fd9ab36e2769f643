"""The end of a run: its result, where everything is saved, and what to run next."""

import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from lark.config import Config
from lark.output.accuracies import Evaluated, as_rows, disagreement, evaluated, numbers
from lark.output.accuracy_tables import (
    SummaryTable,
    details_table,
    levels_table,
    resampled_table,
    results_table,
)
from lark.output.next_command import next_commands
from lark.output.regime_summary import regime_markdown, regime_of, show_regime
from lark.output.teach_summary import teachers_table
from lark.printing import aligned, near, some, text_table
from lark.scoring.student_regime import StudentRegime
from lark.selection.character import CHARACTER, sentence
from lark.selection.write import SELECTION, length_note
from lark.store.integrity import verify
from lark.store.store import Store, write_text
from lark.work.operation import Step
from lark.work.sweep_record import TrialResult, in_sweep, record_trial

if TYPE_CHECKING:
    from lark.pipeline.pipeline import Pipeline

log = logging.getLogger(__name__)

DEMO_NOTE = "These are the demo's numbers, not the paper's results: the demo only exercises the code.\n"
MANY_UNBOXED = 80
"""Percentage of answers without a box above which they explain a low accuracy."""


def run_summary(run: "Pipeline") -> None:
    """End a run with its result. With the stage `report`, also print all tables, and write them to the run's
    folder.
    """
    reports = run.config.wants_report
    # Without it, only what this run was asked for: an evaluation may be finished from another run.
    models = evaluated(run.config, run.store, run.plan if reports else run.steps)
    results = results_table(run.config, models)
    accuracies = numbers(run.config, models)
    regime = regime_of(run.store, run.plan if reports else run.steps)
    if reports:
        _report(run, models, results, regime)
    show_regime(run.config.student.name, regime)
    run.tracker.summarise(accuracies)
    made = _made(run)
    log.info("\n%s", _result(run, models, results) if models else aligned(made))
    unboxed = _without_box(run.config, models)
    if unboxed:
        log.warning(unboxed)
    if reports:
        log.info("Summary: %s", run.folder / ("summary.md" if models else "summary.json"))
    following = next_commands(run, bool(models))
    if following and not in_sweep():
        log.info("%s", following)
    trial = TrialResult("", list(made), [list(made.values())])
    if models:
        trial = TrialResult(results.title, results.header, results.rows)
    record_trial(run.config, run.typed, trial)


def _made(run: "Pipeline") -> dict[str, str]:
    """What the last step of the run has made: what its operation reports, and where it is."""
    if not run.steps:
        return {}
    step = run.steps[-1]
    folder = run.store.path(step.artifacts[0])
    verify(folder)
    made: dict[str, str] = {}
    if step.operation.result is not None:
        # Counts of an older version, or edited: only a remark is lost.
        with contextlib.suppress(KeyError, TypeError, ValueError):
            made |= step.operation.result(run.config, folder, run.store.manifest(step.artifacts[0]).counts)
    if any(near(folder) in value for value in made.values()):
        return made
    where = (near(run.store.path(artifact)) for artifact in step.artifacts)
    return {**made, "saved in": some(where, 1)}


def _result(run: "Pipeline", models: Sequence[Evaluated], results: SummaryTable) -> str:
    """The headline, with what must be read with it."""
    notes = [results.text]
    if run.config.student.is_bundled:
        notes.append(DEMO_NOTE)
    opposite = disagreement(run.config, models)
    if opposite:
        notes.append(f"Note: {opposite}\n")
    return "\n".join(notes)


def _report(
    run: "Pipeline", models: Sequence[Evaluated], results: SummaryTable, regime: StudentRegime | None
) -> None:
    """Print the details of a run, and write all tables to its folder and to the tracker."""
    selected = _selected(run.store, run.plan)
    if models:
        _tables(run, models, results, selected, regime_markdown(run.config.student.name, regime))
    teachers = teachers_table(run.store, run.steps)
    if teachers:
        log.info("\nTeachers\n\n%s\n", teachers)
    log.info("%s", _steps_table(run))
    seconds = {outcome.step.title: round(outcome.seconds, 2) for outcome in run.outcomes if outcome.made}
    rows = [dict(zip(results.header, row, strict=True)) for row in results.rows]
    values = {
        "results": rows,
        "accuracies": as_rows(numbers(run.config, models)),
        "seconds": seconds,
        "selection": selected,
        "student_on_pool": None if regime is None else asdict(regime),
    }
    write_text(run.folder / "summary.json", json.dumps(values, indent=2) + "\n")
    run.tracker.log({f"seconds/{name}": value for name, value in seconds.items()})


def _tables(
    run: "Pipeline", models: Sequence[Evaluated], results: SummaryTable, selected: dict[str, float], more: str
) -> None:
    """Print the tables behind the headline, and write all of them to summary.md (with `more` at its end) and
    to the tracker.
    """
    config = run.config
    details = details_table(config, models)
    samples = resampled_table(config, models)
    levels = levels_table(config, models)
    log.info("\n%s", details.text)
    log.info("\n%s", samples.text)
    tasks = config.benchmark.tasks.values()
    if levels.rows and not all(task.is_generated for task in tasks):  # the demo's: only in the file
        log.info(levels.text)

    tables = [results, details, samples]
    if levels.rows:
        tables.append(levels)
    for table in tables:
        run.tracker.table(table.name, table.header, table.rows)
    parts = [table.markdown for table in tables]
    opposite = disagreement(config, models)
    if config.student.is_bundled:
        parts[0] += f"\n{DEMO_NOTE}"
    if opposite:
        parts[0] += f"\nNote: {opposite}\n"
    character = sentence(selected)
    if character:
        parts.append(f"{character}.\n")
    lengths = length_note(config, selected)
    if lengths:
        parts.append(f"Note: {lengths}.\n")
    if more:
        parts.append(more)
    write_text(run.folder / "summary.md", "\n".join(parts))


def _steps_table(run: "Pipeline") -> str:
    """The steps of the run, how long they took and where their artifacts are."""
    rows = []
    for outcome in run.outcomes:
        step = outcome.step
        duration = f"{outcome.seconds:.1f} s" if outcome.made else "reused"
        where = some((str(run.store.path(artifact)) for artifact in step.artifacts), 1)
        rows.append([step.stage or "–", step.title, duration, where])
    return text_table(["stage", "operation", "time", "artifact"], rows, right=4)


def _selected(store: Store, plan: Sequence[Step]) -> dict[str, float]:
    """How strongly the run's selection follows length and loss (lark/selection/character.py); empty for a
    run without a selection, and for selections of older versions.
    """
    for step in plan:
        selection = step.artifacts[0]
        if step.makes(SELECTION) and store.state(selection) == "finished":
            counts = store.manifest(selection).counts
            return {name: counts[name] for name in CHARACTER if name in counts}
    return {}


def _without_box(config: Config, models: Sequence[Evaluated]) -> str | None:
    """A warning if most answers of a model have no box, which explains an accuracy near 0."""
    names = []
    for model in models:
        shares = [metrics.unboxed for metrics in model.under(config.benchmark.grader).values()]
        share = sum(shares) / len(shares)
        if share > MANY_UNBOXED:
            names.append(f"{model.label} {share:.0f}%")
    if not names:
        return None
    return (
        f"Answers without a \\boxed{{}}, which count as wrong: {', '.join(names)}. If they were cut off,"
        " raise benchmark.decoding.max_new_tokens; if the pool's answers are not boxed, see"
        " pool.answer_pattern (docs/own-pool.md).\n"
    )
