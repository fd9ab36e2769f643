"""The loss decay rate of a whole weighted corpus, such as a training set, from its exact gradient."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lark.analysis.gradients import Anchor, squared_norm
from lark.models.chat import Encoded
from lark.models.head import last_hidden_state
from lark.models.padding import right_padded
from lark.scoring.forward import batches
from lark.training.loss import NO_TARGET, response_targets, weighted_loss


@dataclass(frozen=True)
class CorpusRate:
    """ρ of a weighted corpus, and its two parts."""

    loss: float
    """L_total = Σ_i q_i ℓ_i."""
    gradient_norm2: float
    """||∇L_total||²."""

    @property
    def rate(self) -> float:
        return self.gradient_norm2 / self.loss


def corpus_rate(
    anchor: Anchor,
    trajectories: Sequence[Encoded],
    weights: Sequence[float],
    batch_tokens: int,
    done: Callable[[int], object] = lambda tokens: None,
) -> CorpusRate:
    """ρ = ||∇L||² / L of L = Σ_i q_i ℓ_i over a whole corpus (paper, App. A.3), in one pass.

    Holds one gradient, in fp32. `weights` are the q_i; `batch_tokens` bounds the tokens of a padded batch. A
    tied matrix counts once, with both its uses.
    """
    head = anchor.model.get_output_embeddings().weight
    sums: dict[Tensor, Tensor] = {}

    def add(parameter: Tensor) -> None:
        assert parameter.grad is not None
        sums[parameter].add_(parameter.grad)
        parameter.grad = None  # at once: a gradient exists only while its tensor is processed

    anchor.model.requires_grad_(True)
    hooks = []
    for parameter in anchor.model.parameters():
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        # In bf16, a sum over thousands of batches would stop growing.
        sums[parameter] = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
        hooks.append(parameter.register_post_accumulate_grad_hook(add))
    total = 0.0
    for indices in batches([len(t.ids) for t in trajectories], batch_tokens, padded=True):
        # The global batch is 1: the q_i already are shares of the whole corpus.
        batch = [trajectories[i] for i in indices]
        ids, targets = _padded(batch)
        segment = torch.arange(len(batch)).repeat_interleave(ids.shape[1])
        loss, *_ = weighted_loss(
            last_hidden_state(anchor.model, ids.to(head.device)).flatten(0, 1),
            head,
            targets.flatten().to(head.device),
            segment.to(head.device),
            torch.tensor([weights[i] for i in indices], dtype=torch.float64),
            torch.tensor([trajectory.n_response for trajectory in batch]),
            1,
            anchor.bias,
            rule=anchor.rule,
        )
        loss.backward()
        total += float(loss.detach())
        done(sum(len(trajectory.ids) for trajectory in batch))
    for hook in hooks:
        hook.remove()
    anchor.want(set())
    return CorpusRate(total, sum(map(squared_norm, sums.values())))


def _padded(trajectories: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
    """Token ids and targets [b, t]."""
    targets = [response_targets(trajectory) for trajectory in trajectories]
    return right_padded([trajectory.ids for trajectory in trajectories]), right_padded(targets, NO_TARGET)
