"""Training sets for other trainers: every field arrives where the trainer reads it, and no weight is lost
silently.
"""

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark.errors import LarkError
from lark.export.__main__ import main
from lark.export.examples import ExportExample
from lark.export.repetition import repetitions
from lark.export.targets import TARGETS
from lark.models.students import DEMO

USER = {"role": "user", "content": "What is 2+3?"}
PLAIN = {
    "messages": [USER, {"role": "assistant", "content": "5"}],
    "weight": 1.5,
    "question_id": "q1",
    "candidate_id": "a",
}
THINKING = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": "5", "reasoning_content": "2+3."},
    ],
    "weight": 0.5, "question_id": "q1", "candidate_id": "b",
}  # fmt: skip
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
TOOLS = {
    "messages": [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "5", "tool_call_id": "1"},
        {"role": "assistant", "content": "It is 5."},
    ],
    "tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}],
    "weight": 1.0, "question_id": "q2", "candidate_id": "a",
}  # fmt: skip
CONTEXT = {
    "messages": [
        USER,
        {"role": "assistant", "content": "6", "weight": 0},
        USER,
        {"role": "assistant", "content": "5"},
    ],
    "weight": 1.0,
    "question_id": "q3",
    "candidate_id": "a",
}


def written(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def exported(folder: Path, target: str, *options: str) -> list[dict[str, Any]]:
    to = folder / "out.jsonl"
    main([str(folder / "train.jsonl"), "--for", target, "--to", str(to), *options])
    return [json.loads(line) for line in to.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("target", ["messages", "fireworks"])
def test_trainers_with_weights_get_the_conversation_and_its_weight_and_nothing_else(
    target: str, tmp_path: Path
) -> None:
    written(tmp_path, PLAIN, THINKING, TOOLS, CONTEXT)
    lines = exported(tmp_path, target)
    assert [line["weight"] for line in lines] == [1.5, 0.5, 1.0, 1.0]
    assert [line["messages"] for line in lines] == [
        row["messages"] for row in (PLAIN, THINKING, TOOLS, CONTEXT)
    ]
    assert lines[2]["tools"] == TOOLS["tools"]
    assert {key for line in lines for key in line} == {"messages", "tools", "weight"}


@pytest.mark.parametrize(
    ("target", "expected"),
    [("fireworks", '{"city": "Köln"}'), ("together", '{"city": "Köln"}'), ("axolotl", {"city": "Köln"})],
)
def test_hosted_trainers_get_the_arguments_of_tool_calls_as_text(
    target: str, expected: object, tmp_path: Path
) -> None:
    """As in OpenAI's format. The pool stores objects, because chat templates expect them."""
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
    written(
        tmp_path,
        {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [call]}], "weight": 1.0},
    )
    (line,) = exported(tmp_path, target)
    assert line["messages"][-1]["tool_calls"][0]["function"]["arguments"] == expected


def test_ids_are_kept_on_request(tmp_path: Path) -> None:
    written(tmp_path, PLAIN)
    assert exported(tmp_path, "fireworks", "--ids") == [PLAIN]


def test_trl_gets_prompt_and_completion_if_only_the_last_message_is_trained_on(tmp_path: Path) -> None:
    written(tmp_path, PLAIN, THINKING, CONTEXT)
    lines = exported(tmp_path, "trl", "--weights", "keep")
    assert lines[1] == {
        "prompt": THINKING["messages"][:-1],
        "completion": THINKING["messages"][-1:],
        "weight": 0.5,
    }
    assert lines[2]["prompt"] == [USER, {"role": "assistant", "content": "6"}, USER]
    assert lines[2]["completion"] == [{"role": "assistant", "content": "5"}]


def test_trl_gets_conversations_if_every_assistant_message_is_trained_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path, PLAIN, TOOLS)
    with caplog.at_level(logging.INFO):
        lines = exported(tmp_path, "trl", "--weights", "drop")
    assert lines == [
        {"messages": PLAIN["messages"]},
        {"messages": TOOLS["messages"], "tools": TOOLS["tools"]},
    ]
    assert "assistant_only_loss=True" in caplog.text


@pytest.mark.parametrize("target", ["trl", "llama_factory"])
def test_trainers_that_cannot_mask_single_messages_refuse_a_mixture(target: str, tmp_path: Path) -> None:
    written(tmp_path, TOOLS, CONTEXT)
    with pytest.raises(LarkError, match="cannot leave out single assistant messages"):
        exported(tmp_path, target, "--weights", "drop")


def test_axolotl_gets_a_training_flag_on_context_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path, THINKING, CONTEXT)
    with caplog.at_level(logging.INFO):
        lines = exported(tmp_path, "axolotl", "--weights", "drop")
    assert lines[0] == {"messages": THINKING["messages"]}
    assert lines[1]["messages"][1] == {"role": "assistant", "content": "6", "train": False}
    assert lines[1]["messages"][3] == {"role": "assistant", "content": "5"}
    assert "message_field_training: train" in caplog.text


def test_llama_factory_gets_thinking_as_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path, PLAIN, THINKING)
    with caplog.at_level(logging.INFO):
        lines = exported(tmp_path, "llama_factory", "--weights", "drop")
    assert lines[1]["messages"][-1] == {"role": "assistant", "content": "<think>\n2+3.\n</think>\n\n5"}
    entry = json.loads(caplog.text.split("\n\n")[1])["lark"]
    assert entry["file_name"] == "out.jsonl"
    assert entry["tags"]["assistant_tag"] == "assistant"


def test_thinking_becomes_text_on_request_and_is_mentioned_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path, PLAIN, THINKING)
    with caplog.at_level(logging.INFO):
        kept = exported(tmp_path, "fireworks")
    assert kept[1]["messages"][-1]["reasoning_content"] == "2+3."
    assert "1 of 2 examples have their thinking in `reasoning_content`" in caplog.text
    (tmp_path / "out.jsonl").unlink()
    caplog.clear()
    line = exported(tmp_path, "fireworks", "--thinking", "text")[1]
    assert line["messages"][-1] == {"role": "assistant", "content": "<think>\n2+3.\n</think>\n\n5"}
    assert "reasoning_content" not in caplog.text


def test_llama_factory_refuses_tools(tmp_path: Path) -> None:
    written(tmp_path, PLAIN, TOOLS)
    with pytest.raises(LarkError, match="1 of 2 examples use tools"):
        exported(tmp_path, "llama_factory", "--weights", "drop")


def test_together_gets_a_weight_of_0_or_1_on_every_message_of_a_conversation_with_context(
    tmp_path: Path,
) -> None:
    """Together trains on all messages of a conversation in which any message has a weight."""
    written(tmp_path, PLAIN, CONTEXT)
    lines = exported(tmp_path, "together", "--weights", "drop")
    assert lines[0] == {"messages": PLAIN["messages"]}
    assert [message["weight"] for message in lines[1]["messages"]] == [0, 0, 0, 1]


@pytest.mark.parametrize("target", [name for name, target in TARGETS.items() if target.weights != "used"])
def test_weights_are_never_lost_without_being_asked_for(target: str, tmp_path: Path) -> None:
    written(tmp_path, PLAIN)
    with pytest.raises(
        LarkError, match=r"ignores the weights of this selection.*--weights repeat.*--weights drop"
    ):
        exported(tmp_path, target)
    assert not (tmp_path / "out.jsonl").exists()
    written(tmp_path, {**PLAIN, "weight": 1.0})
    assert "weight" not in exported(tmp_path, target)[0]  # nothing is lost: all weights are 1


@pytest.mark.parametrize("target", ["axolotl", "llama_factory", "together"])
def test_weights_cannot_be_kept_for_a_trainer_that_ignores_them(target: str, tmp_path: Path) -> None:
    written(tmp_path, PLAIN)
    with pytest.raises(LarkError, match="ignores weights, so they cannot be kept"):
        exported(tmp_path, target, "--weights", "keep")


def test_repetition_replaces_weights_reproducibly(tmp_path: Path) -> None:
    rows = [{**PLAIN, "candidate_id": f"c{k}", "weight": k / 4} for k in range(13)]
    written(tmp_path, *rows)
    lines = exported(tmp_path, "together", "--weights", "repeat", "--ids")
    counts = Counter(line["candidate_id"] for line in lines)
    for row in rows:
        assert int(row["weight"]) <= counts[row["candidate_id"]] <= int(np.ceil(row["weight"]))
    (tmp_path / "out.jsonl").unlink()
    written(tmp_path, *reversed(rows))
    again = exported(tmp_path, "together", "--weights", "repeat", "--ids")
    assert Counter(line["candidate_id"] for line in again) == counts  # the order of the lines changes nothing


@given(st.floats(0, 8), st.integers(1, 5))
def test_the_expected_number_of_repetitions_is_the_weight(weight: float, copies: int) -> None:
    draws = [
        repetitions(ExportExample([], None, weight, {"question_id": f"q{n}"}, ""), n, copies, seed=1)
        for n in range(400)
    ]
    expected = copies * weight
    assert min(draws) >= np.floor(expected)
    assert max(draws) <= np.ceil(expected)
    assert np.mean(draws) == pytest.approx(expected, abs=0.11)  # more than 4 standard errors


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"weight": 1}, "`messages` must be a list"),
        ({"messages": [USER]}, "the last message must be the assistant's"),
        ({"messages": []}, "the last message must be the assistant's"),
        ({**PLAIN, "weight": -1}, "must be a number that is not negative"),
        ({**PLAIN, "weight": "much"}, "must be a number that is not negative"),
        (
            {"messages": [USER, {"role": "assistant"}]},
            "`messages` must be a list of messages, each with text as content",
        ),
        ({"messages": [USER, {"role": "assistant", "content": 5}]}, "each with text as content and a role"),
        (
            {"messages": [USER, {"role": "assistant", "content": "2", "tool_calls": "add"}]},
            "`tool_calls` must be a list of calls",
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": "2", "tool_calls": [None]}]},
            "`tool_calls` must be a list of calls",
        ),
        ({**PLAIN, "weight": 10**400}, "must be a number that is not negative"),
        ({"messages": [USER, {"role": "assistant", "content": "\ud800"}]}, "lone surrogate"),
        (
            {"messages": [USER, {"role": "assistant", "content": "5", "weight": 0}]},
            "nothing in this conversation is trained on",
        ),
    ],
)
def test_a_bad_line_is_named(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    written(tmp_path, PLAIN, row)
    with pytest.raises(LarkError, match=f"line 2: .*{said}"):
        exported(tmp_path, "messages")


@pytest.mark.parametrize("target", TARGETS)
def test_a_conversation_in_which_nothing_is_trained_is_refused_for_every_trainer(
    target: str, tmp_path: Path
) -> None:
    context = {"messages": [USER, {"role": "assistant", "content": "5", "weight": 0}], "weight": 1.0}
    written(tmp_path, context)
    options = ("--student", str(DEMO)) if TARGETS[target].tokens else ()
    with pytest.raises(LarkError, match="line 1: nothing in this conversation is trained on"):
        exported(tmp_path, target, *options)
    assert not (tmp_path / "out.jsonl").exists()


REPEAT = ("--weights", "repeat", "--copies")


def test_a_file_above_the_limit_is_refused_before_it_is_written_and_the_limit_can_be_raised(
    tmp_path: Path,
) -> None:
    written(tmp_path, PLAIN)
    with pytest.raises(LarkError, match=r"would have 0\.0 GB, more than the limit of 1e-06 GB.*--max-gb 1\."):
        exported(tmp_path, "axolotl", *REPEAT, "20", "--max-gb", "1e-6")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.jsonl"]
    assert len(exported(tmp_path, "axolotl", *REPEAT, "20", "--max-gb", "1")) == 30


def test_a_file_larger_than_the_free_space_is_refused_whatever_the_limit(tmp_path: Path) -> None:
    written(tmp_path, PLAIN)
    with pytest.raises(LarkError, match=r"GB free\. Use a smaller --copies, or another disk"):
        exported(tmp_path, "axolotl", *REPEAT, "500000000000", "--max-gb", "inf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.jsonl"]


@pytest.mark.parametrize(("weight", "copies"), [(1e308, "10"), (1e300, "1"), (1e12, "2")])
def test_weights_that_overflow_are_named(weight: float, copies: str, tmp_path: Path) -> None:
    written(tmp_path, PLAIN, {**PLAIN, "weight": weight})
    with pytest.raises(LarkError, match=r"line 2: the weight .* means more than 1e\+12 copies of this line"):
        exported(tmp_path, "axolotl", *REPEAT, copies)


@pytest.mark.parametrize("copies", ["0", "1" + "0" * 400])
def test_numbers_of_copies_that_cannot_be_meant_are_refused(copies: str, tmp_path: Path) -> None:
    written(tmp_path, PLAIN)
    with pytest.raises(LarkError, match="--copies"):
        exported(tmp_path, "axolotl", *REPEAT, copies)


def test_a_folder_and_links_are_named_as_what_they_are(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN)
    folder = tmp_path / "folder"
    folder.mkdir()
    link = tmp_path / "link"
    link.symlink_to(folder)
    for to in (folder, link):
        with pytest.raises(LarkError, match=r"this is a folder\. Give the name of a file in it"):
            main([str(path), "--for", "messages", "--to", str(to)])
    broken = tmp_path / "broken"
    broken.symlink_to(tmp_path / "nowhere")
    with pytest.raises(LarkError, match="which does not exist"):
        main([str(path), "--for", "messages", "--to", str(broken)])
    assert broken.is_symlink() and list(folder.iterdir()) == []


def test_an_existing_file_an_unfinished_selection_and_a_wrong_folder_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN)
    with pytest.raises(LarkError, match="this file exists"):
        main([str(path), "--for", "messages", "--to", str(path)])
    with pytest.raises(LarkError, match="this selection is not finished"):
        main([str(tmp_path), "--for", "messages", "--to", str(tmp_path / "out.jsonl")])
    with pytest.raises(LarkError, match=r"there is no train\.jsonl here"):
        main([str(tmp_path / "nowhere"), "--for", "messages", "--to", str(tmp_path / "out.jsonl")])
    with pytest.raises(LarkError, match="there is no folder"):
        main([str(path), "--for", "messages", "--to", str(tmp_path / "no" / "out.jsonl")])
    path.write_text("")
    with pytest.raises(LarkError, match="is empty"):
        main([str(path), "--for", "messages", "--to", str(tmp_path / "out.jsonl")])
