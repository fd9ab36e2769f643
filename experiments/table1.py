"""Table 1: Acc@5 of every method, budget and student on every benchmark, next to the paper's numbers."""

from dataclasses import replace

import pandas as pd

from experiments.harness import accuracy
from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, method_label, published, published_value
from lark.output.tables import MISSING, Cell
from lark.selection.choose import UNDECIDED
from lark.selection.write import SELECTION

LABELS = {
    "qwen7b": "Qwen-2.5-7B",
    "llama3b": "Llama-3.2-3B",
    "qwen1.5b": "Qwen-2.5-1.5B",
    "smollm2": "SmolLM2-135M",
    "demo": "Demo",
}
PAPER_LABELS = {
    "aime24": "AIME",
    "amc": "AMC",
    "gpqa_diamond": "GPQA",
    "math500": "MATH-500",
    accuracy.AVERAGE: "Avg",
}


def render(sweep: Sweep) -> Report:
    data = collect(sweep)
    tables = [table(data, "mean", "std")]
    if sweep.like_the_paper:
        tables.append(table(data, "difference", None, "Ours minus the paper's, in points."))
    paper = published("table1").rename(columns={"mean": "paper", "std": "paper_std"})
    paper = paper.assign(
        label=paper["benchmark"].map(PAPER_LABELS), method_label=paper["method"].map(method_label)
    )
    theirs = table(paper, "paper", "paper_std", "The paper's Table 1, for its own students and benchmarks.")
    tables.append(replace(theirs, ours=False))
    decoding = sweep.trials[0].config.benchmark.decoding
    return Report(
        title="Table 1. Trajectory selection methods under two budgets",
        caption=(
            f"Acc@{decoding.samples} in percent, mean ± standard deviation over {len(decoding.seeds)}"
            " decoding seeds; the best of each column and student in bold. Avg is the mean of the"
            " benchmarks; its spread is that of the seeds' averages. The paper finds LARK first in every"
            f" column of all six settings, by {published_value('table1', 'gain_b1'):.2f} (B=1) and"
            f" {published_value('table1', 'gain_b3'):.2f} (B=3) points of Avg over RSR on Qwen-2.5-7B."
        ),
        data=data,
        tables=tables,
        found=accuracy.any_found(data),
        notes=[
            *undecided(sweep),
            (
                "The paper's Avg of LARK at B=1 on Qwen-2.5-1.5B, 41.09, is kept as printed; its four columns"
                " give 40.20."
            ),
        ],
    )


def undecided(sweep: Sweep) -> list[str]:
    """One sentence per trial in which ties leave most of the selection to the candidates' ids."""
    notes = []
    for trial in sweep.trials:
        selection = trial.artifact(SELECTION)
        counts = sweep.store.manifest(selection).counts if selection else {}
        if counts.get("tied", 0) > counts.get("questions", 0) / 2:
            config = trial.config
            name = (
                f"{method_label(config.method.key)} at B={config.budget.per_question} on"
                f" {config.student.name}"
            )
            notes.append(f"{name}: for {counts['tied']} of {counts['questions']} questions {UNDECIDED}.")
    return notes


def collect(sweep: Sweep) -> pd.DataFrame:
    """One row per student, method, budget and benchmark, including Avg, with the paper's number if it has
    one.
    """
    rows = []
    for student in dict.fromkeys(trial.config.student.name for trial in sweep.trials):
        trials = [trial for trial in sweep.trials if trial.config.student.name == student]
        base = sweep.metrics(trials[0], trained=False)
        for budget in dict.fromkeys(trial.config.budget.per_question for trial in trials):
            rows += [
                {**row, "method": "base", "weighting": None, "budget": budget}
                for row in accuracy.rows(trials[0], base)
            ]
        for trial in trials:
            rows += accuracy.rows(trial, sweep.metrics(trial))
    data = pd.DataFrame(rows)
    data = data.assign(method_label=data["method"].map(method_label))
    paper = published("table1").rename(columns={"mean": "paper", "std": "paper_std"})
    data = data.merge(paper, how="left", on=["student", "method", "budget", "benchmark"])
    return data.assign(difference=data["mean"] - data["paper"])


def table(data: pd.DataFrame, value: str, deviation: str | None, caption: str = "") -> Table:
    """A table in the paper's layout: one row per student and method, with the benchmarks under each budget."""
    columns = [
        (budget, label) for budget in sorted(data["budget"].unique()) for label in data["label"].unique()
    ]
    cells = {
        (row["student"], row["method_label"], row["budget"], row["label"]): row
        for row in data.to_dict("records")
    }
    best = data.groupby(["student", "budget", "label"])[value].max()
    rows = []
    for student in data["student"].unique():
        for method in data.loc[data["student"] == student, "method_label"].unique():
            row = [Cell(LABELS.get(student, student)), Cell(method)]
            for budget, label in columns:
                entry = cells.get((student, method, budget, label))
                if entry is None or pd.isna(entry[value]):
                    row.append(MISSING)
                elif deviation is None:
                    row.append(Cell(f"{entry[value]:+.2f}".replace("-", "−")))
                else:
                    is_best = bool(entry[value] == best.get((student, budget, label)))
                    row.append(accuracy.cell(entry[value], entry[deviation], is_best))
            rows.append(row)
    return Table(
        ["Model", "Method", *(f"{label} (B={budget})" for budget, label in columns)], rows, caption, labels=2
    )
