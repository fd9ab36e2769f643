"""The weighted SFT objective (paper, eq. (1); decision 3) without holding the logits of a whole batch.

Every response token has a factor f_t on its surprisal, a constant for the gradient (`training.objective`):

    nll      1, the paper's
    dft      π_t(y_t), the token's probability. Dynamic fine-tuning (Wu et al., 2025, arXiv 2508.05629)
    entropy  H̃_t = H(π_t among its 20 most likely tokens) / ln 20, from 0 (certain) to 1. Entropy-adaptive
             fine-tuning (Diao et al., 2026, arXiv 2601.02151)

and, if the training set has them, a weight of its own (`token_weights`). The mean over a trajectory's
tokens is over all of them, however small their factors are: a trajectory whose tokens have small factors
counts less.

A 32,768-token pack of a student with 151,936 words has 20 GB of fp32 logits. Here the head is applied to a
chunk of response positions at a time, and the gradients of the hidden states and of the head are computed
in the forward pass, while the chunk's residual π - e_y is available: three products with the head in total.
Recomputing the logits in the backward pass (checkpointed chunks) needs four, and does not reduce the peak
memory, which occurs when the gradient of the head exists.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lark.errors import LarkError
from lark.models.chat import Encoded
from lark.models.cpu_linear import add_product, product, uses_onednn
from lark.models.head import PLAIN, LogitRule, mixes

ENTROPY_TOKENS = 20
"""K of the entropy's K most likely tokens (Diao et al., 2026)."""
NO_TARGET = -100
"""The target of a position that does not predict a response token."""


def response_targets(trajectory: Encoded) -> list[int]:
    """The target of each position of one trajectory: for position t the token t+1 if that is a response
    token, else -100.

    There is exactly one target per response token, and the last position has none, so the targets of
    trajectories that are joined (packed) or padded never extend into one another.
    """
    ids, prompt_length = trajectory.ids, trajectory.prompt_length
    if not 1 <= prompt_length < len(ids):
        raise LarkError(
            f"A trajectory of {len(ids)} tokens with a prompt of {prompt_length} has no response token to"
            " train on. Drop it (selection does, unless student.max_length is smaller in training than in"
            " scoring)."
        )
    targets = [NO_TARGET] * (prompt_length - 1) + [*ids[prompt_length:], NO_TARGET]
    for start, stop in trajectory.context:
        targets[start - 1 : stop - 1] = [NO_TARGET] * (stop - start)
    return targets


def weighted_loss(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    segment: Tensor,
    weights: Tensor,
    lengths: Tensor,
    batch_trajectories: int,
    head_bias: Tensor | None = None,
    chunk: int = 512,
    rule: LogitRule = PLAIN,
    precision: torch.dtype | None = None,
    objective: str = "nll",
    token_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One micro-batch's part of the loss of a global batch, Σ_i w_i ℓ_i / |batch|, with

        ℓ_i = 1/|a_i| Σ_{t in trajectory i} -log π(y_t | x, y_<t)          (paper, Sec. 3.1)

    under the objective `nll`. Other objectives and `token_weights` multiply each term of ℓ_i by a constant.

    `batch_trajectories` is |batch|, the trajectories of the *global* batch over all micro-batches and
    processes, so gradients must be *summed* over both: where a wrapper averages over processes (DDP,
    DeepSpeed), multiply the loss by their number before `backward`. There is no division by the sum of the
    weights: a trajectory alone in its micro-batch would lose its weight.

    hidden       [T, d]  the student's last hidden states, packed, or a padded [b, t, d] flattened
    head_weight  [V, d]  of the LM head; may be tied to the embedding, may be frozen
    targets      [T]     the token that a position predicts, -100 where it predicts none (`response_targets`)
    segment      [T]     the trajectory of a position, 0 ≤ segment < S; ignored where there is no target
    weights      [S]     w_i = B q_i, constants
    lengths      [S]     |a_i|, the number of targets of each trajectory
    head_bias    [V]     or None
    chunk                response positions with logits in memory at a time: chunk × V fp32 numbers
    precision            of the factors of products with the head; None: autocast's, or that of the inputs
    objective            nll, dft or entropy
    token_weights [T]    constants, or None; ignored where there is no target

    Returns the loss, a scalar with gradients (fp32; fp64 for fp64 inputs), and two vectors [S] without: ℓ,
    under any objective the plain mean surprisals, and the token accuracies, the share of each trajectory's
    targets that are the student's most likely token. Only positions with a target are projected. Without
    any, the loss is 0 and still reaches every parameter, which distributed backward passes need.

    Products are accumulated *and kept* in fp32: fp32 accumulation alone would round each logit to bf16 in
    the end, and between 16 and 32 bf16 numbers are 0.125 apart. Only the factors have `precision`, as in
    any bf16 training; float32 here makes the head exact for any backbone. On a CPU in half precision, this
    holds for the logits; the gradients of a chunk are rounded once, as those of all other layers are.
    """
    if precision is None:
        device = hidden.device.type
        autocast = torch.is_autocast_enabled(device)
        precision = (
            torch.get_autocast_dtype(device)
            if autocast
            else torch.promote_types(hidden.dtype, head_weight.dtype)
        )
    accumulator = torch.promote_types(precision, torch.float32)
    weights, lengths = weights.to(hidden.device, accumulator), lengths.to(hidden.device, accumulator)
    positions = (targets != NO_TARGET).nonzero().squeeze(1)
    owners = segment[positions]
    shares = (weights / lengths / batch_trajectories)[owners]  # d loss / d nll of each response token
    if token_weights is not None:
        shares = shares * token_weights.to(hidden.device, accumulator)[positions]

    nll: Tensor
    hits: Tensor
    loss, nll, hits = _LinearCrossEntropy.apply(
        hidden,
        head_weight,
        head_bias,
        positions,
        targets[positions],
        shares,
        chunk,
        rule,
        precision,
        torch.is_grad_enabled(),
        objective,
    )
    zeros = torch.zeros_like(lengths)
    return loss, zeros.index_add(0, owners, nll) / lengths, zeros.index_add(0, owners, hits) / lengths


class _LinearCrossEntropy(torch.autograd.Function):
    """(Σ_t shares_t · f_t · nll_t, nll [R], hits [R]) of the R positions. The gradients are computed in the
    forward pass. A hit is 1 if the target is the most likely token, else 0.

    With the residual r = (π - e_y) ⊙ dz/dh, and shares that include the constants f_t: ∂/∂hidden = shares ⊙
    (r W), ∂/∂W = rᵀ (shares ⊙ hidden), ∂/∂bias = rᵀ shares.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        positions: Tensor,
        targets: Tensor,
        shares: Tensor,
        chunk: int,
        rule: LogitRule,
        precision: torch.dtype,
        differentiate: bool,
        objective: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wants_hidden, wants_weight, wants_bias = (
            differentiate and needed for needed in ctx.needs_input_grad[:3]
        )
        grad_hidden = torch.zeros_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=shares.dtype) if wants_weight else None
        grad_bias = torch.zeros_like(bias, dtype=shares.dtype) if wants_bias and bias is not None else None
        nll = torch.empty_like(shares)
        hits = torch.empty_like(shares)
        shares = shares.clone()
        with torch.autocast(hidden.device.type, enabled=False):
            head = _factor(weight, precision)
            narrow = weight.to(precision)
            for start in range(0, len(positions), chunk):
                part = slice(start, start + chunk)
                states = hidden[positions[part]]
                z = _product(_factor(states, precision), head.T)
                z = rule.logits(z if bias is None else z.add_(bias))
                slope = rule.slope(z)
                uncertainty = _entropy(z) if objective == "entropy" else None
                nll[part], residual, partition, gold = _surprisal_and_residual(z, targets[part])
                hits[part] = (gold == 0).to(hits.dtype)
                if objective == "dft":
                    shares[part] *= torch.exp(-nll[part])
                elif uncertainty is not None:
                    shares[part] *= uncertainty
                share = (shares[part] / partition).unsqueeze(1)
                if slope is not None:
                    residual.mul_(slope)
                if grad_bias is not None:
                    grad_bias.addmv_(residual.T, share.squeeze(1))
                residual = residual.to(precision)
                if grad_hidden is not None:
                    grad_hidden[positions[part]] = (_product(residual, narrow) * share).to(hidden.dtype)
                if grad_weight is not None:
                    _add_product(grad_weight, residual.T, (states * share).to(precision))
                del z, residual, slope  # or the next chunk's logits would be allocated next to these
        # Not save_for_backward: these are used once and then handed over, so that autograd need not copy the
        # head's gradient.
        ctx.gradients = (grad_hidden, grad_weight, grad_bias)
        ctx.mark_non_differentiable(nll, hits)
        return (nll * shares).sum(), nll, hits  # not `@`, which autocast would round

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(
                "weighted_loss keeps its gradients for one backward pass: call it again for another."
            )
        gradients, ctx.gradients = ctx.gradients, None
        return (*(None if g is None else g.mul_(grad_loss) for g in gradients), *(None,) * 8)


def _entropy(z: Tensor) -> Tensor:
    """H̃ [c] of the logits z [c, V]: the entropy of the most likely tokens among themselves, divided by its
    maximum.
    """
    top = z.topk(min(ENTROPY_TOKENS, z.shape[1]), dim=1).values
    p = top.softmax(dim=1)
    return torch.special.entr(p).sum(dim=1) / math.log(ENTROPY_TOKENS)


def _surprisal_and_residual(z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """-log π_y [c], the unnormalised residual Z (π - e_y) [c, V], Z [c] and z_y - max z [c] of logits
    z [c, V], overwritten.

    Z = Σ_v e^(z_v - max z) is divided out later, from [c] numbers: on a GPU, passes over [c, V] are the
    head's main cost apart from its products.
    """
    rows = torch.arange(len(z), device=z.device)
    top = z.amax(dim=1, keepdim=True)
    gold = z[rows, targets] - top.squeeze(1)
    partition = z.sub_(top).exp_().sum(dim=1)
    z[rows, targets] -= partition
    return partition.log() - gold, z, partition, gold


def _factor(x: Tensor, precision: torch.dtype) -> Tensor:
    """x rounded to `precision`, and widened again where the device's half-precision products would be
    rounded.
    """
    x = x.to(precision)
    return x if mixes(x) else x.to(torch.promote_types(precision, torch.float32))


def _product(a: Tensor, b: Tensor) -> Tensor:
    if mixes(a):
        return torch.mm(a, b, out_dtype=torch.float32)
    return product(a, b) if uses_onednn(b) else torch.mm(a, b)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, without the product as a temporary: for the head that is another [V, d]."""
    if mixes(a):
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    elif uses_onednn(total):
        add_product(total, a, b)
    elif a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total += torch.mm(a, b)
