"""The planner's arithmetic against PyTorch's own count of operations, and PEFT's own count of adapters."""

import json
from dataclasses import replace

import numpy as np
import peft
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from lark import costs
from lark.costs import TrainingSetup
from lark.shapes import HERE, Shape

CONFIG = LlamaConfig(
    hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=300,
    tie_word_embeddings=True, max_position_embeddings=256,
)  # fmt: skip
SHAPE = Shape.of(CONFIG.to_dict())


def test_a_forward_pass_costs_what_pytorch_counts() -> None:
    model = LlamaForCausalLM(CONFIG)
    model.set_attn_implementation("eager")  # plain products, which PyTorch counts on any device
    ids = torch.zeros(1, 100, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids, use_cache=False)
    ours = costs.forward_flops(SHAPE, np.array([100]), np.array([100]))
    attention = 2 * SHAPE.layers * SHAPE.attention_width * 100**2
    # Eager attention computes the whole square: the half above the diagonal, and the rotary angles, are all that differs.
    rope = counter.get_total_flops() - (ours.forward + attention)
    assert 0 <= rope <= 0.001 * ours.forward


def test_local_naturalness_reads_every_token_m_plus_1_times_and_projects_it_once() -> None:
    lengths, projected = np.array([50, 20]), np.array([40, 10])
    once, local = costs.forward_flops(SHAPE, lengths, projected), costs.local_flops(SHAPE, lengths, projected, context=4)
    assert local.head == once.head
    assert local.backbone == pytest.approx(5 * 2 * SHAPE.backbone_matrices * 70)


def test_a_training_step_costs_three_forwards_or_four_with_recomputation() -> None:
    flops = costs.forward_flops(SHAPE, np.array([50, 20]), np.array([40, 10]))
    assert flops.training(recompute=False, frozen=False) == pytest.approx(3 * flops.forward)
    assert flops.training(recompute=True, frozen=False) == pytest.approx(3 * flops.forward + flops.backbone)
    assert flops.training(recompute=False, frozen=True) == pytest.approx(2 * flops.forward)


def test_adapters_are_counted_as_peft_counts_them() -> None:
    model = peft.get_peft_model(
        LlamaForCausalLM(CONFIG), peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert costs.lora_parameters(SHAPE, 4) == trained


SETUP = TrainingSetup(world=8, zero=0, tokens=1024, checkpointing=True, bf16=True)


def test_adamw_in_float32_is_sixteen_bytes_a_parameter() -> None:
    model = LlamaForCausalLM(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 8, dtype=torch.long), labels=torch.zeros(1, 8, dtype=torch.long)).loss.backward()
    optimizer.step()
    tensors = [
        t for p in model.parameters() for t in (p, p.grad, *optimizer.state[p].values()) if t is not None and t.numel() > 1
    ]
    held = sum(t.numel() * t.element_size() for t in tensors)
    assert costs.state_bytes(SHAPE, replace(SETUP, zero=0)) == held


REAL = Shape.of(json.loads((HERE / "qwen1.5b.json").read_text(encoding="utf-8")))


@given(st.sampled_from([1, 2, 8, 64]), st.sampled_from([128, 4096, 32768]), st.sampled_from([2, 3]))
def test_every_measure_against_lack_of_memory_saves_some(world: int, tokens: int, zero: int) -> None:
    setup = replace(SETUP, world=world, tokens=tokens, zero=zero)
    assert costs.state_bytes(REAL, replace(setup, zero=3)) <= costs.state_bytes(REAL, setup)
    assert costs.state_bytes(REAL, replace(setup, lora=16)) < costs.state_bytes(REAL, setup)
    assert costs.state_bytes(REAL, replace(setup, world=2 * world)) < costs.state_bytes(REAL, setup)
    assert costs.activation_bytes(REAL, setup) < costs.activation_bytes(REAL, replace(setup, tokens=2 * tokens))
    assert costs.activation_bytes(REAL, setup) < costs.activation_bytes(REAL, replace(setup, checkpointing=False))
