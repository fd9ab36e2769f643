"""What the reports of the analyses say of artifacts whose numbers are known, and of none."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments import contamination, kappa, landscape, surrogate, theory
from experiments.harness import report
from experiments.harness.sweep import Sweep, compose_sweep
from lark.analysis.contamination import CLOSEST, TABLE, summary
from lark.analysis.kinds import (
    CONTAMINATION_TABLE,
    ESTIMATES_TABLE,
    GRADIENTS_TABLE,
    JACOBIANS_TABLE,
    KAPPA_TABLE,
)
from lark.store.store import Kind
from tests.analysis.questions import made_up
from tests.experiments.test_rendering import check_latex

MODULES = {
    "surrogate": surrogate,
    "landscape": landscape,
    "theory": theory,
    "kappa": kappa,
    "contamination": contamination,
}
QUESTIONS = [made_up(seed, K=7) for seed in range(5)]


def sweep_of(name: str, outputs: Path, *more: str) -> Sweep:
    return compose_sweep(name, ["tracking=none", f"outputs={outputs}", *more])


def finish(sweep: Sweep, kind: Kind, write: Callable[[Path, int], None]) -> None:
    """Make the artifact of a kind of every trial; `write` gets its folder and the trial's budget."""
    for trial in sweep.trials:
        artifact = trial.artifact(kind)
        assert artifact is not None

        def build(folders: list[Path], budget: int = trial.config.budget.size) -> list[dict[str, int]]:
            write(folders[0], budget)
            return [{}]

        sweep.store.ensure([artifact], build)


def gradients(folder: Path, _: int) -> None:
    pd.concat([question.rows() for question in QUESTIONS]).to_parquet(folder / GRADIENTS_TABLE.file)


def estimates(folder: Path, _: int) -> None:
    ids = [(question.question_id, name) for question in QUESTIONS for name in question.table["candidate_id"]]
    table = pd.DataFrame(ids, columns=["question_id", "candidate_id"])
    exact = np.concatenate([question.exact for question in QUESTIONS])
    table.assign(g_gram=[np.nan, *exact[1:]], g_exact=exact).sample(frac=1, random_state=0).to_parquet(
        folder / ESTIMATES_TABLE.file
    )


def jacobians(folder: Path, _: int) -> None:
    ids = QUESTIONS[0].table["candidate_id"]
    table = pd.DataFrame(
        {"question_id": "q0", "candidate_id": ids, "jacobian": 1e4, "iterations": 5, "change": 0.001}
    )
    table.assign(head_norm=10.0).to_parquet(folder / JACOBIANS_TABLE.file)


def rates(folder: Path, budget: int) -> None:
    table = pd.DataFrame({"step": [0, 5, 10], "loss": 1.0, "rate": [4.0, 8.0, float(budget)]})
    moved = table.assign(time=[0.0, 0.1, 0.2], distance=[0.0, 3.0, 5.0], start_norm=100.0)
    moved.assign(gradient_norm2=table["rate"]).to_parquet(folder / "kappa.parquet")


def audit(folder: Path, _: int) -> None:
    table = pd.DataFrame(
        {
            "benchmark": ["AIME", "MATH-500"],
            "level": pd.array([None, 2], dtype="Int64"),
            "problem_id": ["1", "2"],
            "similarity": [0.1, 0.9],
            "exact": False,
            "question_id": "7",
            "problem": "Is $x^2 | 1$?",
            "question": r"Is \frac12?",
        }
    )
    table.to_parquet(folder / CLOSEST)
    summary(table).to_parquet(folder / TABLE)


def finished(name: str, outputs: Path) -> Sweep:
    sweep = sweep_of(name, outputs)
    if name in ("surrogate", "landscape", "theory"):
        finish(sweep, GRADIENTS_TABLE, gradients)
    if name == "theory":
        finish(sweep, JACOBIANS_TABLE, jacobians)
    if name == "kappa":
        finish(sweep, KAPPA_TABLE, rates)
    if name == "contamination":
        finish(sweep, CONTAMINATION_TABLE, audit)
    return sweep


@pytest.mark.parametrize("name", MODULES)
def test_reports_are_written_from_nothing_and_from_everything(name: str, tmp_path: Path) -> None:
    unfinished = report.write(sweep_of(name, tmp_path), MODULES[name].render(sweep_of(name, tmp_path)))
    text = (tmp_path / "report" / f"{name}.md").read_text()
    assert "not finished" in text
    assert f"Not run yet: make {name}." in text
    for path in (path for path in unfinished if path.suffix == ".tex"):
        check_latex(path.read_text())
    sweep = finished(name, tmp_path)
    files = {path.suffix for path in report.write(sweep, MODULES[name].render(sweep))}
    assert files == ({".md", ".csv", ".tex"} if name == "contamination" else {".md", ".csv", ".png", ".pdf"})
    left = {path.suffix for path in (tmp_path / "report").glob(f"{name}.*")}
    assert left == files, "nothing of the unfinished report stays"
    text = (tmp_path / "report" / f"{name}.md").read_text()
    assert "This is the demo" in text
    assert "The paper" in text


def test_surrogate_landscape_and_theory_share_their_gradients(tmp_path: Path) -> None:
    one, two, three = (
        sweep_of(name, tmp_path).trials[0].artifact(GRADIENTS_TABLE)
        for name in ("surrogate", "landscape", "theory")
    )
    assert one is not None
    assert one == two == three


def test_the_papers_numbers_stand_beside_ours(tmp_path: Path) -> None:
    drawn = surrogate.render(finished("surrogate", tmp_path))
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in drawn.tables[0].rows}
    assert cells["pooled Pearson r (rescaled)"][3] == "0.748"
    assert cells["Recall@3"][3] == "0.560"
    assert cells["relative RMS error, mean (rescaled)"][3] == "0.574"
    assert cells["relative RMS error, mean (raw)"][3] == "–"


def test_scores_from_sketches_stand_beside_the_surrogate(tmp_path: Path) -> None:
    """One that is g* itself agrees perfectly; one that is missing for a trajectory is not shown."""
    sweep = finished("surrogate", tmp_path)
    without = [cell.text for cell in surrogate.render(sweep).tables[0].rows[0]]
    assert without[2:4] == ["–", "–"]
    finish(sweep, ESTIMATES_TABLE, estimates)
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in surrogate.render(sweep).tables[0].rows}
    assert cells["Recall@3"][1:3] == ["–", "1.000"]
    assert cells["share of the attainable g* in the top three"][2] == "1.000"
    assert cells["mean cosine of two trajectories' gradients"][2] == "–"
    expected = np.mean(
        [
            np.sort(q.exact[np.argsort(-q.surrogate)[:3]]).sum() / np.sort(q.exact)[-3:].sum()
            for q in QUESTIONS
        ]
    )
    assert float(cells["share of the attainable g* in the top three"][0].replace("−", "-")) == pytest.approx(
        expected, abs=6e-4
    )


def test_at_the_papers_scale_the_differences_stand_there_too(tmp_path: Path) -> None:
    drawn = surrogate.render(replace(finished("surrogate", tmp_path), scale="paper", overrides=()))
    rows = {row[0].text: [cell.text.replace("−", "-") for cell in row[1:]] for row in drawn.tables[0].rows}
    ours, _, _, printed, difference = rows["Recall@3"]
    assert float(difference) == pytest.approx(float(ours) - float(printed), abs=1.1e-3)
    drawn = kappa.render(replace(finished("kappa", tmp_path), scale="paper", overrides=()))
    assert drawn.tables[0].header[-1] == "difference"
    assert [row[-1].text for row in drawn.tables[0].rows][:2] == [
        "−0.029",
        "+0.735",
    ]  # from 0.279, and from the range's end


def test_the_question_that_is_drawn_is_the_median_one(tmp_path: Path) -> None:
    gains = pd.concat([landscape.path_gains(question) for question in QUESTIONS])
    chosen = landscape.representative(QUESTIONS, gains).question_id
    means = gains.groupby("question_id")["relative_gain"].mean()
    assert means[chosen] == pytest.approx(np.median(means))
    pairs = [made_up(seed, K=2) for seed in range(100, 109)]
    more = pd.concat([gains, *(landscape.path_gains(pair) for pair in pairs)])
    assert landscape.representative([*pairs, *QUESTIONS], more).question_id == chosen, (
        "two candidates span no plane"
    )


def test_kappa_is_the_least_ratio_to_the_start_of_each_budget(tmp_path: Path) -> None:
    drawn = kappa.render(finished("kappa", tmp_path))
    rows = [[cell.text for cell in row] for row in drawn.tables[0].rows]
    assert rows[0] == ["1", "0.25", "10", "2", "0.279"]
    assert rows[1] == ["3", "0.75", "10", "2", "0.012 to 0.015"]
    assert rows[4][:3] == ["20", "1", "0"]


def test_kappa_compares_the_fall_of_the_loss_with_the_decay_identity_and_proposition_1(
    tmp_path: Path,
) -> None:
    """A run that follows gradient flow, L = exp(-∫ρ ds): the identity is an equality, and Proposition 1
    holds throughout.
    """
    time = np.linspace(0, 0.5, 6)
    rate = 4.0 - 2.0 * time
    loss = 3.0 * np.exp(-(4.0 * time - time**2))
    run = kappa.with_theory(pd.DataFrame({"step": range(6), "time": time, "rate": rate, "loss": loss}))
    np.testing.assert_allclose(run["identity"], run["fallen"], atol=1e-12)
    np.testing.assert_allclose(run["bound"], 3.0 / 4.0 * 4.0 * time)
    assert (run["fallen"] >= run["bound"]).all()
    theory = kappa.render(finished("kappa", tmp_path)).tables[1]
    cells = dict(zip(theory.header, [cell.text for cell in theory.rows[0]], strict=True))
    assert cells["R = max ‖θ_t − θ_0‖"] == "5"
    assert cells["R/‖θ_0‖"] == "5.00%"
    assert float(cells["∫ρ ds"]) == pytest.approx(0.1 * (4 + 8) / 2 + 0.1 * (8 + 1) / 2, rel=1e-2)
    assert cells["log L_0/L_T"] == "0"
    assert cells["snapshots where Prop. 1 holds"] == "0 of 2", "the loss of these snapshots is constant"
    assert cells["snapshots in the first tenth"] == "1"


def test_contamination_counts_and_pairs_survive_every_format(tmp_path: Path) -> None:
    sweep = finished("contamination", tmp_path)
    report.write(sweep, contamination.render(sweep))
    markdown, latex = (
        (tmp_path / "report" / f"contamination.{suffix}").read_text() for suffix in ("md", "tex")
    )
    assert "| MATH-L2 | 1 | 0 | 1 | 1 | 1 |" in markdown
    assert r"Is $x^2 \| 1$?" in markdown
    assert r"\textbackslash{}frac12" in latex
    assert r"x\textasciicircum{}2" in latex
    assert r"p{0.29\linewidth}" in latex
    check_latex(latex)
