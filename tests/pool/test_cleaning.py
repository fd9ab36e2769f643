"""Control tokens, votes, benchmarks in the pool, near-duplicates, and mixtures of pools."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark.config import Mixed, Pool
from lark.config.cli import as_hydra_reads
from lark.errors import LarkError
from lark.grading.answers import AnswerFormat, grade_paper
from lark.pipeline.operations.pool import READ_POOL
from lark.pipeline.plan import make_plan
from lark.pool import trajectories as pools
from lark.pool.cleaning import CONTROL_TOKEN, MARKS, Tally, special_token
from lark.pool.duplicates import similar_pairs
from lark.pool.read import read
from lark.pool.summary_text import pool_summary
from lark.pool.trajectory import Trajectory
from lark.pool.votes import Votes
from lark.pool.windows import BINS, sketch
from lark.store.store import Checksums
from tests.conftest import composed, job_of
from tests.pool.rows import chat, write_jsonl


def trajectory(**more: Any) -> Trajectory:
    values = {
        "question_id": "q",
        "candidate_id": "c",
        "teacher": "t",
        "rollout": 0,
        "system": None,
        "question": "A?",
        "response": "x",
        "answer": None,
        "correct": None,
    }
    return Trajectory(**{**values, **more})


def counted(pool: Pool, tmp_path: Path) -> tuple[dict[str, Any], str]:
    tally = Tally()
    counts = pools.write(read(pool, tally), tmp_path / pools.FILE, pool, tally)
    return counts, pool_summary(counts)


CONTROL = [
    "<|im_end|>",
    "<|endoftext|>",
    "<｜end▁of▁sentence｜>",
    "<s>",
    "</s>",
    "<bos>",
    "<eos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
    "<<SYS>>",
    "<</SYS>>",
    "<|start_header_id|>",
]


@pytest.mark.parametrize("token", CONTROL)
def test_text_like_a_control_token_is_found_wherever_it_is(token: str) -> None:
    assert any(mark in token for mark in MARKS)
    for place in ("system", "question", "response", "thinking", "conversation"):
        assert special_token(trajectory(**{place: f"a {token} b"})) == token


@pytest.mark.parametrize(
    "response", ["<|im_end|>", " </s>\n", "<|eot_id|><|endoftext|>", "\u200b<end_of_turn>"]
)
def test_a_response_of_control_tokens_alone_is_empty(response: str, tmp_path: Path) -> None:
    rows = [{"question": "A?", "response": response}, {"question": "B?", "response": "x <|im_end|>"}]
    rows += [{"messages": [*chat("C?", response), *chat("D?", "x")]}]
    pool, tally = write_jsonl(tmp_path / "a.jsonl", rows), Tally()
    with pytest.raises(LarkError, match=r"line 1: the response is empty"):
        list(read(pool))
    assert [t.question for t in read(replace(pool, incomplete="drop"), tally)] == ["B?"]
    assert tally.incomplete == 2


@pytest.mark.parametrize(
    "text", ["1 < x <= 2", "<think>so</think>", "|x| < |y|", "a[i] <s", "<sup>2</sup>", "2 <| 3"]
)
def test_mathematics_is_not_a_control_token(text: str) -> None:
    assert CONTROL_TOKEN.search(text) is None


def test_control_tokens_are_counted_dropped_or_refused_by_name(tmp_path: Path) -> None:
    texts = ["fine", "ends<|im_end|>", "fine too", "[INST]again"]
    pool = write_jsonl(tmp_path / "a.jsonl", [{"question": "A?", "response": text} for text in texts])
    counts, said = counted(pool, tmp_path)
    assert (counts["trajectories"], counts["special_tokens"]) == (4, 2)
    assert "2 trajectories contain text like a control token" in said
    counts, _ = counted(replace(pool, special_tokens="drop"), tmp_path)
    assert (counts["trajectories"], counts["special_tokens"]) == (2, 2)
    with pytest.raises(
        LarkError,
        match=r"2 trajectories of test .*/1 \(<\|im_end\|>\), .*/3 \(\[INST\]\)\. Remove it, or use",
    ):
        list(read(replace(pool, special_tokens="error")))


def test_questions_are_sampled_from_those_that_the_filters_keep(tmp_path: Path) -> None:
    rows = [{"question": f"{q}?", "response": "x" if q % 2 else "<|im_end|>"} for q in range(10)]
    pool = replace(write_jsonl(tmp_path / "a.jsonl", rows), special_tokens="drop", questions=5)
    assert {t.question for t in read(pool)} == {f"{q}?" for q in range(1, 10, 2)}
    with pytest.raises(LarkError, match="has only 5 that"):
        list(read(replace(pool, questions=6)))


def answers(*groups: list[str | None], **more: Any) -> list[dict[str, Any]]:
    return [
        {"question": f"{number}?", "response": "no box" if answer is None else f"\\boxed{{{answer}}}", **more}
        for number, group in enumerate(groups)
        for answer in group
    ]


def test_a_majority_of_equal_answers_decides_and_a_tie_does_not(tmp_path: Path) -> None:
    rows = answers(["1/2", "\\frac{1}{2}", "3", None], ["1", "1", "2", "2"], ["7"], ["1", "2", "3"])
    pool = replace(write_jsonl(tmp_path / "a.jsonl", rows), labels="vote")
    expected = [True, True, False, None, *[None] * 8]
    assert [t.correct for t in read(pool)] == expected
    assert all(t.answer is None for t in read(pool)), "a vote is not a gold answer"
    counts, said = counted(pool, tmp_path)
    assert counts["votes"] == {"decided": 1, "undecided": 3, "given": 0}
    assert "Correct by a majority vote of the candidates (not gold answers)." in said
    assert len(list(read(replace(pool, correct_only=True)))) == 2


def test_a_vote_never_replaces_an_answer_or_a_verdict(tmp_path: Path) -> None:
    rows = [*answers(["1", "1", "2"], answer="2"), *answers([], ["1", "1", "2"], correct=False)]
    pool = replace(write_jsonl(tmp_path / "a.jsonl", rows), labels="vote", correct_only=True)
    assert [t.boxed for t in read(pool)] == ["2"]


@given(votes=st.lists(st.sampled_from(["1/2", "0.5", "\\frac12", "2", "2.0", "x", "y", None]), max_size=9))
def test_votes_are_those_of_an_independent_count(votes: list[str | None]) -> None:
    """Answers are grouped pair by pair; the largest group wins if it has two members and is larger than any
    other.
    """
    counted = Votes(Pool(name="test", format="rows", path="x"))
    for vote in votes:
        counted.add(trajectory(response="none" if vote is None else f"\\boxed{{{vote}}}"))
    sizes = {
        vote: sum(other is not None and grade_paper(vote, other, AnswerFormat.FREE_FORM) for other in votes)
        for vote in votes
        if vote is not None
    }
    best = max(sizes.values(), default=0)
    groups = [vote for vote, size in sizes.items() if size == best]
    alone = all(grade_paper(groups[0], other, AnswerFormat.FREE_FORM) for other in groups[1:])
    winner = counted.winner("q") if votes else None
    assert (winner is not None) == (best >= 2 and alone)
    if winner is not None:
        assert grade_paper(winner, groups[0], AnswerFormat.FREE_FORM)


@pytest.mark.parametrize("common", [0, 100, 300, 600, 900, 1000])
def test_sketches_estimate_the_share_of_common_windows(common: int) -> None:
    """Against the exact Jaccard similarity of the sets of windows, on average over ten pairs of texts of
    1,000 words.
    """
    rng = np.random.default_rng(common)
    errors = []
    for _ in range(10):
        words = [f"{number:x}" for number in rng.integers(1 << 20, size=2000 - common)]
        texts = ["".join(words[:1000]), "".join(words[1000 - common :])]
        windows = [{text[i : i + 32] for i in range(len(text) - 31)} for text in texts]
        exact = len(windows[0] & windows[1]) / len(windows[0] | windows[1])
        one, other = map(sketch, texts)
        errors.append(float(np.mean(one == other)) - exact)
    assert abs(np.mean(errors)) <= 4 * np.sqrt(0.25 / BINS / 10)


def test_a_sketch_does_not_depend_on_white_space_and_takes_any_text() -> None:
    assert similar_pairs([sketch("a b\n c"), sketch("abc"), sketch("abd"), sketch("")]) == [(0, 1)]


def test_nearly_identical_candidates_are_reported(tmp_path: Path) -> None:
    text = " ".join(f"Step {i}: add {i * i}." for i in range(80))
    texts = [text, text.replace("Step 3:", "Third:"), " ".join(f"Then {i} and {i + 7}." for i in range(80))]
    rows = [
        {"question": q, "question_id": q, "response": t}
        for q, group in (("A?", texts), ("B?", texts[1:]))
        for t in group
    ]
    counts, said = counted(write_jsonl(tmp_path / "a.jsonl", rows), tmp_path)
    assert counts["near_duplicates"] == {"trajectories": 1, "questions": 1, "examples": ["A?: 0 and 1"]}
    assert "1 trajectories of 1 questions are nearly identical to another candidate: A?: 0 and 1." in said


def write_benchmark(path: Path, problem: str) -> list[str]:
    path.write_text(json.dumps({"problem": problem, "answer": "1"}) + "\n")
    return ["benchmark=math500", f"benchmark.tasks.math500.path={path}", "benchmark.tasks.math500.count=null",
            "benchmark.tasks.math500.id_field=null", "benchmark.tasks.math500.level_field=null"]  # fmt: skip


def test_questions_of_the_benchmarks_are_removed_by_name_and_count(tmp_path: Path) -> None:
    problem = "Find the number of positive integers n below 1000 that are divisible by 7 but not by 11."
    rows = [
        {"question": text, "question_id": identity, "response": "x"}
        for identity, text in (
            ("same", problem.upper().replace(" ", "  ")), ("variant", problem.replace("1000", "2000")),
            ("other", "How many primes lie between the squares of 10 and 20?"),
        )
        for _ in range(2)
    ]  # fmt: skip
    write_jsonl(tmp_path / "a.jsonl", rows)
    settings = [
        "pool=files",
        f"pool.path={tmp_path / 'a.jsonl'}",
        *write_benchmark(tmp_path / "b.jsonl", problem),
    ]
    config = composed(*settings, "pool.decontaminate=true", "pool.questions=1")
    assert callable(READ_POOL.run)
    counts = READ_POOL.run(job_of(config, tmp_path))
    assert counts["contaminated"] == {"same": "math500 problem 0", "variant": "math500 problem 0"}
    assert {row["question_id"] for row in pools.iterate(tmp_path / pools.FILE)} == {"other"}
    assert "pool.decontaminate removed 2 questions: same (like math500 problem 0), variant" in pool_summary(
        counts
    )

    def fingerprint(*overrides: str) -> str:
        return make_plan(composed(*settings, *overrides), Checksums(tmp_path))[0].artifacts[0].fingerprint

    cleaned, plain = fingerprint("pool.decontaminate=true"), fingerprint()
    write_benchmark(tmp_path / "b.jsonl", "Another problem.")
    assert fingerprint("pool.decontaminate=true") not in (cleaned, plain)
    assert fingerprint() == plain


def test_a_pool_without_anything_left_names_the_filters(tmp_path: Path) -> None:
    rows = [
        {"question": "A?", "response": "x <|im_end|>"},
        {"question": "B?", "generations": ["<s> y", ""], "answer": "y"},
    ]
    pool = replace(write_jsonl(tmp_path / "a.jsonl", rows), special_tokens="drop", incomplete="drop")
    said = (
        r"there is no trajectory left in .*a\.jsonl: "
        r"pool\.special_tokens=drop leaves out 2 trajectories with text like a control token, "
        r"pool\.incomplete=drop leaves out 1 incomplete trajectories\."
    )
    with pytest.raises(LarkError, match=said):
        counted(pool, tmp_path)
    with pytest.raises(
        LarkError, match=r"pool\.path=.*a\.jsonl has no question that pool\.special_tokens=drop and"
    ):
        counted(replace(pool, questions=3), tmp_path)


@pytest.fixture
def two(tmp_path: Path) -> Pool:
    """Sources with 40 and 10 questions, with the same ids and teachers."""
    for name, count in (("a", 40), ("b", 10)):
        rows = [
            {"question_id": q, "question": f"{name}{q}?", "response": "x", "teacher": "qwq"}
            for q in range(count)
        ]
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    mix = {name: Mixed(path=str(tmp_path / f"{name}.jsonl")) for name in "ab"}
    return Pool(name="mix", format="mix", mix=mix)


def shares(pool: Pool) -> Counter[str]:
    return Counter(t.question_id.split(":")[0] for t in read(pool))


def shared(pool: Pool, a: float, b: float, **more: Any) -> Pool:
    return replace(
        pool, mix={"a": replace(pool.mix["a"], share=a), "b": replace(pool.mix["b"], share=b)}, **more
    )


def test_pools_are_mixed_by_share_of_questions(two: Pool) -> None:
    assert shares(two) == {"a": 10, "b": 10}
    assert shares(shared(two, 3, 1)) == {"a": 30, "b": 10}
    assert shares(shared(two, 0.3, 0.1, questions=8)) == {"a": 6, "b": 2}
    assert shares(shared(two, 2, 1, questions=10)) == {"a": 7, "b": 3}
    with pytest.raises(LarkError, match=r"pool\.questions=30, the 15 of pool\.mix\.b, but it has only 10"):
        shares(replace(two, questions=30))


@pytest.mark.parametrize(
    ("a", "b", "questions", "said"),
    [
        (
            19,
            1,
            10,
            r"pool\.mix\.b would give none of the 10 questions.*\.b\.share, set pool\.questions=20 or more",
        ),
        (
            100,
            1,
            10,
            r"pool\.mix\.b would give none of the 10 questions.*\.b\.share, or leave the source out",
        ),
        (
            1e-9,
            1,
            None,
            r"pool\.mix\.a would give none of the 10 questions: with a share of 1e-09, its part is less",
        ),
        (1, 1, 1, r"would give none of the 1 questions.* pool\.questions=2 or more"),
        (1e-320, 1e308, None, r"pool\.mix\.a would give none of the 10 questions"),
    ],
)
def test_a_source_that_would_give_no_question_is_refused(
    a: float, b: float, questions: int | None, said: str, two: Pool
) -> None:
    with pytest.raises(LarkError, match=said):
        shares(shared(two, a, b, questions=questions))


@pytest.mark.parametrize("share", [1e308, 1e-308, 5e-324])
def test_shares_of_any_size_are_relative(share: float, two: Pool) -> None:
    assert shares(shared(two, share, share)) == {"a": 10, "b": 10}
    assert shares(shared(two, share, share, questions=8)) == {"a": 4, "b": 4}


def test_a_source_of_which_the_filters_keep_nothing_is_named(two: Pool, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "b.jsonl", [{"question": "b?", "response": "x <|im_end|>"}])
    with pytest.raises(
        LarkError,
        match=r"pool\.mix\.b has no question that pool\.special_tokens=drop keeps\. .*leave the source out",
    ):
        shares(replace(two, special_tokens="drop"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"path": "nowhere.jsonl"}, r"pool\.mix\.b\.path=nowhere\.jsonl: there is no such file"),
        ({"exclude": ["old"]}, r"pool\.mix\.b\.exclude=old: matches no file"),
        (
            {"fields": {"question": "q"}},
            r"pool\.mix\.b: .*b\.jsonl, line 1: .*pool\.mix\.b\.fields\.question=<column>",
        ),
        (
            {"fields": {"system": "s"}},
            r"pool\.mix\.b\.fields\.system=s: no row of .*b\.jsonl has such a column",
        ),
        (
            {"layout": "messages"},
            r"pool\.mix\.b: .*b\.jsonl, line 1: there is no `messages`.*pool\.mix\.b\.layout",
        ),
        ({"format": "rsr"}, r"pool\.mix\.b: .*b\.jsonl: a JSON list is expected"),
    ],
)
def test_an_error_in_a_source_names_it_and_its_settings(change: dict[str, Any], said: str, two: Pool) -> None:
    mixed = replace(two, mix={**two.mix, "b": replace(two.mix["b"], **change)})
    with pytest.raises(LarkError, match=f"^{said}"):
        shares(mixed)


@pytest.mark.parametrize(
    "change", [{"path": "nowhere.jsonl"}, {"exclude": ["old"]}, {"layout": "x"}, {"fields": {"x": "y"}}]
)
def test_a_plan_names_the_source_that_has_an_error(change: dict[str, Any], two: Pool, tmp_path: Path) -> None:
    mixed = replace(two, mix={**two.mix, "b": replace(two.mix["b"], **change)})
    with pytest.raises(LarkError, match=rf"^pool\.mix\.b\.{next(iter(change))}"):
        make_plan(replace(composed(), pool=mixed), Checksums(tmp_path))


def test_ids_and_teachers_of_mixed_pools_stay_distinct(two: Pool) -> None:
    found = list(read(two))
    assert {t.teacher for t in found} == {"a:qwq", "b:qwq"}
    assert [t.question for t in read(replace(two, ids=["b:3"]))] == ["b3?"]


def test_a_mixed_sample_does_not_depend_on_the_order_of_the_sources(two: Pool) -> None:
    turned = replace(two, mix=dict(reversed(two.mix.items())))
    assert {t.question_id for t in read(replace(two, questions=6))} == {
        t.question_id for t in read(replace(turned, questions=6))
    }
    assert {t.question_id for t in read(replace(two, questions=6))} < {
        t.question_id for t in read(replace(two, questions=8))
    }


def test_a_mixed_pool_is_identified_by_the_files_of_its_sources(two: Pool, tmp_path: Path) -> None:
    def fingerprint() -> str:
        return make_plan(replace(composed(), pool=two), Checksums(tmp_path))[0].artifacts[0].fingerprint

    before = fingerprint()
    write_jsonl(tmp_path / "b.jsonl", [{"question": "new?", "response": "x"}])
    assert fingerprint() != before


def test_a_mix_is_written_on_the_command_line(tmp_path: Path) -> None:
    typed = [
        "pool=mix",
        "pool.mix.math.path=a.jsonl",
        "pool.mix.math.share=3",
        "pool.mix.code.path=b/c",
        "pool.mix.code.format=hub",
    ]
    pool = composed(*as_hydra_reads(typed)).pool
    assert (pool.mix["math"].share, pool.mix["code"].format, pool.mix["code"].path) == (3.0, "hub", "b/c")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["pool=mix"], r"pool=mix needs its sources"),
        (["pool=mix", "pool.mix.a.share=2"], r"pool\.mix\.a needs a path"),
        (
            ["pool=mix", "pool.mix.a.path=x", "pool.mix.a.share=0"],
            r"pool\.mix\.a\.share=0.0: must be more than 0",
        ),
        (
            ["pool=mix", "pool.mix.a.path=x", "pool.mix.a.format=demo"],
            r"pool\.mix\.a\.format=demo: choose one of",
        ),
        (["pool=mix", "pool.mix.a.path=x", "pool.path=y"], r"pool=mix: set path, layout"),
        (["pool=files", "pool.path=x", "pool.mix.a.path=y"], r"pool\.mix is only read with pool=mix"),
        (
            ["pool=files", "pool.path=x", "pool.labels=votes"],
            r"pool\.labels=votes: choose one of given, vote",
        ),
        (
            ["pool=files", "pool.path=x", "pool.special_tokens=no"],
            r"pool\.special_tokens=.*: choose one of text, drop, error",
        ),
        (
            ["pool=files", "pool.path=x", "pool.incomplete=maybe"],
            r"pool\.incomplete=maybe: choose one of keep, drop",
        ),
        (["pool=files", "pool.path=x", "pool.similarity=0"], r"pool\.similarity=0.0: must be more than 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(LarkError, match=said):
        composed(*as_hydra_reads(overrides))
