"""Rows of public datasets become trajectories, and nothing in them is lost without being reported."""

import json
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lark.config import Pool
from lark.errors import LarkError
from lark.pool import trajectories as pools
from lark.pool.cleaning import Tally
from lark.pool.columns import LAYOUT_NAMES, NAMES
from lark.pool.layouts import LAYOUTS
from lark.pool.read import read
from lark.pool.summary_text import pool_summary
from lark.pool.trajectory import Trajectory
from lark.selection.write import write_selection
from tests.conftest import composed, job_of
from tests.pool.rows import QUESTIONS, boxed, calling, chat, layout_rows, openr1, s1k, sharegpt, write_jsonl

WITH_FILES = {
    "session",
    "atif",
    "inspect",
    "every_eval",
    "lm_eval",
    "nemo_gym",
    "openai_batch",
    "reasoning_gym",
}
"""Layouts whose published files are in tests/pool/rollouts.py."""


def one(tmp_path: Path, *rows: dict[str, Any], **changes: Any) -> Trajectory:
    (found,) = read(replace(write_jsonl(tmp_path / "a.jsonl", list(rows)), **changes))
    return found


@pytest.mark.parametrize(
    ("name", "layout", "unused", "thinking", "conversations"),
    [
        ("columns", "columns", set(), 8, 0),
        ("messages", "messages", {"source"}, 8, 0),
        ("conversations", "conversations", set(), 0, 0),
        ("tools", "conversations", set(), 0, 8),
        ("prompt_completion", "prompt_completion", set(), 0, 0),
        ("chat_prompt_completion", "prompt_completion", set(), 0, 0),
        (
            "generations",
            "generations",
            {"solution", "problem_type", "question_type", "source", "correctness_count", "messages"},
            0,
            0,
        ),
        (
            "teachers",
            "teachers",
            {
                "solution",
                "cot_type",
                "source_type",
                "metadata",
                "gemini_grade_reason",
                "deepseek_grade_reason",
            },
            8,
            0,
        ),
        ("pairs", "pairs", {"license", "reasoning"}, 0, 0),
        ("openthoughts3", "openthoughts3", {"difficulty", "domain", "source"}, 0, 0),
    ],
)
def test_counts_add_up_from_the_file_to_the_selection(
    name: str, layout: str, unused: set[str], thinking: int, conversations: int, tmp_path: Path
) -> None:
    """Four questions with two candidates each, whether a row is a trajectory or a question."""
    rows, tally = layout_rows(name), Tally()
    pool = write_jsonl(tmp_path / "a.jsonl", rows)
    counts = pools.write(read(pool, tally), tmp_path / pools.FILE, pool, tally)
    assert counts["layouts"] == {layout: len(rows)}
    assert counts.get("unused", {}) == dict.fromkeys(unused, len(rows))
    assert (counts["questions"], counts["trajectories"], counts["candidates"]["max"]) == (4, 8, 2)
    assert (counts.get("thinking", 0), counts.get("conversations", 0)) == (thinking, conversations)
    table = pd.read_parquet(tmp_path / pools.FILE)
    assert sorted(set(table["question"])) == QUESTIONS
    table.assign(n_tokens=9, n_prompt=1, truncated=False).to_parquet(tmp_path / "lengths.parquet")
    config = composed("method=random", "budget.size=1")
    chosen = write_selection(job_of(config, tmp_path, inputs={"pool": tmp_path, "lengths": tmp_path}))
    assert (chosen["questions"], chosen["trajectories"]) == (4, 4)


@pytest.mark.parametrize("name", sorted(LAYOUTS.keys() - WITH_FILES))
def test_a_layout_that_is_named_is_the_one_that_is_detected(name: str, tmp_path: Path) -> None:
    pool = write_jsonl(tmp_path / "a.jsonl", layout_rows(name))
    assert list(read(replace(pool, layout=name))) == list(read(pool))


def test_rows_of_several_layouts_may_be_mixed(tmp_path: Path) -> None:
    rows = [
        {"question": "A?", "response": "x"},
        {"messages": chat("A?", "y")},
        {"conversations": sharegpt("A?", "z")},
    ]
    tally = Tally()
    assert [t.response for t in read(write_jsonl(tmp_path / "a.jsonl", rows), tally)] == ["x", "y", "z"]
    assert tally.layouts == {"columns": 1, "messages": 1, "conversations": 1}


def test_trajectories_that_are_not_read_are_reported_as_such(tmp_path: Path) -> None:
    pool, tally = write_jsonl(tmp_path / "a.jsonl", [openr1(0, "A?")]), Tally()
    said = pool_summary(pools.write(read(pool, tally), tmp_path / pools.FILE, pool, tally))
    assert "the column messages may hold trajectories too, but the rows were read as generations" in said
    assert "problem_type (1 rows)" in said
    (only,) = read(replace(pool, layout="messages"))
    assert only.response.startswith("<think>One more.</think>")


def test_keys_of_messages_that_are_not_read_are_counted(tmp_path: Path) -> None:
    tally = Tally()
    list(
        read(
            write_jsonl(tmp_path / "a.jsonl", [{"messages": chat("A?", "x", refusal="no", logprobs=None)}]),
            tally,
        )
    )
    assert tally.unused == {"messages.refusal": 1}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_kept_word_for_word_under_each_of_its_names(name: str, tmp_path: Path) -> None:
    expected = (" Let me\nsee.\n", "It is 2.")
    message = one(tmp_path, {"messages": chat("A?", "It is 2.", **{name: " Let me\nsee.\n"})})
    column = one(tmp_path, {"question": "A?", "response": "It is 2.", name: " Let me\nsee.\n"})
    prompt = one(
        tmp_path,
        {
            "prompt": "A?",
            "completion": [{"role": "assistant", "content": "It is 2.", name: " Let me\nsee.\n"}],
        },
    )
    listed = one(
        tmp_path, {"problem": "A?", "generations": [{"content": "It is 2.", name: " Let me\nsee.\n"}]}
    )
    assert {(t.thinking, t.response) for t in (message, column, prompt, listed)} == {expected}


@pytest.mark.parametrize("blank", ["", "  \n", None])
def test_blank_reasoning_counts_as_missing(blank: str | None, tmp_path: Path) -> None:
    assert one(tmp_path, {"messages": chat("A?", "x", reasoning_content=blank)}).thinking is None
    assert one(tmp_path, {"question": "A?", "response": "x", "thinking": blank}).thinking is None
    row = {"question": "A?", "t_thinking_trajectory": blank, "t_attempt": "x"}
    assert one(tmp_path, row).thinking is None


def test_thinking_that_is_written_in_the_text_stays_there(tmp_path: Path) -> None:
    found = one(tmp_path, {"messages": chat("A?", "<think>\nhm\n</think>\n\n2")})
    assert (found.response, found.thinking, found.conversation) == ("<think>\nhm\n</think>\n\n2", None, None)


def test_content_parts_are_joined_and_their_reasoning_is_reasoning(tmp_path: Path) -> None:
    parts = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "It is "},
        {"type": "text", "text": "2."},
    ]
    found = one(
        tmp_path,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "A?"}]}, *chat("", parts)[1:]]},
    )  # type: ignore[arg-type]
    assert (found.question, found.thinking, found.response) == ("A?", "hm", "It is 2.")


def test_a_conversation_with_tools_is_normalised(tmp_path: Path) -> None:
    row = {
        "tools": json.dumps([{"name": "add", "parameters": {}}]),
        "conversations": calling(1, "What is 1+1?"),
    }
    found = one(tmp_path, row)
    assert (found.question, found.response) == ("What is 1+1?", boxed(1))
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 1}}}
    assert json.loads(found.conversation or "") == {
        "messages": [
            {"role": "user", "content": "What is 1+1?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "2"},
            {"role": "assistant", "content": boxed(1)},
        ],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}],
    }


def test_openais_and_sharegpts_tool_calls_are_the_same(tmp_path: Path) -> None:
    calls = [
        {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 1}'}}
    ]
    messages = [
        {"role": "user", "content": "What is 1+1?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": boxed(1)},
    ]
    openai = one(tmp_path, {"messages": messages})
    assert openai.conversation == one(tmp_path, {"conversations": calling(1, "What is 1+1?")}).conversation


def test_several_turns_are_kept_with_the_reasoning_of_each(tmp_path: Path) -> None:
    first = [{"role": "developer", "content": "Be brief."}, *chat("A?", "1", reasoning="a")]
    found = one(tmp_path, {"messages": [*first, *chat("And B?", "2", reasoning="b")]})
    assert (found.system, found.question, found.response, found.thinking) == ("Be brief.", "A?", "2", "b")
    messages = json.loads(found.conversation or "")["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert [message.get("reasoning_content") for message in messages] == [None, None, "a", None, "b"]


def test_turns_after_the_last_answer_are_cut_and_counted(tmp_path: Path) -> None:
    pool = write_jsonl(
        tmp_path / "a.jsonl", [{"messages": [*chat("A?", "1"), {"role": "user", "content": "Thanks!"}]}]
    )
    tally = Tally()
    (found,) = read(pool, tally)
    assert (found.response, found.conversation, tally.cut) == ("1", None, 1)


def test_a_conversation_may_end_with_a_tool_call(tmp_path: Path) -> None:
    found = one(tmp_path, {"conversations": calling(1, "A?")[:2]})
    assert found.response == ""
    assert json.loads(found.conversation or "")["messages"][-1]["tool_calls"][0]["function"]["name"] == "add"


def test_a_rewritten_answer_is_rewritten_in_the_conversation_too(tmp_path: Path) -> None:
    turns = [*chat("A?", "<answer>1</answer>"), *chat("B?", "<answer>2</answer>")]
    found = one(tmp_path, {"messages": turns}, answer_pattern="<answer>(.*?)</answer>")
    last = json.loads(found.conversation or "")["messages"][-1]["content"]
    assert found.response == last == "\\boxed{2}"


def test_tool_calls_that_are_written_as_text_stay_text(tmp_path: Path) -> None:
    turns = [
        *sharegpt("A?", '<tool_call>{"name": "add"}</tool_call>'),
        {"from": "tool", "value": "2"},
        *sharegpt("", "2")[1:],
    ]
    messages = json.loads(one(tmp_path, {"conversations": turns}).conversation or "")["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]


def test_a_generation_is_right_if_one_of_its_verdicts_says_so(tmp_path: Path) -> None:
    row = {
        "problem": "A?",
        "generations": ["a", "b", "c", "d"],
        "correctness_math_verify": [True, False, None, False],
        "correctness_llama": [None, True, None, False],
    }
    assert [t.correct for t in read(write_jsonl(tmp_path / "a.jsonl", [row]))] == [True, True, None, False]
    row |= {
        "correctness_llama": [float("nan"), "yes", "", 0.0],
        "is_reasoning_complete": [float("nan"), "true", "no", 1],
    }
    tally = Tally()
    assert [t.correct for t in read(write_jsonl(tmp_path / "a.jsonl", [row]), tally)] == [
        True,
        True,
        None,
        False,
    ]
    assert tally.incomplete == 1


def test_lists_may_have_other_names(tmp_path: Path) -> None:
    row = {"query": "A?", "samples": ["x", "y"], "ok": [1, 0], "models": ["qwq", "r1"], "key": 7}
    fields = {
        "question": "query",
        "generations": "samples",
        "correct": "ok",
        "teacher": "models",
        "question_id": "key",
    }
    found = list(read(replace(write_jsonl(tmp_path / "a.jsonl", [row]), fields=fields)))
    assert [(t.question_id, t.teacher, t.rollout, t.correct) for t in found] == [
        ("7", "qwq", 0, True),
        ("7", "r1", 1, False),
    ]


@pytest.mark.parametrize("incomplete", ["keep", "drop"])
def test_generations_that_were_cut_off_are_counted_and_kept_or_dropped(
    incomplete: str, tmp_path: Path
) -> None:
    rows = [
        openr1(0, "A?"),
        {"problem": "B?", "generations": ["x", "y"], "finish_reasons": ["stop", "length"]},
    ]
    tally = Tally()
    found = list(read(replace(write_jsonl(tmp_path / "a.jsonl", rows), incomplete=incomplete), tally))
    assert ([t.candidate_id for t in found], tally.incomplete) == (
        (["0", "1"] if incomplete == "keep" else ["0"]) * 2,
        2,
    )


def test_empty_responses_can_be_dropped(tmp_path: Path) -> None:
    pool = write_jsonl(
        tmp_path / "a.jsonl", [{"question": "A?", "response": text} for text in ("x", " ", "y")]
    )
    assert [t.candidate_id for t in read(replace(pool, incomplete="drop"))] == ["0", "2"]


def test_a_teacher_without_text_has_no_trajectory_of_the_question(tmp_path: Path) -> None:
    rows = [{**s1k(0, "A?"), "gemini_thinking_trajectory": None, "gemini_attempt": None}, s1k(1, "B?")]
    found = list(read(write_jsonl(tmp_path / "a.jsonl", rows)))
    assert [(t.question, t.teacher, t.correct) for t in found] == [
        ("A?", "deepseek", False), ("B?", "gemini", True), ("B?", "deepseek", False),
    ]  # fmt: skip


def test_a_reference_solution_is_not_a_teacher(tmp_path: Path) -> None:
    row = {
        "problem": "A?",
        "deepseek_reasoning": "hm",
        "deepseek_solution": "2",
        "ground_truth_solution": "two",
    }
    assert one(tmp_path, row).teacher == "deepseek"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {
                "problem": "A?",
                "generated_solution": "x",
                "expected_answer": "5",
                "generation_model": "QwQ-32B",
                "mode": "cot",
            },
            [("A?", "x", "QwQ-32B", "5", None)],
        ),
        (
            {
                "question": "A?",
                "final_answer": "5",
                "r1_solution_1": "x",
                "r1_solution_2": "y",
                "r1_solution_3": None,
            },
            [("A?", "x", "r1", "5", None), ("A?", "y", "r1", "5", None)],
        ),
        (
            {"question": "A?", "qwq_response": "x", "r1_response": "y", "reference_response": "z"},
            [("A?", "x", "qwq", None, None), ("A?", "y", "r1", None, None)],
        ),
        (
            {"question": "A?", "thinking_trajectories": ["hm"], "attempt": "x"},
            [("A?", "x", "unknown", None, "hm")],
        ),
        (
            {"instruction": "Solve.", "input": "A?", "output": "x"},
            [("Solve.\n\nA?", "x", "unknown", None, None)],
        ),
        ({"instruction": "Solve.", "input": "", "output": "x"}, [("Solve.", "x", "unknown", None, None)]),
        ({"query": "A?", "response": "x", "type": "MATH"}, [("A?", "x", "unknown", None, None)]),
        ({"prompt": "A?", "llm_response": "x", "reasoning": "hm"}, [("A?", "x", "unknown", None, "hm")]),
        (
            {"prompt": '[{"a": 1}] is what?', "completion": '[{"name": "f"}]'},
            [('[{"a": 1}] is what?', '[{"name": "f"}]', "unknown", None, None)],
        ),
    ],
)
def test_questions_and_responses_have_other_names_in_public_datasets(
    row: dict[str, Any], expected: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    found = read(write_jsonl(tmp_path / "a.jsonl", [row]))
    assert [(t.question, t.response, t.teacher, t.answer, t.thinking) for t in found] == expected


def test_tool_calls_alone_are_a_response(tmp_path: Path) -> None:
    """xLAM: the calls are in `answers`."""
    row = {
        "query": "1+2?",
        "answers": '[{"name": "add", "arguments": {"a": 1, "b": 2}}]',
        "tools": '[{"name": "add"}]',
    }
    conversation = json.loads(str(one(tmp_path, row).conversation))
    (call,) = conversation["messages"][-1]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": {"a": 1, "b": 2}}
    assert conversation["tools"][0]["function"] == {"name": "add"}


@pytest.mark.parametrize("flag", ["on", "off", True, "high"])
def test_a_setting_of_the_teacher_is_not_its_reasoning(flag: str | bool, tmp_path: Path) -> None:
    tally = Tally()
    (found,) = read(
        write_jsonl(tmp_path / "a.jsonl", [{"question": "A?", "response": "x", "reasoning": flag}]), tally
    )
    assert (found.thinking, tally.unused, tally.lost) == (None, {"reasoning": 1}, set())


@pytest.mark.parametrize(
    ("column", "is_lost"),
    [
        ("gpt4_attempt", True),
        ("r1_solution_2", True),
        ("my_generations", True),
        ("solution", False),
        ("gpt4_grade_reason", False),
    ],
)
def test_unused_columns_that_may_hold_trajectories_are_named(
    column: str, is_lost: bool, tmp_path: Path
) -> None:
    pool, tally = (
        write_jsonl(tmp_path / "a.jsonl", [{**s1k(0, "A?"), column: "A long text, a trajectory."}]),
        Tally(),
    )
    said = pool_summary(pools.write(read(pool, tally), tmp_path / pools.FILE, pool, tally))
    assert (f"the column {column} may hold trajectories too" in said) == is_lost


def test_a_list_of_calls_in_the_text_is_a_call(tmp_path: Path) -> None:
    """ToolACE: the assistant writes [add(a=1)] and a tool answers."""
    turns = [
        *sharegpt("1+2?", '[Add API(a=1, b="[2]")]'),
        {"from": "tool", "value": "3"},
        *sharegpt("", "3")[1:],
    ]
    assert one(tmp_path, {"conversations": turns}).response == "3"


@pytest.mark.parametrize("empty", [None, "", " "])
def test_missing_texts_are_incomplete_in_every_layout(empty: str | None, tmp_path: Path) -> None:
    rows = [
        {"problem": "A?", "generations": ["x", empty]},
        {"messages": chat("B?", empty, reasoning_content="hm")},  # type: ignore[arg-type]
        {"messages": [*chat("C?", empty), *chat("D?", "x")]},  # type: ignore[arg-type]
    ]
    pool, tally = write_jsonl(tmp_path / "a.jsonl", rows), Tally()
    assert [t.question for t in read(replace(pool, incomplete="drop"), tally)] == ["A?"]
    assert tally.incomplete == 3


def test_a_generation_may_be_a_list_of_text_parts(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "It is "}, {"type": "text", "text": "2."}]
    assert one(tmp_path, {"problem": "A?", "generations": [parts]}).response == "It is 2."


def called(call: str | None, result: str | None) -> list[dict[str, Any]]:
    """A conversation with a tool call and its result, with these ids."""
    made = {"name": "add", "arguments": {}, **({"id": call} if call else {})}
    answered = {"role": "tool", "content": "2", **({"tool_call_id": result} if result else {})}
    return [*chat("A?", "")[:1], {"role": "assistant", "tool_calls": [made]}, answered, *chat("", "2")[1:]]


@pytest.mark.parametrize(
    ("call", "result"), [("a", "a"), ("a", None), (None, "b"), (None, None), ("call_1", "call_1")]
)
def test_results_without_an_id_or_with_that_of_their_call_are_accepted(
    call: str | None, result: str | None, tmp_path: Path
) -> None:
    assert one(tmp_path, {"messages": called(call, result)}).response == "2"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"problem": "A?", "generations": "x"}, "`generations` is a string: broken JSON"),
        ({"problem": "A?", "generations": {}}, "`generations` must be a list, not an object"),
        ({"problem": "A?", "generations": []}, "`generations` is empty"),
        ({"problem": "A?", "generations": ["x", None]}, "the response is empty.*pool.incomplete=drop"),
        ({"problem": "A?", "generations": None}, "`generations` is empty. Add the question's trajectories"),
        (
            {"problem": "A?", "generations": ["x"], "correctness_math_verify": [True, False]},
            "1 generations, but `correctness_math_verify` has 2 values",
        ),
        (
            {"problem": "A?", "generations": ["x", "y"], "correct": ["right", "wrong"]},
            "generation 1: `correct` must be true or false, not 'right'",
        ),
        (
            {"problem": "A?", "generations": ["x", "y"], "correctness_math_verify": [True, 2]},
            "generation 2: `correctness_math_verify` must be true or false, not 2",
        ),
        (
            {"problem": "A?", "generations": ["x", "y"], "is_reasoning_complete": ["complete", "cut"]},
            "generation 1: `is_reasoning_complete` must be true or false, not 'complete'",
        ),
        (
            {"problem": "A?", "generations": [["x", "z"], ["y"]]},
            "generation 1: .*a list of texts.*one list of all samples",
        ),
        ({"problem": "A?", "generations": '["x", ["y"]]'}, "generation 2: .*a list of texts"),
        (
            {"problem": "A?", "generations": [{"text": "x"}]},
            "generation 1: it is an object with text, not a text. Write the text",
        ),
        (
            {"problem": "A?", "generations": ["x"], "is_reasoning_complete": True},
            "`is_reasoning_complete` must be a list, not a",
        ),
        (
            {
                "conversations": [
                    {"from": "human", "value": "A?"},
                    {"from": "tool", "value": "1"},
                    {"from": "gpt", "value": "x"},
                ]
            },
            "message 2: a tool result without a call",
        ),
        (
            {
                "conversations": [
                    *calling(1, "A?")[:3],
                    {"from": "observation", "value": "3"},
                    {"from": "gpt", "value": "x"},
                ]
            },
            "message 4: a tool result without a call",
        ),
        (
            {
                "system": "s",
                "conversations": [
                    *sharegpt("A?", "x")[:1],
                    {"from": "tool", "value": "1"},
                    *sharegpt("", "x")[1:],
                ],
            },
            "message 2: a tool result without a call",
        ),
        ({"messages": [*chat("A?", " "), *chat("B?", "x")]}, "the response is empty"),
        (
            {"messages": [{**chat("A?", "x")[0], "value": "B?"}, chat("A?", "x")[1]]},
            "message 1: different text in `content` and `value`",
        ),
        (
            {"messages": called("a", "b")},
            "message 3: the result of the call 'b', but the calls before it are a. Correct",
        ),
        (
            {"question": "A?", "response": ["x", "y"]},
            "not a list. For several trajectories use pool.fields.generations=response",
        ),
        (
            {
                "conversations": [
                    {"from": "human", "value": "A?"},
                    {"from": "function_call", "value": "add(1)"},
                ]
            },
            "the tool call is a string: broken JSON",
        ),
        (
            {
                "conversations": [
                    {"from": "human", "value": "A?"},
                    {"from": "function_call", "value": '{"arguments": {}}'},
                ]
            },
            "tool call 1 has no name",
        ),
        (
            {
                "messages": [
                    *chat("A?", "x")[:1],
                    {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[1]"}]},
                ]
            },
            "the arguments of tool call 1 must be an object, not a list",
        ),
        (
            {"conversations": [{"from": "narrator", "value": "A?"}]},
            "message 1: the role 'narrator' is not known",
        ),
        ({"conversations": sharegpt("A?", "x")[1:]}, "one user turn, one assistant turn.*; it has assistant"),
        ({"conversations": "none"}, "`conversations` is a string: broken JSON"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": "a"}]},
                    *chat("", "x")[1:],
                ]
            },
            "message 1: a content part of type 'image_url'. Only text can be used",
        ),
        (
            {"messages": chat("A?", "x", reasoning="a", thinking="b")},
            "different reasoning in reasoning and thinking",
        ),
        (
            {"messages": chat("A?", "x", reasoning_content=["a"])},
            "`reasoning_content` must be a string, not a list",
        ),
        ({"messages": chat("A?", "x"), "tools": "add"}, "`tools` is a string: broken JSON"),
        ({"messages": chat("A?", "", reasoning_content="a")}, "the response is empty.*pool.incomplete=drop"),
        ({"prompt": "A?", "completion": []}, "one assistant turn"),
        ({"question": "A?", "t_thinking_trajectory": "a", "t_attempt": None}, "the response is empty"),
        (
            {"question": "A?", "t_thinking_trajectory": 3, "t_attempt": "x"},
            "`t_thinking_trajectory` must be a string",
        ),
        (
            {"question": "A?", "response": "x", "thinking": {"a": 1}},
            "`thinking` must be a string, not an object",
        ),
        ({"something": "else"}, "there is no `question`; the row has something.*pool.layout"),
        ({"question": "A?", "response": "\u200b\u200b"}, "the response is empty"),
        ({"question": "A?", "response": "\0"}, "the response is empty"),
        ({"question": "A?", "response": "x", "answer": True}, "`answer` must be text or a number, not True"),
        (
            {"instruction": ["Add."], "input": "1 1", "output": "2"},
            "`instruction` must be a string, not a list",
        ),
        (
            {"messages": [{**chat("A?", "x")[0], "from": "gpt"}, chat("A?", "x")[1]]},
            "message 1: different roles in `role` and",
        ),
        (
            {"messages": chat("A?", "x", tool_calls=[{"name": "f"}], function_call={"name": "g"})},
            "message 2: calls in `tool_calls` and in `function_call`",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "reasoning", "text": "Hm."}, "A?"]},
                    *chat("", "x")[1:],
                ]
            },
            "message 1: a content part with reasoning in a user turn",
        ),
    ],
)
def test_bad_rows_of_each_layout_name_the_file_and_the_line(
    row: dict[str, Any], said: str, tmp_path: Path
) -> None:
    pool = write_jsonl(tmp_path / "a.jsonl", [{"question": "Fine?", "response": "yes"}, row])
    with pytest.raises(LarkError, match=rf"a\.jsonl, line 2.*{said}"):
        list(read(pool))


@pytest.mark.parametrize("value", [datetime(2026, 1, 1), Decimal("1.5"), b"\xff"])
@pytest.mark.parametrize("place", ["arguments", "result", "tools"])
def test_values_of_a_table_that_json_does_not_have_are_refused(
    place: str, value: object, tmp_path: Path
) -> None:
    call = {
        "role": "assistant",
        "tool_calls": [{"name": "f", "arguments": {"a": value if place == "arguments" else 1}}],
    }
    opening = [{"role": "user", "content": "A?"}, call]
    result = {"role": "tool", "content": {"value": value if place == "result" else 2}}
    tools = [{"name": "f", "since": value if place == "tools" else 3}]
    table = {"prompt": [opening], "completion": [[result]], "tools": [tools]}
    pd.DataFrame(table).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(LarkError, match=r"a\.parquet, row 1.* is not JSON .*Store it as JSON text"):
        list(read(Pool(name="test", format="rows", path=str(tmp_path / "a.parquet"))))


def test_roles_are_read_in_any_case_and_text_under_either_name(tmp_path: Path) -> None:
    upper = [{**turn, "from": turn["from"].upper()} for turn in calling(1, "A?")]
    both = [
        {"role": "user", "content": "", "value": "A?"},
        {"role": "assistant", "content": "", "value": "x"},
    ]
    pool = write_jsonl(
        tmp_path / "a.jsonl", [{"conversations": each} for each in (calling(1, "A?"), upper, both)]
    )
    first, second, third = read(pool)
    assert first.conversation == second.conversation
    assert (third.question, third.response) == ("A?", "x")


def test_what_only_assistant_turns_have_is_reported_elsewhere(tmp_path: Path) -> None:
    question = {"role": "user", "content": "A?", "reasoning_content": "Hm.", "tool_calls": [{"name": "f"}]}
    tally = Tally()
    list(read(write_jsonl(tmp_path / "a.jsonl", [{"messages": [question, *chat("", "x")[1:]]}]), tally))
    assert tally.unused == {"messages.reasoning_content": 1, "messages.tool_calls": 1}


@pytest.mark.parametrize("reason", ["length", "LENGTH", "max_tokens"])
def test_generations_that_reached_a_limit_are_counted(reason: str, tmp_path: Path) -> None:
    row = {"problem": "A?", "generations": ["x", "y"], "finish_reasons": [reason, "stop"]}
    tally = Tally()
    list(read(write_jsonl(tmp_path / "a.jsonl", [row]), tally))
    assert tally.incomplete == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layout": "alpaca"}, "pool.layout=alpaca: choose one of session, atif, inspect"),
        ({"layout": "teachers"}, "line 1: no column pair like"),
        ({"layout": "generations"}, "there is no `generations`; the row has question"),
        ({"layout": "conversations"}, "there is no `conversations`"),
        ({"layout": "prompt_completion"}, "there is no `prompt`"),
        ({"layout": "pairs", "fields": {"response": "none"}}, "there is no `response`"),
        ({"fields": {"qestion": "q"}}, "pool.fields.qestion: there is no such column here; choose one of"),
        (
            {"fields": {"question": "response", "response": "response"}},
            "pool.fields.question and pool.fields.response both name the column 'response'",
        ),
        (
            {"fields": {"teacher": "modle"}},
            r"pool.fields.teacher=modle: no row of .*a\.jsonl has such a column",
        ),
    ],
)
def test_layouts_and_names_that_do_not_fit_are_refused(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    pool = write_jsonl(tmp_path / "a.jsonl", [{"question": "A?", "response": "x", "model": "m"}])
    with pytest.raises(LarkError, match=said):
        list(read(replace(pool, **changes)))


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["user", "assistant", "x"])
)
KEYS = st.sampled_from(
    [
        "role",
        "from",
        "content",
        "value",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "reasoning",
        "type",
        "text",
    ]
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
COLUMNS = st.sampled_from(
    [
        *(name for names in NAMES.values() for name in names),
        *(name for _, names in LAYOUT_NAMES.values() for name in names),
        "t_thinking", "t_attempt", "t_grade", "solution_1", "solution_2", "session", "steps", "agent", "eval",
        "samples", "sample_id", "evaluation_id", "evaluation", "doc_id", "doc", "arguments",
        "resps", "results",
        "responses_create_params", "custom_id", "request", "error",
    ]
)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plain=st.booleans(),
    extra=st.dictionaries(COLUMNS, JSON, min_size=1, max_size=5),
    layout=st.sampled_from([None, *LAYOUTS]),
)
def test_any_row_is_read_or_refused_with_its_line(
    plain: bool, extra: dict[str, Any], layout: str | None, tmp_path: Path
) -> None:
    row = {"question": "A?", "response": "x", **extra} if plain else extra
    pool = write_jsonl(tmp_path / "a.jsonl", [row])
    try:
        found = list(read(replace(pool, layout=layout)))
    except LarkError as error:
        assert "a.jsonl, line 1" in str(error) or "there is no trajectory left" in str(error)
    else:
        assert all(t.question.strip() for t in found)


@pytest.mark.parametrize(
    "column", ["question", "question_id", "answer", "messages", "generations", "tools", "rollout", "correct"]
)
@pytest.mark.parametrize("depth", [300, 900, 100_000])
def test_deeply_nested_values_get_a_sentence(column: str, depth: int, tmp_path: Path) -> None:
    plain = {"messages": chat("A?", "x")} if column == "tools" else {"question": "A?", "response": "x"}
    row = json.dumps({**plain, column: "NESTED"}).replace('"NESTED"', "[" * depth + "]" * depth)
    (tmp_path / "a.jsonl").write_text(row)
    with pytest.raises(LarkError, match=r"a\.jsonl, line 1"):
        list(read(Pool(name="p", format="rows", path=str(tmp_path / "a.jsonl"))))


@pytest.mark.parametrize("depth", [*range(900, 1000, 7), 5000])
def test_deeply_nested_tool_calls_are_read_or_refused(depth: int, tmp_path: Path) -> None:
    call = {"name": "f", "arguments": {"a": "NESTED"}}
    row = json.dumps({"messages": [*chat("A?", "x")[:1], {"role": "assistant", "tool_calls": [call]}]})
    (tmp_path / "a.jsonl").write_text(row.replace('"NESTED"', "[" * depth + "]" * depth))
    try:
        (found,) = read(Pool(name="p", format="rows", path=str(tmp_path / "a.jsonl")))
        assert found.conversation is not None
    except LarkError as error:
        assert "a.jsonl, line 1: " in str(error)


def test_an_older_pool_has_no_thinking_and_no_conversation(tmp_path: Path) -> None:
    """Finished pools without the newer columns are read as they are."""
    pool = write_jsonl(tmp_path / "a.jsonl", [{"question": "A?", "response": "x"}])
    pools.write(read(pool), tmp_path / pools.FILE, pool)
    whole = list(pools.iterate(tmp_path / pools.FILE))
    pd.read_parquet(tmp_path / pools.FILE).drop(columns=["thinking", "conversation"]).to_parquet(
        tmp_path / pools.FILE
    )
    assert list(pools.iterate(tmp_path / pools.FILE)) == whole
    assert list(pools.iterate(tmp_path / pools.FILE, ["thinking", "response", "conversation"])) == [
        {"thinking": None, "response": "x", "conversation": None}
    ]
