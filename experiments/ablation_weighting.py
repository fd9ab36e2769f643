"""Figure 2b: what each weighting adds, for the same trajectories."""

from experiments.harness import accuracy
from experiments.harness.report import Report
from experiments.harness.sweep import Sweep

LABELS = {
    "uniform": "uniform", "proportional": "proportional", "softmax": "softmax",
    "kl": "KL", "chi2": "χ² (LARK)",
}  # fmt: skip


def render(sweep: Sweep) -> Report:
    data = accuracy.with_paper(accuracy.frame(sweep), sweep)
    # The paper's Table 1 has LARK with its own weights only.
    data.loc[data["weighting"] != "chi2", ["paper", "paper_std", "difference"]] = None
    data = data.assign(weights=data["weighting"].map(LABELS))
    return accuracy.ablation(
        data, sweep, "weights", "Weighting", LABELS["chi2"], "Figure 2b. Weighting ablation", _caption
    )


def _caption(samples: int, budget: int) -> str:
    return (
        f"Acc@{samples} (percent) of students trained on the top {budget} by ĝ with each weighting; error"
        " bars are the standard deviation over decoding seeds. In the paper, χ² weights are the best"
        " throughout, most clearly on AIME and MATH-500. KL is not in the paper's figure."
    )
