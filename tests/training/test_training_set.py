"""A training set is read, or an error names the first bad line."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from lark.errors import LarkError
from lark.models.dialogue import Dialogue
from lark.pipeline.pipeline import Pipeline
from lark.training.training_set import WeightedTrajectory, read_rows, read_token_weights
from tests.conftest import composed

USER, ASSISTANT = {"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}
GOOD = {"question_id": "q0", "candidate_id": "c", "weight": 1.5, "messages": [USER, ASSISTANT]}
MISSING = object()


def write(path: Path, *lines: str | dict[str, Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_rows_are_read_in_their_order_with_their_system_message(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    second = {**GOOD, "question_id": 7, "weight": 0, "messages": [system, USER, ASSISTANT]}
    path = write(tmp_path / "train.jsonl", GOOD, "", second)
    first = WeightedTrajectory("q0", "c", 1.5, Dialogue([USER, ASSISTANT]))
    assert list(read_rows(path)) == [
        first,
        WeightedTrajectory("7", "c", 0.0, Dialogue([system, USER, ASSISTANT])),
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weight": math.nan}, "`weight` is nan .a missing value"),
        ({"weight": math.inf}, "`weight` must be a number .*, not inf"),
        ({"weight": -0.5}, "`weight` must be a number that is not negative, not -0.5"),
        ({"weight": "1.0"}, "`weight` must be a number .*, not '1.0'"),
        ({"weight": True}, "`weight` must be a number .*, not True"),
        (
            {"weight": MISSING},
            "there is no `weight`; .* A line of a training set has question_id, candidate_id,"
            " weight and messages",
        ),
        ({"question_id": MISSING}, "there is no `question_id`"),
        ({"candidate_id": None}, "there is no `candidate_id`"),
        ({"question_id": {"a": 1}}, "`question_id` must be text or a number, not an object"),
        ({"question_id": True}, "`question_id` must be text or a number, not True"),
        ({"candidate_id": ["c"]}, "`candidate_id` must be text or a number, not a list"),
        ({"candidate_id": " "}, "`candidate_id` must be text or a number, not ' '"),
        ({"candidate_id": math.nan}, "`candidate_id` is nan .a missing value"),
        ({"messages": MISSING}, "there is no `messages`"),
        ({"question_id": "q0"}, "duplicate trajectory q0/c; merge its lines into one"),
        (
            {"messages": [USER, ASSISTANT, USER]},
            "end with an assistant turn .*; it has user, assistant, user",
        ),
        ({"messages": [USER, {**ASSISTANT, "weight": 0}]}, "end with an assistant turn that is trained on"),
        ({"messages": [ASSISTANT]}, "must have a user turn"),
        ({"messages": []}, "it has no messages"),
        (
            {"messages": [USER, {"content": "2"}]},
            "each with text as content and a role: system, user, assistant, tool",
        ),
        ({"messages": [USER, {"role": "assistant"}]}, "`messages` must be a list of messages"),
        ({"messages": "1 + 1 = 2"}, "`messages` must be a list of messages"),
        ({"weight": 10**400}, "`weight` must be a number .*, not 1000"),
        ({"token_weights": [10**400]}, "`token_weights` has 1000"),
        ({"tools": '[{"name": "f"}]'}, "`tools` must be a list of objects"),
        ({"tools": [None]}, "`tools` must be a list of objects"),
        (
            {"messages": [USER, {**ASSISTANT, "weight": -0.5}]},
            "`weight` must be a number from 0 to 1e.06, not -0.5. It is the weight of a message",
        ),
        (
            {"messages": [USER, {**ASSISTANT, "reasoning_content": ["Hm."]}]},
            "`reasoning_content` must be a string, not a list",
        ),
        ({"messages": [USER, {**ASSISTANT, "tool_calls": "add"}]}, "`tool_calls` must be a list of calls"),
        ({"messages": [USER, {**ASSISTANT, "tool_calls": [{}]}]}, "`tool_calls` must be a list of calls"),
        ({"messages": [{**USER, "content": "\ud800"}, ASSISTANT]}, "lone surrogate"),
        ({"token_weights": 1.0}, "`token_weights` must be a list of numbers, not 1.0"),
        (
            {"token_weights": [1, -1]},
            "`token_weights` has -1 at position 1; each value must be a number from 0 to 1e",
        ),
        ({"token_weights": [math.nan]}, "`token_weights` has nan at position 0"),
    ],
)
def test_what_cannot_be_trained_on_is_named_with_its_line(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    changed = {
        key: value for key, value in {**GOOD, "question_id": "q1", **change}.items() if value is not MISSING
    }
    path = write(tmp_path / "train.jsonl", GOOD, "", changed)
    with pytest.raises(LarkError, match=f"train.jsonl, line 3: .*{said}"):
        list(read_rows(path))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["{not JSON"], "line 1: broken JSON"),
        (["[1]"], "line 1: a JSON object is expected"),
        ([], "is empty"),
    ],
)
def test_a_file_of_something_else_is_refused(lines: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(LarkError, match=said):
        list(read_rows(write(tmp_path / "train.jsonl", *lines)))


def test_a_held_out_file_is_read_before_anything_runs_if_the_run_trains(tmp_path: Path) -> None:
    path = write(tmp_path / "held.jsonl", GOOD, {**GOOD, "weight": -1})
    settings = [
        f"outputs={tmp_path / 'outputs'}",
        "tracking=none",
        "hardware=cpu",
        f"training.held_out.path={path}",
    ]
    with pytest.raises(
        LarkError, match=r"held.jsonl, line 2: `weight` must be a number that is not negative, not -1"
    ):
        Pipeline(composed(*settings), tmp_path)
    Pipeline(composed(*settings, "stages=[select]"), tmp_path)
    write(path, GOOD)
    Pipeline(composed(*settings), tmp_path)


def test_weights_of_tokens_are_read_from_a_copy_of_a_training_set_or_from_a_shorter_file(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "train.jsonl", {**GOOD, "token_weights": [1, 0.5]})
    (row,) = read_rows(path)
    assert row.token_weights == (1.0, 0.5)
    short = write(
        tmp_path / "short.jsonl", {"question_id": "q0", "candidate_id": "c", "token_weights": [1, 0.5]}
    )
    assert read_token_weights(path) == read_token_weights(short) == {("q0", "c"): (1.0, 0.5)}
    for lines, said in (
        ([GOOD], "line 1: there is no `token_weights`"),
        ([], "is empty"),
        ([row_of(1), row_of(2)], "duplicate"),
    ):
        with pytest.raises(LarkError, match=said):
            read_token_weights(write(tmp_path / "bad.jsonl", *lines))


def row_of(weight: float) -> dict[str, Any]:
    return {**GOOD, "token_weights": [weight]}
