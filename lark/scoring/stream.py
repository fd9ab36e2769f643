"""The residual stream of a decoder: which matrices write to it, and the norm that reads it last.

`method=lark_gram` takes the gradient behind the final norm as the gradient at every layer. That is an
approximation of a model whose stream is the sum of what its layers write, x_L = x_0 + Σ_l (o_proj +
down_proj), and the wrong number for any other. So the sum is checked on a few tokens before anything is
scored.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from lark.errors import LarkError
from lark.models.attention import half_only
from lark.models.cpu_linear import PackedLinear
from lark.models.head import PROBE_TOKENS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Linear: TypeAlias = nn.Linear | PackedLinear
WRITERS = ("o_proj", "down_proj")
"""The output projections of attention and of the MLP, in every layer."""


def output_projections(model: "PreTrainedModel", method: str) -> dict[str, Linear]:
    """The matrices that write to the residual stream, by name, in order of depth. Refuses a model that has
    others.
    """
    layers: Any = getattr(model.base_model, "layers", None)
    has_layers = isinstance(layers, nn.ModuleList) and len(layers) > 0
    _require(has_layers, model, method, "it has no list of decoder layers called `layers`")
    writers: dict[str, Linear] = {}
    for number, layer in enumerate(layers):
        linear = {name: part for name, part in layer.named_modules() if isinstance(part, Linear)}
        for writer in WRITERS:
            names = [name for name in linear if name.rpartition(".")[2] == writer]
            reason = f"layer {number} has {len(names)} projections called {writer}, not one"
            _require(len(names) == 1, model, method, reason)
            writers[f"{number}.{names[0]}"] = linear[names[0]]
    bias = getattr(model.get_output_embeddings(), "bias", None)
    _require(bias is None, model, method, "its head has a bias")
    return writers


def final_norm(model: "PreTrainedModel", writers: dict[str, Linear], method: str) -> nn.Module:
    """The norm between the residual stream and the head. Refuses a model in which the stream is not the sum
    of its writers.
    """
    norm: Any = getattr(model.base_model, "norm", None)
    is_rms = "RMSNorm" in type(norm).__name__
    _require(is_rms, model, method, "its last norm is not an RMSNorm called `norm`")
    deviation = _probe(model, norm, writers)
    tolerance = 1e-4 if model.dtype in (torch.float32, torch.float64) else 5e-2
    reason = (
        f"its layers do more than add the output of {' and '.join(WRITERS)} to their input (the sum is off by"
        f" {deviation:.1e})"
    )
    _require(deviation <= tolerance, model, method, reason)  # false for NaN
    return norm


def _require(condition: bool, model: "PreTrainedModel", method: str, reason: str) -> None:
    if not condition:
        raise LarkError(
            f"method={method} cannot score {type(model).__name__}: {reason}. It is made for decoders such as"
            " Llama, Qwen and Mistral. Choose another method, such as lark."
        )


@dataclass
class _Seen:
    """The residual stream of a forward pass."""

    total: Tensor | None = None
    last: Tensor | None = None
    normed: Tensor | None = None


@torch.no_grad()
def _probe(model: "PreTrainedModel", norm: nn.Module, writers: dict[str, Linear]) -> float:
    """Largest difference between the input of the final norm and the sum of what was written, in units of
    the largest entry; infinite if the norm's output is not the last hidden state.
    """
    seen = _Seen()

    def first(_module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        seen.total = (arguments[0] if arguments else keywords["hidden_states"]).float()

    def written(_module: nn.Module, _arguments: Any, output: Tensor) -> None:
        assert seen.total is not None
        seen.total = seen.total + output.float()

    def last(_module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        seen.last = arguments[0].float()
        seen.normed = output

    layers: Any = model.base_model.layers
    hooks = [
        layers[0].register_forward_pre_hook(first, with_kwargs=True),
        *(writer.register_forward_hook(written) for writer in writers.values()),
        norm.register_forward_hook(last),
    ]
    vocabulary = int(model.config.get_text_config().vocab_size)
    ids = torch.arange(PROBE_TOKENS, device=model.device)[None] % vocabulary
    try:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=half_only(model)):
            output = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    finally:
        for hook in hooks:
            hook.remove()
    if seen.total is None or seen.last is None or seen.normed is None or not torch.equal(seen.normed, output):
        return float("inf")
    return float((seen.total - seen.last).abs().max() / seen.last.abs().max().clamp_min(1e-6))


@contextmanager
def watched(
    modules: dict[str, Linear], see: Callable[[str, Tensor, Tensor], Tensor | None]
) -> Iterator[None]:
    """Call `see` with the name, input and output of each module while the model runs; what it returns
    replaces the output.
    """

    def hook(name: str) -> Callable[..., Tensor | None]:
        return lambda _module, arguments, output: see(name, arguments[0], output)

    handles = [module.register_forward_hook(hook(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
