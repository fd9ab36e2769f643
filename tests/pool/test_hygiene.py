"""Faults of long traces are counted by teacher, and dropped or trimmed on request."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lark.config import Pool
from lark.config.cli import as_hydra_reads
from lark.config.pool import HYGIENE
from lark.errors import LarkError
from lark.pool import trajectories as pools
from lark.pool.cleaning import Tally
from lark.pool.group_reports import read_report, write_report
from lark.pool.hygiene import conclusion, faults_of, scripts, trimmed
from lark.pool.partition import read_group
from lark.pool.read import read
from lark.pool.summary_text import pool_summary
from lark.pool.trajectory import Trajectory
from lark.pool.windows import repeated_share, window_hashes
from tests.conftest import composed
from tests.pool.rows import write_jsonl

DRAW = np.random.default_rng(0)
POOL = Pool(name="test", format="rows", path="x")


def prose(words: int) -> str:
    """Text that does not repeat itself."""
    return " ".join(f"w{number}" for number in DRAW.integers(0, 1_000_000, words))


def of(response: str, **more: Any) -> Trajectory:
    fields: dict[str, Any] = {"question": "What is 2+3?", "answer": "5", "correct": None, **more}
    return Trajectory("q", "c", "t", 0, None, fields.pop("question"), response, **fields)


PLAIN = f"{prose(200)}. So the answer is \\boxed{{5}}"
TAIL = f"{prose(150)}. The answer is 5.\nWait, let me check. {prose(400)}\nSo it is \\boxed{{5}}"
FAULTY = {
    "loops": f"{prose(100)}. {'I have to check this step again. ' * 200}\\boxed{{5}}",
    "conclusion": TAIL,
    "scripts": f"{prose(100)} 所以我们得到答案是五因为二加三等于五 {prose(50)} \\boxed{{5}}",
    "branching": f"{'. Wait, '.join(prose(10) for _ in range(30))}. \\boxed{{5}}",
    "empty": "\\boxed{5}",
    "refusals": "I'm sorry, but I can't help with that request.",
}


@pytest.mark.parametrize("fault", list(HYGIENE))
def test_each_planted_fault_is_found_and_no_other(fault: str) -> None:
    assert list(faults_of(of(FAULTY[fault]), POOL)) == [fault]


@pytest.mark.parametrize(
    "trajectory",
    [
        of(PLAIN),
        of(f"{prose(40)}\n" * 2 + prose(100)),  # a restated solution is no loop
        of(f"The answer is 5.\n{prose(500)} \\boxed{{5}}"),  # an answer that is then explained
        of(f"{prose(150)}. Is the answer 15 or 5.2? {prose(400)} \\boxed{{5}}"),
        of(f"{prose(150)}. The answer is 5.\n{prose(400)} \\boxed{{6}}", correct=False),
        of(f"{prose(60)} 我 \\boxed{{5}}"),  # a letter is a name or a sign
        of(f"{prose(60)} 所以我们得到答案是五 \\boxed{{5}}", question="二加三等于几?"),
        of(f"{prose(60)} α β γ δ ε ∑ ∫ → ≤ \\boxed{{5}}"),
        of(f"{prose(20)} Wait, {prose(20)}. \\boxed{{5}}"),
        of("Two and three make five: \\boxed{5}"),
        of("<action>Down</action>\n" * 40),  # a list of moves
        of("二加三等于五,所以答案是五。\\boxed{5}", question="二加三等于几?"),
        of(
            "你好,世界。这是一个翻译。 " + prose(20),
            question="Translate: Hello, world. This is a translation.",
        ),
        of("Sorry for the length. " + PLAIN),
        of("I can't see another way, so I add: \\boxed{5}"),
    ],
)
def test_ordinary_text_has_no_fault(trajectory: Trajectory) -> None:
    assert list(faults_of(trajectory, POOL)) == []


@pytest.mark.parametrize("copies", [1, 2, 4, 20])
def test_the_repeated_share_is_that_of_the_windows(copies: int) -> None:
    hashes = window_hashes(prose(500) * copies)
    exact = 1 - len(set(hashes.tolist())) / len(hashes)
    assert abs(repeated_share(hashes) - exact) < 0.01
    assert abs(exact - (1 - 1 / copies)) < 0.03


def test_the_text_of_agents_is_measured_without_the_results_of_tools(tmp_path: Path) -> None:
    call = {"id": "a", "function": {"name": "cat", "arguments": {}}}
    messages = [
        {"role": "user", "content": "Fix it."},
        {"role": "assistant", "content": prose(50), "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "the same line\n" * 500},
        {"role": "assistant", "content": prose(50)},
    ]
    (only,) = read(write_jsonl(tmp_path / "a.jsonl", [{"messages": messages}]))
    assert only.repeated < 0.05 and "same line" not in only.spoken


def rows() -> list[dict[str, Any]]:
    """Two teachers: one with a fault of each kind, one without."""
    shared = {"question": "What is 2+3?", "answer": "5"}
    faulty = [{**shared, "teacher": "r1", "candidate_id": name, "response": FAULTY[name]} for name in FAULTY]
    plain = [
        {**shared, "teacher": "phi", "candidate_id": str(number), "response": PLAIN} for number in range(3)
    ]
    return faulty + plain


def test_faults_are_counted_by_teacher_with_examples(tmp_path: Path) -> None:
    pool = write_jsonl(tmp_path / "a.jsonl", rows())
    counts = pools.write(read(pool), tmp_path / pools.FILE, pool)
    assert {fault: finding["teachers"] for fault, finding in counts["faults"].items()} == {
        fault: {"r1": 1} for fault in HYGIENE
    }
    assert counts["faults"]["loops"]["examples"][0].endswith("/loops")
    assert set(counts["branching"]) == {"r1"}
    summary = pool_summary(counts)
    assert "1 trajectories repeat 50% of their text or more (r1 1): " in summary
    assert "pool.drop=[loops] drops them" in summary


@pytest.mark.parametrize("fault", list(HYGIENE))
def test_a_fault_is_dropped_on_request(fault: str, tmp_path: Path) -> None:
    pool = replace(write_jsonl(tmp_path / "a.jsonl", rows()), drop=[fault])
    tally = Tally()
    kept = [t.candidate_id for t in read(pool, tally)]
    assert fault not in kept and len(kept) == 8
    assert tally.faulty == {fault: 1}


def test_a_filter_that_leaves_out_a_teacher_is_the_first_note(tmp_path: Path) -> None:
    pool = replace(write_jsonl(tmp_path / "a.jsonl", rows()), drop=list(HYGIENE))
    tally = Tally()
    counts = pools.write(read(pool, tally), tmp_path / pools.FILE, pool, tally)
    first = next(line for line in pool_summary(counts).splitlines() if line.startswith("Note"))
    assert "left out 6 of 9 trajectories (67%), among them all of r1 (6)" in first


def test_a_filter_that_leaves_out_nearly_all_of_a_teacher_says_so(tmp_path: Path) -> None:
    numbers = range(10)
    hidden = [{"question": f"{n}?", "teacher": "r1", "response": f"\\boxed{{{n}}}"} for n in numbers]
    shown = [{"question": f"{n}?", "teacher": "qwq", "response": f"{PLAIN} {n}"} for n in numbers]
    hidden[3]["response"] = PLAIN
    pool = replace(write_jsonl(tmp_path / "a.jsonl", hidden + shown), drop=["empty"])
    tally = Tally()
    counts = pools.write(read(pool, tally), tmp_path / pools.FILE, pool, tally)
    assert "and nearly all of r1 (9 of 10)" in pool_summary(counts)


def test_thresholds_are_settings_of_the_command_line() -> None:
    arguments = as_hydra_reads(["pool.thresholds.loops=0.6", "pool.thresholds.empty=3"])
    pool = composed(*arguments).pool
    assert (pool.threshold("loops"), pool.threshold("empty")) == (0.6, 3)


def test_thresholds_are_settings(tmp_path: Path) -> None:
    pool = replace(write_jsonl(tmp_path / "a.jsonl", rows()), drop=["empty"], thresholds={"empty": 10_000})
    with pytest.raises(LarkError, match=r"pool\.drop=\[empty\] leaves out 9 trajectories"):
        pools.write(read(pool, tally := Tally()), tmp_path / pools.FILE, pool, tally)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"drop": ["loop"]}, "pool.drop=loop: choose one of loops"),
        ({"thresholds": {"loop": 1.0}}, "pool.thresholds=loop: choose one of loops"),
        ({"thresholds": {"loops": 0.0}}, "pool.thresholds.loops=0.0: must be more than 0"),
        ({"answer_from": ["boxes"]}, "pool.answer_from=boxes: choose one of box"),
        ({"answer_from": []}, "pool.answer_from=[]: name at least one of box"),
        ({"trim": "loops"}, "pool.trim=loops: choose one of none, conclusion"),
        ({"unknown": "wrong"}, "pool.unknown=wrong: choose one of keep, drop"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(LarkError) as caught:
        replace(POOL, **settings)
    assert said in str(caught.value)


def test_trimming_ends_the_reasoning_at_its_conclusion_and_keeps_the_answer(tmp_path: Path) -> None:
    pool = replace(write_jsonl(tmp_path / "a.jsonl", rows()), trim="conclusion")
    tally = Tally()
    trajectories = {t.candidate_id: t for t in read(pool, tally)}
    shorter = trajectories["conclusion"]
    assert tally.trimmed == 1
    assert shorter.response.startswith(TAIL.split("\n", maxsplit=1)[0])
    assert "let me check" not in shorter.response and shorter.boxed == "5"
    assert list(faults_of(shorter, POOL)) == []
    assert all(trajectories[name].response == FAULTY[name] for name in FAULTY if name != "conclusion")


@pytest.mark.parametrize("form", ["thinking", "tags"])
def test_trimming_reasoning_leaves_the_response_after_it(form: str) -> None:
    reasoning = TAIL.rsplit("\n", 1)[0]
    answer = "It is \\boxed{5}."
    if form == "thinking":
        shorter = trimmed(of(answer, thinking=reasoning), 0.5)
        assert (shorter.response, shorter.thinking) == (answer, reasoning.split("\n")[0])
    else:
        shorter = trimmed(of(f"<think>{reasoning}</think>{answer}"), 0.5)
        assert shorter.response == f"<think>{reasoning.split(chr(10))[0]}\n\n</think>{answer}"


def test_shares_of_strange_letters_and_of_text_after_the_conclusion_are_those_of_the_text() -> None:
    assert scripts(of("ответ" + "a" * 95)) == pytest.approx(0.05)
    tail = len(TAIL) - TAIL.index("\n")
    assert conclusion(of(TAIL)) == pytest.approx(tail / len(TAIL), abs=0.01)


def test_reports_of_parts_have_the_findings(tmp_path: Path) -> None:
    pool = write_jsonl(tmp_path / "a.jsonl", [{**row, "reward": 0.0} for row in rows()])
    part = tmp_path / "trajectories-00000.parquet"
    report = read_group(pool, [tmp_path / "a.jsonl"], part, {})
    write_report(report, part, {})
    stored = read_report(part, pool)
    assert stored.summary.findings.to_dict(pool) == report.summary.findings.to_dict(pool)
    assert stored.tally == report.tally
    whole = report.summary.findings.to_dict(pool)
    report.summary.merge(stored.summary)
    merged = report.summary.findings.to_dict(pool)
    assert merged["faults"]["loops"]["teachers"] == {"r1": 2}
    assert merged["disagreements"]["compared"] == 2 * whole["disagreements"]["compared"]
