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
from lark.pool.identity import pool_identity
from lark.pool.noise import noisy, shuffled, truncated, with_response, wrong
from lark.pool.read import read
from lark.pool.trajectory import Trajectory, verdict
from lark.runtime.store import Checksums

DEMO = Pool(name="demo", format="demo", questions=60)


def damaged(kind: str, share: float) -> tuple[list[Trajectory], list[Trajectory]]:
    """The demo's trajectories before and after."""
    pool = replace(DEMO, noise=kind, noise_share=share)
    before = list(read(pool))
    return before, list(noisy(before, pool))


@pytest.mark.parametrize("kind", ["wrong", "truncated", "shuffled", "duplicated"])
def test_the_share_is_damaged_and_more_damage_includes_less(kind: str) -> None:
    hit = {}
    for share in (0.1, 0.3, 0.5):
        before, after = damaged(kind, share)
        hit[share] = {i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
        least = 0.8 if kind == "shuffled" else 0.9  # responses of fewer than three steps have no other order
        assert least * share < len(hit[share]) / len(before) < share + 0.04
        assert [(t.question_id, t.candidate_id, t.teacher, t.question, t.answer) for t in before] == [
            (t.question_id, t.candidate_id, t.teacher, t.question, t.answer) for t in after
        ]
    assert hit[0.1] < hit[0.3] < hit[0.5]


def test_wrong_answers_are_wrong_and_have_the_same_reasoning() -> None:
    before, after = damaged("wrong", 1.0)
    assert all(verdict(t, DEMO) for t in before)
    assert not any(verdict(t, DEMO) for t in after)
    assert all(a.response.split("boxed")[0] == b.response.split("boxed")[0] for a, b in zip(before, after, strict=True))


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
    assert {b.response == first[b.question_id] for a, b in zip(before, after, strict=True) if a.response != b.response} == {
        True
    }


@given(st.text(min_size=1, max_size=200), st.integers(0, 2**64 - 1))
def test_any_text_can_be_damaged(text: str, draw: int) -> None:
    assert text.startswith(truncated(text, draw)) and truncated(text, draw)
    assert Counter("".join(shuffled(text, draw).split())) == Counter("".join(text.split()))
    boxed = f"so \\boxed{{{text}}}"
    assert wrong(boxed, draw).startswith("so ")


def test_a_conversation_is_damaged_in_its_last_turn() -> None:
    stored = json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "tools": None})
    given_ = Trajectory("q", "c", "t", 0, None, "q", "a", None, True, conversation=stored)
    changed = with_response(given_, "b")
    assert changed.conversation is not None and json.loads(changed.conversation)["messages"][-1]["content"] == "b"
    assert changed.correct is None


def test_without_a_share_a_pool_is_the_same_pool_whatever_the_damage(tmp_path: Path) -> None:
    def identity(**settings: object) -> dict[str, object]:
        return pool_identity(replace(DEMO, **settings), Checksums(tmp_path))  # type: ignore[arg-type]

    assert identity(noise="wrong") == identity() and "noise" not in identity()
    different = [identity(noise=kind, noise_share=share) for kind in ("wrong", "shuffled") for share in (0.1, 0.3)]
    assert len({json.dumps(each) for each in different}) == 4
    with pytest.raises(LarkError, match=r"pool.noise_share=0.5: needs the kind of damage"):
        replace(DEMO, noise_share=0.5)
