"""How many layers are recomputed: as few as memory allows, by arithmetic that follows PyTorch's own peak."""

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

from lark.config import Config
from lark.models.recompute import keep_activations, recompute_activations
from lark.models.shapes import Shape, shape_of
from lark.training import recomputation
from lark.training.memory import TrainingSetup, activation_bytes, state_bytes, training_setup
from lark.training.recomputation import Recomputation
from lark.work.machine import GIB, Machine, room_gib
from tests.conftest import composed, job_of

LAYERS, TOKENS = 8, 256
CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=256,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=TOKENS,
)
SHAPE = Shape.of(CONFIG.to_dict())


class Peak(TorchDispatchMode):
    """The most bytes of tensors that exist at a time, of those that operators make."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: set[int] = set()
        self.bytes = 0
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        # A view has a new object of the same storage, so storages are told apart by their address.
        address, size = storage.data_ptr(), storage.nbytes()
        if address in self.alive or not size:
            return
        self.alive.add(address)
        self.bytes += size
        self.most = max(self.most, self.bytes)
        weakref.finalize(storage, self._free, address, size)

    def _free(self, address: int, size: int) -> None:
        self.alive.discard(address)
        self.bytes -= size


def peak_of_a_backward_pass(kept: int) -> int:
    """Bytes of activations and of their gradients. The gradients of weights are there before."""
    model = LlamaForCausalLM(CONFIG)
    recompute_activations(model)
    keep_activations(model, kept)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    ids = torch.zeros(1, TOKENS, dtype=torch.long)
    with Peak() as peak:
        model.model(ids, use_cache=False).last_hidden_state.sum().backward()
    return peak.most


def test_each_layer_that_is_kept_takes_the_memory_that_is_planned_and_the_last_takes_none() -> None:
    setup = TrainingSetup(1, 0, TOKENS, checkpointing=True, bf16=False)
    measured = [peak_of_a_backward_pass(kept) for kept in range(LAYERS + 1)]
    planned = [activation_bytes(SHAPE, replace(setup, kept=kept)) for kept in range(LAYERS + 1)]
    assert measured[1] <= measured[0]
    for kept in range(2, LAYERS + 1):
        assert measured[kept] - measured[1] < 1.01 * (planned[kept] - planned[1])
    for kept in range(3, LAYERS + 1):
        another = planned[kept] - planned[kept - 1]
        assert measured[kept] - measured[kept - 1] == pytest.approx(another, rel=0.05)


STUDENTS = ("qwen1.5b", "qwen7b", "llama3b")


def planned(config: Config, machine: Machine, memory_gib: float) -> tuple[Shape, TrainingSetup]:
    shape = shape_of(config.student)
    assert shape is not None
    return shape, training_setup(config, shape, machine, 32768, memory_gib)


@pytest.mark.parametrize("student", STUDENTS)
@pytest.mark.parametrize(("gpus", "memory_gib"), [(1, 24.0), (1, 80.0), (2, 40.0), (8, 80.0)])
def test_as_few_layers_are_recomputed_as_a_gpu_has_room_for(
    gpus: int, memory_gib: float, student: str
) -> None:
    config, machine = composed(f"student='{student}'", "hardware=a100x8"), Machine("cuda", gpus, 1, 1)
    shape, setup = planned(config, machine, memory_gib)
    room = room_gib(memory_gib) * GIB - state_bytes(shape, setup)
    assert setup.kept >= 1
    assert setup.kept == 1 or activation_bytes(shape, setup) <= room
    more = replace(setup, kept=setup.kept + 1)
    assert setup.kept == shape.layers or activation_bytes(shape, more) > room


def test_the_number_of_layers_can_be_set_and_the_memory_of_a_cpu_is_not_filled() -> None:
    gpus, cpu = Machine("cuda", 8, 1, 1), Machine("cpu", 8, 1, 1)
    for device, settings, recomputed in (
        (gpus, ["hardware.recomputed_layers=28"], 28),
        (gpus, ["hardware.recomputed_layers=5"], 5),
        (gpus, ["hardware.recomputed_layers=99"], 28),
        (gpus, ["training.gradient_checkpointing=false"], 0),
        (cpu, [], 28),
    ):
        config = composed("student=qwen7b", "hardware=a100x8", *settings)
        shape, setup = planned(config, device, 80.0)
        assert setup.recomputed(shape) == recomputed, settings


def test_training_recomputes_as_many_layers_as_planned_for_the_smallest_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, machine = composed("student='qwen1.5b'", "hardware=a100x8"), Machine("cuda", 2, 1, 1)
    job = job_of(config, tmp_path, machine=machine, weights=config.student.path, world=2)

    def gather(memory: list[float], own: float) -> None:
        memory[:] = [own, 64.0]

    monkeypatch.setattr(recomputation, "gpu_gib", lambda job: 79.2)
    monkeypatch.setattr(recomputation.distributed, "all_gather_object", gather)
    chosen = Recomputation.of(job, 32768)
    shape, setup = planned(config, machine, 64.0)
    assert 1 < setup.kept < shape.layers
    assert (chosen.kept, chosen.share) == (setup.kept, 1 - setup.kept / shape.layers)
    assert chosen.kept < planned(config, machine, 79.2)[1].kept
