"""Damage is what it is called, hits the share that is asked for, and leaves everything else alone."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark.config import Pool
from lark.errors import LarkError
from lark.pipeline.operations.pool import READ_POOL
from lark.pool.identity import pool_identity
from lark.pool.noise import noisy, shuffled, to_damage, truncated, with_response, wrong
from lark.pool.read import read
from lark.pool.summary_text import pool_summary
from lark.pool.trajectory import Trajectory, verdict
from lark.store.store import Checksums
from tests.conftest import composed, job_of

DEMO = Pool(name="demo", format="demo", questions=60)


def damaged(kind: str, share: float) -> tuple[list[Trajectory], list[Trajectory]]:
    """The demo's trajectories before and after."""
    pool = replace(DEMO, noise=kind, noise_share=share)
    before = list(read(pool))
    return before, list(noisy(before, pool, to_damage(before, pool)))


def of_responses(*responses: str, answer: str | None = None) -> list[Trajectory]:
    """Trajectories of one question."""
    return [
        Trajectory("q", f"c{i}", "t", 0, None, "q", text, answer, None) for i, text in enumerate(responses)
    ]


def hit_in(trajectories: list[Trajectory], kind: str, share: float) -> tuple[list[str], int]:
    """The candidates that are changed, and how many are counted."""
    pool = replace(DEMO, noise=kind, noise_share=share)
    hit = to_damage(trajectories, pool)
    after = noisy(trajectories, pool, hit)
    return [a.candidate_id for a, b in zip(trajectories, after, strict=True) if a != b], len(hit)


@pytest.mark.parametrize("kind", ["wrong", "truncated", "shuffled", "duplicated"])
def test_the_share_is_damaged_and_more_damage_includes_less(kind: str) -> None:
    hit = {}
    for share in (0.1, 0.3, 0.5):
        before, after = damaged(kind, share)
        hit[share] = {i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
        assert len(hit[share]) == round(share * len(before))
        assert [(t.question_id, t.candidate_id, t.teacher, t.question, t.answer) for t in before] == [
            (t.question_id, t.candidate_id, t.teacher, t.question, t.answer) for t in after
        ]
    assert hit[0.1] < hit[0.3] < hit[0.5]


def test_wrong_answers_are_wrong_and_have_the_same_reasoning() -> None:
    before, after = damaged("wrong", 1.0)
    assert all(verdict(t, DEMO) for t in before)
    assert not any(verdict(t, DEMO) for t in after)
    assert all(
        a.response.split("boxed")[0] == b.response.split("boxed")[0]
        for a, b in zip(before, after, strict=True)
    )


@pytest.mark.parametrize(
    ("response", "answer", "expected"),
    [
        (r"We get \boxed{6}. So she has 6 apples.", "6", r"We get \boxed{#}. So she has 6 apples."),
        (r"First \boxed{1}, then \boxed{ 6 } and 6", "6", r"First \boxed{1}, then \boxed{ # } and 6"),
        (r"so \boxed{6} or \boxed{7", "6", r"so \boxed{#} or \boxed{7"),
        (r"16 and 6.5 and 1/6, so the answer is 6.", "6", r"16 and 6.5 and 1/6, so the answer is #."),
        ("6 apples, not 16, 6.5, 1/6 or -6", "6", "# apples, not 16, 6.5, 1/6 or -6"),
        ("the answer is B", "B", "the answer is #"),
    ],
)
def test_wrong_changes_the_answer_that_the_grader_reads(response: str, answer: str, expected: str) -> None:
    found = {wrong(response, draw, answer) for draw in range(50)}
    start, _, end = expected.partition("#")
    changed = {text.removeprefix(start).removesuffix(end) for text in found}
    assert len(changed) > 1 and answer not in changed
    assert {f"{start}{other}{end}" for other in changed} == found


def test_a_wrong_answer_never_equals_the_answer_for_the_grader() -> None:
    """Neither by a digit that the grader ignores, as in a unit, nor by making a wrong response right."""
    for draw in range(200):
        (area, wrong_before) = of_responses(r"\boxed{5\text{ cm}^2}", r"\boxed{7}", answer="5")
        for trajectory in (area, wrong_before):
            changed = with_response(trajectory, wrong(trajectory.response, draw, "5"))
            assert changed.response != trajectory.response
            assert verdict(changed, replace(DEMO, answer_format="free_form")) is False


def test_what_the_damage_does_not_change_is_not_counted_and_others_are_damaged_instead() -> None:
    without = [f"no number here, text {'x' * i}" for i in range(6)]
    changed, counted = hit_in(
        of_responses(*without, r"\boxed{6}", "It is 6.", r"\boxed{4}", answer="6"), "wrong", 1 / 3
    )
    assert (sorted(changed), counted) == (["c6", "c7", "c8"], 3)
    assert hit_in(of_responses(*without, answer="6"), "wrong", 0.5) == ([], 0)
    steps = of_responses("One. Two.", "Same. Same. Same. End.", "One. One. Two. End.")
    assert hit_in(steps, "shuffled", 1.0) == (["c2"], 1)
    assert hit_in(of_responses("a", "a", "b"), "duplicated", 1.0) == (["c2"], 1)


def test_any_order_of_two_different_steps_is_another_order() -> None:
    assert {shuffled("One. One. Two. End.", draw) for draw in range(50)} == {
        "One. Two. One. End.",
        "Two. One. One. End.",
    }


def test_the_pool_reports_the_share_that_is_damaged(tmp_path: Path) -> None:
    responses = [r"\boxed{6}", *(f"no answer, text {'x' * i}" for i in range(9))]
    rows = [{"question": "q", "response": text, "answer": "6"} for text in responses]
    (tmp_path / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = composed(
        "pool=files", f"pool.path={tmp_path}/pool.jsonl", "pool.noise=wrong", "pool.noise_share=0.3"
    )
    counts = READ_POOL.run(job_of(config, tmp_path))  # type: ignore[operator]
    assert counts["damaged"] == {"kind": "wrong", "share": 0.3, "trajectories": 1}
    assert "pool.noise=wrong damaged 1 of 10 trajectories (10.0%), not 30.0%" in pool_summary(counts)


def test_a_truncated_response_is_a_beginning_without_its_answer() -> None:
    before, after = damaged("truncated", 1.0)
    assert all(a.response.startswith(b.response) and b.response for a, b in zip(before, after, strict=True))
    assert sum(t.boxed is None for t in after) > 0.9 * len(after)


def test_shuffled_steps_are_the_same_steps_and_the_answer_stays_last() -> None:
    before, after = damaged("shuffled", 1.0)
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a.response != b.response]
    assert len(changed) > 0.8 * len(before)
    assert all(Counter(a.response.split()) == Counter(b.response.split()) for a, b in changed)
    assert all(a.boxed == b.boxed for a, b in changed)
    assert shuffled("one. two.", 3) == "one. two."


def test_duplicates_are_copies_of_the_first_candidate() -> None:
    before, after = damaged("duplicated", 0.5)
    first = {t.question_id: t.response for t in reversed(before)}
    assert {
        b.response == first[b.question_id]
        for a, b in zip(before, after, strict=True)
        if a.response != b.response
    } == {True}


@given(st.text(min_size=1, max_size=200), st.integers(0, 2**64 - 1))
def test_any_text_can_be_damaged(text: str, draw: int) -> None:
    assert text.startswith(truncated(text, draw)) and truncated(text, draw)
    assert Counter("".join(shuffled(text, draw).split())) == Counter("".join(text.split()))
    boxed = f"so \\boxed{{{text}}}"
    assert wrong(boxed, draw).startswith("so ")


def test_a_conversation_is_damaged_in_its_last_turn() -> None:
    stored = json.dumps(
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "tools": None}
    )
    given_ = Trajectory("q", "c", "t", 0, None, "q", "a", None, True, conversation=stored)
    changed = with_response(given_, "b")
    assert (
        changed.conversation is not None
        and json.loads(changed.conversation)["messages"][-1]["content"] == "b"
    )
    assert changed.correct is None


def test_without_a_share_a_pool_is_the_same_pool_whatever_the_damage(tmp_path: Path) -> None:
    def identity(**settings: object) -> dict[str, object]:
        return pool_identity(replace(DEMO, **settings), Checksums(tmp_path))  # type: ignore[arg-type]

    assert identity(noise="wrong") == identity() and "noise" not in identity()
    different = [
        identity(noise=kind, noise_share=share) for kind in ("wrong", "shuffled") for share in (0.1, 0.3)
    ]
    assert len({json.dumps(each) for each in different}) == 4
    with pytest.raises(LarkError, match=r"pool.noise_share=0.5: needs the kind of damage"):
        replace(DEMO, noise_share=0.5)
