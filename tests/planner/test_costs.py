"""The planner's arithmetic against PyTorch's own count of operations, and PEFT's own count of adapters."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import peft
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from lark.config import Lora
from lark.models.pass_memory import forward_bytes, layer_elements, score_bytes
from lark.models.shapes import ARCHITECTURES, Shape, shape_of
from lark.planner import costs
from lark.planner.lengths import PoolLengths
from lark.training.lora import add_adapters
from lark.training.memory import (
    TrainingSetup,
    activation_bytes,
    lora_parameters,
    state_bytes,
    training_setup,
)
from lark.training.worker import _weights_dtype
from lark.work.machine import Machine
from tests.conftest import composed
from tests.models.test_shapes import MIXTURES, SMALL, SMALL_MODELS, built

CONFIG = LlamaConfig(
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=300,
    tie_word_embeddings=True,
    max_position_embeddings=256,
)
SHAPE = Shape.of(CONFIG.to_dict())


def test_a_forward_pass_costs_what_pytorch_counts() -> None:
    model = LlamaForCausalLM(CONFIG)
    model.set_attn_implementation("eager")  # plain products, which PyTorch counts on any device
    ids = torch.zeros(1, 100, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids, use_cache=False)
    ours = costs.forward_flops(SHAPE, np.array([100]), np.array([100]))
    attention = 2 * SHAPE.layers * SHAPE.attention_width * 100**2
    # Eager attention computes the whole square: the half above the diagonal, and the rotary angles, are all
    # that differs.
    rope = counter.get_total_flops() - (ours.forward + attention)
    assert 0 <= rope <= 0.001 * ours.forward


def test_local_naturalness_reads_every_token_m_plus_1_times_and_projects_it_once() -> None:
    lengths, projected = np.array([50, 20]), np.array([40, 10])
    once, local = (
        costs.forward_flops(SHAPE, lengths, projected),
        costs.local_flops(SHAPE, lengths, projected, context=4),
    )
    assert local.head == once.head
    assert local.backbone == pytest.approx(5 * 2 * SHAPE.backbone_matrices * 70)


def test_a_shared_prompt_is_read_once_per_pass() -> None:
    pool = PoolLengths(10, 4, np.full(40, 150.0), np.full(40, 100.0), "")
    assert pool.shared(450) == pytest.approx(
        (50 / 4 + 100) / 150
    )  # 400 tokens of responses and one prompt fit
    assert pool.shared(449) == pytest.approx((2 * 50 / 4 + 100) / 150)
    assert pool.shared(20) == pool.shared(150) == 1.0
    whole, part = (costs.forward_flops(SHAPE, pool.total, pool.response, share) for share in (1.0, 0.75))
    assert part.head == whole.head
    assert whole.backbone - part.backbone == pytest.approx(0.25 * 2 * SHAPE.backbone_matrices * 40 * 150)


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
    assert lora_parameters(SHAPE, 4) == trained


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "mixtral"])
def test_experts_have_no_adapters_and_that_is_logged(family: str, caplog: pytest.LogCaptureFixture) -> None:
    model = built({**SMALL_MODELS[family], "model_type": family})
    caplog.set_level("INFO")
    wrapped = add_adapters(model, Lora(rank=4))
    trained = sum(p.numel() for p in wrapped.parameters() if p.requires_grad)
    assert lora_parameters(Shape.of(model.config.to_dict()), 4) == trained
    (logged,) = [line for line in caplog.messages if "no adapters" in line]
    assert "model.layers.*.mlp.experts.down_proj" in logged and "q_proj" not in logged


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "mixtral"])
def test_a_layer_keeps_as_many_activations_as_planned(family: str) -> None:
    """Those that one more layer keeps for the backward pass, per token."""
    config = {**SMALL_MODELS.get(family, SMALL), "model_type": family}
    kept = _kept_elements({**config, "num_hidden_layers": 3}) - _kept_elements(config)
    assert 0.8 < kept / layer_elements(Shape.of(config)) < 1.25


def _kept_elements(config: dict[str, Any], tokens: int = 100) -> float:
    """Elements per token that autograd keeps of a forward pass, apart from weights."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="sdpa")
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = model.base_model(torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    size = sum(t.untyped_storage().nbytes() for start, t in kept.items() if start not in weights)
    assert states.last_hidden_state.requires_grad
    return size / 4 / tokens


def test_eager_attention_needs_memory_for_the_square_of_the_length() -> None:
    """Attention sinks leave it as the only choice of `auto`: 64 heads at 32k are 384 GiB."""
    shape = Shape.of(MIXTURES["gpt-oss-20b"][0])
    scores = score_bytes(shape, "auto", 32768)
    assert scores * 32768 == 6 * 64 * 32768**2
    assert score_bytes(shape, "kernels-community/vllm-flash-attn3", 32768) == 0
    assert (score_bytes(REAL, "auto", 32768), score_bytes(REAL, "eager", 10)) == (
        0,
        60 * REAL.heads,
    )
    setup = replace(SETUP, tokens=32768)
    for measure in (
        lambda scores: forward_bytes(shape, 32768, 2, scores),
        lambda scores: activation_bytes(shape, replace(setup, scores=scores)),
    ):
        assert measure(scores) - measure(0.0) == scores * 32768


SETUP = TrainingSetup(world=8, zero=0, tokens=1024, checkpointing=True, bf16=True)


def test_adamw_in_float32_is_sixteen_bytes_a_parameter() -> None:
    model = LlamaForCausalLM(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 8, dtype=torch.long), labels=torch.zeros(1, 8, dtype=torch.long)).loss.backward()
    optimizer.step()
    tensors = [
        t
        for p in model.parameters()
        for t in (p, p.grad, *optimizer.state[p].values())
        if t is not None and t.numel() > 1
    ]
    held = sum(t.numel() * t.element_size() for t in tensors)
    for world in (1, 8):  # the gradients of DDP are views of its buckets
        assert state_bytes(SHAPE, replace(SETUP, zero=0, world=world)) == held


@pytest.mark.parametrize("half", [True, False])
def test_beside_frozen_weights_only_adapters_have_gradients_and_moments(half: bool) -> None:
    """And they are float32, whatever the student's own weights are."""
    model = LlamaForCausalLM(CONFIG).to(torch.bfloat16 if half else torch.float32)
    wrapped = add_adapters(model, Lora(rank=4))
    trained = [p for p in wrapped.parameters() if p.requires_grad]
    frozen = [p for p in wrapped.parameters() if not p.requires_grad]
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(trained)
    optimizer.step()
    moments = [t for p in trained for t in optimizer.state[p].values() if t.numel() > 1]
    held = sum(t.numel() * t.element_size() for t in [*frozen, *trained, *trained, *moments])
    assert state_bytes(SHAPE, replace(SETUP, lora=4, half=half, world=1, zero=0)) == held


@pytest.mark.parametrize(
    ("overrides", "bytes_a_weight"),
    [
        (["training.lora.rank=16"], 2.0),
        (["training.lora.rank=16", "student.dtype=float32"], 4.0),
        (["training.lora.rank=16", "training.bf16=false"], 4.0),
        ([], 16.0),
    ],
)
def test_on_one_gpu_a_weight_takes_what_the_trainer_loads_it_in(
    overrides: list[str], bytes_a_weight: float
) -> None:
    config = composed("student='qwen1.5b'", "hardware=a100x1", *overrides)
    setup = training_setup(config, REAL, Machine("cuda", 1, 1, 1), 1024, 80.0)
    trained_in = {torch.bfloat16: 2, torch.float32: 4}[_weights_dtype(config, zero=0)]
    assert trained_in == (2 if setup.half else 4)
    adapters = 16 * lora_parameters(REAL, setup.lora) if setup.lora else 0
    assert (state_bytes(REAL, setup) - adapters) / REAL.parameters == bytes_a_weight


def test_disk_is_counted_with_snapshots_and_what_a_run_resumes_from() -> None:
    assert costs.kept_bytes(REAL, 2, snapshots=21) == 22 * 2 * REAL.parameters
    assert costs.resume_bytes(REAL, replace(SETUP, zero=2, half=True)) == 3 * 14 * REAL.parameters
    assert costs.resume_bytes(REAL, replace(SETUP, zero=3, half=True)) == 3 * 12 * REAL.parameters
    assert costs.resume_bytes(REAL, SETUP) == 3 * 12 * REAL.parameters
    assert costs.resume_bytes(REAL, replace(SETUP, lora=16)) < costs.resume_bytes(REAL, SETUP) / 10


def test_deepspeed_reduces_gradients_through_a_bucket_in_float32() -> None:
    """Of 5e8 numbers (paper, App. C.3), or of as many as there are gradients: in bf16, with a copy in
    float32.
    """
    setup = replace(SETUP, zero=2, half=True)
    sharded = 2 * REAL.parameters + 16 * REAL.parameters / 8
    assert state_bytes(REAL, setup) == pytest.approx(sharded + (2 + 4) * 500_000_000)
    assert state_bytes(SHAPE, setup) == pytest.approx((2 + 16 / 8 + 2 + 4) * SHAPE.parameters)
    single = replace(setup, half=False)
    assert state_bytes(SHAPE, single) == pytest.approx((4 + 16 / 8 + 4) * SHAPE.parameters)


@pytest.mark.parametrize("half", [True, False])
def test_the_gradient_of_the_head_is_counted_unless_it_is_frozen(half: bool) -> None:
    """The loss accumulates it in float32, and autograd then converts it to the precision of the weights."""
    full = replace(SETUP, zero=2, half=half)
    more = activation_bytes(REAL, full) - activation_bytes(REAL, replace(full, lora=16))
    assert more == (4 + 2 * half) * REAL.vocabulary * REAL.hidden


def test_on_a_gpu_buckets_are_allocated_in_full_and_chunks_of_logits_are_larger() -> None:
    cpu, gpu = (replace(SETUP, zero=2, half=True, tokens=32768, cuda=cuda) for cuda in (False, True))
    assert state_bytes(REAL, gpu) == state_bytes(REAL, cpu)
    unused = 500_000_000 - SHAPE.parameters
    assert state_bytes(SHAPE, gpu) - state_bytes(SHAPE, cpu) == 2 * unused
    more = activation_bytes(REAL, gpu) - activation_bytes(REAL, cpu)
    assert more == (2048 - 512) * REAL.vocabulary * 6  # in fp32, and in bf16 for the products


REAL = Shape.of(json.loads((ARCHITECTURES / "qwen1.5b.json").read_text(encoding="utf-8")))


@given(st.sampled_from([1, 2, 8, 64]), st.sampled_from([128, 4096, 32768]), st.sampled_from([2, 3]))
def test_every_measure_against_lack_of_memory_saves_some(world: int, tokens: int, zero: int) -> None:
    setup = replace(SETUP, world=world, tokens=tokens, zero=zero)
    if world > 2:  # one process has nothing to shard, and what two shard is less than their buffers
        assert state_bytes(REAL, replace(setup, zero=3)) <= state_bytes(REAL, setup)
    assert state_bytes(REAL, replace(setup, lora=16)) < state_bytes(REAL, setup)
    assert state_bytes(REAL, replace(setup, world=2 * world)) < state_bytes(REAL, setup)
    assert activation_bytes(REAL, setup) < activation_bytes(REAL, replace(setup, tokens=2 * tokens))
    assert activation_bytes(REAL, setup) < activation_bytes(REAL, replace(setup, checkpointing=False))


def test_sketched_gradients_cost_a_head_or_a_backward_pass_more() -> None:
    """By FLOPs: 1.08 forward passes of a 7 B student without a backward pass, and 2 with one (3 if
    activations are recomputed).
    """
    shape = shape_of(composed("student=qwen7b").student)
    assert shape is not None
    sketch, lengths = costs.SketchShape.of(shape, 32, 512, 64), np.full(8, 2000)
    forward = costs.forward_flops(shape, lengths, lengths).forward
    assert costs.gram_flops(shape, lengths, lengths, sketch) / forward == pytest.approx(1.08, abs=0.01)
    for recompute, expected in ((False, 2.0), (True, 2.93)):
        assert costs.exact_flops(shape, lengths, lengths, sketch, recompute) / forward == pytest.approx(
            expected, abs=0.03
        )
    small = costs.SketchShape.of(shape, 64, 512, 64)
    assert small.numbers(shape) == 28 * 2 * 64 * 64 + 512 * 64
