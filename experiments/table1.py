"""Table 1: Acc@5 of every method, budget and student on every benchmark, next to the paper's numbers."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd

from experiments.harness import accuracy
from experiments.harness.report import Report, Table, number
from experiments.harness.sweep import Sweep, method_label, published_values
from lark.output.tables import MISSING, Cell
from lark.selection.choose import UNDECIDED
from lark.selection.write import SELECTION

Entry = dict[Hashable, Any]
"""A row of the data."""
LABELS = {
    "qwen7b": "Qwen-2.5-7B",
    "llama3b": "Llama-3.2-3B",
    "qwen1.5b": "Qwen-2.5-1.5B",
    "smollm2": "SmolLM2-135M",
    "qwen3_0.6b": "Qwen3-0.6B",
    "qwen3_1.7b": "Qwen3-1.7B",
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
    tables = [table(data, "mean", "std"), single_table(data)]
    if sweep.like_the_paper:
        tables.append(table(data, "difference", None, "Ours minus the paper's, in points."))
    paper = accuracy.paper_table()
    paper = paper.assign(
        label=paper["benchmark"].map(PAPER_LABELS), method_label=paper["method"].map(method_label)
    )
    theirs = table(paper, "paper", "paper_std", "The paper's Table 1, for its own students and benchmarks.")
    tables.append(replace(theirs, ours=False))
    decoding = sweep.trials[0].config.benchmark.decoding
    seeds = f"{len(decoding.seeds)} decoding"
    if len(_seeds(sweep)) > 1:
        seeds = f"{len(_seeds(sweep))} training"
    gains = published_values("table1")
    return Report(
        title="Table 1. Trajectory selection methods under two budgets",
        caption=(
            f"Acc@{decoding.samples} in percent, mean ± standard deviation over {seeds}"
            " seeds; the best of each column and student in bold. Avg is the mean of the"
            " benchmarks; its spread is that of the seeds' averages. The paper finds LARK first in every"
            f" column of all six settings, by {gains['gain_b1']:.2f} (B=1) and {gains['gain_b3']:.2f} (B=3)"
            " points of Avg over RSR on Qwen-2.5-7B."
        ),
        data=data,
        tables=tables,
        measured=accuracy.is_measured(data),
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
        if selection is None:
            continue
        counts = sweep.store.manifest(selection).counts
        tied = counts.get("tied", 0)
        questions = counts.get("questions", 0)
        if tied > questions / 2:
            config = trial.config
            method = f"{method_label(config.method.key)} at B={config.budget.per_question}"
            notes.append(
                f"{method} on {config.student.name}: for {tied} of {questions} questions {UNDECIDED}."
            )
    return notes


def collect(sweep: Sweep) -> pd.DataFrame:
    """One row per student, method, budget and benchmark, including Avg, with the paper's number if it has
    one.
    """
    rows = []
    for student in dict.fromkeys(trial.config.student.name for trial in sweep.trials):
        trials = [trial for trial in sweep.trials if trial.config.student.name == student]
        base = accuracy.rows(sweep, trials[0], trained=False)
        for budget in dict.fromkeys(trial.config.budget.per_question for trial in trials):
            for row in base:
                rows.append({**row, "method": "base", "weighting": None, "budget": budget})
        for trial in trials:
            rows += accuracy.rows(sweep, trial)
    data = pd.DataFrame(rows)
    if len(_seeds(sweep)) > 1:
        data = over_seeds(data)
    data = data.assign(method_label=data["method"].map(method_label))
    data = data.merge(accuracy.paper_table(), how="left", on=["student", "method", "budget", "benchmark"])
    return data.assign(difference=data["mean"] - data["paper"])


def over_seeds(data: pd.DataFrame) -> pd.DataFrame:
    """One row for the runs that differ only in the training seed: the mean of their Acc@k and its standard
    deviation, the mean of their pass@1, and the mean bounds of its interval, which is then that of one run.
    """
    key = ["student", "method", "weighting", "budget", "benchmark", "label"]
    single = ["pass_at_1", "pass_at_1_low", "pass_at_1_high"]
    data = data.astype(dict.fromkeys(["mean", *single], float))
    groups = data.groupby(key, sort=False, dropna=False)
    accuracy_at_k = groups["mean"].agg(["mean", "std"])
    return accuracy_at_k.join(groups[single].mean()).reset_index()


def _seeds(sweep: Sweep) -> set[int]:
    return {trial.config.training.seed for trial in sweep.trials}


def table(data: pd.DataFrame, value: str, deviation: str | None, caption: str = "") -> Table:
    """A table in the paper's layout: a row per student and method, with the benchmarks under each budget."""
    best = data.groupby(["student", "budget", "label"])[value].max()

    def shown(entry: Entry) -> Cell:
        if deviation is None:
            return number(entry[value], "{:+.2f}")
        is_best = bool(entry[value] == best[(entry["student"], entry["budget"], entry["label"])])
        return accuracy.cell(entry[value], entry[deviation], is_best)

    return _in_layout(data, shown, caption)


def single_table(data: pd.DataFrame) -> Table:
    """pass@1 in the same layout."""
    return _in_layout(data, accuracy.single_cell, accuracy.SINGLE)


def _in_layout(data: pd.DataFrame, shown: Callable[[Entry], Cell], caption: str) -> Table:
    columns = list(product(sorted(data["budget"].unique()), data["label"].unique()))
    rows = []
    for _, part in data.groupby(["student", "method_label"], sort=False):
        student = part["student"].iloc[0]
        entries = {(entry["budget"], entry["label"]): entry for entry in part.to_dict("records")}
        row = [Cell(LABELS.get(student, student)), Cell(part["method_label"].iloc[0])]
        for column in columns:
            row.append(shown(entries[column]) if column in entries else MISSING)
        rows.append(row)
    header = ["Model", "Method", *(f"{label} (B={budget})" for budget, label in columns)]
    return Table(header, rows, caption, labels=2)
