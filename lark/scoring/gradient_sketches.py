"""Sketches of the gradients of whole trajectories, from which the Gram matrix of a question's candidates
follows.

The paper's ĝ treats the gradients of different trajectories as orthogonal and their norms as Brier scores.
Both sketches drop these assumptions. They cover the matrices that write to the residual stream (stream.py)
and the head:

    head   1/n Σ_t (π_t - e_y) ⊗ h_t            h_t: the last hidden state that predicts token t
    layer  1/n Σ_t δ_t ⊗ a_t                    a_t: the input of o_proj or down_proj
                                                δ_t: the gradient at its output

`ForwardSketcher` (method=lark_gram) needs no backward pass: it takes e_t = (∂norm)ᵀ Wᵀ(π_t - e_y), the
gradient behind the final norm, for δ_t in every layer, as if the layers above passed it on unchanged.
`BackwardSketcher` (method=lark_exact) backpropagates to the hidden states and no further: δ_t is exact, at
every position, and no gradient of a weight is ever formed.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lark.models.chat import Encoded
from lark.scoring.forward import LoadedStudent, passes
from lark.scoring.inputs import Inputs
from lark.scoring.residuals import head_residuals
from lark.scoring.sketches import Fold, Sizes
from lark.scoring.stream import final_norm, output_projections, watched

HEAD = Sizes(512, 64)
"""Sketch of the head's gradient: of the vocabulary, and of the hidden state."""


@dataclass(frozen=True)
class TrajectoryGradient:
    """The sketched gradient of one trajectory's loss ℓ_k."""

    nll: float
    """Σ_t -log p_t."""
    n_tokens: int
    layers: Tensor
    """[P] fp32, all output projections one after the other."""
    head: Tensor
    """[Q] fp32."""

    @property
    def loss(self) -> float:
        return self.nll / self.n_tokens


class Sketcher(ABC):
    """Sketches the gradients of a batch of trajectories."""

    method: str

    def __init__(self, student: LoadedStudent, sizes: Sizes, head: Sizes = HEAD, seed: int = 0) -> None:
        self.student = student
        self.writers = output_projections(student.model, self.method)
        weight, device = student.head.weight, student.head.weight.device
        self.words = Fold.of(seed, "head, words", weight.shape[0], head.rows, device)
        self.states = Fold.of(seed, "head, states", weight.shape[1], head.columns, device)
        self.inputs = {}
        self.outputs = {}
        for name, part in self.writers.items():
            self.inputs[name] = Fold.of(seed, f"{name}, in", part.in_features, sizes.columns, device)
            self.outputs[name] = Fold.of(seed, f"{name}, out", part.out_features, sizes.rows, device)

    def __call__(self, batch: Sequence[Encoded]) -> list[TrajectoryGradient]:
        """One gradient per trajectory, in the batch's order. Each has at least one response token."""
        gradients: dict[int, TrajectoryGradient] = {}
        for chosen in passes(self.student, batch, self.shares):
            inputs = Inputs.of(self.student, [batch[i] for i in chosen], self.shares)
            gradients |= zip(chosen, self.run(inputs), strict=True)
        return [gradients[i] for i in range(len(batch))]

    @property
    @abstractmethod
    def shares(self) -> bool:
        """True if trajectories share a common beginning."""

    @abstractmethod
    def run(self, inputs: Inputs) -> list[TrajectoryGradient]:
        """The gradients of one pass, in the batch's order."""

    @property
    def numbers(self) -> int:
        """Numbers in one sketched gradient."""
        layers = sum(self.outputs[name].kept * self.inputs[name].kept for name in self.writers)
        return layers + self.words.kept * self.states.kept

    def at_head(self, inputs: Inputs, hidden: Tensor) -> tuple[Tensor, list[Tensor], list[float]]:
        """From the last hidden states [T, d] that predict response tokens: the gradients of the tokens'
        losses there [T, d], and the head's sketched gradient and Σ -log p of each trajectory.
        """
        residuals = head_residuals(hidden, inputs.targets, self.student.head, self.words)
        sizes = [e.n_response for e in inputs.batch]
        pairs = zip(residuals.folded.split(sizes), self.states(hidden).split(sizes), sizes, strict=True)
        heads = [(left.T @ right).flatten() / n for left, right, n in pairs]
        nll = [float(part.double().sum()) for part in residuals.surprisal.split(sizes)]
        return residuals.pulled, heads, nll


class ForwardSketcher(Sketcher):
    """Forward only (method=lark_gram)."""

    method = "lark_gram"

    def __init__(self, student: LoadedStudent, sizes: Sizes, head: Sizes = HEAD, seed: int = 0) -> None:
        super().__init__(student, sizes, head, seed)
        self.norm = final_norm(student.model, self.writers, self.method)

    @property
    def shares(self) -> bool:
        """Only positions that predict response tokens count. They are the same with a shared beginning."""
        return self.student.shares

    @torch.no_grad()
    def run(self, inputs: Inputs) -> list[TrajectoryGradient]:
        seen: dict[str, list[Tensor]] = {}
        last: list[Tensor] = []

        def keep(name: str, entering: Tensor, _output: Tensor) -> None:
            seen[name] = inputs.predicting(self.inputs[name](entering))

        hook = self.norm.register_forward_hook(
            lambda _module, arguments, _output: last.extend(inputs.predicting(arguments[0]))
        )
        try:
            with watched(self.writers, keep):
                hidden = torch.cat(inputs.predicting(inputs.run(self.student)))
        finally:
            hook.remove()
        pulled, heads, nll = self.at_head(inputs, hidden)
        sizes = [e.n_response for e in inputs.batch]
        shares = _mean_shares(pull_back(self.norm, torch.cat(last), pulled), sizes)
        layers = []
        for name in self.writers:
            pairs = zip(self.outputs[name](shares).split(sizes), seen[name], strict=True)
            layers.append([delta.T @ entering for delta, entering in pairs])
        return _gradients(nll, sizes, layers, heads)


class BackwardSketcher(Sketcher):
    """With a backward pass to the hidden states (method=lark_exact)."""

    method = "lark_exact"

    @property
    def shares(self) -> bool:
        """The gradients of several trajectories would be added up at the positions of a shared beginning."""
        return False

    def run(self, inputs: Inputs) -> list[TrajectoryGradient]:
        # Only hidden states get gradients: those of the weights would take as much memory as the student.
        self.student.model.requires_grad_(False)
        left: dict[str, list[Tensor]] = {}
        layers: dict[str, list[Tensor]] = {}

        def keep(name: str, entering: Tensor, output: Tensor) -> Tensor:
            if not output.requires_grad:  # nothing below the first output projection needs a gradient
                output = output.detach().requires_grad_()
            if name not in left:  # otherwise activations are being recomputed
                left[name] = inputs.by_trajectory(self.inputs[name](entering.detach()))
                output.register_hook(lambda delta: finish(name, delta))
            return output

        def finish(name: str, delta: Tensor) -> None:
            pairs = zip(inputs.by_trajectory(self.outputs[name](delta)), left[name], strict=True)
            layers[name] = [gradient.T @ entering for gradient, entering in pairs]

        with torch.enable_grad(), watched(self.writers, keep):
            hidden = torch.cat(inputs.predicting(inputs.run(self.student)))
            pulled, heads, nll = self.at_head(inputs, hidden.detach())
            sizes = [e.n_response for e in inputs.batch]
            hidden.backward(_mean_shares(pulled, sizes).to(hidden.dtype))
        return _gradients(nll, sizes, [layers[name] for name in self.writers], heads)


def _mean_shares(gradients: Tensor, sizes: list[int]) -> Tensor:
    """[T, d] Gradients of tokens' losses [T, d] as gradients of their trajectory's mean loss."""
    pairs = zip(gradients.split(sizes), sizes, strict=True)
    return torch.cat([part / n for part, n in pairs])


def pull_back(norm: nn.Module, entering: Tensor, gradient: Tensor) -> Tensor:
    """[T, d] (∂norm)ᵀ applied to gradients [T, d] at its output, for its inputs [T, d]. In fp32."""
    with torch.enable_grad():
        x = entering.detach().float().requires_grad_()
        output = norm(x)
        (pulled,) = torch.autograd.grad(output, x, gradient.to(output.dtype))
    return pulled


def _gradients(
    nll: list[float], sizes: list[int], layers: list[list[Tensor]], heads: list[Tensor]
) -> list[TrajectoryGradient]:
    """`layers`: by projection, then by trajectory."""
    wholes = []
    for parts in zip(*layers, strict=True):
        wholes.append(torch.cat([part.flatten() for part in parts]))
    return [TrajectoryGradient(*parts) for parts in zip(nll, sizes, wholes, heads, strict=True)]
