"""Table 2: benchmark problems that are, or nearly are, questions of the pool; and the closest pairs."""

from dataclasses import replace

import pandas as pd

from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, published
from lark.analysis.contamination import CLOSEST, TABLE
from lark.analysis.kinds import CONTAMINATION_TABLE
from lark.output.tables import Cell
from lark.store.integrity import verify

TITLE = "Table 2. Train/eval contamination audit"
COLUMNS = [
    ("Benchmark", "benchmark", "{}"),
    ("N", "N", "{}"),
    ("Exact", "exact", "{}"),
    ("J ≥ 0.4", "J>=0.4", "{}"),
    ("J ≥ 0.7", "J>=0.7", "{}"),
    ("J ≥ 0.85", "J>=0.85", "{}"),
]
PAIRS = 10
EXCERPT = 160
PAIR_COLUMNS = r"lp{0.13\linewidth}p{0.29\linewidth}p{0.1\linewidth}p{0.29\linewidth}"
"""LaTeX column types of the table of closest pairs."""
PAPER = {"problems": "N", "j40": "J>=0.4", "j70": "J>=0.7", "j85": "J>=0.85"}
"""Our names of the columns of experiments/paper/contamination.csv."""
NAMES = {"AIME": "AIME-2024", "GPQA": "GPQA-Diamond"}
"""Our benchmarks' labels in the paper's Table 2, where they differ."""


def render(sweep: Sweep) -> Report:
    paper = published("contamination").rename(columns=PAPER)
    theirs = replace(Table.of(paper, COLUMNS, "The paper's Table 2, for its own pool."), ours=False)
    config = sweep.trials[0].config
    caption = (
        f"Benchmark problems ({config.benchmark.name}) whose highest character 8-gram Jaccard similarity with"
        f" a question of the pool ({config.pool.name}) is 1 after normalisation (exact), or at least 0.4,"
        " 0.7, 0.85; an exact match counts in every column. The paper finds no exact match among 811"
        " problems, 31 at 0.4, 8 at 0.7 and 1 at 0.85, all in MATH levels 2 to 5, and none of them is a leak."
    )
    folder = sweep.folder(sweep.trials[0], CONTAMINATION_TABLE)
    if folder is None:
        return Report(TITLE, caption, pd.DataFrame(), [theirs], measured=False)
    verify(folder, TABLE, CLOSEST)
    ours = pd.read_parquet(folder / TABLE)
    ours["benchmark"] = ours["benchmark"].replace(NAMES)
    closest = pd.read_parquet(folder / CLOSEST)
    tables = [Table.of(ours, COLUMNS), theirs]
    if sweep.like_the_paper:
        tables.append(_difference(ours.set_index("benchmark"), paper.set_index("benchmark")))
    tables.append(_pairs(closest.head(PAIRS)))
    data = pd.concat([ours.assign(table="counts"), closest.assign(table="closest")], ignore_index=True)
    return Report(TITLE, caption, data, tables)


def _difference(ours: pd.DataFrame, paper: pd.DataFrame) -> Table:
    """Differences for the benchmarks that both have."""
    shared = ours.index.intersection(paper.index, sort=False)
    counts = [name for _, name, _ in COLUMNS[1:]]
    difference = ours.loc[shared, counts] - paper.loc[shared, counts]
    return Table.of(difference.reset_index(), COLUMNS, "Ours minus the paper's.")


def _pairs(closest: pd.DataFrame) -> Table:
    rows = []
    for row in closest.to_dict("records"):
        texts = [
            f"{row['similarity']:.3f}",
            f"{row['benchmark']} {row['problem_id']}",
            _excerpt(row["problem"]),
            row["question_id"],
            _excerpt(row["question"]),
        ]
        rows.append([Cell(text) for text in texts])
    caption = f"The {len(rows)} closest pairs; the CSV file has the closest question to every problem."
    return Table(["J", "Problem", "", "Question", ""], rows, caption, columns=PAIR_COLUMNS)


def _excerpt(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"
