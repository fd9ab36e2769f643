"""Analyses are planned too: what they cost follows from the passes that they make."""

import re

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lark.analysis.gradients import Anchor, passes
from lark.models.shapes import Shape, shape_of
from lark.pipeline.operations.analyse import gradient_passes
from lark.planner.costs import forward_flops
from lark.planner.estimates import Estimate
from lark.planner.lengths import pool_lengths
from lark.planner.report import report
from lark.work.machine import GIB
from tests.conftest import composed
from tests.planner.steps import estimated, keys_of, steps_of


def planned(name: str, *overrides: str) -> dict[str, Estimate]:
    """What the stage `analyse` itself takes."""
    found = estimated(composed(f"analysis.name={name}", "student=qwen7b", "hardware=a100x8", *overrides))
    return {e.name: e for e in found if e.step.stage == "analyse"}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_passes_are_those_that_the_analysis_makes(tied: bool, dtype: str) -> None:
    settings = {
        "vocab_size": 211,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "tie_word_embeddings": tied,
    }
    torch.manual_seed(0)
    anchor, K = Anchor(LlamaForCausalLM(LlamaConfig(**settings)).eval().to(getattr(torch, dtype))), 5
    for kib in (40, 200, 100_000):
        config = composed(f"hardware.gradient_gib={kib * 1024 / GIB}", f"analysis.dtype={dtype}")
        made = passes(anchor, K, kib * 1024) / K
        assert (
            made - 1 <= gradient_passes(config, Shape.of(settings), K) <= made
        )  # a pair of numbers is not parted


def test_the_papers_exact_gradients_take_39_passes_in_memory_and_one_on_a_disk() -> None:
    memory, disk = (
        planned("gradients")["gradients"],
        planned("gradients", "hardware.gradient_gib=1000")["gradients"],
    )
    assert "x 40 passes" in memory.work or "x 39 passes" in memory.work
    assert "1,650 trajectories x 1 pass" in disk.work
    assert 20 < memory.device_hours / disk.device_hours < 39


def test_half_precision_halves_the_passes_and_is_sixteen_times_as_fast_on_an_a100() -> None:
    whole, half = (
        planned("gradients", f"analysis.dtype={dtype}")["gradients"] for dtype in ("float32", "bfloat16")
    )
    assert whole.flops / half.flops == pytest.approx(2, rel=0.05)
    assert whole.device_hours / half.device_hours == pytest.approx(32, rel=0.1)
    assert half.certain_gib == pytest.approx(whole.certain_gib / 2)


def test_theory_adds_jacobians_and_the_decay_rate_grows_with_budget_and_snapshots() -> None:
    assert set(planned("theory")) == {"gradients", "jacobians"}
    one = planned("kappa", "budget.size=1", "training.snapshots=11")["kappa"]
    more = planned("kappa", "budget.size=3", "training.snapshots=22")["kappa"]
    assert more.flops == pytest.approx(6 * one.flops)
    config = composed("student=qwen7b")
    lengths, shape = pool_lengths(config), shape_of(config.student)
    assert shape is not None
    forward = forward_flops(shape, lengths.total, lengths.response)
    mean = (4 * forward.backbone + 3 * forward.head) / len(
        lengths.total
    )  # the backbone is computed twice, and its gradients
    assert one.flops == pytest.approx(11 * 5000 * mean)


def test_shards_are_dealt_whole() -> None:
    """3 questions keep 3 of 8 GPUs busy: they take as long as on 3."""
    eight, three = (planned("theory", f"hardware.processes={n}")["jacobians"] for n in (8, 3))
    assert eight.seconds == pytest.approx(three.seconds)


def test_a_run_says_what_its_analysis_costs() -> None:
    config = composed("analysis.name=gradients", "student=qwen7b", "hardware=a100x8", "stages=[analyse]")
    steps = steps_of(config)
    text, refused = report(config, steps)
    assert re.search(r"analyse +gradients +1,650 trajectories x \d+ passes", text)
    assert (
        refused is not None
        and "analyse (gradients) needs about" in refused
        and "analysis.dtype=bfloat16" in refused
    )
    again, refused = report(config, steps, finished=keys_of(steps, "gradients"))
    assert re.search(r"gradients .* reused", again) and refused is None


def test_what_needs_no_model_costs_nothing_worth_planning() -> None:
    assert planned("contamination") == {}
    assert [e for e in estimated(composed()) if e.step.stage == "analyse"] == []
