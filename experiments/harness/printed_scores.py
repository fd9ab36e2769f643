"""ĝ of the case study under our prompt and under the authors', beside the values that the paper prints
(App. D.3).
"""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from experiments.harness.candidates import candidates
from experiments.harness.report import Table, number
from experiments.harness.sweep import Sweep, published_values
from lark.output.tables import MISSING, Cell

OURS, AUTHORS = "our prompt", "the pool's messages"
"""Our prompt has the instruction at the end of the user turn. The authors' code sends the pool's messages
as they are, with its system message (`student.instruction=null`).
"""
PRINTED = {
    "phi4-reason-plus.2": 1,
    "phi4-reason-plus.3": 2,
    "gptoss-20b-high.1": 3,
    "gptoss-120b-high.2": 4,
    "phi4-reason-plus.1": 25,
}
"""The rank of each candidate whose ĝ the paper prints, as g_<rank> in experiments/paper/figures.csv."""
Measure = Callable[[pd.Series], float]
RANGES: dict[str, tuple[str, str, Measure]] = {
    "phi4-reason-plus, largest / least": ("spread", "{:.2f}×", lambda g_hat: g_hat.max() / g_hat.min()),
    "nemotron-super-v15, least": ("low", "{:.4f}", pd.Series.min),
    "nemotron-super-v15, largest": ("high", "{:.4f}", pd.Series.max),
}
"""What the paper prints about all rollouts of a teacher: its quantity, its format, and how to measure it."""
Scores = Mapping[str, pd.DataFrame]


def scores_by_prompt(sweep: Sweep) -> Scores:
    """By prompt, the candidates of the question with teacher, g_hat and rank; only those that have been
    scored.
    """
    scores = {}
    for trial in sweep.trials:
        table = candidates(sweep, trial)
        if table is not None:
            prompt = AUTHORS if trial.config.student.instruction is None else OURS
            ranks = table["g_hat"].rank(ascending=False, method="first").astype(int)
            scores[prompt] = table.assign(place=ranks).set_index("candidate_id")
    return scores


def prompts_table(scores: Scores, chosen: Sequence[str]) -> Table:
    """ĝ and rank by prompt: of the candidates that the paper names if the pool has them, else of the
    `chosen` ones.
    """
    named = [name for name in PRINTED if any(name in table.index for table in scores.values())]
    rows = [_candidate_row(name, scores) for name in named or chosen]
    if named:
        rows += [_range_row(label, *values, scores) for label, values in RANGES.items()]
    header = ["candidate", "the paper's ĝ (rank)", f"ĝ (rank), {OURS}", f"ĝ (rank), {AUTHORS}"]
    caption = (
        "Scores under two prompts. Ours has the instruction once, at the end of the user turn; the authors'"
        " code sends the pool's messages as they are, with the system message (`student.instruction=null`)."
    )
    return Table(header, rows, caption)


def _candidate_row(name: str, scores: Scores) -> list[Cell]:
    row = [Cell(name), MISSING]
    if name in PRINTED:
        row[1] = Cell(f"{_printed(name):.5f} ({PRINTED[name]})")
    for prompt in (OURS, AUTHORS):
        table = scores.get(prompt)
        if table is None or name not in table.index:
            row.append(MISSING)
        else:
            row.append(Cell(f"{_score(table, name):.5f} ({table.loc[name, 'place']!s})"))
    return row


def _range_row(label: str, quantity: str, form: str, measure: Measure, scores: Scores) -> list[Cell]:
    teacher = label.partition(",")[0]
    row = [Cell(label), number(published_values("case_study")[f"{quantity}_{teacher}"], form)]
    for prompt in (OURS, AUTHORS):
        cell = MISSING
        if prompt in scores:
            table = scores[prompt]
            cell = number(measure(table.loc[table["teacher"] == teacher, "g_hat"]), form)
        row.append(cell)
    return row


def _score(table: pd.DataFrame, candidate: str) -> float:
    return float(table["g_hat"].to_dict()[candidate])


def _printed(candidate: str) -> float:
    return float(published_values("case_study")[f"g_{PRINTED[candidate]}"])


def difference_summary(scores: Scores) -> str:
    """How far our values are from the printed ones under each prompt; empty for another pool."""
    lines = []
    for prompt, table in scores.items():
        named = [name for name in PRINTED if name in table.index]
        if named:
            ours = ", ".join(f"{_score(table, name):.5f}" for name in named)
            distance = sum(abs(_score(table, name) - _printed(name)) for name in named) / len(named)
            lines.append(f"ĝ with {prompt}: {ours}; mean distance from the paper's values {distance:.5f}.")
    if lines:
        printed = ", ".join(f"{_printed(name):.5f}" for name in PRINTED)
        lines.insert(0, f"ĝ that the paper prints: {printed}.")
    return "\n".join(lines)
