"""Figure 2a: what each score adds, with the same weighting and budget."""

from experiments.harness import accuracy
from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep

LABELS = {"inverse_loss": "1/loss", "brier": "Brier residual", "rho": "ρ̂", "lark": "ĝ (LARK)"}


def render(sweep: Sweep) -> Report:
    data = accuracy.with_paper(accuracy.frame(sweep), sweep)
    data = data.assign(score=data["method"].map(LABELS))
    samples, budget = sweep.trials[0].config.benchmark.decoding.samples, sweep.trials[0].config.budget.size
    return Report(
        title="Figure 2a. Score ablation",
        caption=(
            f"Acc@{samples} in percent of students trained on the top {budget} by each score, all with χ² weights; error bars "
            "are the standard deviation over decoding seeds. The paper finds 1/loss the weakest, ρ̂ much better, and ĝ the "
            "best on all four benchmarks: likelihood alone does not tell what can be learned."
        ),
        data=data,
        tables=[Table(accuracy.header(data, "Score"), accuracy.variant_rows(data, "score"))],
        figure=accuracy.bars(data, "score", LABELS["lark"], samples),
        notes=accuracy.paper_notes(data, sweep),
        found=accuracy.any_found(data),
    )
