"""Settings of the student."""

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from omegaconf import MISSING

from lark.config.checks import Section, require
from lark.config.precision import AUTO, PRECISIONS
from lark.config.trained import trained_name
from lark.names import is_demo

ATTENTION = ("auto", "varlen", "sdpa", "eager", "flash_attention_2")
RESERVED = (
    "messages",
    "conversation",
    "tokenizer",
    "tools",
    "tokenize",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "strftime_now",
    "return_dict",
    "return_tensors",
    "padding",
    "truncation",
    "max_length",
)
"""Names that a chat template's variables cannot have: they are arguments of the function that renders it."""
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}"
"""The paper's instruction at the end of the user turn in scoring, training and evaluation (App. C.3)."""


@dataclass
class Student:
    """The model that is scored, fine-tuned and evaluated."""

    setting: ClassVar[str] = "student"
    """Prefix of these settings on the command line, for error messages."""
    name: str = MISSING
    """Name in run folders and tables."""
    path: str = MISSING
    """A Hugging Face hub id or a local folder. `demo`: the shipped student. `smollm2`: the one from the
    package registry.
    """
    revision: str | None = None
    """Commit or tag of a hub id. Part of the fingerprint, so set it for results that must not drift."""
    max_length: int = 32768
    """Maximum tokens of prompt and response together, in scoring, training and evaluation (paper, App.
    C.3).
    """
    chat_template: str | None = None
    """None: the tokenizer's own. `llama3`, `chatml`: ours. Otherwise a path to a Jinja file."""
    instruction: str | None = INSTRUCTION
    """Appended to the question of single-turn trajectories and benchmark problems. null: questions are used
    as they are.
    """
    thinking: str = "template"
    """How thinking that a pool keeps apart (`reasoning_content`) is written. template: as the chat template
    does, and as text if it has no place for it. text: as `<think>…</think>` before the answer. drop: left
    out; templates that can be asked not to think are. The same in scoring, training and evaluation.
    """
    template_options: dict[str, Any] = field(default_factory=dict)
    """Variables for the chat template, e.g. {enable_thinking: true} or {reasoning_effort: high}."""
    dtype: str = "bfloat16"
    """Precision of the weights in the forward passes of scoring, training and generation. The head is always
    computed in float32. auto: bfloat16 on GPUs and on CPUs with instructions for it (AVX-512 BF16, AMX), else
    float32. Part of the fingerprint exactly as the precision that it stands for.
    """
    attention: str = "auto"
    """auto: varlen on a GPU in half precision, else sdpa. Changes speed, never the outcome.

    varlen: PyTorch's own variable-length attention; on CPU and in float32 one sdpa call per trajectory.
    flash_attention_2: the package flash-attn. owner/name[@revision][:function]: a kernel from the Hugging
    Face hub (package kernels).
    """

    @property
    def own_name(self) -> str | None:
        """The name of a student that was trained here, for tables; None for any other."""
        return trained_name(self.path)

    @property
    def is_bundled(self) -> bool:
        """True for the demo's student, which is part of this repository."""
        return is_demo(self.path)

    def __post_init__(self) -> None:
        section = Section(self.setting, self)
        section.plain_name()
        section.require("max_length", self.max_length >= 2, "must be at least 2 (prompt and response)")
        section.one_of("thinking", ("template", "text", "drop"))
        section.one_of("dtype", (AUTO, *PRECISIONS))
        for name, value in self.template_options.items():
            key = f"{self.setting}.template_options.{name}"
            require(name not in RESERVED, key, value, "is not a variable of chat templates; LARK sets it")
        is_known = self.attention in ATTENTION or self.hub_kernel
        rule = (
            f"choose one of {', '.join(ATTENTION)}, or a kernel from the hub as"
            " owner/name[@revision][:function]"
        )
        section.require("attention", is_known, rule)

    @property
    def hub_kernel(self) -> bool:
        """Whether attention is a kernel from the Hugging Face hub."""
        return re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w.-]+)?(:\w+)?", self.attention) is not None

    @property
    def half_only(self) -> bool:
        """Whether attention has no float32."""
        return self.attention == "flash_attention_2" or self.hub_kernel
