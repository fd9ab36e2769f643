"""Factors of thinking and answers reach the tokens of the thinking and of the answer, in real templates."""

from pathlib import Path

import pytest

from lark.errors import LarkError
from lark.models.chat import ChatFormat, Encoded, Factors
from lark.models.dialogue import dialogue_of
from tests.models.test_rendering import (
    ANSWER,
    AS_TEXT,
    REAL,
    ROW,
    THINKING,
    WITH_THINKING,
    tokenizer,
)


def encoded(chat: ChatFormat, row: dict[str, str], factors: Factors, max_length: int = 999) -> Encoded:
    return chat.encode_dialogues([dialogue_of(row)], max_length, factors=factors)[0]


def with_weight(chat: ChatFormat, example: Encoded, weight: float) -> str:
    pairs = zip(example.response, example.token_weights or (), strict=True)
    return str(chat.tokenizer.decode([token for token, given in pairs if given == weight]))


TEMPLATES = ("deepseek_r1_distill", "glm4moe", "gptoss", "llama3_1", "qwen2_5", "qwen3", "qwen3_5_think")
"""They write thinking in their own ways, or have no place for it."""


@pytest.mark.parametrize(("family", "fitting"), [("qwen3", 6), ("deepseek_v3", 2)])
def test_factors_divide_the_response_where_its_thinking_ends(
    family: str, fitting: int, shared_data: Path
) -> None:
    worked = 0
    loaded = tokenizer(family, shared_data)
    for name in TEMPLATES:
        file = REAL / f"{name}.jinja"
        loaded.chat_template = file.read_text(encoding="utf-8")
        for row in (WITH_THINKING, AS_TEXT):
            try:
                chat = ChatFormat(loaded)
                (plain,) = chat.encode_many([row], 999)
            except LarkError:  # refused templates have tests of their own
                continue
            scaled = encoded(chat, row, Factors(0.5, 2.0))
            thinking = with_weight(chat, scaled, 0.5)
            answer = with_weight(chat, scaled, 2.0)
            assert scaled.ids == plain.ids and scaled.turns == plain.turns
            assert THINKING in thinking and ANSWER not in thinking, file.name
            assert ANSWER in answer and THINKING not in answer, file.name
            assert "</think>" not in answer, file.name
            worked += 1
    assert worked >= fitting


def test_masked_thinking_is_context_and_a_response_without_thinking_is_an_answer(shared_data: Path) -> None:
    chat = ChatFormat(tokenizer("qwen3", shared_data))
    (plain,) = chat.encode_many([WITH_THINKING], 999)
    answer = encoded(chat, WITH_THINKING, Factors(0.0, 1.0))
    thinking = encoded(chat, WITH_THINKING, Factors(1.0, 0.0))
    assert answer.ids == thinking.ids == plain.ids
    assert answer.token_weights is thinking.token_weights is None
    assert thinking.response + answer.response == plain.response
    assert chat.tokenizer.decode(answer.response) == f"\n\n{ANSWER}<|im_end|>"
    assert encoded(chat, ROW, Factors(0.0, 1.0)) == chat.encode_many([ROW], 999)[0]
    assert encoded(chat, ROW, Factors(1.0, 0.0)).n_response == 0


def test_a_response_that_is_cut_off_in_its_thinking_keeps_what_is_left(shared_data: Path) -> None:
    chat = ChatFormat(tokenizer("qwen3", shared_data))
    (plain,) = chat.encode_many([WITH_THINKING], 999)
    limit = plain.prompt_length + 3
    assert encoded(chat, WITH_THINKING, Factors(0.5, 1.0), limit).token_weights == (0.5,) * 3
    assert encoded(chat, WITH_THINKING, Factors(0.0, 1.0), limit).n_response == 0
