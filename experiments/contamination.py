"""Table 2: benchmark problems that are, or nearly are, questions of the pool; and the closest pairs."""

from dataclasses import replace

import pandas as pd

from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, published
from lark.analysis.contamination import CLOSEST, TABLE
from lark.analysis.kinds import CONTAMINATION_TABLE
from lark.output.tables import MISSING, Cell
from lark.store.integrity import verify

TITLE = "Table 2. Train/eval contamination audit"
COLUMNS = ("N", "exact", "J>=0.4", "J>=0.7", "J>=0.85")
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
    theirs = replace(_table(paper, "The paper's Table 2, for its own pool."), ours=False)
    pool, benchmark = (sweep.trials[0].config.pool.name, sweep.trials[0].config.benchmark.name)
    caption = (
        f"Benchmark problems ({benchmark}) whose highest character 8-gram Jaccard similarity with a question"
        f" of the pool ({pool}) is 1 after normalisation (exact), or at least 0.4, 0.7, 0.85; an exact match"
        " counts in every column. The paper finds no exact match among 811 problems, 31 at 0.4, 8 at 0.7 and"
        " 1 at 0.85, all in MATH levels 2 to 5, and none of them is a leak."
    )
    folder = sweep.folder(sweep.trials[0], CONTAMINATION_TABLE)
    if folder is None:
        return Report(TITLE, caption, pd.DataFrame(), [theirs], found=False)
    verify(folder, TABLE, CLOSEST)
    ours, closest = (pd.read_parquet(folder / name) for name in (TABLE, CLOSEST))
    ours["benchmark"] = ours["benchmark"].replace(NAMES)
    pairs = [
        [
            Cell(f"{row['similarity']:.3f}"),
            Cell(f"{row['benchmark']} {row['problem_id']}"),
            Cell(_excerpt(row["problem"])),
            Cell(row["question_id"]),
            Cell(_excerpt(row["question"])),
        ]
        for row in closest.head(PAIRS).to_dict("records")
    ]
    tables = [
        _table(ours, ""),
        theirs,
        Table(
            ["J", "Problem", "", "Question", ""],
            pairs,
            f"The {len(pairs)} closest pairs; the CSV file has the closest question to every problem.",
            columns=PAIR_COLUMNS,
        ),
    ]
    if sweep.like_the_paper:
        joined = ours.merge(paper, on="benchmark", suffixes=("", "_paper"))
        difference = joined[["benchmark"]].assign(
            **{name: joined[name] - joined[f"{name}_paper"] for name in COLUMNS}
        )
        tables.insert(2, _table(difference, "Ours minus the paper's."))
    data = pd.concat([ours.assign(table="counts"), closest.assign(table="closest")], ignore_index=True)
    return Report(TITLE, caption, data, tables)


def _table(counts: pd.DataFrame, caption: str) -> Table:
    rows = [
        [Cell(row["benchmark"]), *(Cell(str(row[name])) for name in COLUMNS)]
        for row in counts.to_dict("records")
    ]
    return Table(
        ["Benchmark", "N", "Exact", "J ≥ 0.4", "J ≥ 0.7", "J ≥ 0.85"],
        rows or [[Cell("Total"), *[MISSING] * 5]],
        caption,
    )


def _excerpt(text: str) -> str:
    text = " ".join(str(text).split())
    return text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"
