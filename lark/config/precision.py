"""The precision that `auto` stands for. It is decided when settings are loaded, so that everything after it,
fingerprints included, sees an explicit one.
"""

from lark import processors

PRECISIONS = ("float32", "bfloat16", "float16")
AUTO = "auto"


def resolved(dtype: str, device: str) -> str:
    """A precision, or for `auto` the fastest on `hardware.device` that computes like the paper.

    bfloat16 on GPUs, and on CPUs with instructions for it; float32 on other CPUs.
    """
    if dtype != AUTO:
        return dtype
    uses_gpus = device == "cuda" or (device == "auto" and processors.visible_gpus() > 0)
    is_fast = uses_gpus or processors.cpu_multiplies_bfloat16()
    return "bfloat16" if is_fast else "float32"
