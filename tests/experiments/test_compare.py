"""A comparison of methods: planted winners and ties are called what they are, it fits its budget, resumes
and refuses politely.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import compare
from experiments.harness import report, results, verdict
from experiments.harness.both_accuracies import disagreement_words, other_accuracy
from experiments.harness.contest import contest_of
from experiments.harness.fitting import Costs, Schedule, fit
from experiments.harness.game import Game, decide_schedule, replay
from experiments.harness.sweep import Sweep, Trial, compose_sweep
from lark.errors import LarkError
from lark.evaluation.grade import METRICS
from lark.reading.rows import jsonl_rows
from lark.selection.held_out import PROBLEMS, TRAJECTORIES, Split
from lark.training.training_set import read_rows
from tests.conftest import ROOT
from tests.experiments.planted import Ability, build

METHODS = ("lark", "random", "grape", "rsr")


def sweep_of(outputs: Path, *arguments: str) -> Sweep:
    given = [
        f"method={','.join(METHODS)}",
        "compare.questions=20",
        "tracking=none",
        f"outputs={outputs}",
        *arguments,
    ]
    return compose_sweep("compare", given)


def played(
    sweep: Sweep,
    ability: Ability,
    most: int | None = None,
    builder: Callable[[Sweep, Trial, Ability], None] = build,
) -> Game:
    """A comparison with planted results. `most`: it is killed after this many runs."""
    contest = contest_of(sweep)
    decided = decide_schedule(contest)
    contest = contest_of(sweep, decided.questions, decided.entrants)
    contest.prepare()
    made = 0

    def perform(entrant: object, seed: int, trial: object) -> str | None:
        nonlocal made
        made += 1
        if most is None or made <= most:
            builder(sweep, trial, ability)  # type: ignore[arg-type]
        return None

    return Game(contest, decided).play(perform)


def test_a_planted_winner_is_named_with_its_lead_its_cost_and_the_full_run(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "weighting=uniform")
    game = played(sweep, lambda trial: 3.0 if trial.config.method.name == "rsr" else -2.0)
    said = verdict.sentence(game)
    assert re.match(
        r"RSR min \(\d+\.\d%\) is the best by Acc@5:"
        r" its lead over every other entrant is significant, by \+\d",
        said,
    )
    assert "training runs and their evaluation" in said
    typed = f"outputs={tmp_path} weighting=uniform student=demo method=rsr budget.size=3"
    assert verdict.next_command(game) == f"python run.py {typed}"
    assert sum(map(len, game.trials.values())) == 4 * 2, "nobody is left to play against"

    drawn = compare.render(sweep)
    files = {path.suffix for path in report.write(sweep, drawn)}
    assert files == {".md", ".csv", ".png", ".pdf"}
    text = (tmp_path / "report" / "compare.md").read_text()
    assert said in text and "the demo's numbers" in text and "not finished" not in text
    rows = {row[1].text: [cell.text for cell in row] for row in drawn.tables[0].rows}
    assert rows["RSR min"][-2] == "best" and {rows[name][-2] for name in ("LARK", "Random", "GRAPE max")} == {
        "significantly behind"
    }
    assert "Base model" in rows
    assert set(drawn.data.query("row == 'pair' and significant")["entrant"]) == {"RSR min"}
    assert "Kendall's τ" in text


def test_a_leader_whose_single_samples_are_worse_is_named(tmp_path: Path) -> None:
    """LARK solves every problem with one sample of five, RSR half of them with all."""

    def correct(trial: Trial, problem: int, sample: int) -> bool:
        return sample == 0 if trial.config.method.name == "lark" else problem % 2 == 0

    def builder(sweep: Sweep, trial: Trial, ability: Ability) -> None:
        build(sweep, trial, ability, correct=correct)

    sweep = compose_sweep(
        "compare", ["method=lark,rsr", "compare.questions=20", "tracking=none", f"outputs={tmp_path}"]
    )
    game = played(sweep, lambda trial: 0.0, builder=builder)
    other = other_accuracy(game)
    assert other is not None and (other.name, other.criterion) == ("pass@1", "Acc@5")
    assert {name: round(value.mean) for name, value in other.values.items()} == {"LARK": 20, "RSR min": 50}
    assert other.opposite == [("LARK", "RSR min")]
    said = disagreement_words(other)
    assert "by pass@1, RSR min leads with 50.0%" in said and "LARK has 20.0%" in said
    drawn = compare.render(sweep)
    (row,) = (row for row in drawn.tables[0].rows if row[1].text == "LARK")
    assert row[3].text == "100.0%" and row[4].text == "20.0% (20.0 to 20.0)"
    assert any(said in note for note in drawn.notes)


def test_a_planted_tie_is_called_a_tie_and_the_lower_half_stops(tmp_path: Path) -> None:
    game = played(sweep_of(tmp_path), lambda trial: 0.0)
    said = verdict.sentence(game)
    assert said.startswith("No single winner by Acc@5: ") and "is not significant" in said
    assert [len(judged.running) for judged in game.heats] == [4, 2, 2]
    assert sorted(len(trials) for trials in game.trials.values()) == [2, 2, 8, 8]
    states = [verdict.status(game, name) for name in game.scores]
    assert sorted(states) == ["leads", "tie", *["undecided, stopped after heat 1"] * 2]


def test_without_a_solved_problem_nobody_leads_and_the_sentence_says_why(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    game = played(sweep, lambda trial: -50.0)
    said = verdict.sentence(game)
    assert said.startswith(
        "No winner by Acc@5: all entrants have the same mean, 0.0%. No problem was solved, so they cannot be"
    )
    assert "leads" not in said and verdict.next_command(game) == ""
    assert verdict.heat_line(game, 0, game.heats[0]).startswith(
        "Heat 1 of 3: all entrants have the same mean."
    )
    drawn = compare.render(sweep)
    assert {row[-2].text for row in drawn.tables[0].rows if row[1].text in game.scores} <= {
        "tie",
        "undecided, stopped after heat 1",
    }
    assert "−0.0" not in str(drawn.tables) and not any("full run" in note for note in drawn.notes)


def test_entrants_with_the_same_selection_are_named(tmp_path: Path) -> None:
    drawn = compare.render(played(sweep_of(tmp_path), lambda trial: 0.0).contest.sweep)
    assert any(
        "LARK and Random and GRAPE max and RSR min selected the same texts" in note for note in drawn.notes
    ), drawn.notes


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        (["method=shortest,shortest"], r"Shortest \(1\) and Shortest \(2\) are the same entrant"),
        (
            ["method=random", "method.seed=1,2"],
            "are the same entrant: leave one out. Seeds are set by the comparison",
        ),
        (["training.seed=5"], "training.seed has no effect on a comparison"),
        (["stages=[select]"], "stages has no effect on a comparison"),
    ],
)
def test_what_cannot_be_compared_is_a_sentence(tmp_path: Path, typed: list[str], why: str) -> None:
    with pytest.raises(LarkError, match=why):
        contest_of(sweep_of(tmp_path, *typed))


def test_reversed_methods_enter_in_both_directions(tmp_path: Path) -> None:
    for reverse in ("false", "true"):
        given = [f"method.reverse={reverse}", "compare.reverse=[lark]", "method=lark,grape"]
        names = [entrant.name for entrant in contest_of(sweep_of(tmp_path, *given)).entrants]
        assert sorted(name for name in names if "LARK" in name) == ["LARK", "LARK (reversed)"], names


def test_a_dry_run_trains_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert compare.conduct(sweep_of(tmp_path, "dry_run=true")) == []
    assert "Comparing LARK, Random" in caplog.text and not list(tmp_path.glob("checkpoint/*"))


def test_a_question_with_several_ids_is_held_out_once_and_a_benchmark_has_several_problems(
    tmp_path: Path,
) -> None:
    rows = [
        {
            "question_id": f"q{n}{copy}",
            "question": f"What is {n} + 1?",
            "response": f"\\boxed{{{n + 1}}}",
            "answer": str(n + 1),
        }
        for n in range(10)
        for copy in "ab"
    ]
    path = tmp_path / "pool.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = ["pool=files", f"pool.path={path}"]
    split = contest_of(sweep_of(tmp_path, *own)).prepare()
    assert len(split.held_out) == 8 == len({id_[:-1] for id_ in split.held_out})
    one = tmp_path / "one.jsonl"
    one.write_text('{"problem": "What is 1 + 1?", "answer": "2"}\n')
    task = [
        "benchmark=demo_words",
        f"benchmark.tasks.demo_words.path={one}",
        "benchmark.tasks.demo_words.question_field=problem",
        "benchmark.tasks.demo_words.level_field=null",
        "benchmark.tasks.demo_words.id_field=null",
        "benchmark.tasks.demo_words.count=null",
    ]
    with pytest.raises(LarkError, match="The benchmark has 1 problem: a comparison needs at least 2"):
        contest_of(sweep_of(tmp_path, *own, *task)).prepare()


def test_a_killed_comparison_resumes_with_the_same_schedule_and_reports_what_there_is(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    assert not compare.render(sweep).measured
    partial = played(sweep, lambda trial: 0.0, most=5)
    assert partial.missing == 3 and not partial.finished
    assert "Not run yet" not in "".join(map(str, report.write(sweep, compare.render(sweep))))
    again = replay(sweep)
    assert again is not None and sum(map(len, again.trials.values())) == 5
    whole = played(sweep, lambda trial: 0.0)
    assert whole.finished and whole.schedule == partial.schedule
    after = replay(sweep)
    assert after is not None and verdict.sentence(after) == verdict.sentence(whole)


def test_an_entrant_that_fails_in_a_later_round_keeps_its_earlier_runs_and_the_report_is_written(
    tmp_path: Path,
) -> None:
    sweep = sweep_of(tmp_path)
    whole = played(sweep, lambda trial: 0.0)
    leader = whole.heats[-1].leader
    broken = Game(whole.contest, whole.schedule)
    last, number = whole.trials[leader][-1], len(whole.scores[leader])
    evaluated = next(step for step in last.plan if step.makes(METRICS) and step.model == "trained")
    sweep.store.fail(evaluated.artifacts, LarkError("out of memory"))
    lost = (leader, last.config.training.seed)
    broken.play(lambda entrant, seed, trial: "out of memory" if (entrant.name, seed) == lost else None)
    assert broken.failed == {leader: "out of memory"} and len(broken.scores[leader]) == number - 1
    assert verdict.status(broken, leader) == "failed"
    assert "failed: out of memory" in "".join(compare.render(sweep).notes)


def test_the_criterion_may_be_the_loss_which_needs_no_answers_and_no_generation(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "compare.criterion=loss", "compare.questions=50")
    game = played(sweep, lambda trial: 1.0 if trial.config.method.name == "lark" else 0.0)
    assert game.heats[-1].leader == "LARK" and not game.heats[-1].tied
    assert re.match(
        r"LARK \(1\.\d+\) is the best by loss .* by −0\.\d+ nats per token, 95% interval −0\.",
        verdict.sentence(game),
    )
    assert {step.stage for trial in game.trials["LARK"] for step in trial.steps} == {
        "pool",
        "score",
        "select",
        "train",
    }


def test_token_accuracy_of_held_out_trajectories_decides_without_generation(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "compare.criterion=token_accuracy", "compare.questions=60")
    game = played(sweep, lambda trial: 1.0 if trial.config.method.name == "lark" else 0.0)
    assert game.heats[-1].leader == "LARK"
    assert re.search(
        r"by token accuracy of held-out trajectories.* LARK \(\d+\.\d%\).* points", verdict.sentence(game)
    )
    assert "evaluate" not in {step.stage for trial in game.trials["LARK"] for step in trial.steps}


def test_losses_are_grouped_by_question_whatever_ids_contain(tmp_path: Path) -> None:
    pool = tmp_path / "pool.jsonl"
    row = {"response": "so \\boxed{3}", "answer": "3"}
    rows = [
        {**row, "question": f"{q}?", "question_id": f"q/{q}", "candidate_id": f"org/{k}/{q}"}
        for q in range(9)
        for k in range(2)
    ]
    pool.write_text("".join(json.dumps(one) + "\n" for one in rows))
    sweep = sweep_of(
        tmp_path / "outputs", "pool=files", f"pool.path={pool}", "compare.criterion=loss", "compare.seeds=[1]"
    )
    game = played(sweep, lambda trial: 0.0)
    assert game.tables["LARK"].shape == (1, 3), "three questions are held out"


def test_a_comparison_without_enough_problems_says_so_and_calls_nothing_real(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "compare.criterion=loss")
    game = played(sweep, lambda trial: 9.0 if trial.config.method.name == "lark" else 0.0)
    assert "LARK" in verdict.sentence(game) and not game.heats[-1].significant.any()
    assert "With 8 problems, no difference can be called significant: use at least 10 " in verdict.sentence(
        game
    )


def test_held_out_losses_belong_to_their_question_if_ids_join_alike(tmp_path: Path) -> None:
    measured, file = tmp_path / "measured.jsonl", tmp_path / "held_out.jsonl"
    ids = [("a/b", "c"), ("a", "b/c"), ("d", "e")]
    rows = [{"question_id": question, "candidate_id": candidate} for question, candidate in ids]
    losses = [{"trajectory": "/".join(row.values()), **row, "loss": k} for k, row in enumerate(rows, start=1)]
    measured.write_text("".join(json.dumps(row) + "\n" for row in rows))
    file.write_text("".join(json.dumps(row) + "\n" for row in losses))
    assert results.by_held_out_question(file, measured) == {"a/b": [1.0], "a": [2.0], "d": [3.0]}
    file.write_text('{"trajectory": "d/e", "loss": 4.0}\n')  # as older versions wrote it
    assert results.by_held_out_question(file, measured) == {"d": [4.0]}
    assert results.by_held_out_question(file, measured, "token_accuracy") == {}


def test_without_correct_held_out_trajectories_their_loss_is_not_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = tmp_path / "pool.jsonl"
    row = {"response": "so \\boxed{4}", "answer": "3"}
    rows = [
        {**row, "question": f"{q}?", "question_id": f"q{q}", "candidate_id": str(k)}
        for q in range(9)
        for k in range(2)
    ]
    pool.write_text("".join(json.dumps(one) + "\n" for one in rows))
    files = ("pool=files", f"pool.path={pool}")
    contest = contest_of(sweep_of(tmp_path / "outputs", *files))
    contest.prepare()
    assert "No trajectory of a held-out question is correct, so their loss is not measured" in caplog.text
    assert contest.run(contest.entrants[0], 1).config.training.held_out.path is None
    with pytest.raises(
        LarkError, match=r"compare\.criterion=loss has nothing to measure: compare by accuracy"
    ):
        contest_of(sweep_of(tmp_path / "outputs", *files, "compare.criterion=loss")).prepare()


def test_a_comparison_of_untrained_students_says_that_training_had_no_effect(tmp_path: Path) -> None:
    def planted(sweep: Sweep, trial: Trial, ability: Ability) -> None:
        build(sweep, trial, ability, steps=1)

    game = played(sweep_of(tmp_path), lambda trial: 0.0, builder=planted)
    assert game.contest.config.training.warmup > 0
    assert (
        "Training had no effect on GRAPE max, LARK, RSR min, Random: with warm-up, a single step"
        in verdict.sentence(game)
    )


def test_budgets_and_anything_else_can_be_swept_over_and_methods_can_enter_reversed(tmp_path: Path) -> None:
    swept = sweep_of(
        tmp_path, "method=lark,random", "budget=1,3", "training.objective=nll,dft", "compare.reverse=[lark]"
    )
    names = [entrant.name for entrant in contest_of(swept).entrants]
    assert len(names) == len(set(names)) == 12
    assert {"LARK B=1 objective=nll", "LARK (reversed) B=3 objective=dft"} <= set(names)
    (last,) = [
        entrant
        for entrant in contest_of(swept).entrants
        if entrant.name == "LARK (reversed) B=3 objective=dft"
    ]
    assert (
        contest_of(swept)
        .command(last)
        .endswith("student=demo method=lark budget.size=3 training.objective=dft method.reverse=true")
    )


def test_seeds_are_those_of_training_and_of_methods_that_draw(tmp_path: Path) -> None:
    contest = contest_of(sweep_of(tmp_path, "method=lark,random"))
    contest.prepare()
    lark, random = contest.entrants
    one, two = contest.run(random, 1), contest.run(random, 2)
    assert (one.config.training.seed, one.config.method.options["seed"]) == (1, 1)
    kinds = {"selection": 2, "scores": 1, "pool": 1}
    for entrant, selections in ((lark, 1), (random, 2)):
        found = [
            {
                a.folder
                for s in contest.run(entrant, n).plan
                for a in s.artifacts
                if a.kind.name == "selection"
            }
            for n in (1, 2)
        ]
        assert len(found[0] | found[1]) == selections
    assert kinds and two.config.training.held_out.path == one.config.training.held_out.path


def test_held_out_questions_are_not_trained_on_and_their_answers_are_the_benchmark(tmp_path: Path) -> None:
    contest = contest_of(sweep_of(tmp_path))
    split, folder = contest.prepare(), tmp_path / contest.held_out.folder
    assert (len(split.training), len(split.held_out)) == (12, 8) and not set(split.training) & set(
        split.held_out
    )
    problems = {row.values["id"]: row.values for row in jsonl_rows(folder / PROBLEMS)}
    assert set(problems) == set(split.held_out)
    trial = contest.run(contest.entrants[0], 1)
    assert trial.config.pool.ids == list(split.training)
    assert set(trial.config.benchmark.tasks) == {"held_out"}
    rows = list(read_rows(folder / TRAJECTORIES))
    assert {row.question_id for row in rows} == set(split.held_out) and len(rows) == 3 * 8
    for row in rows:
        assert problems[row.question_id]["answer"] in row.dialogue.messages[-1]["content"]


def test_the_split_does_not_depend_on_the_order_of_the_pool(tmp_path: Path) -> None:
    rows = [
        {
            "question_id": f"q{n}",
            "question": f"{n}+1?",
            "response": f"\\boxed{{{n + 1}}}",
            "answer": str(n + 1),
        }
        for n in range(30)
    ]
    splits = []
    for number, order in enumerate((rows, rows[::-1])):
        path = tmp_path / f"pool{number}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in order))
        contest = contest_of(sweep_of(tmp_path, "pool=files", f"pool.path={path}"))
        splits.append(contest.prepare())
    assert splits[0] == splits[1] and isinstance(splits[0], Split)


def test_a_pool_without_answers_says_what_to_do_and_a_named_benchmark_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    rows = [{"question_id": f"q{n}", "question": f"{n}?", "response": f"It is {n}."} for n in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = ["pool=files", f"pool.path={path}"]
    with pytest.raises(
        LarkError,
        match=r"Only 0 of the 20 questions of pool files have an answer.*benchmark=<name>.*criterion=loss",
    ):
        contest_of(sweep_of(tmp_path, *own)).prepare()
    named = contest_of(sweep_of(tmp_path, *own, "benchmark=demo_words"))
    assert named.named and len(named.prepare().training) == 12
    assert set(named.run(named.entrants[0], 1).config.benchmark.tasks) == {"demo_words"}
    by_loss = contest_of(sweep_of(tmp_path, *own, "compare.criterion=loss"))
    assert len(by_loss.prepare().held_out) == 8 and not by_loss.evaluates


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["method=lark"], "only one entrant"),
        (["pool.questions=9"], "set compare.questions instead"),
        (["student=demo,smollm2"], "one student at a time"),
        (["method=lark,base"], "method=base trains nothing"),
        (["compare.reverse=[rho]"], "compare.reverse: rho is not among the methods"),
        (["compare.held_out=1"], "compare.held_out=1.0: must be a share"),
        (["compare.seeds=[4,2]"], "compare.seeds=.*must be rising"),
        (["compare.criterion=luck"], "compare.criterion=luck: choose one of accuracy"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_sentence(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(LarkError, match=said):
        contest_of(sweep_of(tmp_path, *arguments))


NAMES = ("a", "b", "c", "d")


def per_question(questions: int) -> Costs:
    """A run takes 10 seconds per question, scoring once 20 per question for all but `a`."""
    return Costs(
        {name: {} if name == "a" else {("score",): 20.0 * questions} for name in NAMES},
        dict.fromkeys(NAMES, 10.0 * questions),
    )


def test_a_design_is_trimmed_by_questions_then_methods_then_seeds_and_says_so() -> None:
    full = Schedule(300, NAMES, (2, 4, 8))
    whole = fit(full, per_question, 0)
    assert (
        whole.hours == pytest.approx((20 * 300 + 10 * 300 * (4 * 2 + 2 * 2 + 2 * 4)) / 3600)
        and not whole.trimmed
    )
    fewer = fit(full, per_question, whole.hours * 0.7)
    assert fewer.questions < 300 and fewer.entrants == NAMES and fewer.seeds == (2, 4, 8)
    assert fewer.trimmed == (f"{fewer.questions} questions instead of 300",)
    methods = fit(full, per_question, 3.5)
    assert (methods.questions, methods.entrants, methods.seeds) == (60, ("a", "b", "c"), (2, 4, 8))
    assert methods.trimmed[-1] == "without d"
    seeds = fit(full, per_question, 1.5)
    assert (seeds.questions, seeds.entrants, seeds.seeds) == (
        60,
        ("a", "b", "c"),
        (2,),
    ), "fewer seeds leave room for c again"
    assert seeds.trimmed[1:] == ("without d", "2 training seeds instead of up to 8")
    few = fit(full, per_question, 1.1)
    assert (few.entrants, few.seeds) == (("a", "b"), (2,))
    for schedule in (fewer, methods, seeds, few):
        assert (
            schedule.hours is not None
            and per_question(schedule.questions).hours(schedule.entrants, schedule.design) == schedule.hours
        )
    with pytest.raises(
        LarkError,
        match=(
            r"compare.budget_hours=0.1: 2 entrants with 2 training seeds on 60 questions would take 60 min .*"
            r" limit is 6 min"
        ),
    ):
        fit(full, per_question, 0.1)


def test_a_pool_with_one_question_has_too_few_questions(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text(json.dumps({"question": "1?", "response": "\\boxed{1}", "answer": "1"}) + "\n")
    with pytest.raises(
        LarkError, match=r"Pool files has too few questions to compare methods: 1 question, of which 2"
    ):
        decide_schedule(contest_of(sweep_of(tmp_path, "pool=files", f"pool.path={path}")))


def test_a_comparison_ends_when_the_next_round_would_exceed_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = played(sweep_of(tmp_path), lambda trial: 0.0)
    monkeypatch.setattr(
        results, "seconds", lambda sweep, trials: 400.0 * len(trials)
    )  # planted runs take no time
    sweep = game.contest.sweep
    short = replace(game.contest.config.compare, budget_hours=1.0)
    entrants = tuple(
        replace(e, trial=replace(e.trial, config=replace(e.config, compare=short)))
        for e in game.contest.entrants
    )
    alone = replace(game.schedule, lanes=1)
    limited = Game(replace(game.contest, entrants=entrants), alone)
    limited.play(lambda entrant, seed, trial: None)
    side_by_side = Game(limited.contest, replace(alone, lanes=2)).play(lambda entrant, seed, trial: None)
    assert len(side_by_side.heats) > 1, "by the clock, two lanes take half of the time"
    assert len(limited.heats) == 1 and "more than compare.budget_hours=1." in verdict.sentence(limited)
    assert limited.finished and sweep is limited.contest.sweep


def test_the_planner_estimates_the_demo_and_trims_it(tmp_path: Path) -> None:
    whole = decide_schedule(contest_of(sweep_of(tmp_path)))
    assert whole.hours is not None and 0.01 < whole.hours < 3
    trimmed = decide_schedule(
        contest_of(sweep_of(tmp_path, "compare.questions=300", f"compare.budget_hours={whole.hours}"))
    )
    assert trimmed.questions < 300 and trimmed.trimmed
    assert "To fit compare.budget_hours: " in compare.announcement(trimmed)


def test_a_comparison_runs_from_the_command_line_and_a_second_time_trains_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "experiments",
        "run",
        "compare",
        "method=random,shortest",
        "compare.questions=12",
        "compare.seeds=[1]",
        "training.epochs=1",
        "benchmark.decoding.samples=1",
        "tracking=none",
        f"outputs={tmp_path}",
    ]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    assert "With one training seed each, no difference can be called significant" in first.stdout
    assert ("The full run with" in first.stdout) == ("all entrants have the same mean" not in first.stdout)
    assert "Traceback" not in first.stdout + first.stderr
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("checkpoint/*/*")}
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (
        again.returncode == 0
        and {path: path.stat().st_mtime_ns for path in tmp_path.glob("checkpoint/*/*")} == times
    )
    assert "training:" not in again.stderr
