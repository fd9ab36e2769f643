"""The summary at the end of a run: results, where everything is saved, and how long it took."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lark.config import GRADERS, Config
from lark.evaluation.grade import METRICS
from lark.evaluation.metrics import BenchmarkMetrics, average
from lark.evaluation.resampled import Resampled, resampled
from lark.output.regime_summary import regime_markdown, regime_of, show_regime
from lark.output.tables import markdown_table
from lark.output.teach_summary import teachers_table
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
DETAILS = "By benchmark, in percent: Acc@{k} and its 95% interval over problems, and the other grader"
RESAMPLED = (
    "The same samples as others report them, in percent ({grader} grader): pass@1, the share of correct"
    " samples, with its 95% interval (percentile bootstrap over problems); pass@{k}, the probability that"
    " {k} of a problem's samples contain a correct one; maj@{k}, how often the most frequent of {k} answers"
    " is correct"
)
MANY_UNBOXED = 80
"""Percentage of answers without a box above which they explain a low accuracy."""


def metrics_of(store: Store, artifact: Artifact, grader: str) -> BenchmarkMetrics:
    """The metrics of an artifact under one grader."""
    verify(store.path(artifact))
    values = json.loads((store.path(artifact) / METRICS.file).read_text(encoding="utf-8"))[grader]
    return BenchmarkMetrics.from_dict(values)


@dataclass(frozen=True)
class Evaluated:
    """A model that was evaluated: the base model or the trained student."""

    labels: list[str]
    """Its method and budget, the first cells of its rows."""
    metrics: dict[str, dict[str, BenchmarkMetrics]]
    """By benchmark and grader. A benchmark that is not finished is missing."""
    resampled: dict[str, dict[str, Resampled]]
    """The same evaluations' pass@k and maj@k."""

    def under(self, grader: str) -> dict[str, BenchmarkMetrics]:
        """The metrics of each benchmark under one grader."""
        return {name: by_grader[grader] for name, by_grader in self.metrics.items()}


@dataclass(frozen=True)
class SummaryTable:
    """A table of the summary."""

    name: str
    """In the tracker."""
    title: str
    header: list[str]
    rows: list[list[str]]

    @property
    def text(self) -> str:
        return f"{self.title}\n\n{text_table(self.header, self.rows, right=3)}\n"

    @property
    def markdown(self) -> str:
        return f"{self.title}\n\n{markdown_table(self.header, self.rows)}"


def run_summary(run: "Pipeline") -> None:
    """Print the tables, write them to the run's folder, and send them to the tracker."""
    models = evaluated(run.config, run.store, run.plan)
    selected = _selected(run.store, run.plan)
    results = results_table(run.config, models)
    regime = regime_of(run.store, run.plan)
    if models:
        _report(run, models, results, selected, regime_markdown(run.config.student.name, regime))
    show_regime(run.config.student.name, regime)
    teachers = teachers_table(run.store, run.steps)
    if teachers:
        log.info("\nTeachers\n\n%s\n", teachers)
    summary = run.folder / ("summary.md" if models else "summary.json")
    log.info("%s\n\nSummary: %s", _steps_table(run), summary)
    seconds = {outcome.step.title: round(outcome.seconds, 2) for outcome in run.outcomes if outcome.made}
    rows = [dict(zip(results.header, row, strict=True)) for row in results.rows]
    student = None if regime is None else asdict(regime)
    values = {"results": rows, "seconds": seconds, "selection": selected, "student_on_pool": student}
    write_text(run.folder / "summary.json", json.dumps(values, indent=2) + "\n")
    run.tracker.log({f"seconds/{name}": value for name, value in seconds.items()})


def _report(
    run: "Pipeline", models: Sequence[Evaluated], results: SummaryTable, selected: dict[str, float], more: str
) -> None:
    """Print the results, and write them to summary.md (with `more` at its end) and to the tracker."""
    config = run.config
    details = details_table(config, models)
    samples = resampled_table(config, models)
    levels = levels_table(config, models)
    note = DEMO_NOTE if config.student.is_bundled else ""
    log.info("\n%s%s", results.text, f"\n{note}" if note else "")
    log.info("\n%s", details.text)
    log.info("\n%s", samples.text)
    warning = _without_box(config, models)
    if warning:
        log.warning(warning)
    tasks = config.benchmark.tasks.values()
    if levels.rows and not all(task.is_generated for task in tasks):  # the demo's: only in the file
        log.info(levels.text)

    tables = [results, details, samples]
    if levels.rows:
        tables.append(levels)
    for table in tables:
        run.tracker.table(table.name, table.header, table.rows)
    parts = [table.markdown for table in tables]
    parts[0] += f"\n{note}"
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


def results_table(config: Config, models: Sequence[Evaluated]) -> SummaryTable:
    """One row for the base model and one for the trained student."""
    tasks = config.benchmark.tasks
    rows = []
    for model in models:
        metrics = model.under(config.benchmark.grader)
        accuracies = {name: spread(metrics[name].accuracy_at_k) for name in metrics}
        cells = [accuracies.get(name, "–") for name in tasks]
        # A mean over some of the benchmarks would look like one over all.
        is_complete = len(metrics) == len(tasks)
        mean = spread(average(list(metrics.values()))) if is_complete else "–"
        rows.append([config.student.name, *model.labels, *cells, mean])
    labels = [task.label for task in tasks.values()]
    return SummaryTable("results", headline(config), ["student", "method", "B", *labels, "Avg"], rows)


def _graders(config: Config) -> tuple[str, str]:
    """The headline's grader, and the other one."""
    main = config.benchmark.grader
    (other,) = (grader for grader in GRADERS if grader != main)
    return main, other


def details_table(config: Config, models: Sequence[Evaluated]) -> SummaryTable:
    """One row per model and benchmark, with numbers that the headline leaves out."""
    k = config.benchmark.decoding.samples
    main, other = _graders(config)
    header = [
        *("method", "B", "benchmark", "problems"),
        *(f"Acc@{k} ({main})", "95% interval", f"Acc@{k} ({other})"),
        *("truncated", "without box"),
    ]
    rows = []
    for model in models:
        others = model.under(other)
        for name, metrics in model.under(main).items():
            low, high = metrics.interval
            cells = [config.benchmark.tasks[name].label, str(metrics.problems)]
            cells += [spread(metrics.accuracy_at_k), f"{low:.1f} to {high:.1f}"]
            cells += [spread(others[name].accuracy_at_k)]
            cells += [f"{metrics.truncated:.1f}", f"{metrics.unboxed:.1f}"]
            rows.append([*model.labels, *cells])
    return SummaryTable("details", DETAILS.format(k=k), header, rows)


def resampled_table(config: Config, models: Sequence[Evaluated]) -> SummaryTable:
    """One row per model and benchmark, with the metrics that other tools report."""
    k = config.benchmark.decoding.samples
    main, other = _graders(config)
    header = [
        *("method", "B", "benchmark", "samples", "pass@1", "95% interval"),
        *(f"pass@{k}", f"maj@{k}", f"pass@1 ({other})"),
    ]
    rows = []
    for model in models:
        for name, by_grader in model.resampled.items():
            values = by_grader[main]
            low, high = values.interval
            cells = [config.benchmark.tasks[name].label, str(values.samples)]
            cells += [f"{values.pass_at_1:.2f}", f"{low:.1f} to {high:.1f}"]
            cells += [f"{values.pass_at_k:.2f}", f"{values.majority_at_k:.2f}"]
            cells += [f"{by_grader[other].pass_at_1:.2f}"]
            rows.append([*model.labels, *cells])
    return SummaryTable("samples", RESAMPLED.format(grader=main, k=k), header, rows)


def _without_box(config: Config, models: Sequence[Evaluated]) -> str | None:
    """A warning if most answers of a model have no box, which explains an accuracy near 0."""
    names = []
    for model in models:
        shares = [metrics.unboxed for metrics in model.under(config.benchmark.grader).values()]
        share = sum(shares) / len(shares)
        if share > MANY_UNBOXED:
            name = " B=".join(model.labels).removesuffix(" B=–")
            names.append(f"{name} {share:.0f}%")
    if not names:
        return None
    return (
        f"Answers without a \\boxed{{}}, which count as wrong: {', '.join(names)}. If they were cut off,"
        " raise benchmark.decoding.max_new_tokens; if the pool's answers are not boxed, see"
        " pool.answer_pattern (docs/own-pool.md).\n"
    )


def levels_table(config: Config, models: Sequence[Evaluated]) -> SummaryTable:
    """One row per model and benchmark with levels of difficulty (MATH-500: 1 to 5)."""
    by_level = []
    for model in models:
        for name, metrics in model.under(config.benchmark.grader).items():
            levels = {level.level: spread(level.accuracy_at_k) for level in metrics.levels}
            if levels:
                by_level.append(([*model.labels, config.benchmark.tasks[name].label], levels))
    numbers = sorted(set().union(*(levels for _, levels in by_level)))
    header = ["method", "B", "benchmark", *(f"level {number}" for number in numbers)]
    rows = []
    for labels, levels in by_level:
        rows.append([*labels, *(levels.get(number, "–") for number in numbers)])
    title = f"Acc@{config.benchmark.decoding.samples} by level ({config.benchmark.grader} grader)"
    return SummaryTable("levels", title, header, rows)


def evaluated(config: Config, store: Store, plan: Sequence[Step]) -> list[Evaluated]:
    """The models of a run whose metrics are finished, for at least one benchmark."""
    models = []
    trained = [config.method.title, config.budget.name.removeprefix("B")]
    for step in plan:
        if not step.makes(METRICS):
            continue
        metrics = {}
        samples = {}
        for name, artifact in zip(step.labels, step.artifacts, strict=True):
            if store.state(artifact) == "finished":
                metrics[name] = {grader: metrics_of(store, artifact, grader) for grader in GRADERS}
                samples[name] = {grader: resampled(store.path(artifact), grader) for grader in GRADERS}
        if metrics:
            labels = trained if step.model == "trained" else ["Base model", "–"]
            models.append(Evaluated(labels, metrics, samples))
    return models


def spread(value: Any) -> str:
    """mean±std as in the paper's tables."""
    return f"{value.mean:.2f}" if value.std is None else f"{value.mean:.2f}±{value.std:.2f}"


def _where(store: Store, step: Step) -> str:
    return some((str(store.path(artifact)) for artifact in step.artifacts), 1)
