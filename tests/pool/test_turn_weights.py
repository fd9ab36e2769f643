"""Weights of assistant turns are read under the names of every trainer, and change no prompt."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from lark.config.student import INSTRUCTION
from lark.errors import LarkError
from lark.models.chat import ChatFormat
from lark.models.dialogue import dialogue_of
from lark.models.students import DEMO
from lark.pool.cleaning import Tally
from lark.pool.read import read
from lark.pool.trajectory import Trajectory
from lark.scoring.contents import Chat
from tests.pool.rows import chat, write_jsonl


def turns(*answers: dict[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for number, answer in enumerate(answers):
        message = {"role": "assistant", "content": f"It is {number}.", **answer}
        messages += [{"role": "user", "content": f"What is {number}?"}, message]
    return messages


def read_one(folder: Path, messages: list[dict[str, Any]], tally: Tally | None = None) -> Trajectory:
    (trajectory,) = read(write_jsonl(folder / "a.jsonl", [{"messages": messages}]), tally or Tally())
    return trajectory


def weights(trajectory: Trajectory, last_only: bool = False) -> list[float | None]:
    dialogue = dialogue_of(vars(trajectory), last_only=last_only)
    return [message.get("weight") for message in dialogue.messages if message["role"] == "assistant"]


@pytest.mark.parametrize(
    ("keys", "weight"),
    [
        ({"weight": 0}, 0),
        ({"weight": 0.5}, 0.5),
        ({"loss_scale": 2.5}, 2.5),
        ({"loss_weight": 0.25}, 0.25),
        ({"loss": False}, 0),
        ({"train": False}, 0),
        ({"trainable": 0}, 0),
        ({"train": True}, None),
        ({"weight": 1, "loss": True}, None),
        ({"loss_scale": 0.5, "loss": True}, 0.5),
        ({"loss_scale": 0.5, "loss": False}, 0),
        ({"weight": 0.5, "loss_weight": 0.5}, 0.5),
        ({"weight": None, "loss": None}, None),
        ({"weight": False}, 0),
    ],
)
def test_every_name_of_a_weight_is_read(keys: dict[str, Any], weight: float | None, tmp_path: Path) -> None:
    tally = Tally()
    trajectory = read_one(tmp_path, turns(keys, {}), tally)
    assert weights(trajectory) == [weight, None]
    assert (tally.unused, tally.weighted) == ({}, int(weight is not None))


def test_weights_of_1_leave_a_pool_as_it_is(tmp_path: Path) -> None:
    plain = read_one(tmp_path, chat("A?", "x"))
    assert read_one(tmp_path, chat("A?", "x", weight=1, train=True)) == plain
    assert plain.conversation is None


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"weight": -1}, "message 2: `weight` must be a number from 0 to 1e.06, not -1"),
        ({"loss_scale": "much"}, "message 2: `loss_scale` must be a number"),
        ({"loss": 0.83}, "message 2: `loss` must be true or false, not 0.83"),
        ({"weight": 0.5, "loss_scale": 0.25}, "message 2: different weights in weight and loss_scale"),
    ],
)
def test_values_that_are_no_weights_are_named(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(LarkError, match=said):
        read_one(tmp_path, turns(keys, {}))


def test_a_weight_of_another_role_is_unused_unless_it_is_0(tmp_path: Path) -> None:
    tally = Tally()
    question = {"role": "user", "content": "A?", "weight": 0, "train": True}
    read_one(tmp_path, [question, *chat("", "x")[1:]], tally)
    assert tally.unused == {"messages.train": 1}


def test_a_weighted_exchange_has_the_prompt_of_the_same_exchange_without(tmp_path: Path) -> None:
    plain = read_one(tmp_path, chat("What is 1+1?", "2", system="Be brief."))
    weighted = read_one(tmp_path, chat("What is 1+1?", "2", system="Be brief.", loss_scale=0.5))
    chat_format = ChatFormat(AutoTokenizer.from_pretrained(DEMO))
    ours, other = chat_format.encode_many([vars(plain), vars(weighted)], 200)
    assert (ours.ids, ours.prompt_length) == (other.ids, other.prompt_length)
    assert other.token_weights == (0.5,) * other.n_response


def test_scores_do_not_depend_on_weights_except_masks(tmp_path: Path) -> None:
    chat_format = ChatFormat(AutoTokenizer.from_pretrained(DEMO))
    plain, scaled, masked = (
        chat_format.encode_many([vars(read_one(tmp_path, turns({}, keys, {})))], 200)[0]
        for keys in ({}, {"weight": 0.5}, {"weight": 0})
    )
    assert (plain.ids, plain.turns) == (scaled.ids, scaled.turns)
    assert masked.ids == plain.ids and masked.turns == [plain.turns[0], plain.turns[2]]


def test_scores_are_taken_over_by_a_pool_with_other_weights_except_masks(tmp_path: Path) -> None:
    keys = []
    for weight in ({}, {"weight": 0.5}, {"loss_scale": 2}, {"weight": 0}):
        keys.append(Chat(INSTRUCTION, last_only=False).key(vars(read_one(tmp_path, turns(weight, {})))))
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_what_follows_the_last_turn_that_is_trained_on_is_left_out_of_the_training_set(
    tmp_path: Path,
) -> None:
    trajectory = read_one(tmp_path, turns({"weight": 0.5}, {}, {"loss": False}))
    assert trajectory.response == "It is 2."
    assert weights(trajectory) == [0.5, None]
    assert weights(trajectory, last_only=True) == [0, None]
    chat_format = ChatFormat(AutoTokenizer.from_pretrained(DEMO))
    (shorter,) = chat_format.encode_many([vars(read_one(tmp_path, turns({"weight": 0.5}, {})))], 200)
    assert chat_format.encode_many([vars(trajectory)], 200) == [shorter]


def test_trajectories_whose_turns_are_all_masked_are_left_out_and_counted(tmp_path: Path) -> None:
    tally = Tally()
    rows = [{"messages": turns({"train": False}, {"weight": 0})}, {"messages": turns({}, {})}]
    found = list(read(write_jsonl(tmp_path / "a.jsonl", rows), tally))
    assert len(found) == 1 and json.loads(found[0].conversation or "")["messages"] == turns({}, {})
    assert tally.masked == 1 and tally.dropped.total() == 1
