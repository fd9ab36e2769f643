"""Figure 2a: what each score adds, with the same weighting and budget."""

from experiments.harness import accuracy
from experiments.harness.report import Report
from experiments.harness.sweep import Sweep

LABELS = {"inverse_loss": "1/loss", "brier": "Brier residual", "rho": "ρ̂", "lark": "ĝ (LARK)"}


def render(sweep: Sweep) -> Report:
    data = accuracy.with_paper(accuracy.frame(sweep), sweep)
    data = data.assign(score=data["method"].map(LABELS))
    return accuracy.ablation(
        data, sweep, "score", "Score", LABELS["lark"], "Figure 2a. Score ablation", _caption
    )


def _caption(samples: int, budget: int) -> str:
    return (
        f"Acc@{samples} (percent) of students trained on the top {budget} by each score, all with χ² weights;"
        " error bars are the standard deviation over decoding seeds. In the paper, 1/loss is the weakest, ρ̂"
        " is much better, and ĝ is the best on all four benchmarks: likelihood alone does not show what can"
        " be learned."
    )
