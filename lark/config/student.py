"""Settings of the student."""

import re
from dataclasses import dataclass

from omegaconf import MISSING

from lark.config.checks import one_of, plain_name, require

ATTENTION = ("auto", "varlen", "sdpa", "eager", "flash_attention_2")


@dataclass
class Student:
    """The model that is scored, fine-tuned and evaluated."""

    name: str = MISSING
    """Name in run folders and tables."""
    path: str = MISSING
    """A Hugging Face hub id or a local folder. `demo`: the shipped student. `smollm2`: the one from the package registry."""
    revision: str | None = None
    """Commit or tag of a hub id. Part of the fingerprint, so set it for results that must not drift."""
    max_length: int = 32768
    """Maximum tokens of prompt and response together, in scoring, training and evaluation (paper, App. C.3)."""
    chat_template: str | None = None
    """None: the tokenizer's own. `llama3`, `chatml`: ours. Otherwise a path to a Jinja file."""
    dtype: str = "bfloat16"
    """Precision of the weights in the scoring and training forward passes. The head is always computed in float32."""
    attention: str = "auto"
    """auto: varlen on a GPU in half precision, else sdpa. Changes speed, never the outcome.

    varlen: PyTorch's own variable-length attention; on CPU and in float32 one sdpa call per trajectory. flash_attention_2:
    the package flash-attn. owner/name[@revision][:function]: a kernel from the Hugging Face hub (package kernels)."""

    def __post_init__(self) -> None:
        plain_name("student.name", self.name)
        require(self.max_length >= 2, "student.max_length", self.max_length, "must be at least 2 (prompt and response)")
        one_of("student.dtype", self.dtype, ("float32", "bfloat16", "float16"))
        known = self.attention in ATTENTION or self.hub_kernel
        what = f"choose one of {', '.join(ATTENTION)}, or a kernel from the hub as owner/name[@revision][:function]"
        require(known, "student.attention", self.attention, what)

    @property
    def hub_kernel(self) -> bool:
        """Whether attention is a kernel from the Hugging Face hub."""
        return re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w.-]+)?(:\w+)?", self.attention) is not None

    @property
    def half_only(self) -> bool:
        """Whether attention has no float32."""
        return self.attention == "flash_attention_2" or self.hub_kernel
