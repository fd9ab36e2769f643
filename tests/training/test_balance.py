"""Packs that are balanced by cost: what must hold for any lengths, how much less processes wait, and that the
gradients stay what they are.
"""

from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.bench import waiting as bench
from lark.models.chat import Encoded
from lark.models.head import PLAIN
from lark.models.shapes import shape_of
from lark.models.varlen import SEGMENTS
from lark.planner.costs import forward_flops
from lark.training.balance import ATTENTION_BACKWARD, ATTENTION_RATE, MICRO_STEP, crossover, trajectory_cost
from lark.training.batches import UNKNOWN_CROSSOVER, planned_crossover
from lark.training.encoded_set import Example
from lark.training.packing import TrainingStep, collate_packed, global_batches, plan_batches
from lark.training.trainer import return_weighted_loss
from lark.training.worker import _batches
from lark.work.machine import Machine
from tests.conftest import composed
from tests.training.tiny import make_job, write_student

CAPACITY = 100
C = 60.0
lengths_lists = st.lists(st.integers(2, CAPACITY), max_size=120)


def plan(lengths: list[int], processes: int, crossover: float | None = C) -> list[TrainingStep]:
    return plan_batches(
        lengths, global_batch=16, processes=processes, capacity=CAPACITY, seed=7, epoch=0, crossover=crossover
    )


def time_of(step: TrainingStep, lengths: list[int]) -> float:
    """What balancing minimises: the costliest pack of each micro-step, and the micro-steps themselves."""
    total = 0.0
    for groups in zip(*step.micro, strict=True):
        total += MICRO_STEP + max(sum(trajectory_cost(lengths[i], C) for i in group) for group in groups)
    return total


@settings(deadline=None)
@given(lengths_lists, st.integers(1, 9))
def test_packs_hold_every_trajectory_once_and_no_more_than_they_have_room_for(
    lengths: list[int], processes: int
) -> None:
    steps = plan(lengths, processes)
    assert [s.trajectories for s in steps] == global_batches(len(lengths), 16, seed=7, epoch=0)
    for step in steps:
        assert len(step.micro) == processes
        assert len({len(rank) for rank in step.micro}) == 1
        packs = [pack for rank in step.micro for pack in rank]
        assert sorted(chain.from_iterable(packs)) == sorted(step.trajectories)
        assert all(sum(lengths[i] for i in pack) <= CAPACITY for pack in packs)
    assert plan(lengths, processes) == steps


@settings(deadline=None)
@given(lengths_lists, st.integers(1, 9))
def test_a_balanced_batch_never_takes_longer_than_one_balanced_by_tokens(
    lengths: list[int], processes: int
) -> None:
    by_tokens = plan(lengths, processes, crossover=None)
    for balanced, step in zip(plan(lengths, processes), by_tokens, strict=True):
        assert time_of(balanced, lengths) <= time_of(step, lengths) + 1e-6


@pytest.mark.parametrize(("student", "processes"), bench.MOST_WAITING)
def test_processes_wait_little_for_the_costliest_pack(student: str, processes: int) -> None:
    """Balanced by tokens, they wait for twice as long on 8 GPUs, and 31% of the time on 16."""
    lengths = bench.log_normal(60 * bench.GLOBAL_BATCH)
    c = bench.crossover_of(student)
    limit = bench.MOST_WAITING[student, processes]
    balanced = bench.plan(lengths, processes, bench.CAPACITY, c)
    assert bench.waiting(balanced, lengths, c) <= limit
    assert bench.waiting(bench.plan(lengths, processes, bench.CAPACITY, None), lengths, c) > 1.25 * limit


def test_a_rough_crossover_is_enough() -> None:
    """The rates of attention and of matrix products are not those of every GPU."""
    lengths = bench.log_normal(20 * bench.GLOBAL_BATCH)
    c = bench.crossover_of("7B")
    for wrong in (0.67 * c, 1.5 * c):
        assert bench.waiting(bench.plan(lengths, 8, bench.CAPACITY, wrong), lengths, c) <= 0.11


def test_a_global_batch_is_planned_in_less_than_5_ms() -> None:
    lengths = bench.log_normal(20 * bench.GLOBAL_BATCH)
    for processes in (8, 16, 64):
        assert bench.planning_ms(lengths, processes, bench.CAPACITY, 48_000) < bench.MOST_PLANNING_MS


@pytest.mark.parametrize(("student", "expected"), [("qwen7b", 49_000), ("qwen1.5b", 24_500)])
def test_the_crossover_is_where_the_planners_flops_of_attention_reach_the_rest(
    student: str, expected: float
) -> None:
    shape = shape_of(composed(f"student={student}").student)
    assert shape is not None
    one, two = (forward_flops(shape, [n], [n]) for n in (1, 2))
    quadratic = (two.backbone - 2 * one.backbone) / 2
    linear = one.backbone - quadratic
    c = crossover(shape, recompute=True, frozen=False)
    assert c == pytest.approx(expected, rel=0.02)
    assert (4 * linear + 3 * one.head) * ATTENTION_RATE == pytest.approx(
        quadratic * c * (2 + ATTENTION_BACKWARD)
    )
    assert crossover(shape, recompute=True, frozen=True) < c  # adapters: no gradients of the matrices


def test_only_gpus_that_wait_for_each_other_balance_by_cost() -> None:
    """On CPU, which trajectories share a pack changes the last digits of a training."""
    config = composed("student=qwen7b")
    weights = config.student.path
    assert planned_crossover(config, weights, "cpu", 8, 1.0) is None
    assert planned_crossover(config, weights, "cuda", 1, 1.0) is None
    assert planned_crossover(config, weights, "cuda", 8, 1.0) == pytest.approx(49_000, rel=0.02)
    assert planned_crossover(config, "someone/of-another-family", "cuda", 8, 1.0) == UNKNOWN_CROSSOVER


def test_training_on_gpus_uses_the_balanced_plan(tmp_path: Path) -> None:
    student = write_student(tmp_path / "student")
    job = make_job(student, tmp_path, tmp_path / "run", "hardware.train_tokens=200", world=2)
    gpus = replace(job, machine=Machine("cuda", 2, 1, 1))
    examples = []
    for number, length in enumerate([190, 120, 70, 40, 30, 30, 30, 20, 20, 10, 10, 10]):
        examples.append(Example((f"q{number}", "c"), Encoded([0] * length, 1, False), 1.0))
    by_tokens = _batches(job, job.config, examples, packed=True, recompute=0.0).steps
    by_cost = _batches(gpus, job.config, examples, packed=True, recompute=0.0).steps
    assert [step.trajectories for step in by_cost] == [step.trajectories for step in by_tokens]
    assert by_cost != by_tokens


def gradients(model: LlamaForCausalLM, steps: list[TrainingStep], encoded: list[Encoded]) -> list[Tensor]:
    """Of one global batch with weights, summed over all micro-batches of all processes."""
    (step,) = steps
    model.zero_grad()
    for rank in step.micro:
        for group in rank:
            micro = collate_packed([encoded[i] for i in group], [0.5 + i % 3 for i in group])
            model(micro, len(step.trajectories))[0].backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_the_gradient_of_a_batch_does_not_depend_on_how_it_is_balanced() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        attn_implementation=SEGMENTS,
    )  # fmt: skip
    model = LlamaForCausalLM(config).double()
    return_weighted_loss(model, PLAIN)
    lengths = [90, 70, 40, 30, 30, 30, 30, 30, 20, 20, 10, 10, 5, 4, 3, 2]
    encoded = [Encoded(torch.randint(32, (n,)).tolist(), 1, False) for n in lengths]
    by_tokens = plan(lengths, 4, crossover=None)
    by_cost = plan(lengths, 4, crossover=10.0)
    assert by_cost != by_tokens
    pairs = zip(gradients(model, by_cost, encoded), gradients(model, by_tokens, encoded), strict=True)
    for balanced, reference in pairs:
        assert reference.norm() > 0
        torch.testing.assert_close(balanced, reference, rtol=1e-9, atol=1e-12)
