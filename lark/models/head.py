"""The student's LM head: the last linear map and what the model does to its logits, taken out of the model.

The statistics need the head by itself, because they visit the vocabulary in tiles and never hold all logits at once.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lark.errors import LarkError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROBE_TOKENS = 8
"""Length of the sequence on which `Head.of` compares itself with the model."""


@dataclass(frozen=True, eq=False)
class Head:
    """Logits z = softcap * tanh(scale * (W h + b) / softcap), or scale * (W h + b) where there is no soft cap."""

    weight: Tensor
    """W, [V, d], in the model's own precision."""
    bias: Tensor | None = None
    """b, [V]."""
    scale: float = 1.0
    softcap: float | None = None

    @property
    def vocabulary(self) -> int:
        """V, as the head has it: it may be padded beyond the tokenizer's."""
        return self.weight.shape[0]

    @classmethod
    def of(cls, model: "PreTrainedModel") -> "Head":
        """The head of a Hugging Face causal LM, checked against the model's own logits on a few tokens.

        The check is what makes this safe for families nobody here has seen: a model that does something unknown between
        its last hidden state and its logits is refused, not silently scored wrongly.
        """
        layer = model.get_output_embeddings()
        name = type(model).__name__
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
            raise LarkError(
                f"{name} has no LM head with a plain floating-point weight matrix, so it cannot be scored. "
                "Use a causal language model, unquantised."
            )
        bias = getattr(layer, "bias", None)
        config = model.config.get_text_config()
        head = cls(
            weight.detach(),
            bias.detach() if isinstance(bias, Tensor) else None,
            scale=_scale(config),
            softcap=getattr(config, "final_logit_softcapping", None),
        )
        _compare(head, model)
        return head

    def rows(self, tokens: slice | Tensor) -> "Head":
        """The head of a part of the vocabulary. Its weight is ready for `logits`: converted once, not at every use."""
        weight, bias = self.weight[tokens], self.bias
        return replace(
            self,
            weight=weight if _on_tensor_cores(weight) else weight.float(),
            bias=None if bias is None else bias[tokens].float(),
        )

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Logits of `hidden` [T, d] in fp32 [T, V], written to `out` if given.

        Always fp32: bf16 logits between 16 and 32 are 0.125 apart, which makes false ties and errors of 0.06 nats.
        Products of bf16 numbers are exact in fp32, so on a GPU bf16 inputs with fp32 accumulation and output lose
        nothing; elsewhere the inputs are converted. (TF32, off by default in PyTorch, would break this for fp32 weights
        on a GPU.)
        """
        if _on_tensor_cores(self.weight) and hidden.dtype == self.weight.dtype:
            z = torch.mm(hidden, self.weight.T, out_dtype=torch.float32, out=out)
        else:
            z = torch.mm(hidden.float(), self.weight.float().T, out=out)
        if self.bias is not None:
            z += self.bias
        if self.scale != 1.0:
            z *= self.scale
        if self.softcap is not None:
            z.div_(self.softcap).tanh_().mul_(self.softcap)
        return z


def last_hidden_state(model: "PreTrainedModel", input_ids: Tensor, **inputs: Any) -> Tensor:
    """What the head of `model` is applied to, [batch, length, d]: the backbone's output after its final norm."""
    hidden: Tensor = model.base_model(input_ids=input_ids, use_cache=False, **inputs).last_hidden_state
    return hidden


def _on_tensor_cores(weight: Tensor) -> bool:
    """Whether a product in `weight`'s half precision can be accumulated and returned in fp32."""
    return weight.is_cuda and weight.dtype in (torch.bfloat16, torch.float16)


def _scale(config: Any) -> float:
    """The constant factor on the logits, under the names that model families give it."""
    if (factor := getattr(config, "logit_scale", None)) is not None:  # Cohere multiplies
        return float(factor)
    if (divisor := getattr(config, "logits_scaling", None)) is not None:  # Granite divides
        return 1.0 / float(divisor)
    if (factor := getattr(config, "lm_head_multiplier", None)) is not None:  # Falcon-H1 multiplies
        return float(factor)
    return 1.0


@torch.no_grad()
def _compare(head: Head, model: "PreTrainedModel") -> None:
    """Refuse the model if `head` on its last hidden state does not give its logits, up to its precision."""
    was_training = model.training
    model.eval()
    ids = torch.arange(PROBE_TOKENS, device=head.weight.device)[None] % head.vocabulary
    try:
        theirs = model(input_ids=ids, use_cache=False).logits[0].float()
        ours = head.rows(slice(None)).logits(last_hidden_state(model, ids)[0])
    finally:
        model.train(was_training)
    error = (ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-6) if ours.shape == theirs.shape else None
    # The model rounds its logits to its own precision, and sums in an order of its own.
    tolerance = max(16 * torch.finfo(head.weight.dtype).eps, 1e-4)
    if error is None or not error <= tolerance:
        reason = "of another shape" if error is None else f"off by {error:.1e} of the largest"
        raise LarkError(
            f"{type(model).__name__} does something to its logits that lark/models/head.py does not know: computed "
            f"from its last hidden state they are {reason}. Add the rule to `Head`, or choose another student."
        )
