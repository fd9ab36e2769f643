"""The LM head taken out of a model gives the model's own logits, for families with different rules for
them.
"""

from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from lark.errors import LarkError
from lark.models.head import Head, last_hidden_state

TINY: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama, tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 8}),
    "mistral": ("MistralConfig", {}),
    "phi, with a bias": ("PhiConfig", {"num_key_value_heads": 4}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
    "gptj, with a bias": ("GPTJConfig", {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}),
    "opt": ("OPTConfig", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "gemma2, soft cap": ("Gemma2Config", {"head_dim": 8, "final_logit_softcapping": 3.0}),
    "cohere, multiplies": ("CohereConfig", {"logit_scale": 0.25}),
    "granite, divides": ("GraniteConfig", {"logits_scaling": 8.0}),
    "hyperclova x, multiplies": ("HyperCLOVAXConfig", {"logits_scaling": 0.25}),
    "olmo2": ("Olmo2Config", {}),
}


def tiny(config_class: str, **settings: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        getattr(transformers, config_class)(**{**TINY, **settings})
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("lm_head.bias"):
                parameter.normal_()
    return model.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_models_own(family: str) -> None:
    config_class, settings = FAMILIES[family]
    model = tiny(config_class, **settings)
    head = Head.of(model)
    ids = torch.randint(0, 101, (2, 17))
    with torch.no_grad():
        theirs = model(input_ids=ids).logits
        ours = head.logits(last_hidden_state(model, ids).flatten(0, 1)).view_as(theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_what_families_do_to_logits_is_found() -> None:
    assert Head.of(tiny("CohereConfig", logit_scale=0.25)).rule.scale == 0.25
    assert Head.of(tiny("GraniteConfig", logits_scaling=8.0)).rule.scale == 0.125
    assert Head.of(tiny("Gemma2Config", head_dim=8, final_logit_softcapping=3.0)).rule.softcap == 3.0
    assert (
        Head.of(tiny("HyperCLOVAXConfig", logits_scaling=0.25)).rule.scale == 0.25
    )  # where Granite would divide
    assert Head.of(tiny("PhiConfig", num_key_value_heads=4)).bias is not None
    assert Head.of(tiny("LlamaConfig")).bias is None


def test_a_tied_head_is_shared_not_copied() -> None:
    model = tiny("LlamaConfig", tie_word_embeddings=True)
    assert Head.of(model).weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_are_accepted(dtype: torch.dtype) -> None:
    assert Head.of(tiny("LlamaConfig").to(dtype)).weight.dtype == dtype


def test_taking_the_head_leaves_the_model_in_its_mode() -> None:
    model = tiny("GPT2Config", n_embd=32, n_layer=2, n_head=4, embd_pdrop=0.5, resid_pdrop=0.5).train()
    Head.of(model)  # with dropout on, the comparison would fail
    assert model.training


def test_an_unknown_rule_between_hidden_states_and_logits_is_refused() -> None:
    model = tiny("LlamaConfig")
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: output * 1.1)
    with pytest.raises(LarkError, match="LlamaForCausalLM does something to its logits"):
        Head.of(model)


def test_a_model_without_a_language_head_is_refused() -> None:
    with pytest.raises(LarkError, match="LlamaModel has no LM head"):
        Head.of(tiny("LlamaConfig").model)
