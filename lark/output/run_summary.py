"""The summary at the end of a run: results, where everything is saved, and how long it took."""

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lark.config import GRADERS, Config
from lark.evaluation.grade import METRICS
from lark.evaluation.metrics import BenchmarkMetrics, average
from lark.names import is_demo
from lark.output.tables import markdown_table
from lark.printing import some, text_table
from lark.selection.character import CHARACTER, sentence
from lark.selection.write import SELECTION, length_note
from lark.store.integrity import verify
from lark.store.store import Artifact, Store, write_text
from lark.work.operation import Step

if TYPE_CHECKING:
    from lark.pipeline.pipeline import Pipeline

log = logging.getLogger(__name__)

DEMO_NOTE = "These are the demo's numbers, not the paper's results: the demo only exercises the code.\n"
DETAILS = (
    "By benchmark, in percent: Acc@{k} and its 95% interval over problems, the other grader, and single"
    " samples"
)
MANY_UNBOXED = 80
"""Percentage of answers without a box above which they explain a low accuracy."""


def metrics_of(store: Store, artifact: Artifact, grader: str) -> BenchmarkMetrics:
    """The metrics of an artifact under one grader."""
    verify(store.path(artifact))
    values = json.loads((store.path(artifact) / METRICS.file).read_text(encoding="utf-8"))[grader]
    return BenchmarkMetrics.from_dict(values)


def run_summary(run: "Pipeline") -> None:
    """Print the tables, write them to the run's folder, and send them to the tracker."""
    graded = [step for step in run.plan if step.makes(METRICS)]
    selected = _selected(run.store, run.plan)
    header, rows = results_table(run.config, run.store, graded)
    if rows:
        _results(run, graded, selected, header, rows)
    summary = run.folder / ("summary.md" if rows else "summary.json")
    log.info("%s\n\nSummary: %s", _steps_table(run), summary)
    seconds = {outcome.step.title: round(outcome.seconds, 2) for outcome in run.outcomes if outcome.made}
    results = [dict(zip(header, row, strict=True)) for row in rows]
    values = {"results": results, "seconds": seconds, "selection": selected}
    write_text(run.folder / "summary.json", json.dumps(values, indent=2) + "\n")
    run.tracker.log({f"seconds/{name}": value for name, value in seconds.items()})


def _results(
    run: "Pipeline",
    graded: Sequence[Step],
    selected: dict[str, float],
    header: list[str],
    rows: list[list[str]],
) -> None:
    """Print the results, and write them to summary.md and to the tracker."""
    config = run.config
    samples = config.benchmark.decoding.samples
    title = headline(config)
    note = DEMO_NOTE if is_demo(config.student.name) else ""
    log.info("\n%s\n\n%s\n%s", title, text_table(header, rows, right=3), f"\n{note}" if note else "")

    details_title = DETAILS.format(k=samples)
    details_header, details = details_table(config, run.store, graded)
    log.info("\n%s\n\n%s\n", details_title, text_table(details_header, details, right=3))
    warning = _without_box(config, run.store, graded)
    if warning:
        log.warning(warning)

    levels_title = f"Acc@{samples} by level ({config.benchmark.grader} grader)"
    levels_header, levels = levels_table(config, run.store, graded)
    tasks = config.benchmark.tasks.values()
    if levels and not all(is_demo(task.path) for task in tasks):  # the demo's: only in the file
        log.info("%s\n\n%s\n", levels_title, text_table(levels_header, levels, right=3))

    parts = [f"{title}\n\n{markdown_table(header, rows)}\n{note}"]
    parts.append(f"{details_title}\n\n{markdown_table(details_header, details)}")
    if levels:
        parts.append(f"{levels_title}\n\n{markdown_table(levels_header, levels)}")
    character = sentence(selected)
    if character:
        parts.append(f"{character}.\n")
    lengths = length_note(config, selected)
    if lengths:
        parts.append(f"Note: {lengths}.\n")
    write_text(run.folder / "summary.md", "\n".join(parts))

    run.tracker.table("results", header, rows)
    run.tracker.table("details", details_header, details)
    if levels:
        run.tracker.table("levels", levels_header, levels)


def _steps_table(run: "Pipeline") -> str:
    """The steps of the run, how long they took and where their artifacts are."""
    rows = []
    for outcome in run.outcomes:
        step = outcome.step
        duration = f"{outcome.seconds:.1f} s" if outcome.made else "reused"
        rows.append([step.stage or "–", step.title, duration, _where(run.store, step)])
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


def headline(config: Config) -> str:
    """Title of the results table."""
    decoding = config.benchmark.decoding
    title = f"Acc@{decoding.samples} in percent ({config.benchmark.grader} grader), "
    if len(decoding.seeds) == 1:
        return title + f"decoding seed {decoding.seeds[0]}"
    return title + f"mean ± standard deviation over {len(decoding.seeds)} decoding seeds"


def results_table(config: Config, store: Store, graded: Sequence[Step]) -> tuple[list[str], list[list[str]]]:
    """One row for the base model and one for the trained student."""
    tasks = config.benchmark.tasks
    header = ["student", "method", "B", *(task.label for task in tasks.values()), "Avg"]
    rows = []
    for model, by_grader in _evaluated(config, store, graded):
        metrics = {name: values[config.benchmark.grader] for name, values in by_grader.items()}
        cells = [spread(metrics[name].accuracy_at_k) if name in metrics else "–" for name in tasks]
        mean = spread(average(list(metrics.values()))) if len(metrics) == len(tasks) else "–"
        rows.append([config.student.name, *model, *cells, mean])
    return header, rows


def details_table(config: Config, store: Store, graded: Sequence[Step]) -> tuple[list[str], list[list[str]]]:
    """One row per model and benchmark, with numbers that the headline leaves out."""
    k = config.benchmark.decoding.samples
    main = config.benchmark.grader
    (other,) = (grader for grader in GRADERS if grader != main)
    header = [
        *("method", "B", "benchmark", "problems"),
        *(f"Acc@{k} ({main})", "95% interval", f"Acc@{k} ({other})"),
        *(f"one sample ({main})", f"one sample ({other})", "truncated", "without box"),
    ]
    rows = []
    for model, by_grader in _evaluated(config, store, graded):
        for name, values in by_grader.items():
            ours = values[main]
            others = values[other]
            low, high = ours.interval
            label = config.benchmark.tasks[name].label
            rows.append(
                [
                    *(*model, label, str(ours.problems)),
                    *(spread(ours.accuracy_at_k), f"{low:.1f} to {high:.1f}", spread(others.accuracy_at_k)),
                    *(spread(ours.sample_accuracy), spread(others.sample_accuracy)),
                    *(f"{ours.truncated:.1f}", f"{ours.unboxed:.1f}"),
                ]
            )
    return header, rows


def _without_box(config: Config, store: Store, graded: Sequence[Step]) -> str | None:
    """A warning if most answers of a model have no box, which explains an accuracy near 0."""
    models = []
    for model, by_grader in _evaluated(config, store, graded):
        shares = [values[config.benchmark.grader].unboxed for values in by_grader.values()]
        share = sum(shares) / len(shares)
        if share > MANY_UNBOXED:
            name = " B=".join(model).removesuffix(" B=–")
            models.append(f"{name} {share:.0f}%")
    if not models:
        return None
    return (
        f"Answers without a \\boxed{{}}, which count as wrong: {', '.join(models)}. If they were cut off, raise"
        " benchmark.decoding.max_new_tokens; if the pool's answers are not boxed, see pool.answer_pattern"
        " (docs/own-pool.md).\n"
    )


def levels_table(config: Config, store: Store, graded: Sequence[Step]) -> tuple[list[str], list[list[str]]]:
    """One row per model and benchmark with levels of difficulty (MATH-500: 1 to 5)."""
    by_level = []
    for model, by_grader in _evaluated(config, store, graded):
        for name, values in by_grader.items():
            levels = {level.level: level for level in values[config.benchmark.grader].levels}
            if levels:
                by_level.append(([*model, config.benchmark.tasks[name].label], levels))
    numbers = sorted({number for _, levels in by_level for number in levels})
    rows = []
    for labels, levels in by_level:
        cells = [spread(levels[number].accuracy_at_k) if number in levels else "–" for number in numbers]
        rows.append([*labels, *cells])
    return ["method", "B", "benchmark", *(f"level {number}" for number in numbers)], rows


def _evaluated(
    config: Config, store: Store, graded: Sequence[Step]
) -> list[tuple[list[str], dict[str, dict[str, BenchmarkMetrics]]]]:
    """Each evaluated model (method and budget), with its metrics by benchmark and grader."""
    models = []
    trained = [config.method.title, config.budget.name.removeprefix("B")]
    for step in graded:
        metrics = {}
        for name, artifact in zip(step.labels, step.artifacts, strict=True):
            if store.state(artifact) == "finished":
                metrics[name] = {grader: metrics_of(store, artifact, grader) for grader in GRADERS}
        if metrics:
            models.append((trained if step.model == "trained" else ["Base model", "–"], metrics))
    return models


def spread(value: Any) -> str:
    """mean±std as in the paper's tables."""
    return f"{value.mean:.2f}" if value.std is None else f"{value.mean:.2f}±{value.std:.2f}"


def _where(store: Store, step: Step) -> str:
    return some((str(store.path(artifact)) for artifact in step.artifacts), 1)
