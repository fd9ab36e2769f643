"""Students with random weights in the shapes of real ones."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM


@dataclass(frozen=True)
class StudentSize:
    """One measurement: a model's shape, the length of its input, and the number of rounds."""

    shape: str
    vocabulary: int
    tokens: int
    rounds: int
    layers: int | None = None
    end_to_end: bool = False


def random_student(size: StudentSize) -> PreTrainedModel:
    """A model of the named shape with random weights."""
    torch.manual_seed(0)
    common: dict[str, Any] = {
        "vocab_size": size.vocabulary,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32_768,
    }
    if size.shape == "SmolLM2-135M":
        llama = LlamaConfig(
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=size.layers or 30,
            num_attention_heads=9,
            num_key_value_heads=3,
            **common,
        )
        return LlamaForCausalLM(llama).eval()
    qwen = Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=size.layers or 24,
        num_attention_heads=14,
        num_key_value_heads=2,
        **common,
    )
    return Qwen2ForCausalLM(qwen).eval()
