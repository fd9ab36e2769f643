"""Loading a student's weights."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from lark.config import Student
from lark.errors import LarkError
from lark.models import load
from lark.models.load import generation_stops, load_chat, load_model
from lark.models.students import DEMO


def student(**settings: str) -> Student:
    return Student(name="demo", path="demo", max_length=512, **{"dtype": "float32", **settings})  # type: ignore[arg-type]


def test_weights_go_straight_to_the_device_bit_for_bit() -> None:
    model = load_model(str(DEMO), student(), "cpu")
    stored = load_file(DEMO / "model.safetensors")
    for name, value in model.state_dict().items():
        if name in stored:
            assert torch.equal(value, stored[name].float()), name
    plain = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    assert {name for name, _ in model.named_buffers()} == {name for name, _ in plain.named_buffers()}
    for (name, a), b in zip(model.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(a, b), name
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert (head is embedding) == model.config.tie_word_embeddings
    assert not model.training and not any(hasattr(module, "_hf_hook") for module in model.modules())
    ids = torch.arange(40)[None]
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, plain(input_ids=ids, use_cache=False).logits)


@pytest.mark.parametrize("zero3", [False, True])
def test_zero_3_places_the_weights_itself(zero3: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    real = AutoModelForCausalLM.from_pretrained

    def spy(*args: Any, **kwargs: Any) -> Any:
        given.append(kwargs["device_map"])
        return real(*args, **kwargs)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", spy)
    monkeypatch.setattr(load, "is_deepspeed_zero3_enabled", lambda: zero3)
    load_model(str(DEMO), student(), "cpu")
    assert given == [None if zero3 else {"": torch.device("cpu")}]


@pytest.mark.parametrize("attention", ["flash_attention_2", "kernels-community/flash-attn2"])
def test_attention_that_cannot_be_imported_is_a_sentence(attention: str) -> None:
    """Neither package is installed for the CPU. A package that was built for another PyTorch fails in the
    same way.
    """
    if find_spec("flash_attn") or find_spec("kernels"):
        pytest.skip("a package for GPUs is installed")
    with pytest.raises(
        LarkError, match=rf"student\.attention={attention} cannot be loaded \(.+\)\. Set it to auto"
    ):
        load_model(str(DEMO), student(attention=attention, dtype="bfloat16"), "cpu")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("{broken", r"generation_config\.json: broken JSON"),
        ("[]", r"generation_config\.json: a JSON object is expected"),
        ("[" * 100_000, r"generation_config\.json: the JSON is nested too deeply"),
        (
            '{"eos_token_id": "</s>"}',
            "`eos_token_id` must be a token's number .* or a list of them, not '</s>'",
        ),
        (
            '{"eos_token_id": [2, null]}',
            "`eos_token_id` must be a token's number .* or a list of them, not null",
        ),
        ('{"eos_token_id": -1}', "not -1"),
        ('{"eos_token_id": [2, 5000]}', r"must be a token's number \(0 to \d+\) or a list of them, not 5000"),
    ],
)
def test_a_broken_generation_config_does_not_lose_its_stop_tokens(
    content: str, error: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(DEMO, tmp_path / "student")
    assert generation_stops(str(folder), None, "student.path=x", 768)
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(LarkError, match=error):
        load_chat(str(folder), student())
    (folder / "generation_config.json").unlink()
    assert generation_stops(str(folder), None, "student.path=x", 768) == set()
    assert load_chat(str(folder), student()).stop_ids


@pytest.mark.parametrize("content", ["{broken", "[]", '{"model_type": "llama", "hidden_size": []}'])
def test_a_broken_config_is_not_blamed_on_the_tokenizer(content: str, tmp_path: Path) -> None:
    folder = shutil.copytree(DEMO, tmp_path / "student")
    (folder / "config.json").write_text(content)
    with pytest.raises(LarkError, match=r"its config\.json cannot be loaded"):
        load_chat(str(folder), student())


@pytest.mark.parametrize(
    ("special", "content", "is_refused"),
    [(False, "2+", True), (True, "<|never|>", False), (True, "<|turn|>", True)],
)
def test_a_token_without_an_embedding_is_refused_if_it_can_occur(
    special: bool, content: str, is_refused: bool, tmp_path: Path
) -> None:
    """A padding token beyond the vocabulary, which some models have, is never written."""
    folder = shutil.copytree(DEMO, tmp_path / "student")
    values = json.loads((folder / "tokenizer.json").read_text())
    token = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {
        "content": content,
        "special": special,
    }
    values["added_tokens"].append({"id": 768, **token})
    (folder / "tokenizer.json").write_text(json.dumps(values))
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}<|turn|>{{ m['content'] }}<|end|>{% endfor %}{{ '<|turn|>' if"
        " add_generation_prompt }}"
    )
    if not is_refused:
        assert load_chat(str(folder), student(chat_template=str(template))).stop_ids
        return
    with pytest.raises(LarkError, match="with the id 768, but the model has only 768 embeddings"):
        load_chat(str(folder), student(chat_template=str(template)))


@pytest.mark.parametrize("name", ["tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", ["[]", "5", "{broken", '"x"'])
def test_a_broken_file_of_a_tokenizer_is_named(name: str, content: str, tmp_path: Path) -> None:
    folder = shutil.copytree(DEMO, tmp_path / "student")
    (folder / name).write_text(content)
    with pytest.raises(LarkError, match=rf"{name}: (broken JSON|a JSON object is expected)"):
        load_chat(str(folder), student())


def test_stop_tokens_are_a_number_or_a_list(tmp_path: Path) -> None:
    for content, stops in {"7": {7}, "[7, 9]": {7, 9}, "null": set()}.items():
        (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {content}}}')
        assert generation_stops(str(tmp_path), None, "student.path=x", 768) == stops


def damaged(tmp_path: Path, name: str, **values: object) -> str:
    """A copy of the demo's student with other values in one of its JSON files."""
    folder = shutil.copytree(DEMO, tmp_path / "student")
    (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **values}))
    return str(folder)


@pytest.mark.parametrize("name", ["eos_token", "pad_token", "bos_token"])
@pytest.mark.parametrize("token", ["", {"__type": "AddedToken", "content": None}])
def test_a_special_token_that_is_no_token_is_refused(name: str, token: object, tmp_path: Path) -> None:
    with pytest.raises(LarkError, match=f"its tokenizer has the {name} '', which is not a token"):
        load_chat(damaged(tmp_path, "tokenizer_config.json", **{name: token}), student())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"pre_tokenizer": None}, "the same tokens for '12 3' and '123'"),
        (
            {"model": {"type": "WordLevel", "vocab": {"a": 5}, "unk_token": "a"}},
            "the same tokens for '3' and '4'",
        ),
        (
            {"normalizer": {"type": "Replace", "pattern": {"Regex": "[0-9]"}, "content": ""}},
            "no tokens for '3'",
        ),
    ],
)
def test_a_tokenizer_that_loses_text_is_refused(values: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(LarkError, match=f"its tokenizer gives {said}, so it loses text"):
        load_chat(damaged(tmp_path, "tokenizer.json", **values), student())


def test_a_tokenizer_of_another_class_does_not_replace_the_one_in_its_file(tmp_path: Path) -> None:
    """ByT5's tokenizer is written in Python, and would ignore tokenizer.json."""
    own = load_chat(str(DEMO), student())
    other = load_chat(damaged(tmp_path, "tokenizer_config.json", tokenizer_class="ByT5Tokenizer"), student())
    assert other.encode("How many?", "Two.", 100) == own.encode("How many?", "Two.", 100)


def test_a_tokenizer_whose_file_asks_for_truncation_and_padding_is_loaded(tmp_path: Path) -> None:
    own = load_chat(str(DEMO), student())
    truncation = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    padding = {
        "strategy": {"Fixed": 50},
        "direction": "Left",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
    }
    folder = damaged(
        tmp_path, "tokenizer.json", truncation=truncation, padding={**padding, "pad_token": "<|pad|>"}
    )
    assert load_chat(folder, student()).encode("How many?", "Two.", 100) == own.encode(
        "How many?", "Two.", 100
    )
