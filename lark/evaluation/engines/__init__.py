"""What generates text. One small interface; hf works everywhere, vllm is the fast one, sglang its stand-in."""

from dataclasses import dataclass
from typing import Protocol

from lark.chat import ChatFormat
from lark.config import Config
from lark.errors import LarkError


@dataclass(frozen=True)
class Sampling:
    """How answers are sampled; the same for all requests of a call."""

    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    samples: int
    stop_ids: tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """A prompt, and the seed of its samples: they depend on nothing else in the call, as far as the engine allows."""

    prompt: tuple[int, ...]
    seed: int
    max_new_tokens: int
    """As configured, or what the prompt leaves of the student's context."""


@dataclass(frozen=True)
class Generation:
    """One sample. `finish_reason` is "stop" (it ended itself) or "length" (it was cut off)."""

    text: str
    finish_reason: str
    n_tokens: int


class Engine(Protocol):
    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """`sampling.samples` generations for each request, in order."""
        ...

    def close(self) -> None:
        """Give back memory and end every process that was started."""
        ...


def start(config: Config, model: str, chat: ChatFormat, device: str) -> Engine:
    """The configured engine with the weights at `model`."""
    if config.engine.name == "hf":
        from lark.evaluation.engines.hf import HFEngine  # noqa: PLC0415  # engines are heavy; load the one that is used

        return HFEngine(config, model, chat, device)
    raise LarkError(f"engine={config.engine.name} is not known.")
