"""The steps of a training run as a dataset: one item is one process's view of a global batch."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch.utils.data import Dataset

from lark.models.chat import Encoded
from lark.training.packing import MicroBatch, TrainingStep, collate_packed, collate_padded
from lark.training.training_set import Key, shown


@dataclass(frozen=True)
class Example:
    """A selected trajectory, ready to train on."""

    key: Key
    encoded: Encoded
    weight: float
    """w = B_n q."""
    token_weights: tuple[float, ...] | None = None
    """One per response token; None: all are 1."""

    @property
    def question_id(self) -> str:
        return self.key[0]

    @property
    def name(self) -> str:
        return shown(self.key)


@dataclass(frozen=True)
class GlobalBatch:
    """One training step, as one process sees it."""

    micro: list[MicroBatch]
    own: list[list[Key]]
    """The trajectories in each micro-batch."""
    keys: list[Key]
    """All its trajectories, over all processes."""

    @property
    def size(self) -> int:
        """|batch|."""
        return len(self.keys)


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
        self.examples, self.steps, self.replica, self.parts = examples, steps, rank // parts, parts
        self.collate = collate_packed if packed else collate_padded

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: int) -> GlobalBatch:
        step = self.steps[index]
        groups = [[self.examples[i] for i in group] for group in step.micro[self.replica]]
        return GlobalBatch(
            micro=[
                self.collate(
                    [e.encoded for e in group],
                    [e.weight for e in group],
                    self.parts,
                    [e.token_weights for e in group],
                )
                for group in groups
            ],
            own=[[e.key for e in group] for group in groups],
            keys=[self.examples[i].key for i in step.trajectories],
        )

    def tokens(self, index: int) -> int:
        """Prompt and response tokens of a step, over all processes."""
        return sum(len(self.examples[i].encoded.ids) for i in self.steps[index].trajectories)
