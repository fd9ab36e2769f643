"""Liger's fused kernels for the student's family: RoPE, RMSNorm and the gated MLP (paper, App. C.3).

Not through `TrainingArguments(use_liger_kernel=True)`: the Trainer would apply the kernels after the check
that packed trajectories do not see each other, and that check must run on the model as it is trained.
"""

import importlib.util
import inspect
import logging

from transformers import PreTrainedModel

log = logging.getLogger(__name__)


def apply_liger(model: PreTrainedModel, device: str) -> bool:
    """Apply Liger's kernels to the model. Returns False, and logs why, if that is not possible.

    Its losses stay off: ours (`lark.training.loss`) has weights, and knows where packed trajectories end.
    """
    if not device.startswith("cuda"):
        log.info("Liger kernels need a GPU: training with PyTorch's own")
        return False
    if importlib.util.find_spec("liger_kernel") is None:
        log.warning("liger-kernel is not installed: training with PyTorch's own kernels, which are slower")
        return False
    # Here, because it imports Triton.
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN  # noqa: PLC0415

    family = model.config.model_type
    apply = MODEL_TYPE_TO_APPLY_LIGER_FN.get(family)
    if apply is None:
        log.warning("Liger has no kernels for the family %s: training with PyTorch's own", family)
        return False
    settings = dict.fromkeys(["rope", "rms_norm", "swiglu", "geglu", "layer_norm"], True)
    settings |= {"cross_entropy": False, "fused_linear_cross_entropy": False}
    supported = inspect.signature(apply).parameters  # not every family has every kernel
    apply(model=model, **{name: value for name, value in settings.items() if name in supported})
    return True
