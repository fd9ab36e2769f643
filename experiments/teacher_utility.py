"""Figure 3c: a teacher's mean g-hat against the accuracy of a student trained on this teacher alone, and
GRACE beside it.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import pearsonr, spearmanr

from experiments.harness import accuracy
from experiments.harness.candidates import candidates, selection
from experiments.harness.report import Report, Table, number
from experiments.harness.sweep import Sweep, published_values
from lark.analysis.grace import by_teacher
from lark.analysis.kinds import TEACHERS_TABLE
from lark.output.style import LARK_COLOUR, OKABE_ITO, label_points, panels, plain_label
from lark.output.tables import Cell

ENOUGH = 3
"""Minimum number of teachers for a correlation."""


COLUMNS = ("Teacher", "mean ĝ", "GRACE", "G-Norm")


def render(sweep: Sweep) -> Report:
    data = collect(sweep)
    trained = data.dropna(subset=["mean", "mean_g_hat"])
    r, p = correlation(trained["mean_g_hat"], trained["mean"])
    judged = data.dropna(subset=["mean", "grace"])
    rank = float("nan")
    if _varies(judged):
        rank = float(spearmanr(judged["grace"], judged["mean"]).statistic)
    paper = published_values("teacher_utility")
    label = data["label"].iloc[0]
    rows = []
    for row in data.sort_values("mean_g_hat", ascending=False).to_dict("records"):
        cells = [Cell(row["teacher"]), number(row["mean_g_hat"], "{:.5f}")]
        cells += [number(row["grace"], "{:.4g}"), number(row["gnorm"], "{:.4g}")]
        rows.append([*cells, accuracy.cell(row["mean"], row["std"]), accuracy.single_cell(row)])
    ours = "too few teachers are finished"
    difference = ""
    if np.isfinite(r):
        ours = f"Pearson r = {r:.2f}, p = {p:.3f}, over {len(trained)} teachers"
        if sweep.like_the_paper:
            difference = f" (ours minus the paper's: {r - paper['pearson_r']:+.2f})"
    notes = [
        "The paper does not state how many of a teacher's rollouts it trains on; here it is"
        f" {trained_on(sweep)}."
    ]
    if data["grace"].notna().any():
        notes.append(_grace_note(sweep, judged, rank))
    samples = sweep.trials[0].config.benchmark.decoding.samples
    return Report(
        title="Figure 3c. Does a teacher's ĝ predict its students?",
        caption=(
            "Each point is a teacher: the mean ĝ of all its trajectories under the untrained student, and"
            f" the accuracy (Acc@{samples}, {label}) of a student trained on {trained_on(sweep)}. Here:"
            f" {ours}. The paper finds r = {paper['pearson_r']:.2f}, p = {paper['p_value']:.3f} over 11"
            f" teachers on AMC{difference}: above {paper['high_accuracy']:g}% for GPT-OSS-20B, GPT-OSS-120B,"
            f" Phi-4-R+ and QwQ-32B, below {paper['low_accuracy']:g}% for Magistral-S and Nemotron."
        ),
        data=data.assign(
            pearson_r=r,
            p_value=p,
            paper_r=paper["pearson_r"],
            paper_p=paper["p_value"],
            grace_spearman=rank,
        ),
        tables=[Table([*COLUMNS, f"Acc@{samples} ({label})", f"pass@1 ({label})"], rows)],
        figure=_figure(trained, r, p, f"Acc@{samples} ({plain_label(label)}, %)"),
        notes=notes,
        measured=accuracy.is_measured(data),
    )


def collect(sweep: Sweep) -> pd.DataFrame:
    """One row per teacher. The accuracy is the average over benchmarks, or that of the only one."""
    table = candidates(sweep, sweep.trials[0])
    means = pd.Series(dtype=float)
    if table is not None:
        means = table.groupby("teacher")["g_hat"].mean()
    folder = sweep.folder(sweep.trials[0], TEACHERS_TABLE)
    gradients = pd.DataFrame(columns=["grace", "gnorm"], dtype=float)
    if folder is not None:
        gradients = by_teacher(pd.read_parquet(folder / TEACHERS_TABLE.file)).set_index("teacher")
    teachers = []
    results = []
    for trial in sweep.trials:
        chosen = selection(sweep, trial)
        teacher = f"teacher {trial.config.method.teacher}"
        if chosen is not None:
            teacher = str(chosen["teacher"].iloc[0])
        teachers.append(teacher)
        rows = accuracy.rows(sweep, trial)
        # One benchmark is its own average, and has the better label.
        results.append(rows[0] if len(rows) == 2 else rows[-1])
    names = pd.Series(teachers, name="teacher")
    grace = names.map(gradients["grace"]).rename("grace")
    gnorm = names.map(gradients["gnorm"]).rename("gnorm")
    scores = [names, names.map(means).rename("mean_g_hat"), grace, gnorm]
    return pd.concat([*scores, pd.DataFrame(results)], axis=1)


def trained_on(sweep: Sweep) -> str:
    """The trajectories that students are trained on. If a teacher has more than B rollouts of a question, B
    are selected and weighted.
    """
    table = candidates(sweep, sweep.trials[0])
    budget = sweep.trials[0].config.budget.per_question
    if table is None or table.groupby(["question_id", "teacher"]).size().max() <= budget:
        return "all rollouts of this teacher alone, with equal weights"
    weighting = sweep.trials[0].config.weighting_name
    return f"this teacher's rollouts alone, the top {budget} of each question by ĝ with {weighting} weights"


def correlation(score: pd.Series, accuracy: pd.Series) -> tuple[float, float]:
    """Pearson's r and its two-sided p; NaN with too few teachers, or if all accuracies are equal."""
    if len(score) < ENOUGH or accuracy.nunique() == 1:
        return float("nan"), float("nan")
    result = pearsonr(score.astype(float), accuracy.astype(float))
    return float(result.statistic), float(result.pvalue)


def _varies(judged: pd.DataFrame) -> bool:
    return len(judged) >= ENOUGH and judged["mean"].nunique() > 1 and judged["grace"].nunique() > 1


def _grace_note(sweep: Sweep, judged: pd.DataFrame, rank: float) -> str:
    """An explanation of GRACE and G-Norm, and how GRACE ranks the teachers."""
    questions = sweep.trials[0].config.analysis.questions
    ours = "too few teachers"
    if np.isfinite(rank):
        ours = f"Spearman ρ = {rank:.2f} with the accuracy, over {len(judged)} teachers".replace("-", "−")
    return (
        "GRACE (Panigrahi et al., 2026) is computed from the student's gradients on each teacher's"
        f" trajectories of up to {questions} questions; lower is better, so it predicts well if its"
        f" correlation is negative. Here: {ours}. The source reports |ρ| of up to 0.86 for its"
        " students on GSM8K and MATH. G-Norm is the mean norm of these gradients. Both use the sketched"
        " gradients of the output projections and the head (`analysis.name=grace`)."
    )


def _figure(trained: pd.DataFrame, r: float, p: float, ylabel: str) -> Figure:
    figure, (axes,) = panels(width=6.2, height=4.0)
    x = trained["mean_g_hat"].astype(float).to_numpy()
    y = trained["mean"].astype(float).to_numpy()
    spread = trained["std"].astype(float)
    axes.errorbar(x, y, spread, fmt="o", color=OKABE_ITO[0], capsize=2, elinewidth=0.8, label="a teacher")
    if np.isfinite(r):
        slope, intercept = np.polyfit(x, y, 1)
        ends = np.array([x.min(), x.max()])
        label = f"least squares (r = {r:.2f}, p = {p:.3f})"
        axes.plot(ends, slope * ends + intercept, "--", color=LARK_COLOUR, label=label)
    axes.set_xlabel(r"Mean $\hat g$ of the teacher's trajectories under the untrained student")
    axes.set_ylabel(ylabel)
    axes.margins(x=0.12)
    figure.legend(loc="outside upper center", ncols=2)
    label_points(axes, list(zip(x, y, strict=True)), list(trained["teacher"]), fontsize=8)
    return figure
