"""App. B.8: how well the forward-pass surrogate ĝ agrees with the exact g*, next to the paper's numbers and
to scores from sketched gradients.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from experiments.harness.exact_gradients import questions_of, sizes
from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, published_values
from lark.analysis.kinds import ESTIMATES_TABLE
from lark.analysis.questions import Question
from lark.analysis.surrogate import Agreement, agreement
from lark.output.style import BLACK, BLUE, GREY, LARK_COLOUR, panels, powers_of_ten, styled
from lark.output.tables import MISSING, Cell
from lark.scoring.learnability import Floats

LABELS = {
    "pearson": "pooled Pearson r (rescaled)",
    "spearman": "pooled Spearman ρ (rescaled)",
    "pearson_within": "Pearson r within a question, mean",
    "spearman_within": "Spearman ρ within a question, mean",
    "recall@1": "Recall@1",
    "recall@3": "Recall@3",
    "recall@10": "Recall@10",
    "attained@3": "share of the attainable g* in the top three",
    "error_mean": "relative RMS error, mean (rescaled)",
    "error_median": "relative RMS error, median (rescaled)",
    "error_raw_mean": "relative RMS error, mean (raw)",
    "error_raw_median": "relative RMS error, median (raw)",
    "mean_cosine": "mean cosine of two trajectories' gradients",
    "pearson_proxy": "Pearson r of ĝ with the diagonal score, mean",
    "pearson_diagonal": "Pearson r of the diagonal score with g*, mean",
}
PAPER = {
    "pearson_r": "pearson", "recall_1": "recall@1", "recall_3": "recall@3", "recall_larger": "recall@10",
    "rms_mean": "error_mean", "rms_median": "error_median",
}  # fmt: skip
"""Our names for the paper's numbers (experiments/paper/figures.csv), if they differ."""
TITLE = "Appendix B.8. The surrogate ĝ against the exact g*"
OTHERS = {"g_gram": "lark_gram", "g_exact": "lark_exact"}
"""Columns of scores from sketched gradients, and the methods that select by them."""
OF_THE_GRADIENTS = ("mean_cosine", "pearson_proxy", "pearson_diagonal")
"""Numbers that do not depend on the score, or are about ĝ's approximations."""

READING = (
    "The paper finds r = 0.748, ρ = 0.566, Recall@3 ≈ 0.56 and a mean error of 0.574 on Qwen-2.5-7B, and"
    " reads them as strong aggregate alignment."
)


def render(sweep: Sweep) -> Report:
    paper = published_values("surrogate").rename(PAPER)
    header = ["", "ĝ", *OTHERS.values(), "the paper's ĝ"]
    if sweep.like_the_paper:
        header.append("difference")
    questions = questions_of(sweep)
    if questions is None:
        rows = _rows(dict.fromkeys(LABELS), {}, paper, sweep)
        caption = "The exact g* of a question's trajectories against the forward pass's ĝ."
        return Report(TITLE, f"{caption} {READING}", pd.DataFrame(), [Table(header, rows)], measured=False)
    surrogate = agreement(questions)
    ours = surrogate.summary()
    others = other_scores(sweep, questions)
    sketched = {name: agreement(questions, scores) for name, scores in others.items()}
    theirs = {name: sketch.summary() for name, sketch in sketched.items()}
    caption = (
        "(a) Exact g* and ĝ, shifted and stretched within each question to the mean and spread of g*, for"
        f" {sizes(questions)}. (b) Recall@B of the top B, mean over questions (of ĝ with the standard"
        " deviation), and the random baseline B/K. (c) Relative p-weighted RMS error of each question."
        f" {READING} The columns lark_gram and lark_exact are scores from sketched gradients"
        " (`method=lark_gram`, `method=lark_exact`). They estimate g* better; that does not make them better"
        " selectors."
    )
    notes = [
        (
            "The paper does not state whether its error is that of the raw or of the rescaled ĝ: (c) shows"
            " the rescaled one, which fits its numbers; raw ĝ and g* have different units. The rescaling"
            " itself aligns questions with each other, so the correlations within questions are shown next to"
            " the pooled ones. The last two rows show which approximation reduces the agreement: ρ̂ for ρ* (ĝ"
            " with the diagonal score), or orthogonal gradients (the diagonal score with g*)."
        ),
    ]
    summary = _summary("g_hat", ours)
    summary = summary.assign(paper=summary["metric"].map(paper))
    summary = summary.assign(difference=summary["value"] - summary["paper"] if sweep.like_the_paper else None)
    parts = [summary]
    for name, values in theirs.items():
        parts.append(_summary(name, values))
    for name, measured in {"g_hat": surrogate, **sketched}.items():
        parts.append(measured.recalls.assign(table="recall", score=name))
    parts.append(surrogate.questions.assign(table="question"))
    parts.append(surrogate.pairs.assign(table="trajectory"))
    data = pd.concat(parts, ignore_index=True)
    table = Table(header, _rows(ours, theirs, paper, sweep))
    return Report(TITLE, caption, data, [table], surrogate_figure(surrogate, sketched), notes)


def _summary(score: str, values: Mapping[str, float]) -> pd.DataFrame:
    """The numbers of a score as rows of the CSV file."""
    rows = {"metric": list(values), "value": list(values.values())}
    return pd.DataFrame(rows).assign(table="summary", score=score)


def other_scores(sweep: Sweep, questions: list[Question]) -> dict[str, list[Floats]]:
    """The scores from sketched gradients of each question's candidates, by column; without those that are
    not finished, or that this student cannot have.
    """
    folder = sweep.folder(sweep.trials[0], ESTIMATES_TABLE)
    if folder is None:
        return {}
    table = pd.read_parquet(folder / ESTIMATES_TABLE.file).set_index(["question_id", "candidate_id"])
    scores: dict[str, list[Floats]] = {}
    for name in OTHERS:
        parts = []
        for question in questions:
            keys = pd.MultiIndex.from_product([[question.question_id], question.table["candidate_id"]])
            parts.append(table[name].reindex(keys).to_numpy(dtype=np.float64))
        if np.isfinite(np.concatenate(parts)).all():
            scores[name] = parts
    return scores


def _rows(
    ours: Mapping[str, float | None],
    theirs: Mapping[str, Mapping[str, float]],
    paper: pd.Series,
    sweep: Sweep,
) -> list[list[Cell]]:
    """One row per number, with those of the sketched scores and the paper's next to it, and the difference
    to the paper's if they can be compared.
    """
    rows = []
    for name, value in ours.items():
        printed = paper.get(name)
        row = [Cell(LABELS[name]), _cell(value)]
        for score in OTHERS:
            summary = {} if name in OF_THE_GRADIENTS else theirs.get(score, {})
            row.append(_cell(summary.get(name)))
        row.append(_cell(printed))
        if sweep.like_the_paper:
            row.append(MISSING if value is None or printed is None else _cell(value - printed))
        rows.append(row)
    return rows


def _cell(value: float | None) -> Cell:
    return MISSING if pd.isna(value) else Cell(f"{value:.3f}".replace("-", "−"))


@styled
def surrogate_figure(agreement: Agreement, others: Mapping[str, Agreement]) -> Figure:
    """App. B.8: (a) g-hat against g*, (b) Recall@B, also of other scores, (c) relative RMS error per
    question.
    """
    figure, (scatter, recall, histogram) = panels(3, width=3.8, height=3.5)
    _scatter(scatter, agreement)
    _recalls(recall, agreement.recalls, others)
    _histogram(histogram, agreement.questions["error"])
    for axes, columns in ((scatter, 2), (recall, 2), (histogram, 3)):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=columns)
    return figure


def _scatter(axes: Axes, agreement: Agreement) -> None:
    x = agreement.pairs["g_star"]
    y = agreement.pairs["g_hat_rescaled"]
    sizes = np.abs(np.concatenate([x, y]))
    linear = float(np.quantile(sizes, 0.5))
    axes.axline((0, 0), slope=1, color=BLACK, linewidth=0.8, linestyle="--", label="ĝ = g*")
    axes.scatter(x, y, s=9, alpha=0.45, color=BLUE, linewidths=0, label="one trajectory")
    axes.set_xscale("symlog", linthresh=linear)
    axes.set_yscale("symlog", linthresh=linear)
    axes.set_xlabel("exact g* (change of ρ per unit of weight, symlog)")
    axes.set_ylabel("ĝ, rescaled within each question (symlog)")
    axes.set_title(f"(a) Pearson r = {agreement.pearson:.3f}, Spearman ρ = {agreement.spearman:.3f}")
    decades = powers_of_ten(linear, float(sizes.max()))
    for axis in (axes.xaxis, axes.yaxis):  # the default has overlapping ticks in the linear part
        axis.set_ticks([*-decades[::-1], 0, *decades])
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())


def _recalls(axes: Axes, recalls: pd.DataFrame, others: Mapping[str, Agreement]) -> None:
    budgets = recalls["budget"]
    style: dict[str, Any] = {"color": LARK_COLOUR, "marker": "o", "markersize": 4, "capsize": 2}
    label = "ĝ (mean ± std over questions)"
    axes.errorbar(budgets, recalls["recall"], yerr=recalls["std"], label=label, **style)
    for (name, other), colour in zip(others.items(), (BLUE, BLACK), strict=False):
        theirs = other.recalls
        axes.plot(theirs["budget"], theirs["recall"], color=colour, marker=".", label=OTHERS[name])
    axes.plot(budgets, recalls["random"], color=GREY, linestyle="--", label="random, B/K")
    axes.set_ylim(-0.02, 1.05)
    axes.set_xlabel("budget B (trajectories)")
    axes.set_ylabel("Recall@B (share of the exact top B)")
    axes.set_title("(b) Agreement of the selections")


def _histogram(axes: Axes, errors: pd.Series) -> None:
    axes.hist(errors, bins=min(20, max(5, len(errors) // 3)), color=BLUE, alpha=0.75, label="questions")
    axes.axvline(errors.mean(), color=LARK_COLOUR, label=f"mean {errors.mean():.3f}")
    axes.axvline(errors.median(), color=BLACK, linestyle=":", label=f"median {errors.median():.3f}")
    axes.set_xlabel("‖ĝ − g*‖ / ‖g*‖ (rescaled ĝ, no unit)")
    axes.set_ylabel("questions")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("(c) Relative RMS error")
