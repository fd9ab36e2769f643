"""The paper's students without their weights: architecture, parameters, tokenizers, templates, fused
kernels.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from lark.errors import LarkError
from lark.models.chat import ChatFormat
from lark.models.dialogue import INSTRUCTION
from lark.models.liger import apply_liger
from lark.models.shapes import ARCHITECTURES, Shape, config_of, shape_of
from lark.models.students import DEMO
from tests.conftest import checked, composed

PARAMETERS = {
    "qwen7b": 7_615_616_512,
    "qwen1.5b": 1_543_714_304,
    "llama3b": 3_212_749_824,
    "smollm2": 134_515_008,
    "qwen3_0.6b": 596_049_920,
    "qwen3_1.7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
}
TOKENIZERS = {
    "qwen7b": "qwen2_5",
    "qwen1.5b": "qwen2_5",
    "llama3b": "llama3_1",
    "qwen3_1.7b": "qwen3",
    "qwen3_8b": "qwen3",
}


MIXTURES: dict[str, tuple[dict[str, Any], int, int]] = {
    "Qwen3-30B-A3B": (
        {
            "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
            "moe_intermediate_size": 768, "intermediate_size": 6144, "decoder_sparse_step": 1,
            "mlp_only_layers": [], "vocab_size": 151936, "max_position_embeddings": 40960,
        },
        30_532_122_624,
        3_353_032_704,
    ),
    "gpt-oss-20b": (
        {
            "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
            "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4,
            "intermediate_size": 2880, "vocab_size": 201088, "max_position_embeddings": 131072,
        },
        20_914_757_184,
        4_186_610_496,
    ),
}  # fmt: skip
"""A `config.json`, all parameters, and those that a token uses (with embeddings and head)."""
GEMMA3: dict[str, Any] = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
    "vision_config": {
        "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
        "num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 896, "patch_size": 14,
        "vision_use_head": False,
    },
}  # fmt: skip
"""That of the 4B model, which leaves out what is the family's."""
SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64, "max_position_embeddings": 128,
}  # fmt: skip
FEW_EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4}
SMALL_MODELS = {
    "qwen3_moe": {**SMALL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "gpt_oss": {**SMALL, **FEW_EXPERTS},
    "mixtral": {**SMALL, **FEW_EXPERTS},
    "gemma2": SMALL,
    "gemma3_text": SMALL,
}


def built(config: dict[str, Any]) -> PreTrainedModel:
    """The model that a `config.json` describes, without weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.bfloat16)


@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_of_experts_has_more_parameters_than_a_token_uses(name: str) -> None:
    config, total, active = MIXTURES[name]
    shape = Shape.of(config)
    assert shape.parameters == sum(p.numel() for p in built(config).parameters()) == total
    assert shape.active_parameters == active


@pytest.mark.parametrize("family", SMALL_MODELS)
def test_small_models_of_a_family_have_its_parameters(family: str) -> None:
    config = {**SMALL_MODELS[family], "model_type": family}
    model = built(config)
    total = sum(p.numel() for p in model.parameters())
    assert Shape.of(config).parameters == Shape.of(model.config.to_dict()).parameters == total


def test_a_vision_tower_counts_but_text_does_not_reach_it() -> None:
    shape = Shape.of(GEMMA3)
    model = built(GEMMA3)
    assert shape.parameters == sum(p.numel() for p in model.parameters()) == 4_300_079_472
    assert shape.active_parameters == sum(p.numel() for p in model.get_decoder().parameters())


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "deepseek_v3", "n_routed_experts": 256},
        {"model_type": "gemma3", "text_config": []},
        {"decoder_sparse_step": 2},
        {"mlp_only_layers": [0]},
    ],
)
def test_a_mixture_whose_experts_are_elsewhere_has_no_shape(changes: dict[str, Any], tmp_path: Path) -> None:
    """Rather than that of a dense model, which would be many times too small."""
    config = MIXTURES["Qwen3-30B-A3B"][0] | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert shape_of(composed(f"student.path={tmp_path}").student) is None


def on_meta(name: str, **changes: int) -> PreTrainedModel:
    values = {**json.loads((ARCHITECTURES / f"{name}.json").read_text(encoding="utf-8")), **changes}
    config = AutoConfig.for_model(**values)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_architecture_has_the_students_parameters(name: str) -> None:
    student = composed(f"student='{name}'").student
    shape = shape_of(student)
    assert shape is not None
    assert shape.parameters == PARAMETERS[name]
    model = on_meta(name)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    assert model.config.max_position_embeddings == shape.context >= student.max_length


def test_the_papers_judge_has_its_parameters() -> None:
    shape = shape_of(composed("student=qwen7b", "method=llm_judge").method.judge.model)
    assert shape is not None
    assert shape.parameters == sum(p.numel() for p in on_meta("qwen3-32b").parameters()) == 32_762_123_264


def test_the_shipped_student_is_described_by_its_own_file() -> None:
    student = composed().student
    shape = shape_of(student)
    assert shape is not None
    weights = AutoModelForCausalLM.from_pretrained(str(DEMO))
    assert shape.parameters == sum(p.numel() for p in weights.parameters())
    assert shape.context == student.max_length


def test_a_student_of_the_hub_that_was_never_downloaded_has_no_shape() -> None:
    student = composed("student.path=nobody/nothing").student
    assert config_of(student) is None


def test_a_student_of_another_family_has_no_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "state_size": 16}')
    assert shape_of(composed(f"student.path={tmp_path}").student) is None


@pytest.mark.parametrize("name", TOKENIZERS)
def test_prompts_render_and_responses_come_back_unchanged(name: str, shared_data: Path) -> None:
    student = composed(f"student='{name}'").student
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / TOKENIZERS[name])
    chat = ChatFormat(tokenizer, student.chat_template)
    response = "We add: 12 + 30 = 42.\n\nSo the answer is \\boxed{42}. ∎ é 漢"
    encoded = chat.encode("What is $12+30$?", response, student.max_length, system="Be brief.")
    prompt = tokenizer.decode(encoded.ids[: encoded.prompt_length])
    assert "What is $12+30$?" in prompt
    assert INSTRUCTION in prompt
    assert "Be brief." in prompt
    empty = (
        "<think>\n\n</think>\n\n" if "qwen3" in name else ""
    )  # what its template writes before an answer without thinking
    assert tokenizer.decode(encoded.ids[encoded.prompt_length : -1]) == empty + response
    assert encoded.ids[-1] == chat.end_of_turn
    assert chat.end_of_turn in chat.stop_ids
    shape = shape_of(student)
    assert shape is not None
    assert max(encoded.ids) < shape.vocabulary
    assert "202" not in chat.prompt_text("How many?")  # no date: prompts are the same every day


@pytest.mark.parametrize("name", ["qwen7b", "qwen1.5b", "llama3b"])
@pytest.mark.usefixtures("unpatched")
def test_the_fused_kernels_of_the_paper_apply(name: str) -> None:
    """RoPE, RMSNorm and SwiGLU (App. C.3); not the fused cross-entropy. On the meta device: only
    replacements are checked.
    """
    model = on_meta(name, num_hidden_layers=1)
    before = type(model).forward
    assert apply_liger(model, "cuda:0")
    assert (
        sys.modules[type(model).__module__].apply_rotary_pos_emb.__module__
        == "liger_kernel.transformers.rope"
    )
    layer = model.base_model.layers[0]
    assert (
        "liger" in layer.mlp.forward.__func__.__module__.lower() or "Liger" in layer.mlp.forward.__qualname__
    )
    assert "liger" in layer.input_layernorm.forward.__func__.__module__.lower()
    assert type(model).forward is before


def test_a_context_longer_than_the_models_is_refused_before_anything_loads(tmp_path: Path) -> None:

    with pytest.raises(
        LarkError, match=r"student\.max_length=10000 is longer than the model's context of 8192"
    ):
        checked("student=smollm2", "student.max_length=10000", "engine=hf")
    # A folder with a config.json and no weights.
    (tmp_path / "config.json").write_text((ARCHITECTURES / "qwen1.5b.json").read_text())
    with pytest.raises(LarkError, match="context of 131072"):
        checked(f"student.path={tmp_path}", "student.max_length=200000")


def test_shapes_are_read_from_any_llama_like_config() -> None:
    shape = Shape.of(
        {
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "vocab_size": 100,
            "max_position_embeddings": 128,
        }
    )
    assert (shape.kv_heads, shape.head_size, shape.tied, shape.qkv_bias) == (4, 8, False, False)
