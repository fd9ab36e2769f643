"""The tables of accuracies in a run's summary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lark.config import GRADERS, Config
from lark.output.accuracies import AVERAGE, Evaluated, spread
from lark.output.tables import markdown_table
from lark.printing import text_table

DETAILS = (
    "By benchmark, in percent: both accuracies with their 95% intervals over problems, and the other grader"
)
RESAMPLED = (
    "The same samples, read in two more ways, in percent: pass@{k}, the probability that {k} of a problem's"
    " samples contain a correct one; maj@{k}, how often the most frequent of {k} answers is correct"
)


@dataclass(frozen=True)
class SummaryTable:
    """A table of the summary."""

    name: str
    """In the tracker."""
    title: str
    header: list[str]
    rows: list[list[str]]
    labels: int = 3
    """Columns that name a row."""

    @property
    def text(self) -> str:
        return f"{self.title}\n\n{text_table(self.header, self.rows, right=self.labels)}\n"

    @property
    def markdown(self) -> str:
        return f"{self.title}\n\n{markdown_table(self.header, self.rows)}"


def headline(config: Config) -> str:
    """Title of the results table, which defines both accuracies."""
    decoding = config.benchmark.decoding
    k = decoding.samples
    over = f"mean ± standard deviation over {len(decoding.seeds)} decoding seeds"
    if len(decoding.seeds) == 1:
        over = f"decoding seed {decoding.seeds[0]}"
    return (
        f"Accuracy in percent ({config.benchmark.grader} grader)\n"
        f"Acc@{k}: the share of problems that at least one of {k} samples solves ({over})\n"
        "pass@1: the share of samples that are correct (and its 95% interval over problems)"
    )


def results_table(config: Config, models: Sequence[Evaluated]) -> SummaryTable:
    """Two rows for the base model and two for the trained student: Acc@k, and pass@1."""
    tasks = config.benchmark.tasks
    rows = []
    for model in models:
        pairs = model.pairs(config)
        at_k = {name: spread(pair.at_k) for name, pair in pairs.items()}
        single = {name: str(pair.single) for name, pair in pairs.items()}
        labels = [config.student.name, *model.labels]
        metric = f"Acc@{config.benchmark.decoding.samples}"
        rows.append([*labels, metric, *_cells(at_k, [*tasks, AVERAGE])])
        rows.append([*labels, "pass@1", *_cells(single, [*tasks, AVERAGE])])
    columns = [task.label for task in tasks.values()]
    header = ["student", "method", "B", "metric", *columns, "Avg"]
    return SummaryTable("results", headline(config), header, rows, labels=4)


def _cells(values: Mapping[str, str], names: Sequence[str]) -> list[str]:
    return [values.get(name, "–") for name in names]


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
        *(f"Acc@{k} ({main})", "95% interval", f"pass@1 ({main})"),
        *(f"Acc@{k} ({other})", f"pass@1 ({other})"),
        *("truncated", "without box"),
    ]
    rows = []
    for model in models:
        others = model.under(other)
        for name, metrics in model.under(main).items():
            low, high = metrics.interval
            cells = [config.benchmark.tasks[name].label, str(metrics.problems)]
            cells += [spread(metrics.accuracy_at_k), f"{low:.1f} to {high:.1f}"]
            cells += [str(model.resampled[name][main].single)]
            cells += [spread(others[name].accuracy_at_k), str(model.resampled[name][other].single)]
            cells += [f"{metrics.truncated:.1f}", f"{metrics.unboxed:.1f}"]
            rows.append([*model.labels, *cells])
    return SummaryTable("details", DETAILS, header, rows)


def resampled_table(config: Config, models: Sequence[Evaluated]) -> SummaryTable:
    """One row per model and benchmark, with two more metrics that other tools report."""
    k = config.benchmark.decoding.samples
    header = ["method", "B", "benchmark", "samples"]
    for grader in _graders(config):
        header += [f"pass@{k} ({grader})", f"maj@{k} ({grader})"]
    rows = []
    for model in models:
        for name, by_grader in model.resampled.items():
            cells = [config.benchmark.tasks[name].label]
            for grader in _graders(config):
                values = by_grader[grader]
                cells += [f"{values.pass_at_k:.2f}", f"{values.majority_at_k:.2f}"]
            cells.insert(1, str(values.samples))
            rows.append([*model.labels, *cells])
    return SummaryTable("samples", RESAMPLED.format(k=k), header, rows)


def levels_table(config: Config, models: Sequence[Evaluated]) -> SummaryTable:
    """Two rows per model and benchmark with levels of difficulty (MATH-500: 1 to 5)."""
    k = config.benchmark.decoding.samples
    by_level = []
    for model in models:
        for name, metrics in model.under(config.benchmark.grader).items():
            labels = [*model.labels, config.benchmark.tasks[name].label]
            at_k = {level.level: spread(level.accuracy_at_k) for level in metrics.levels}
            single = {level.level: spread(level.sample_accuracy) for level in metrics.levels}
            if at_k:
                by_level.append(([*labels, f"Acc@{k}"], at_k))
                by_level.append(([*labels, "pass@1"], single))
    numbers = sorted(set().union(*(levels for _, levels in by_level)))
    header = ["method", "B", "benchmark", "metric", *(f"level {number}" for number in numbers)]
    rows = []
    for labels, levels in by_level:
        rows.append([*labels, *(levels.get(number, "–") for number in numbers)])
    title = (
        f"Acc@{k} and pass@1 by level ({config.benchmark.grader} grader), mean ± standard deviation over"
        " decoding seeds"
    )
    return SummaryTable("levels", title, header, rows, labels=4)
