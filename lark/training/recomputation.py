"""How many layers training recomputes: as few as the memory of the GPUs allows (lark/training/memory.py)."""

import logging
from dataclasses import dataclass, replace
from typing import Any

from torch import distributed
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lark.models.recompute import keep_activations
from lark.models.shapes import shape_of
from lark.training.memory import training_setup
from lark.work.devices import gpu_gib
from lark.work.operation import Job

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recomputation:
    """The layers whose activations the backward pass computes again, and those whose activations are kept."""

    share: float
    """Share of the layers that are recomputed."""
    kept: int
    """With gradient checkpointing: layers, the last ones, that are not recomputed."""

    @classmethod
    def of(cls, job: Job, longest: int) -> "Recomputation":
        """The same in all processes, for the smallest of their GPUs: with ZeRO-3 they gather the weights of a
        layer together. `longest`: tokens of the longest trajectory.
        """
        config = job.config
        shape = shape_of(replace(config.student, path=job.weights))
        if shape is None:  # a family of unknown size
            return cls(float(config.training.gradient_checkpointing), 0)
        memory = [gpu_gib(job)] * job.world
        if job.world > 1:
            distributed.all_gather_object(memory, gpu_gib(job))
        setup = training_setup(config, shape, job.machine, longest, min(memory))
        recomputed = setup.recomputed(shape)
        if setup.checkpointing:
            log.info("activations of %d of %d layers are recomputed", recomputed, shape.layers)
        return cls(recomputed / shape.layers, setup.kept)


class KeptActivations(TrainerCallback):
    """Keeps the activations of some layers. The Trainer has enabled recomputation for all of them."""

    def __init__(self, model: PreTrainedModel, count: int) -> None:
        self.model = model
        self.count = count

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        keep_activations(self.model, self.count)
