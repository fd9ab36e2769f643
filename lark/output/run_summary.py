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


def metrics_of(store: Store, artifact: Artifact, grader: str) -> BenchmarkMetrics:
    """The metrics of an artifact under one grader."""
    verify(store.path(artifact))
    values = json.loads((store.path(artifact) / METRICS.file).read_text(encoding="utf-8"))[grader]
    return BenchmarkMetrics.from_dict(values)


def run_summary(run: "Pipeline") -> None:
    """Print the tables, write them to the run's folder, and send them to the tracker."""
    config, store, outcomes, tracker, folder = run.config, run.store, run.outcomes, run.tracker, run.folder
    graded = [step for step in run.plan if step.makes(METRICS)]
    selected = _selected(store, run.plan)
    header, rows = results_table(config, store, graded)
    if rows:
        decoding = config.benchmark.decoding
        title = headline(config)
        note = "These are the demo's numbers, not the paper's results: the demo only exercises the code.\n"
        note = note if is_demo(config.student.name) else ""
        log.info("\n%s\n\n%s\n%s", title, text_table(header, rows, right=3), f"\n{note}" if note else "")
        detail_header, details = details_table(config, store, graded)
        log.info(
            "\n%s\n\n%s\n", DETAILS.format(k=decoding.samples), text_table(detail_header, details, right=3)
        )
        if unread := _unread(config, store, graded):
            log.warning(unread)
        level_header, levels = levels_table(config, store, graded)
        by_level = f"Acc@{decoding.samples} by level ({config.benchmark.grader} grader)"
        if levels and any(
            not is_demo(task.path) for task in config.benchmark.tasks.values()
        ):  # the demo's: only in the file
            log.info("%s\n\n%s\n", by_level, text_table(level_header, levels, right=3))
        text = f"{title}\n\n{markdown_table(header, rows)}\n{note}"
        text += f"\n{DETAILS.format(k=decoding.samples)}\n\n{markdown_table(detail_header, details)}"
        text += f"\n{by_level}\n\n{markdown_table(level_header, levels)}" if levels else ""
        text += f"\n{said}.\n" if (said := sentence(selected)) else ""
        text += f"\nNote: {said}.\n" if (said := length_note(config, selected)) else ""
        write_text(folder / "summary.md", text)
        tracker.table("results", header, rows)
        tracker.table("details", detail_header, details)
        if levels:
            tracker.table("levels", level_header, levels)
    made = [
        [
            o.step.stage or "–",
            o.step.title,
            f"{o.seconds:.1f} s" if o.made else "reused",
            _where(store, o.step),
        ]
        for o in outcomes
    ]
    summary = folder / ("summary.md" if rows else "summary.json")
    log.info(
        "%s\n\nSummary: %s", text_table(["stage", "operation", "time", "artifact"], made, right=4), summary
    )
    seconds = {o.step.title: round(o.seconds, 2) for o in outcomes if o.made}
    results = [dict(zip(header, row, strict=True)) for row in rows]
    write_text(
        folder / "summary.json",
        json.dumps({"results": results, "seconds": seconds, "selection": selected}, indent=2) + "\n",
    )
    tracker.log({f"seconds/{name}": value for name, value in seconds.items()})


def _selected(store: Store, plan: Sequence[Step]) -> dict[str, float]:
    """What the run's selection is like (lark/selection/character.py); empty for a run without a selection,
    and for selections of older versions.
    """
    made = [artifact for step in plan if step.makes(SELECTION) for artifact in step.artifacts]
    counts = store.manifest(made[0]).counts if made and store.state(made[0]) == "finished" else {}
    return {name: counts[name] for name in CHARACTER if name in counts}


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


DETAILS = (
    "By benchmark, in percent: Acc@{k} and its 95% interval over problems, the other grader, and single"
    " samples"
)


def details_table(config: Config, store: Store, graded: Sequence[Step]) -> tuple[list[str], list[list[str]]]:
    """One row per model and benchmark, with numbers that the headline leaves out."""
    k = config.benchmark.decoding.samples
    main = config.benchmark.grader
    (other,) = (grader for grader in GRADERS if grader != main)
    header = ["method", "B", "benchmark", "problems", f"Acc@{k} ({main})", "95% interval", f"Acc@{k} ({other})",
              f"one sample ({main})", f"one sample ({other})", "truncated", "without box"]  # fmt: skip
    rows = []
    for model, by_grader in _evaluated(config, store, graded):
        for name, values in by_grader.items():
            ours, others = values[main], values[other]
            low, high = ours.interval
            rows.append(
                [*model, config.benchmark.tasks[name].label, str(ours.problems), spread(ours.accuracy_at_k),
                 f"{low:.1f} to {high:.1f}", spread(others.accuracy_at_k), spread(ours.sample_accuracy),
                 spread(others.sample_accuracy), f"{ours.truncated:.1f}", f"{ours.unboxed:.1f}"]
            )  # fmt: skip
    return header, rows


def _unread(config: Config, store: Store, graded: Sequence[Step]) -> str | None:
    """A warning if most answers of a model have no box, which explains an accuracy near 0."""
    found = {
        " B=".join(model).removesuffix(" B=–"): [
            values[config.benchmark.grader].unboxed for values in by_grader.values()
        ]
        for model, by_grader in _evaluated(config, store, graded)
    }
    worst = {
        name: sum(shares) / len(shares) for name, shares in found.items() if sum(shares) / len(shares) > MANY
    }
    if not worst:
        return None
    said = ", ".join(f"{name} {share:.0f}%" for name, share in worst.items())
    return (
        f"Answers without a \\boxed{{}}, which count as wrong: {said}. If they were cut off, raise"
        " benchmark.decoding.max_new_tokens; if the pool's answers are not boxed, see pool.answer_pattern"
        " (docs/own-pool.md).\n"
    )


MANY = 80
"""Percentage of answers without a box above which they explain a low accuracy."""


def levels_table(config: Config, store: Store, graded: Sequence[Step]) -> tuple[list[str], list[list[str]]]:
    """One row per model and benchmark with levels of difficulty (MATH-500: 1 to 5)."""
    found = [
        (model, name, {level.level: level for level in values[config.benchmark.grader].levels})
        for model, by_grader in _evaluated(config, store, graded)
        for name, values in by_grader.items()
    ]
    numbers = sorted({number for _, _, levels in found for number in levels})
    rows = [
        [*model, config.benchmark.tasks[name].label,
         *(spread(levels[n].accuracy_at_k) if n in levels else "–" for n in numbers)]
        for model, name, levels in found
        if levels
    ]  # fmt: skip
    return ["method", "B", "benchmark", *(f"level {number}" for number in numbers)], rows


def _evaluated(
    config: Config, store: Store, graded: Sequence[Step]
) -> list[tuple[list[str], dict[str, dict[str, BenchmarkMetrics]]]]:
    """Each evaluated model (method and budget), with its metrics by benchmark and grader."""
    found = []
    for step in graded:
        finished = {
            t: a for t, a in zip(step.labels, step.artifacts, strict=True) if store.state(a) == "finished"
        }
        metrics = {
            name: {grader: metrics_of(store, artifact, grader) for grader in GRADERS}
            for name, artifact in finished.items()
        }
        if metrics:
            trained = [config.method.title, config.budget.name.removeprefix("B")]
            found.append((trained if step.model == "trained" else ["Base model", "–"], metrics))
    return found


def spread(value: Any) -> str:
    """mean±std as in the paper's tables."""
    return f"{value.mean:.2f}" + ("" if value.std is None else f"±{value.std:.2f}")


def _where(store: Store, step: Step) -> str:
    return some((str(store.path(artifact)) for artifact in step.artifacts), 1)
