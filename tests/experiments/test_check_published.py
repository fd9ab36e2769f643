"""RSR's published selection: the choice of its file, matching its trajectories, and the errors if a file is
missing.
"""

import json
from pathlib import Path

import pytest

from experiments import check_published
from experiments.harness import report
from experiments.harness.candidates import candidates
from experiments.harness.sweep import Sweep, compose_sweep
from lark.errors import LarkError
from lark.scoring.methods import METHODS
from tests.experiments.synthetic import fill

TEACHERS = ("gptoss-20b-high", "qwq-32b")
QUESTIONS = 4


def messages(question: int, response: str) -> list[dict[str, str]]:
    return [
        {
            "role": "system",
            "content": "Please reason step by step, and put your final answer within \\boxed{}.",
        },
        {"role": "user", "content": f"What is {question} + 1?"},
        {"role": "assistant", "content": response},
    ]


def response_of(question: int, candidate: str) -> str:
    return f"<think>\n{candidate} adds.\n</think>\nIt is \\boxed{{{question + 1}}}."


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """A folder in the layout of the dataset Umean/RSR_data: a folder per teacher, a JSON list per rollout."""
    folder = tmp_path / "RSR_data"
    for teacher in TEACHERS:
        (folder / teacher).mkdir(parents=True)
        for rollout in (1, 2):
            rows = [
                {"messages": messages(n, response_of(n, f"{teacher}.{rollout}"))} for n in range(QUESTIONS)
            ]
            (folder / teacher / f"short-sys_5k_gen{rollout}.json").write_text(json.dumps(rows))
    return folder


def sweep_of(pool: Path, *more: str) -> Sweep:
    arguments = [
        "pool=rsr",
        f"pool.path={pool}",
        "student.path=Qwen/Qwen2.5-7B",
        f"outputs={pool.parent / 'out'}",
        "tracking=none",
    ]
    arguments.append(f"pool.questions={QUESTIONS}")
    return compose_sweep("check_published", [*arguments, *more])


def publish(pool: Path, name: str, chosen: list[str]) -> None:
    """Publish this candidate of each question."""
    file = pool / "selected_by_rsr" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"messages": messages(n, response_of(n, candidate))} for n, candidate in enumerate(chosen)]
    file.write_text(json.dumps(rows))


def test_published_trajectories_are_compared_with_ours_question_by_question(pool: Path) -> None:
    publish(pool, "qwen2.5-7b/short-sys_5k.json", ["qwq-32b.1"] * QUESTIONS)
    sweep = sweep_of(pool)
    assert not check_published.render(sweep).measured
    fill(sweep)
    scored = candidates(sweep, sweep.trials[0])
    assert scored is not None
    lowest = scored.assign(rsr=METHODS["rsr"].score(scored)).sort_values("rsr").groupby("question_id")
    ours = [lowest.get_group(f"{n:05d}")["candidate_id"].iloc[0] for n in range(QUESTIONS)]
    other_rollout = ours[1][:-1] + ("1" if ours[1].endswith("2") else "2")
    other_teacher = next(teacher for teacher in TEACHERS if not ours[2].startswith(teacher)) + ".1"
    publish(
        pool,
        "qwen2.5-7b/short-sys_5k.json",
        [ours[0], other_rollout, other_teacher, "a teacher that is not in the pool"],
    )
    drawn = check_published.render(sweep)
    assert drawn.data["outcome"].tolist() == list(check_published.OUTCOMES)
    assert drawn.data["theirs"].tolist()[:3] == [ours[0], other_rollout, other_teacher]
    ranks = [lowest.get_group("00001")["candidate_id"].tolist().index(other_rollout) + 1]
    assert drawn.data["rank"].tolist()[:2] == [1, *ranks]
    assert drawn.summary == "1 of 4 published trajectories are our choice (25.0%)."
    assert drawn.summary in (report.write(sweep, drawn)[1]).read_text()


@pytest.mark.parametrize(
    ("published", "more", "said"),
    [
        ([], [], "there are no JSON files. The published selections are part of the dataset Umean/RSR_data"),
        (
            ["llama3.1-8b.json"],
            [],
            "has no selection for Qwen/Qwen2.5-7B (llama3.1-8b.json). Choose one with experiment.scales.",
        ),
        (["Qwen-2.5-7B.json", "qwen2.5-7b-v2.json"], [], "has several selections for Qwen/Qwen2.5-7B"),
        ([], ["experiment.scales.demo.selection=nowhere.json"], "nowhere.json: there is no such file"),
        ([], ["pool=demo", "pool.path=null"], "pool=demo has no published selection to compare with"),
    ],
)
def test_without_a_published_selection_the_check_says_so_before_anything_is_scored(
    published: list[str], more: list[str], said: str, pool: Path
) -> None:
    for name in published:
        publish(pool, name, ["qwq-32b.1"])
    with pytest.raises(LarkError) as error:
        check_published.render(sweep_of(pool, *more))
    assert said in str(error.value)


def test_a_dataset_that_cannot_be_downloaded_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    sweep = sweep_of(tmp_path / "RSR_data", "pool.path=Umean/RSR_data_that_is_not_there")
    with pytest.raises(LarkError, match="the dataset cannot be downloaded"):
        check_published.render(sweep)


def test_a_selection_of_other_questions_is_refused(pool: Path) -> None:
    file = pool / "selected_by_rsr" / "qwen2.5-7b.json"
    file.parent.mkdir()
    file.write_text(json.dumps([{"messages": messages(99, "It is \\boxed{100}.")}]))
    sweep = sweep_of(pool)
    fill(sweep)
    with pytest.raises(LarkError, match="no question of this selection is in the pool"):
        check_published.render(sweep)
