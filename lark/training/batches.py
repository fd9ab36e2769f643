"""The steps of a training run as a dataset: one item is one process's view of a global batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch.utils.data import Dataset

from lark.config import Config
from lark.models.shapes import shape_of
from lark.training.balance import crossover
from lark.training.encoded_set import Example
from lark.training.packing import MicroBatch, TrainingStep, collate_packed, collate_padded, plan_batches
from lark.training.training_set import TrajectoryKey

UNKNOWN_CROSSOVER = 40_000.0
"""Crossover of a student of another family, whose shape is unknown: between those of 1.5B and 7B."""


@dataclass(frozen=True)
class GlobalBatch:
    """One training step, as one process sees it."""

    micro: list[MicroBatch]
    micro_keys: list[list[TrajectoryKey]]
    """The trajectories in each micro-batch."""
    examples: list[Example]
    """All its trajectories, over all processes."""

    @property
    def keys(self) -> list[TrajectoryKey]:
        return [example.key for example in self.examples]

    @property
    def size(self) -> int:
        """|batch|."""
        return len(self.examples)


class GlobalBatches(Dataset[GlobalBatch]):
    """The steps of all epochs, in order; a process sees its own share of each."""

    def __init__(
        self,
        examples: Sequence[Example],
        steps: Sequence[TrainingStep],
        rank: int,
        packed: bool,
        parts: int = 1,
    ) -> None:
        """`parts`: processes that share each micro-batch (lark/training/sequence.py)."""
        self.examples = examples
        self.steps = steps
        self.replica = rank // parts
        self.parts = parts
        self.collate = collate_packed if packed else collate_padded

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: int) -> GlobalBatch:
        step = self.steps[index]
        micro = []
        micro_keys = []
        for group in step.micro[self.replica]:
            examples = [self.examples[i] for i in group]
            encodings = [example.encoded for example in examples]
            weights = [example.weight for example in examples]
            token_weights = [example.token_weights for example in examples]
            micro.append(self.collate(encodings, weights, self.parts, token_weights))
            micro_keys.append([example.key for example in examples])
        return GlobalBatch(micro, micro_keys, [self.examples[i] for i in step.trajectories])

    def tokens(self, index: int) -> int:
        """Prompt and response tokens of a step, over all processes."""
        return sum(len(self.examples[i].encoded.ids) for i in self.steps[index].trajectories)


def plan_steps(
    config: Config, examples: Sequence[Example], replicas: int, packed: bool, crossover: float | None = None
) -> list[TrainingStep]:
    """The steps of all epochs. `replicas`: processes, or groups of processes that share micro-batches.
    `crossover`: see `plan_batches`.
    """
    lengths = [len(example.encoded.ids) for example in examples]
    places = epoch_places(config.training.order, examples)
    steps = []
    for epoch in range(config.training.epochs):
        steps += plan_batches(
            lengths,
            global_batch=config.training.global_batch,
            processes=replicas,
            capacity=max(config.hardware.train_tokens, config.student.max_length),
            seed=config.training.seed,
            epoch=epoch,
            packed=packed,
            micro_batch=config.hardware.micro_batch,
            crossover=crossover,
            places=places,
        )
    return steps


def epoch_places(order: str, examples: Sequence[Example]) -> list[float] | None:
    """The numbers by which an epoch is sorted, smallest first (decision 29). None: it is only shuffled.

    They are exact and computed from files alone, so the order is the same on any number of processes.
    """
    if order == "by_score":
        return [-example.utility for example in examples]
    if order == "shuffled":
        return None
    sign = 1.0 if order == "easy_first" else -1.0
    return [sign * example.encoded.n_response for example in examples]


def planned_crossover(
    config: Config, weights: str, device: str, replicas: int, recompute: float
) -> float | None:
    """The crossover with which packs are balanced by cost (balance.py); None if they are balanced by tokens.

    By tokens on CPU, where results must not change in the last digit (which trajectories share a pack changes
    the rounding), and with one replica, which waits for nobody. `weights`: the student's folder or hub id.
    `recompute`: share of the layers that are computed again.
    """
    if device == "cpu" or replicas == 1:
        return None
    shape = shape_of(replace(config.student, path=weights))
    if shape is None:
        return UNKNOWN_CROSSOVER
    return crossover(shape, recompute, frozen=config.training.lora.rank > 0)
