"""Liger's fused kernels for the student's family: RoPE, RMSNorm and the gated MLP (paper, App. C.3).

In training and in scoring. They are the same functions up to rounding, and read and write less memory. Not
through `TrainingArguments(use_liger_kernel=True)`: the Trainer would apply the kernels after the check that
packed trajectories do not see each other, and that check must run on the model as it is used.
"""

import importlib.util
import inspect
import logging
import sys
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lark.errors import first_line

log = logging.getLogger(__name__)

PROBE_TOKENS = 24
LARGEST_DIFFERENCE = 5e-2
"""Of logits with and without the kernels in half precision, in units of the largest logit, at least 1. The
check of packing (lark/models/attention.py) allows the same.
"""


def apply_liger(model: PreTrainedModel, device: str, doing: str = "training") -> bool:
    """Apply Liger's kernels to the model. Returns False, and logs why, if that is not possible.

    Its losses stay off: ours (`lark.training.loss`) has weights, and knows where packed trajectories end.
    """
    if not device.startswith("cuda"):
        log.info("Liger kernels need a GPU: %s with PyTorch's own", doing)
        return False
    if importlib.util.find_spec("liger_kernel") is None:
        log.warning("liger-kernel is not installed: %s with PyTorch's own kernels, which are slower", doing)
        return False
    # Here, because it imports Triton.
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN  # noqa: PLC0415

    family = model.config.model_type
    apply = MODEL_TYPE_TO_APPLY_LIGER_FN.get(family)
    if apply is None:
        log.warning("Liger has no kernels for the family %s: %s with PyTorch's own", family, doing)
        return False
    settings = dict.fromkeys(["rope", "rms_norm", "swiglu", "geglu", "layer_norm"], True)
    settings |= {"cross_entropy": False, "fused_linear_cross_entropy": False}
    supported = inspect.signature(apply).parameters  # not every family has every kernel
    apply(model=model, **{name: value for name, value in settings.items() if name in supported})
    return True


@torch.no_grad()
def fuse_forward(model: PreTrainedModel, device: str) -> bool:
    """Apply Liger's kernels to a model whose forward pass is all that is needed, on a GPU in half precision.

    They are compared with the model as it was, on a few tokens. If they do not run (Triton needs a C
    compiler) or compute something else, the model is restored, the reason is logged, and the result is False.
    """
    if not device.startswith("cuda") or model.dtype not in (torch.bfloat16, torch.float16):
        return False
    expected = _probe(model)
    original = _Original(model)
    try:
        if not apply_liger(model, device, doing="scoring"):
            return False
        difference = float((_probe(model) - expected).abs().max()) / max(1.0, float(expected.abs().max()))
    except Exception as error:  # the compiler's failures have no common type
        original.restore()
        log.warning("Scoring with PyTorch's own kernels: Liger's do not run here (%s)", first_line(error))
        return False
    if not difference <= LARGEST_DIFFERENCE:  # also true for NaN
        original.restore()
        log.warning("Scoring with PyTorch's own kernels: with Liger's, logits differ by %.1e", difference)
        return False
    return True


def _probe(model: PreTrainedModel) -> Tensor:
    """[1, t, V] Logits of random tokens, fp32."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, (1, PROBE_TOKENS), generator=generator).to(model.device)
    logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits.float()


class _Original:
    """Everything that Liger replaces: methods and settings of a model's modules, and names of the Python
    modules that define them.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.attributes = [(part, dict(vars(part))) for part in model.modules()]
        self.names: dict[str, dict[str, Any]] = {}
        for part in model.modules():
            source = type(part).__module__
            if source.startswith("transformers.models."):
                self.names[source] = dict(vars(sys.modules[source]))

    def restore(self) -> None:
        for part, attributes in self.attributes:
            vars(part).clear()
            vars(part).update(attributes)
        for source, names in self.names.items():
            vars(sys.modules[source]).update(names)
