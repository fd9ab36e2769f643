"""Settings of the student."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from lark.config.checks import one_of, plain_name, require

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}"
"""The paper's instruction at the end of the user turn in scoring, training and evaluation (App. C.3)."""


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
    instruction: str | None = INSTRUCTION
    """Appended to the question of single-turn trajectories and benchmark problems. null: questions are used as they are."""
    thinking: str = "template"
    """How thinking that a pool keeps apart (`reasoning_content`) is written. template: as the chat template does, and as text
    if it has no place for it. text: as `<think>…</think>` before the answer. drop: left out; templates that can be asked not to
    think are. The same in scoring, training and evaluation."""
    template_options: dict[str, Any] = field(default_factory=dict)
    """Variables for the chat template, e.g. {enable_thinking: true} or {reasoning_effort: high}."""
    dtype: str = "bfloat16"
    """Precision of the weights in the scoring and training forward passes. The head is always computed in float32."""
    attention: str = "auto"
    """auto: flash_attention_2 on a GPU if it is installed, else sdpa. Changes speed, never the outcome."""

    def __post_init__(self) -> None:
        plain_name("student.name", self.name)
        require(self.max_length >= 2, "student.max_length", self.max_length, "must be at least 2 (prompt and response)")
        one_of("student.thinking", self.thinking, ("template", "text", "drop"))
        one_of("student.dtype", self.dtype, ("float32", "bfloat16", "float16"))
        one_of("student.attention", self.attention, ("auto", "sdpa", "eager", "flash_attention_2"))
