"""Appendices A and B: the constants of the theory for a student and a pool, and each inequality evaluated
in numbers.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.harness.exact_gradients import questions_of
from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep
from lark.analysis import theory
from lark.analysis.kinds import JACOBIANS_TABLE
from lark.analysis.questions import Question
from lark.output.style import BLACK, BLUE, LARK_COLOUR, panels, styled
from lark.output.tables import Cell
from lark.printing import counted

TITLE = "Appendices A-B. Constants of the theory, and its inequalities in numbers"
SYMBOLS = {
    "c_minus": "C₋",
    "c_plus": "C₊",
    "jacobian": "Λ (lower estimate)",
    "head_norm": "‖W_out‖",
    "zeta_minus": "ζ₋",
    "eps_head": "ε_head, shortest trajectory",
    "e_plus": "E₊",
    "c1": "C₁",
    "c2": "C₂",
    "delta_rho": "Δ_ρ",
    "proxy_term": "α₁ʳᵐˢ, proxy term",
    "gram_term": "α₁ʳᵐˢ, off-diagonal term",
    "aggregate_term": "α₁ʳᵐˢ, aggregate term",
    "alpha1_rms": "α₁ʳᵐˢ",
    "alpha1": "α₁",
    "alpha2": "α₂",
    "hessian_bound": "bound on M",
    "p_minus": "p₋",
    "one_minus_p_plus": "1 − p₊",
    "nu_plus": "ν₊",
    "kappa_factor": "ν₋/ν₊, factor of κ",
    "lambda_minus": "λ₋ (at the anchor)",
    "lambda_plus": "λ₊",
    "kappa_explicit": "λ₋ν₋/(λ₊ν₊), κ if ε = 0",
}
INEQUALITIES = [
    ("CheckedInequality", "inequality", "{}"),
    ("Appendix", "source", "{}"),
    ("Parameters", "parameters", "{}"),
    ("left", "left", "{:.3g}"),
    ("right", "right", "{:.3g}"),
    ("right/left", "margin", "{:.3g}"),
    ("holds", "holds", "{}"),
]
PAPER = "The paper proves them and gives no numbers; it calls the constants loose worst cases."


def render(sweep: Sweep) -> Report:
    questions = questions_of(sweep)
    folder = sweep.folder(sweep.trials[0], JACOBIANS_TABLE)
    if questions is None or folder is None:
        caption = "Constants of App. A-B and the inequalities proved there, in numbers."
        return Report(TITLE, f"{caption} {PAPER}", pd.DataFrame(), measured=False)
    jacobians = pd.read_parquet(folder / JACOBIANS_TABLE.file)
    constants, checked = _evaluated(questions, jacobians)
    table = theory.constants_table(list(constants), list(constants.values()))
    violated = int((~checked["holds"]).sum())
    outcome = f"{violated} of {len(checked)} are violated." if violated else "All hold."
    caption = (
        f"Constants of App. A-B for {counted(len(constants), 'question')}, and"
        f" {checked['inequality'].nunique()} inequalities, each where it is tightest (over trajectories, or"
        f" over vertices, the path of q̂(B) and samples of the simplex). {outcome} {PAPER}"
    )
    open_ended = jacobians["change"].gt(0.01).mean()
    notes = [
        (
            "The paper's proofs treat the LM head separately from the other parameters. If it is tied to the"
            " embedding, its two uses are treated as separate parameters, and the inequalities are also"
            " evaluated on the tied parameters, for which they are not proved. Λ is found by power iteration"
            f" and is therefore a lower estimate; for {open_ended:.0%} of the trajectories it still changed"
            " by more than 1% in the last step."
        ),
        (
            "In the explicit κ = (1 − ε)λ₋ν₋/(λ₊ν₊), λ₊ is exact, and λ₋ and p₋, p₊ are those of the"
            " untrained student, while the paper takes the worst case that training may reach. ε, the NTK's"
            " change during training, is not estimated: it needs the Jacobians of trained students. So κ here"
            " is an upper estimate; `make kappa` measures it during training."
        ),
    ]
    tables = [_inequalities_table(checked), _constants_table(table)]
    long = table.melt("question_id", var_name="constant").assign(table="constants")
    data = pd.concat([checked.assign(table="inequalities"), long], ignore_index=True)
    return Report(TITLE, caption, data, tables, theory_figure(checked), notes)


def _evaluated(
    questions: list[Question], jacobians: pd.DataFrame
) -> tuple[dict[str, theory.Constants], pd.DataFrame]:
    """The constants of each question with Jacobians, and the inequalities with these constants."""
    constants = {}
    checks = []
    for question in questions:
        norms = jacobians[jacobians["question_id"] == question.question_id].set_index("candidate_id")
        if norms.empty:
            continue
        jacobian = norms.loc[question.table["candidate_id"], "jacobian"].to_numpy(dtype=np.float64)
        head_norm = float(norms["head_norm"].iloc[0])
        constants[question.question_id] = theory.constants(question, jacobian, head_norm)
        # The proofs are about the untied parameters, whatever the student's.
        for tied in sorted({False, question.tied}):
            checks.append(theory.inequalities(question, constants[question.question_id], tied=tied))
    return constants, pd.concat(checks, ignore_index=True)


def _inequalities_table(checked: pd.DataFrame) -> Table:
    """Each inequality once per reading of the parameters, for the question where it is tightest."""
    order = list(dict.fromkeys(checked["inequality"]))
    worst = checked.sort_values("margin").groupby(["parameters", "inequality"], sort=False).first()
    worst = worst.reset_index()
    worst = worst.assign(place=worst["inequality"].map(order.index)).sort_values(["parameters", "place"])
    worst = worst.assign(holds=worst["holds"].map({True: Cell("yes"), False: Cell("NO", best=True)}))
    return Table.of(worst, INEQUALITIES, "The tightest question of each inequality.", 3)


def _constants_table(table: pd.DataFrame) -> Table:
    columns = [("Constant", "symbol", "{}")]
    for question in table["question_id"]:
        columns.append((f"question {question}", question, "{:.3g}"))
    constants = table.set_index("question_id")[list(SYMBOLS)].T
    return Table.of(constants.assign(symbol=list(SYMBOLS.values())), columns, "Constants, by question.")


@styled
def theory_figure(checks: pd.DataFrame) -> Figure:
    """App. A-B: the ratio of the right side of each inequality to its left side, where it is tightest, for
    each question.
    """
    names = list(dict.fromkeys(checks["inequality"]))
    figure, (axes,) = panels(1, width=7.0, height=0.26 * len(names) + 1.4)
    styles = {
        "untied": (BLUE, "o", -0.17, "the paper's parameters (head apart)"),
        "tied": (LARK_COLOUR, "x", 0.17, "the tied parameters"),
    }
    for kind, (colour, marker, shift, label) in styles.items():
        rows = checks[(checks["parameters"] == kind) & np.isfinite(checks["margin"]) & (checks["margin"] > 0)]
        if len(rows):
            heights = [names.index(name) + shift for name in rows["inequality"]]
            axes.plot(rows["margin"], heights, marker, color=colour, markersize=4, alpha=0.8, label=label)
    axes.axvline(1, color=BLACK, linewidth=1, label="left = right")
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("right side / left side at the tightest place (log; left of the line it is violated)")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.12), ncols=3)
    return figure
