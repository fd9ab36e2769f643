"""What the forward pass of a global batch measures: the loss and the token accuracy of each trajectory.

Both come from the chunks of logits that the loss has in memory, so they cost nothing but their transport.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, distributed

from lark.training.batches import GlobalBatch


@dataclass(frozen=True)
class Measures:
    """ℓ and hits of the trajectories of a global batch, in its order."""

    batch: GlobalBatch
    losses: list[float]
    hits: list[int]
    """Response tokens that are the student's most likely token."""

    @property
    def token_accuracy(self) -> float:
        """The share of the batch's response tokens that are the student's most likely token."""
        return sum(self.hits) / sum(example.encoded.n_response for example in self.batch.examples)

    def rows(self) -> list[dict[str, str | float | None]]:
        """One row per trajectory, for JSON, which has no NaN."""
        rows = []
        for example, loss, hits in zip(self.batch.examples, self.losses, self.hits, strict=True):
            question_id, candidate_id = example.key
            rows.append(
                {
                    "trajectory": example.name,
                    "question_id": question_id,
                    "candidate_id": candidate_id,
                    "loss": finite(loss),
                    "token_accuracy": hits / example.encoded.n_response,
                }
            )
        return rows


@dataclass
class Recorder:
    """Collects one process's part of the measures of a global batch, without waiting for its device."""

    parts: list[Tensor] = field(default_factory=list)
    """[2, S] of each micro-batch."""

    def add(self, losses: Tensor, accuracies: Tensor) -> None:
        self.parts.append(torch.stack([losses, accuracies]))

    def gather(self, batch: GlobalBatch) -> Measures:
        """The measures over all processes, which call this together. `batch`: this process's view."""
        places = {key: place for place, key in enumerate(batch.keys)}
        mine = [places[key] for keys in batch.micro_keys for key in keys]
        parts = torch.cat(self.parts, dim=1).double()
        totals = torch.zeros(2, batch.size, dtype=torch.float64, device=parts.device)
        totals[:, mine] = parts
        if distributed.is_initialized():
            distributed.all_reduce(totals)  # processes that share a trajectory have a part of its tokens each
        losses, accuracies = totals.tolist()
        lengths = [example.encoded.n_response for example in batch.examples]
        # A share in fp32 is rounded; the number of tokens behind it is whole.
        hits = [round(share * length) for share, length in zip(accuracies, lengths, strict=True)]
        return Measures(batch, losses, hits)


def finite(value: float) -> float | None:
    """The value; None if it is not a finite number."""
    return value if math.isfinite(value) else None


def weighted_mean(measures: Measures) -> float:
    """1/N Σ_i w_i ℓ_i. The weights are rounded as the loss rounds them."""
    weights = torch.tensor([example.weight for example in measures.batch.examples], dtype=torch.float32)
    return float((weights.double() * torch.tensor(measures.losses, dtype=torch.float64)).mean())
