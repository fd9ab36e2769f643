"""From hidden states to logits: the rule that scoring, training and analysis share, and the LM head taken
out of a model.

Statistics and the loss need the head separately, because they process the vocabulary or the positions in
chunks and never hold all logits at once.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from lark.errors import LarkError
from lark.models.attention import half_only
from lark.models.chat import Encoded
from lark.models.cpu_linear import product, uses_onednn

PROBE_TOKENS = 8
"""Length of the sequence on which `logit_rule` compares a rule with the model."""
SCALES = ("logits_scaling", "logit_scale", "lm_head_multiplier")
"""Config keys of model families for a constant factor on the logits, or a divisor."""


@dataclass(frozen=True)
class LogitRule:
    """How a model turns head outputs h = W x + b into logits z: z = scale · h, and then z = softcap ·
    tanh(z / softcap).
    """

    scale: float = 1.0
    softcap: float | None = None

    def logits(self, head_output: Tensor) -> Tensor:
        """Compute z from h, in place."""
        z = head_output
        if self.scale != 1.0:
            z = z.mul_(self.scale)
        if self.softcap is not None:
            z = z.div_(self.softcap).tanh_().mul_(self.softcap)
        return z

    def slope(self, z: Tensor) -> Tensor | None:
        """dz/dh at z, or None if it is 1 everywhere."""
        if self.softcap is not None:
            return (z / self.softcap).square_().neg_().add_(1.0).mul_(self.scale)
        if self.scale != 1.0:
            return torch.full((), self.scale, dtype=z.dtype, device=z.device)
        return None


PLAIN = LogitRule()
"""The logits are the head's output: Llama, Qwen2 and most others."""


@torch.no_grad()
def logit_rule(model: PreTrainedModel) -> LogitRule:
    """The rule of this model, found by comparing its logits with W x + b on a few tokens.

    The config alone is not enough: `logits_scaling` divides in Granite and multiplies in HyperCLOVA X. The
    comparison makes this safe for unknown model families: a model that does something unknown between its
    last hidden state and its logits is refused, not silently scored or trained wrongly. Call this when the
    model is on its device, because some attention runs only on GPUs.
    """
    weight, bias = _plain_head(model)
    ids = torch.arange(PROBE_TOKENS, device=weight.device)[None] % weight.shape[0]
    training = model.training
    # Dropout would differ between the two passes.
    model.eval()
    try:
        with torch.autocast(weight.device.type, torch.bfloat16, enabled=half_only(model)):
            theirs = model(input_ids=ids, use_cache=False).logits[0]
            hidden = last_hidden_state(model, ids)[0]
    finally:
        model.train(training)
    ours = hidden.float() @ weight.float().T
    if bias is not None:
        ours = ours + bias.float()
    errors: dict[LogitRule, float] = {}
    for rule in _possible_rules(model.config.get_text_config()):
        errors[rule] = _error(rule.logits(ours.clone()), theirs.float())  # a copy: `logits` works in place
    best = min(errors, key=errors.__getitem__)
    # The model rounds its logits to its own precision, and sums in its own order.
    if not errors[best] <= max(16 * torch.finfo(theirs.dtype).eps, 1e-4):
        raise LarkError(
            f"{type(model).__name__} does something to its logits that lark/models/head.py does not know:"
            f" logits computed from its last hidden state are off by {errors[best]:.1e} of the largest. Add"
            " the rule to `LogitRule`, or choose another student."
        )
    return best


def _possible_rules(config: PreTrainedConfig) -> list[LogitRule]:
    """Rules that agree with a config, of which the model follows one."""
    softcap = getattr(config, "final_logit_softcapping", None)
    rules = [LogitRule(softcap=softcap)]
    for name in SCALES:
        scale = float(getattr(config, name, None) or 0)
        if scale:
            rules += [LogitRule(scale, softcap), LogitRule(1 / scale, softcap)]
    return rules


def _error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference in units of the largest logit; infinite if the shapes differ."""
    if ours.shape != theirs.shape:
        return float("inf")
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-6))


def _plain_head(model: PreTrainedModel) -> tuple[Tensor, Tensor | None]:
    """W [V, d] and b [V] of a Hugging Face causal LM."""
    layer = model.get_output_embeddings()
    weight = getattr(layer, "weight", None)
    bias = getattr(layer, "bias", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        raise LarkError(
            f"{type(model).__name__} has no LM head with a plain floating-point weight matrix, so it cannot"
            " be scored. Use an unquantised causal language model."
        )
    return weight.detach(), bias.detach() if isinstance(bias, Tensor) else None


@dataclass(frozen=True, eq=False)
class Head:
    """The last linear map of a model, and the rule by which its output becomes logits."""

    weight: Tensor
    """W, [V, d], in the model's own precision."""
    bias: Tensor | None = None
    """b, [V]."""
    rule: LogitRule = field(default=PLAIN)
    onednn: bool = False
    """Whether all products are by oneDNN, also those with a part of the vocabulary: a logit must be rounded
    in the same way in all of them.
    """

    @property
    def vocabulary(self) -> int:
        """V of the head, which may be padded beyond the tokenizer's."""
        return self.weight.shape[0]

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Head":
        """The head of a Hugging Face causal LM. It gives the model's own logits."""
        weight, bias = _plain_head(model)
        return cls(weight, bias, logit_rule(model), uses_onednn(weight))

    def rows(self, tokens: slice | Tensor) -> "Head":
        """The head for a part of the vocabulary. Its weight is ready for `logits`: converted once, not at
        every use.
        """
        weight = self.weight[tokens]
        if not mixes(weight):
            weight = weight.float()
        bias = None if self.bias is None else self.bias[tokens].float()
        return replace(self, weight=weight, bias=bias)

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Logits of `hidden` [T, d] in fp32 [T, V], written to `out` if given.

        Always fp32: bf16 logits between 16 and 32 are 0.125 apart, which causes false ties and errors of
        0.06 nats. Products of bf16 numbers are exact in fp32, so on a GPU bf16 inputs with fp32
        accumulation and output lose nothing; elsewhere the inputs are converted. (TF32, off by default in
        PyTorch, would break this for fp32 weights on a GPU.)
        """
        if mixes(self.weight) and hidden.dtype == self.weight.dtype:
            z = torch.mm(hidden, self.weight.T, out_dtype=torch.float32, out=out)
        elif self.onednn:
            z = product(hidden.float(), self.weight.float().T)
            z = z if out is None else out.copy_(z)
        else:
            z = torch.mm(hidden.float(), self.weight.float().T, out=out)
        if self.bias is not None:
            z += self.bias
        return self.rule.logits(z)


def last_hidden_state(model: PreTrainedModel, input_ids: Tensor, **inputs: Any) -> Tensor:
    """The input of the head of `model`, [batch, length, d]: the backbone's output after its final norm."""
    hidden: Tensor = model.base_model(input_ids=input_ids, use_cache=False, **inputs).last_hidden_state
    return hidden


def mixes(x: Tensor) -> bool:
    """Whether the device multiplies half-precision inputs directly into an fp32 output (CUDA only)."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)


def predicting(hidden: Tensor, encoded: Encoded) -> Tensor:
    """[T, d] The hidden states that predict a trajectory's response tokens, from the states [>= length, d]
    of its tokens.
    """
    rows = [hidden[start - 1 : stop - 1] for start, stop in encoded.turns]
    if len(rows) == 1:
        return rows[0]  # a view: one turn is the common case
    return torch.cat(rows) if rows else hidden[:0]
