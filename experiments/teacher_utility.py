"""Figure 3c: a teacher's mean g-hat against the accuracy of a student trained on this teacher alone, and
GRACE beside it.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import pearsonr, spearmanr

from experiments.harness import accuracy
from experiments.harness.candidates import candidates, selection
from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, published_value
from lark.analysis.grace import by_teacher
from lark.analysis.kinds import TEACHERS_TABLE
from lark.output.style import LARK_COLOUR, OKABE_ITO, label_points, panels, plain_label
from lark.output.tables import MISSING, Cell

ENOUGH = 3
"""Minimum number of teachers for a correlation."""


def render(sweep: Sweep) -> Report:
    data = collect(sweep)
    known = data.dropna(subset=["mean", "mean_g_hat"])
    r, p = correlation(known["mean_g_hat"], known["mean"])
    judged = data.dropna(subset=["mean", "grace"])
    rank = float(spearmanr(judged["grace"], judged["mean"]).statistic) if _varies(judged) else float("nan")
    paper_r = published_value("teacher_utility", "pearson_r")
    paper_p = published_value("teacher_utility", "p_value")
    high = published_value("teacher_utility", "high_accuracy")
    low = published_value("teacher_utility", "low_accuracy")
    label = data["label"].iloc[0]
    rows = []
    for row in data.sort_values("mean_g_hat", ascending=False).to_dict("records"):
        scores = [
            _cell(row["mean_g_hat"], "{:.5f}"),
            _cell(row["grace"], "{:.4g}"),
            _cell(row["gnorm"], "{:.4g}"),
        ]
        rows.append([Cell(row["teacher"]), *scores, accuracy.cell(row["mean"], row["std"])])
    ours = "too few teachers are finished"
    difference = ""
    if np.isfinite(r):
        ours = f"Pearson r = {r:.2f}, p = {p:.3f}, over {len(known)} teachers"
        if sweep.like_the_paper:
            difference = f" (ours minus the paper's: {r - paper_r:+.2f})"
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
            f" {ours}. The paper finds r = {paper_r:.2f}, p = {paper_p:.3f} over 11 teachers on"
            f" AMC{difference}: above {high:g}% for GPT-OSS-20B, GPT-OSS-120B, Phi-4-R+ and QwQ-32B, below"
            f" {low:g}% for Magistral-S and Nemotron."
        ),
        data=data.assign(pearson_r=r, p_value=p, paper_r=paper_r, paper_p=paper_p, grace_spearman=rank),
        tables=[Table(["Teacher", "mean ĝ", "GRACE", "G-Norm", f"Acc@{samples} ({label})"], rows)],
        found=accuracy.any_found(data),
        figure=_figure(known, r, p, f"Acc@{samples} ({plain_label(label)}, %)"),
        notes=notes,
    )


def _cell(value: float, form: str) -> Cell:
    return MISSING if pd.isna(value) else Cell(form.format(value))


def collect(sweep: Sweep) -> pd.DataFrame:
    """One row per teacher. The accuracy is the average over benchmarks, or that of the only one."""
    table = candidates(sweep, sweep.trials[0])
    means = {} if table is None else table.groupby("teacher")["g_hat"].mean().to_dict()
    folder = sweep.folder(sweep.trials[0], TEACHERS_TABLE)
    gradients = pd.DataFrame(columns=["grace", "gnorm"])
    if folder is not None:
        gradients = by_teacher(pd.read_parquet(folder / TEACHERS_TABLE.file)).set_index("teacher")
    rows = []
    for trial in sweep.trials:
        chosen = selection(sweep, trial)
        teacher = f"teacher {trial.config.method.teacher}"
        if chosen is not None:
            teacher = str(chosen["teacher"].iloc[0])
        row = {"teacher": teacher, "mean_g_hat": means.get(teacher)}
        for name in ("grace", "gnorm"):
            row[name] = gradients[name].to_dict().get(teacher)
        results = accuracy.rows(trial, sweep.metrics(trial))
        rows.append({**row, **(results[0] if len(results) == 2 else results[-1])})
    return pd.DataFrame(rows)


def trained_on(sweep: Sweep) -> str:
    """What the students are trained on. If a teacher has more than B rollouts of a question, B are selected
    and weighted.
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
    """What GRACE and G-Norm are, and how GRACE ranks the teachers."""
    questions = sweep.trials[0].config.analysis.questions
    ours = "too few teachers"
    if np.isfinite(rank):
        ours = f"Spearman ρ = {rank:.2f} with the accuracy, over {len(judged)} teachers".replace("-", "−")
    return (
        "GRACE (Panigrahi et al., 2026) is computed from the student's gradients on each teacher's"
        f" trajectories of up to {questions} questions; lower is better, so it predicts well if its correlation"
        f" is negative. Here: {ours}. The source reports |ρ| of up to 0.86 for its"
        " students on GSM8K and MATH. G-Norm is the mean norm of these gradients. Both use the sketched"
        " gradients of the output projections and the head (`analysis.name=grace`)."
    )


def _figure(known: pd.DataFrame, r: float, p: float, ylabel: str) -> Figure:
    figure, (axes,) = panels(width=6.2, height=4.0)
    x = known["mean_g_hat"].astype(float).to_numpy()
    y = known["mean"].astype(float).to_numpy()
    spread = known["std"].astype(float)
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
    label_points(axes, list(zip(x, y, strict=True)), list(known["teacher"]), fontsize=8)
    return figure
