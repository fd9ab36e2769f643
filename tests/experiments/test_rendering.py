"""What reports say of artifacts whose numbers are known: differences, bold, missing cells, and nothing
twice.
"""

import importlib
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text
from scipy import stats

from experiments import (
    case_study,
    loss_reduction,
    noise,
    pipeline,
    regime,
    seeds,
    table1,
    teacher_utility,
    token_level,
)
from experiments.harness import overview, printed_scores, report
from experiments.harness.candidates import candidates, selection
from experiments.harness.sweep import (
    Sweep,
    Trial,
    available,
    compose_sweep,
    dashed,
    published,
    published_values,
)
from lark.config import Pool, Training
from lark.config.student import INSTRUCTION
from lark.errors import LarkError
from lark.output.tables import Cell, latex_table
from lark.pipeline.operations.evaluate import GRADE
from lark.pool.noise import to_damage
from lark.pool.trajectory import Trajectory
from lark.store.store import Store
from lark.work.operation import Step
from tests.experiments import synthetic
from tests.experiments.synthetic import COSTS, accuracy_of, fill

SMALL = ["pool.questions=4", "tracking=none"]
RENDERED = [
    name
    for name in available()
    if name
    in (
        "table1",
        "ablation_score",
        "ablation_weighting",
        "loss_reduction",
        "teacher_utility",
        "token_level",
        "cost",
        "budget_scaling",
        "case_study",
        "seeds",
        "noise",
        "regime",
        "pipeline",
    )
]


@cache
def sweep_of(name: str, outputs: Path) -> Sweep:
    more = {
        "case_study": ["pool.ids=[demo-00002]"],
        "pipeline": ["experiment.scales.demo.question=demo-00002"],
        "table1": ["method=random,lark"],
        "teacher_utility": ["method.teacher=1,2,5,7"],
        "loss_reduction": ["method=random,lark"],
        "seeds": ["method=random,lark", "training.seed=1,2,3"],
        "noise": ["method=random,lark", "pool.noise_share=0,0.5"],
        "regime": ["method=random,lark"],
    }.get(name, [])
    return compose_sweep(name, [*SMALL, f"outputs={outputs}", *more])


def check_latex(text: str) -> None:
    """Nothing that pdflatex does not know, no number of its own, and ours are called the demo's."""
    assert text.isascii(), sorted({character for character in text if not character.isascii()})
    captions = re.findall(r"^\\caption\{(.*)\}$", text, re.M)
    assert captions
    assert not [caption for caption in captions if re.match(r"Table \d", caption)]
    assert all("This is the demo" in caption for caption in captions if ". The paper's Table" not in caption)


def draw(sweep: Sweep) -> report.Report:
    drawn: report.Report = importlib.import_module(f"experiments.{sweep.name}").render(sweep)
    return drawn


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rendered")


@pytest.mark.parametrize("name", RENDERED)
def test_every_report_has_its_files_says_it_is_the_demo_and_is_written_once(
    name: str, outputs: Path, tmp_path: Path
) -> None:
    sweep = sweep_of(name, outputs)
    nothing = replace(sweep, store=Store(tmp_path))
    tables = draw(nothing).tables
    assert not tables or "–" in tables[0].markdown()
    assert len(report.unfinished(nothing)) == len(sweep.trials)
    unfinished = report.write(nothing, draw(nothing))
    assert f"Not run yet: make {dashed(name)}." in (tmp_path / "report" / f"{dashed(name)}.md").read_text()
    assert ".png" not in {path.suffix for path in unfinished}, "no empty figure"
    fill(sweep)
    files = report.write(sweep, draw(sweep))
    suffixes = {path.suffix for path in files}
    assert suffixes in ({".md", ".csv", ".tex"}, {".md", ".csv", ".png", ".pdf"})
    text = (outputs / "report" / f"{dashed(name)}.md").read_text()
    assert "This is the demo" in text
    assert "not finished" not in text
    assert "Not run yet" not in text
    for path in (path for path in [*unfinished, *files] if path.suffix == ".tex"):
        check_latex(path.read_text())
    assert dashed(name) in (outputs / "report" / "index.md").read_text()
    written = {path: path.stat().st_mtime_ns for path in [*files, outputs / "report" / "index.md"]}
    report.write(sweep, draw(sweep))
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_table1_bolds_the_best_and_shows_what_is_missing(tmp_path: Path) -> None:
    sweep = sweep_of("table1", tmp_path)

    def wanted(trial: Trial, step: Step) -> bool:
        return (
            trial.config.method.name == "lark" or trial.config.budget.size == 1 or step.operation is not GRADE
        )

    fill(sweep, wanted)
    drawn = table1.render(sweep)
    (trial,) = [t for t in sweep.trials if (t.config.method.name, t.config.budget.size) == ("lark", 3)]
    (step,) = [
        s
        for s in trial.plan
        if s.operation is GRADE and "checkpoint" in s.artifacts[0].inputs["generations"].inputs
    ]
    ours = drawn.data.query("method == 'lark' and budget == 3").set_index("benchmark")["mean"]
    expected = [10.0 * accuracy_of(artifact) for artifact in step.artifacts]
    assert list(ours.drop("avg")) == pytest.approx(expected)
    assert ours["avg"] == pytest.approx(np.mean(expected))
    assert drawn.data.query("method == 'random' and budget == 3")["mean"].isna().all()
    rows = {row[1].text: row for row in drawn.tables[0].rows}
    assert [cell.text for cell in rows["Random"][7:]] == ["–"] * 5
    for column in range(2, 12):
        column_cells = [row[column] for row in drawn.tables[0].rows if row[column].text != "–"]
        best = max(float(cell.text.split("±")[0]) for cell in column_cells)
        assert all(cell.best == (float(cell.text.split("±")[0]) == best) for cell in column_cells)
    assert drawn.data["difference"].isna().all()


def test_at_the_papers_scale_the_difference_to_its_numbers_is_shown(paper_table1: Sweep) -> None:
    sweep = paper_table1
    assert sweep.like_the_paper
    fill(sweep, lambda trial, step: step.operation is GRADE and trial.config.student.name == "qwen7b")
    data = table1.render(sweep).data
    ours = data.query("student == 'qwen7b' and method == 'rsr' and budget == 3").set_index("benchmark")
    paper = (
        published("table1")
        .query("student == 'qwen7b' and method == 'rsr' and budget == 3")
        .set_index("benchmark")
    )
    assert (ours["difference"] - (ours["mean"] - paper["mean"])).abs().max() < 1e-9
    report.write(sweep, table1.render(sweep))
    folder = sweep.store.root / "report"
    text = (folder / "paper" / "table1.md").read_text()
    assert not (folder / "table1.md").exists(), "that is the demo's"
    assert "(paper/index.md)" in (folder / "index.md").read_text()
    assert "Ours minus the paper's" in text
    assert "the demo" not in text
    assert "48 of 48 trials are not finished" in text  # their trainings are not there, only what was measured


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("cost", "difference of ratios"),
        ("case_study", "weight, difference"),
        ("budget_scaling", "difference"),
    ],
)
def test_the_difference_to_the_papers_numbers_is_shown_only_where_it_says_something(
    name: str, column: str, outputs: Path
) -> None:
    sweep = sweep_of(name, outputs)
    fill(sweep)
    assert column not in draw(sweep).tables[0].header
    table, *_ = draw(replace(sweep, scale="paper", overrides=())).tables
    assert column in table.header
    assert all(len(row) == len(table.header) for row in table.rows)
    shown = {row[0].text: row[list(table.header).index(column)].text for row in table.rows}
    data = draw(replace(sweep, scale="paper", overrides=())).data
    if name == "cost":
        assert shown["RSR"] == f"−{3.44 / 1.28 - 2.5:.2f}"
    elif name == "case_study":
        assert float(shown["1"].replace("−", "-")) == pytest.approx(data["weight"].max() - 0.478, abs=6e-4)
    else:
        assert shown["5"] == "–", "the paper prints no number there"


def test_the_case_study_compares_both_prompts_with_the_values_that_the_paper_prints() -> None:
    printed = {
        name: published_values("case_study")[f"g_{place}"] for name, place in printed_scores.PRINTED.items()
    }
    table = pd.DataFrame(
        {"g_hat": printed.values(), "place": printed_scores.PRINTED.values()}, index=list(printed)
    )
    table = table.assign(teacher=[name[:-2] for name in printed])
    scores = {printed_scores.OURS: table, printed_scores.AUTHORS: table.assign(g_hat=table["g_hat"] + 0.001)}
    rows = {
        row[0].text: [cell.text for cell in row[1:]] for row in printed_scores.prompts_table(scores, []).rows
    }
    assert rows["phi4-reason-plus.1"] == ["0.00960 (25)", "0.00960 (25)", "0.01060 (25)"]
    assert rows["phi4-reason-plus, largest / least"][:2] == ["1.86×", "1.86×"]
    assert rows["nemotron-super-v15, least"] == ["0.0052", "–", "–"]
    lines = printed_scores.difference_summary(scores).splitlines()
    assert lines[0] == "ĝ that the paper prints: 0.01782, 0.01687, 0.01426, 0.01285, 0.00960."
    assert lines[1].endswith("mean distance from the paper's values 0.00000.")
    assert lines[2].endswith("mean distance from the paper's values 0.00100.")


def test_the_case_study_scores_the_published_pool_with_and_without_our_instruction(tmp_path: Path) -> None:
    pool = tmp_path / "RSR_data"
    for teacher in ("phi4-reason-plus", "gptoss-20b-high", "gptoss-120b-high", "nemotron-super-v15"):
        (pool / teacher).mkdir(parents=True)
        for rollout in (1, 2, 3):
            turns = [
                {"role": "user", "content": "1+1?"},
                {"role": "assistant", "content": f"{teacher}, {rollout}: \\boxed{{2}}"},
            ]
            (pool / teacher / f"short-sys_5k_gen{rollout}.json").write_text(json.dumps([{"messages": turns}]))
    where = [
        f"pool.path={pool}",
        "pool.ids=['00000']",
        "pool.questions=1",
        f"outputs={tmp_path / 'out'}",
        "tracking=none",
    ]
    sweep = compose_sweep("case_study", ["scale=paper", *where])
    assert [trial.config.student.instruction for trial in sweep.trials] == [INSTRUCTION, None]
    fill(sweep)
    drawn = case_study.render(sweep)
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in drawn.tables[1].rows}
    assert rows["gptoss-120b-high.2"][0] == "0.01285 (4)"
    assert {cell for row in rows.values() for cell in row}.isdisjoint({"–"})
    assert "ĝ with our prompt:" in drawn.summary
    assert "ĝ with the pool's messages:" in drawn.summary


def test_the_pipelines_figure_shows_the_scores_ranking_and_weights_of_the_runs_question(
    outputs: Path,
) -> None:
    sweep = sweep_of("pipeline", outputs)
    fill(sweep)
    chosen = selection(sweep, sweep.trials[0])
    assert chosen is not None
    chosen = chosen[chosen["question_id"] == "demo-00002"].sort_values("rank")
    figure = pipeline.render(sweep).figure
    assert figure is not None
    texts = [text.get_text() for text in figure.findobj(Text)]
    shown = [text.split(" = ")[1] for text in texts if text.startswith("$q_") and " = " in text]
    assert shown == [f"{weight:.3f}" for weight in chosen["weight"]]
    assert [text for text in texts if text in set(chosen["candidate_id"])] == chosen[
        "candidate_id"
    ].tolist(), "in the ranking"
    drawn = pipeline.overview_of(sweep, sweep.trials[0], "demo-00002")
    assert drawn is not None
    assert sum(text == f"{g_hat:.5f}" for text in texts for g_hat in set(drawn.candidates["g_hat"])) >= len(
        drawn.candidates
    )
    assert [before for _, before, _ in drawn.accuracies] == [
        metrics.accuracy_at_k.mean for metrics in sweep.metrics(sweep.trials[0], trained=False).values()
    ]


def test_a_question_that_is_not_in_the_pool_cannot_be_drawn(outputs: Path) -> None:
    sweep = sweep_of("pipeline", outputs)
    fill(sweep)
    with pytest.raises(
        LarkError, match=r"experiment\.scales\.demo\.question=nowhere: no trajectory of this question"
    ):
        pipeline.overview_of(sweep, sweep.trials[0], "nowhere")


def test_of_a_large_pool_the_pipeline_shows_the_best_teachers_and_rollouts() -> None:
    names = [(f"teacher-{number:02d}", rollout) for number in range(20) for rollout in range(5)]
    table = pd.DataFrame(names, columns=["teacher", "rollout"])
    table = table.assign(candidate_id="c", g_hat=np.arange(100) / 100, n_tokens=9)
    shown = overview.shown_candidates(table)
    assert shown["teacher"].unique().tolist() == [f"teacher-{number:02d}" for number in range(8, 20)]
    assert shown["rollout"].tolist() == [2, 3, 4] * 12
    selected = table.assign(
        rank=np.where(table["g_hat"] > 0.895, 100 - 100 * table["g_hat"], np.nan), weight=0.1
    )
    drawn = overview.Overview("s", "q", "why? " * 99, selected, 0.89, 20, [], [])
    texts = [text.get_text() for text in overview.overview_figure(drawn).findobj(Text)]
    assert {
        "and 8 more teachers",
        "and 60 more",
        "and 5 more",
        "not trained yet",
        "not evaluated yet",
    } <= set(texts)


def test_teacher_utility_correlates_each_teachers_mean_score_with_its_students(outputs: Path) -> None:
    sweep = sweep_of("teacher_utility", outputs)
    fill(sweep)
    data = teacher_utility.render(sweep).data
    assert list(data["teacher"]) == ["backward", "checker", "lister", "planner"]
    table = candidates(sweep, sweep.trials[0])
    assert table is not None
    by_hand = [table.loc[table["teacher"] == teacher, "g_hat"].mean() for teacher in data["teacher"]]
    assert data["mean_g_hat"].tolist() == pytest.approx(by_hand)
    x, y = np.array(by_hand), data["mean"].to_numpy(dtype=float)
    r = np.mean((x - x.mean()) * (y - y.mean())) / (x.std() * y.std())
    t = r * np.sqrt(2 / (1 - r**2))
    assert data["pearson_r"].iloc[0] == pytest.approx(r)
    assert data["p_value"].iloc[0] == pytest.approx(2 * stats.t.sf(abs(t), 2))


def test_a_students_loss_at_the_start_is_the_weighted_mean_of_its_selections_losses() -> None:
    chosen = pd.DataFrame(
        {"question_id": ["a", "a", "b"], "candidate_id": ["1", "2", "1"], "weight": [0.75, 0.25, 1.0]}
    )
    losses = pd.DataFrame(
        {
            "question_id": ["a", "a", "b", "b"],
            "candidate_id": ["1", "2", "1", "2"],
            "loss": [1.0, 3.0, 5.0, 9.0],
        }
    )
    assert loss_reduction.initial_loss(chosen, losses) == pytest.approx((0.75 * 1 + 0.25 * 3 + 5) / 2)


def test_the_loss_of_a_fixed_set_is_preferred_to_that_of_batches(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    start = pd.DataFrame({"step": range(1, 41), "size": [4, 1] * 20, "start": 2.0})
    path.write_text(
        '{"step": 0, "held_out_loss": 3.0}\n{"step": 1, "loss": 9.0}\n{"step": 2, "loss": 1.0,'
        ' "held_out_loss": 2.0}\n'
    )
    assert loss_reduction.read_curve(path, start).to_numpy().tolist() == [[0, 0.0], [2, -1.0]]
    path.write_text("".join(f'{{"step": {step}, "loss": {2 - step % 2}}}\n' for step in range(1, 41)))
    reductions = loss_reduction.read_curve(path, start)["reduction"]
    assert reductions.iloc[0] == 0
    assert reductions.iloc[-1] == pytest.approx(
        -4 / 5
    )  # over 5% of 40 steps: batches of 4 and 1, lower by 1 and 0


@given(st.integers(2, 6), st.integers(1, 3), st.integers(1, 7))
def test_over_an_epoch_the_batches_at_the_start_are_the_whole_selection(
    questions: int, budget: int, batch: int
) -> None:
    keys = [(f"q{n}", f"c{k}") for n in range(questions) for k in range(budget)]
    chosen = pd.DataFrame(keys, columns=["question_id", "candidate_id"]).assign(weight=1 / budget)
    losses = chosen[["question_id", "candidate_id"]].assign(loss=np.arange(len(keys), dtype=float))[::-1]
    training = Training(name="t", learning_rate=1.0, epochs=2, global_batch=batch)
    start = loss_reduction.batches_at_start(chosen, losses, training)
    for _, epoch in start.groupby((start["step"] - 1) // -(-len(keys) // batch)):
        whole = (epoch["start"] * epoch["size"]).sum() / epoch["size"].sum()
        assert whole == pytest.approx(loss_reduction.initial_loss(chosen, losses))
    recorded = [keys[first : first + batch] for first in range(0, len(keys), batch)]  # training.order
    in_order = loss_reduction.batches_at_start(chosen, losses, training, recorded)
    means = [np.arange(len(keys))[first : first + batch].mean() for first in range(0, len(keys), batch)]
    assert in_order["start"].tolist() == pytest.approx(means)


def test_token_level_compares_the_first_choices_with_all(outputs: Path) -> None:
    sweep = sweep_of("token_level", outputs)
    fill(sweep)
    data = token_level.render(sweep).data.set_index(["statistic", "group"])
    table = candidates(sweep, sweep.trials[0])
    assert table is not None
    first = table.loc[table.groupby("question_id")["g_hat"].idxmax()]
    assert data.loc[("p_gold", "selected"), "mean"] == pytest.approx(first["p_gold"].mean())
    assert data.loc[("wrong_p2", "all"), "mean"] == pytest.approx(table["wrong_p2"].mean())
    assert list(data["trajectories"]) == [132, 4, 132, 4]
    assert list(data["paper"]) == [0.449, 0.282, 0.085, 0.107]


def test_token_level_shows_the_student_beside_those_of_the_paper(outputs: Path) -> None:
    sweep = sweep_of("token_level", outputs)
    fill(sweep)
    drawn = token_level.render(sweep)
    table = candidates(sweep, sweep.trials[0])
    assert table is not None
    ours, paper, smollm2 = ([cell.text for cell in row] for row in drawn.tables[1].rows)
    K = len(table) / table["question_id"].nunique()
    assert ours == [
        "demo",
        *(f"{table[name].mean():.3f}" for name in ("loss", "p_gold", "wrong_p2")),
        f"{K * table['g_hat'].mean():.3f}",
    ]
    assert paper[1:] == ["–", "0.449", "0.085", "0.330"]
    assert smollm2[1:] == ["1.030", "0.633", "0.098", "0.360"]


def test_cost_is_a_ratio_to_the_fastest_of_the_papers_methods(outputs: Path) -> None:
    sweep = sweep_of("cost", outputs)
    fill(sweep)
    data = draw(sweep).data.set_index("method")
    assert data.loc["rsr", "seconds"] == pytest.approx(
        COSTS["rsr"] * 2.5
    )  # trajectories take 1 to 4 times as long
    assert data.loc["rsr", "ratio"] == pytest.approx(2.5)
    assert data.loc["local_naturalness", "paper_ratio"] == pytest.approx(5.06 / 1.28)
    assert pd.isna(data.loc["llm_judge", "seconds"])
    assert "the judge is missing (only engine=hf times it)" in draw(sweep).caption


def test_latex_escapes_and_bolds() -> None:
    rows = [[Cell("50%_a"), Cell("1.0±0.2", best=True)], [Cell("50%_a"), Cell("2")]]
    text = latex_table(["A & B", "x"], rows, "c", "l", labels=2)
    assert r"50\%\_a & \textbf{1.0$\pm$0.2} \\" in text
    assert r"\textbf{A \& B} & \textbf{x} \\" in text
    assert "\n & 2 \\\\" in text  # a label stands once
    assert text.count(r"\midrule") == 1
    assert text.count(r"50\%\_a") == 1
    assert latex_table(["A & B", "x"], rows, "c", "l").count(r"50\%\_a") == 2, (
        "no groups, where one column names the row"
    )
    assert latex_table(["A"], [[Cell("a")], [Cell("b")]], "c", "l").count(r"\midrule") == 1
    assert r"\resizebox" in latex_table(list("ABCDEFGHI"), [], "c", "l")
    assert Cell("κ̂ of ĝ, ‖∇θ‖").latex == r"$\hat{\kappa}$ of $\hat{g}$, $\Vert$$\nabla$$\theta$$\Vert$"


def test_the_tokens_that_are_shown_are_those_in_a_row_with_the_largest_residuals() -> None:
    tokens = pd.DataFrame(
        {"position": range(200), "residual": [2.0 if 90 <= at < 140 else 0.1 for at in range(200)]}
    )
    shown = case_study.window(tokens)["position"]
    assert len(shown) == case_study.SHOWN_TOKENS
    assert set(range(90, 140)) <= set(shown)
    assert list(case_study.window(tokens.head(7))["position"]) == list(range(7))


def test_ordinals_are_english() -> None:
    assert [case_study.ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 25, 112)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "25th", "112th",
    ]  # fmt: skip


def test_the_spread_over_seeds_is_that_of_a_one_way_analysis_of_variance() -> None:
    rng = np.random.default_rng(0)
    runs = {f"m{m}": rng.normal(60 + 8 * m, 3, 6) for m in range(5)}
    found = seeds.spread(runs)
    assert found is not None
    within = np.mean([values.var(ddof=1) for values in runs.values()])
    between = np.var([values.mean() for values in runs.values()], ddof=1) - within / 6
    assert (found.within, found.between) == (pytest.approx(within), pytest.approx(between))
    assert found.explained == pytest.approx(within / (within + between))
    draws = rng.normal(0, np.sqrt(within), (2, 200_000))
    assert found.wrong_order(4.0) == pytest.approx(np.mean(draws[0] + 4 < draws[1]), abs=0.005)
    assert seeds.spread({"a": np.array([50.0]), "b": np.array([60.0])}) is None


def test_seeds_reports_every_run_and_the_share_within_methods(outputs: Path) -> None:
    sweep = sweep_of("seeds", outputs)
    fill(sweep)
    drawn = seeds.render(sweep)
    assert [row[1].text for row in drawn.tables[0].rows] == ["3", "3"]
    assert set(drawn.data["training_seed"]) == {1, 2, 3}
    assert "is within methods" in drawn.notes[0]
    assert len(drawn.tables[1].rows) == 1


def test_noise_says_how_much_damage_each_method_selects_and_what_it_costs(outputs: Path) -> None:
    sweep = sweep_of("noise", outputs)
    fill(sweep)
    data = noise.collect(sweep).set_index(["noise", "share", "method"])
    assert data.loc[("wrong", 0.0, "lark"), "selected"] == 0
    assert 0.1 < data.loc[("wrong", 0.5, "lark"), "selected"] < 0.9
    assert data.loc[("wrong", 0.0, "lark"), "accuracy"] == data.loc[("shuffled", 0.0, "lark"), "accuracy"], (
        "the same pool"
    )
    change = (
        data.loc[("truncated", 0.5, "lark"), "accuracy"] - data.loc[("truncated", 0.0, "lark"), "accuracy"]
    )
    assert noise.lost(data.reset_index()).loc["truncated", "LARK"] == pytest.approx(change)
    assert data.loc[("wrong", 0.5, "lark"), "damaged"] == pytest.approx(0.5, abs=0.01)


def test_noise_shows_the_share_that_was_damaged_and_not_the_requested_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(
        trajectories: Iterable[Trajectory], pool: Pool
    ) -> set[int]:  # as if no other trajectory could be damaged
        return to_damage(trajectories, replace(pool, noise_share=pool.noise_share / 2))

    monkeypatch.setattr(synthetic, "to_damage", half)
    sweep = sweep_of("noise", tmp_path)
    fill(sweep)
    drawn = noise.render(sweep)
    assert drawn.data.loc[drawn.data["share"] == 0.5, "damaged"].to_numpy() == pytest.approx(0.25, abs=0.02)
    for table in drawn.tables:
        assert [row[1].text for row in table.rows[:2]] == ["0%", "25% (not 50%)"]
    assert "From 0 to 25% " in drawn.notes[0]
    assert drawn.figure is not None
    assert max(drawn.figure.axes[0].lines[0].get_xdata()) == pytest.approx(25, abs=2)  # type: ignore[arg-type]


def test_regime_changes_one_thing_at_a_time_and_compares_the_rankings(outputs: Path) -> None:
    sweep = sweep_of("regime", outputs)
    trials = regime.expanded(sweep)
    assert {(setting.axis, setting.label) for setting, _ in trials} == {
        ("strength", "2,800 steps"), ("strength", "and 120 on the broad corpus"),
        ("epochs", "1"), ("epochs", "4"), ("epochs", "8"),
        ("rate", "0.0003"), ("rate", "0.001"), ("rate", "0.003"),
    }, "checkpoints are missing until they are pretrained"  # fmt: skip
    fill(replace(sweep, trials=tuple(trial for _, trial in trials)))
    drawn = regime.render(sweep)
    places = {setting.label: setting.order for setting, _ in trials if setting.axis == "strength"}
    assert len(places) == len({setting for setting, _ in trials if setting.axis == "strength"}) == 2, (
        "methods share a place on the axis"
    )
    assert places["2,800 steps"] < places["and 120 on the broad corpus"]
    recipe = drawn.data[
        drawn.data["setting"].isin(["and 120 on the broad corpus", "4", "0.001"])
        & (drawn.data["method"] == "lark")
    ]
    assert recipe["accuracy"].nunique() == 1 and len(recipe) == 3, "the recipe is on each axis"
    assert drawn.notes[0].startswith(
        "First in each setting, with its lead in points over the next: strength of the student 2,800"
    )
    table = pd.DataFrame(
        {
            "axis": "rate",
            "order": [1, 1, 1, 2, 2, 2],
            "method": list("abcabc"),
            "accuracy": [1, 2, 3, 3, 2, 1],
        }
    )
    assert regime.rank_agreement(table) == {"rate": pytest.approx(-1.0)}
