"""Verdicts: by graders, by a program with limits, and what a judge's text means."""

import sys
from pathlib import Path
from typing import Any

import pytest

from lark.config.teaching import Command
from lark.errors import LarkError
from lark.generation.conversation import Failure, Reply
from lark.grading.verify import Verifier
from lark.teaching.command import ENDED, TIME, Program
from lark.teaching.verdicts import verdicts
from lark.teaching.verification import _decision, compared
from tests.conftest import composed

PROGRAM = """
import json, sys, time
for line in sys.stdin:
    row = json.loads(line)
    if "hang" in row["response"]:
        time.sleep(60)
    if "crash" in row["response"]:
        sys.exit("the checker crashed")
    if "memory" in row["response"]:
        bytearray(8 << 30)
    print(json.dumps({"correct": row["answer"] in row["response"], "reason": "looked"}), flush=True)
"""


def row(response: str, answer: str | None = "5", number: int = 0) -> dict[str, Any]:
    return {
        "question_id": "q",
        "question": "2+3?",
        "answer": answer,
        "response": response,
        "reasoning_content": None,
        "teacher": "t",
        "rollout": number,
        "finish_reason": "stop",
    }


@pytest.fixture
def command(tmp_path: Path) -> Command:
    (tmp_path / "check.py").write_text(PROGRAM)
    return Command(f"{sys.executable} {tmp_path}/check.py", seconds=3.0, memory_gib=1.0, batch=4)


def test_a_program_decides_line_by_line(command: Command) -> None:
    with Program(command) as program:
        made = program.verdicts([row(text) for text in ("5", "6", "15", "no", "5", "4")])
    assert [verdict["correct"] for verdict in made] == [True, False, True, False, True, False]
    assert made[0]["reason"] == "looked"


def test_an_answer_that_stops_the_program_has_no_verdict_and_the_others_have(command: Command) -> None:
    with Program(command) as program:
        made = program.verdicts([row(text) for text in ("5", "hang", "5", "crash", "memory", "5")])
    assert [verdict["correct"] for verdict in made] == [True, None, True, None, None, True]
    assert [made[number]["reason"] for number in (1, 3, 4)] == [TIME, ENDED, ENDED]


def test_a_program_that_never_works_is_an_error_with_its_last_words(command: Command) -> None:
    rows = [row("crash")] * 6
    with (
        Program(command) as program,
        pytest.raises(LarkError, match=r"5 times in a row .* the checker crashed"),
    ):
        program.verdicts(rows)


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        ("echo yes", "the program wrote 'yes'. Each line must be a JSON object with `correct`"),
        ("/no/such/program", "the program cannot be started"),
    ],
)
def test_a_program_that_is_none_is_refused(run: str, sentence: str) -> None:
    with Program(Command(run)) as program, pytest.raises(LarkError, match=sentence.replace("(", r"\(")):
        program.verdicts([row("5")])


def test_both_graders_compare_with_the_gold_answer() -> None:
    config = composed()
    texts = [("\\boxed{0.5}", "\\frac{1}{2}"), ("\\boxed{5}", "6"), ("five", "5"), ("\\boxed{5}", None)]
    with Verifier() as verifier:
        made = compared([row(text, gold) for text, gold in texts], verifier, config)
        config.teach.grader = "paper"
        strict = compared([row(text, gold) for text, gold in texts], verifier, config)
    assert [verdict["correct"] for verdict in made] == [True, False, False, None]
    assert [verdict["correct"] for verdict in strict] == [made[0]["paper"], False, False, None]
    assert made[0]["verify"] is True


def test_the_last_verdict_of_a_judge_counts_and_none_is_no_verdict() -> None:
    def reply(text: str) -> list[Reply]:
        return [Reply(text, None, "stop", 1, 1, "judge")]

    assert _decision(reply("Verdict: wrong? No.\n**Verdict: Correct**"))["correct"] is True
    assert _decision(reply("Verdict: incorrect"))["correct"] is False
    assert _decision(reply("I am not sure."))["correct"] is None
    assert _decision(Failure("content_filter", "refused"))["reason"] == "content_filter"


def test_a_verdict_that_is_known_is_not_asked_for_again(command: Command) -> None:
    rows = [row("5"), row("6", number=1)]
    with Program(command) as program:
        first = verdicts(rows, program.verdicts, {})
        known = {verdict["key"]: verdict for verdict in first}
    # No program runs any more.
    again = verdicts([*rows[::-1]], lambda new: pytest.fail(f"asked for {new}"), known)
    assert [verdict["correct"] for verdict in again] == [False, True]
    assert [verdict["rollout"] for verdict in again] == [1, 0]
