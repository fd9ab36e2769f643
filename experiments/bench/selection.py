"""Time to score and select a whole pool from the statistics, from memory to memory.

Run as: python -m experiments.bench.selection [--quick]
Time: 30 seconds, 5 seconds with --quick.
Expect: 3 of 33 candidates for each of 5,000 questions in under 1 s, for every method and weighting.
Writes outputs/bench/selection.csv.
"""

import logging
import time
from dataclasses import dataclass

import numpy as np
import pandas as pd

from experiments.bench._measuring import spread
from experiments.bench._output import command_line, table, write_csv
from lark.printing import log_to
from lark.scoring.methods import METHODS
from lark.selection.character import character
from lark.selection.rules import WEIGHTINGS, select
from lark.work.entry import run_main

log = logging.getLogger("bench.selection")
QUESTIONS = 5000
CANDIDATES = 33
"""The paper's proportions."""


@dataclass(frozen=True)
class SelectionResult:
    """One row of the table: scores from statistics, ranking, weights and character of the pool."""

    method: str
    weighting: str
    questions: int
    candidates: int
    seconds: float
    lowest: float
    highest: float


COLUMNS = {
    "method": "{r.method}",
    "weighting": "{r.weighting}",
    "seconds": "{r.seconds:.3f}",
    "lowest-highest": "{r.lowest:.3f}-{r.highest:.3f}",
}


def random_statistics() -> pd.DataFrame:
    """The statistics of a pool, in random order."""
    rng = np.random.default_rng(0)
    rows = QUESTIONS * CANDIDATES
    n_tokens = rng.integers(500, 30_000, rows)
    nll = n_tokens * rng.gamma(4, 0.1, rows)
    columns = {
        "question_id": np.repeat([f"question-{n}" for n in range(QUESTIONS)], CANDIDATES),
        "candidate_id": np.tile([f"teacher-{n}" for n in range(CANDIDATES)], QUESTIONS),
        "n_tokens": n_tokens,
        "nll": nll,
        "brier": nll * rng.uniform(0.2, 0.7, rows),
        "rank_sum": n_tokens * rng.uniform(1, 20, rows),
    }
    return pd.DataFrame(columns).sample(frac=1, random_state=0)


def select_once(pool: pd.DataFrame, name: str, weighting: str) -> float:
    """Seconds of one selection."""
    method = METHODS[name]
    start = time.perf_counter()
    score = method.score(pool)
    selection = select(
        score,
        pool["question_id"],
        pool["candidate_id"],
        3,
        weighting,
        higher_is_better=method.higher_is_better,
    )
    character(score if method.higher_is_better else -score, pool, selection.row)
    return time.perf_counter() - start


def measure_selection(rounds: int) -> list[SelectionResult]:
    """Measure every method that reads the statistics, and LARK with every weighting."""
    pool = random_statistics()
    cases = [(name, "uniform") for name, method in METHODS.items() if method.needs == {"statistics"}]
    cases += [("lark", weighting) for weighting in WEIGHTINGS if weighting != "uniform"]
    results = []
    for name, weighting in cases:
        seconds = [select_once(pool, name, weighting) for _ in range(rounds)]
        results.append(SelectionResult(name, weighting, QUESTIONS, CANDIDATES, *spread(seconds)))
    return results


def main() -> None:
    log_to()
    arguments = command_line(__doc__, "one round instead of five").parse_args()
    results = measure_selection(1 if arguments.quick else 5)
    write_csv(results, "selection.csv")
    log.info(
        "3 of %d candidates for each of %s questions (under 1 s):\n\n%s",
        CANDIDATES, f"{QUESTIONS:,}", table(results, COLUMNS, right=2),
    )  # fmt: skip


if __name__ == "__main__":
    run_main(main)
