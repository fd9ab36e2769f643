"""The bytes of a text's tokens, joined, are the text: for byte-level and sentencepiece tokenizers, whatever
the characters.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lark.demo.pool import trajectories
from lark.models.load import load_tokenizer
from lark.models.pieces import BYTE_LEVEL, vocabulary_pieces
from lark.models.shapes import DEMO
from lark.scoring.token_files import write_pieces
from lark.scoring.tokens import read_pieces

TEXTS = [
    "How many is 3 + 4?\n\nLet x  =  7.\tÄ 数 🙂",
    "  leading spaces, trailing ones  ",
    "\n\n\tindented\r\n",
    "中文、日本語、한국어 και Ελληνικά العربية עברית हिन्दी",
    "👩🏽‍🚀🇨🇭 e\u0301 \u200d\u200f\ufeff \U0001f9ee",
    "\\boxed{\\frac{1}{2}} <think>so</think> <|im_end|> </s> \x00\x1b",
    "x" * 300 + "💩" * 50,
    "",
]


def real_texts(shared_data: Path) -> list[str]:
    """Responses of a real pool, as they are."""
    with (shared_data / "pools" / "gsm_symbolic.jsonl").open() as lines:
        rows = [json.loads(line) for _, line in zip(range(100), lines, strict=False)]
    return [row["messages"][-1]["content"] for row in rows]


def assert_joins(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> None:
    pieces, special = vocabulary_pieces(tokenizer)
    assert len(pieces) == len(special) == max(tokenizer.get_vocab().values()) + 1
    assert {id for id, one in enumerate(special) if one} >= set(tokenizer.all_special_ids)
    normalizer = tokenizer.backend_tokenizer.normalizer
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        expected = text if normalizer is None else normalizer.normalize_str(text)
        assert b"".join(pieces[id] for id in ids).decode() == expected


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "deepseek_v3"])
def test_pieces_of_real_tokenizers_join_to_the_text(name, shared_data):
    assert_joins(
        load_tokenizer(str(shared_data / "tokenizers" / name), None, name), [*TEXTS, *real_texts(shared_data)]
    )


def test_pieces_of_the_demos_tokenizer_join_to_the_text():
    responses = [str(row["response"]) for row in trajectories(3, 42)]
    assert_joins(load_tokenizer(str(DEMO), None, "demo"), [*TEXTS, *responses])


def test_pieces_of_smollm2_join_to_the_text(smollm2):
    assert_joins(load_tokenizer(str(smollm2), None, "smollm2"), TEXTS)


@pytest.fixture(scope="module")
def demo() -> tuple[PreTrainedTokenizerBase, list[bytes]]:
    tokenizer = load_tokenizer(str(DEMO), None, "demo")
    return tokenizer, vocabulary_pieces(tokenizer)[0]


@given(text=st.text())
def test_any_text_survives(demo, text):
    tokenizer, pieces = demo
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert b"".join(pieces[id] for id in ids).decode() == text


def sentencepiece(style: str) -> PreTrainedTokenizerBase:
    """A tokenizer as Llama 2, Mistral and Gemma have: a space is ▁, and a character without a token is its
    bytes.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    if style == "replace":
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        steps = [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        steps = [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never"), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    every_byte = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", "<s>", *every_byte], show_progress=False
    )
    tokenizer.train_from_iterator(["a text with spaces\n and 3 + 4 = 7.", "numbers and words"] * 3, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["content"] in ("<unk>", "<s>")
    ]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)), unk_token="<unk>", bos_token="<s>"
    )


@pytest.mark.parametrize("style", ["replace", "metaspace"])
def test_pieces_of_sentencepiece_join_to_the_text(style):
    tokenizer = sentencepiece(style)
    pieces, special = vocabulary_pieces(tokenizer)
    assert special.count(True) == 2
    for text in ["a text with spaces", "numbers 数 🙂 and\nwords  7", "  two spaces first", "Ä\U0001f9ee"]:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert b"".join(pieces[id] for id in ids).decode() == text


def test_pieces_of_words_without_bytes_join_to_the_text():
    """WordPiece has neither bytes nor marked spaces; its decoder adds the spaces."""
    words = {word: id for id, word in enumerate(["[UNK]", "how", "many", "##s", "num", "##ber"])}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.Whitespace(),
        decoders.WordPiece(cleanup=False),
    )
    pieces, _ = vocabulary_pieces(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    assert (
        b"".join(pieces[id] for id in tokenizer.encode("how many numbers").ids).decode()
        == " how many numbers"
    )


def test_every_byte_has_its_character():
    assert sorted(BYTE_LEVEL.values()) == list(range(256))
    assert set(BYTE_LEVEL) == set(pre_tokenizers.ByteLevel.alphabet())


def test_pieces_are_read_as_they_were_written(tmp_path, demo):
    tokenizer, pieces = demo
    write_pieces(tmp_path, *vocabulary_pieces(tokenizer))
    found = read_pieces(tmp_path)
    assert [found[id] for id in range(len(pieces))] == pieces
    assert found[-1] == found[len(pieces)] == b""  # no alternative; a row that pads the LM head
    assert found.special[tokenizer.eos_token_id]
    text = "数 🙂 = 7"
    assert found.text(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
