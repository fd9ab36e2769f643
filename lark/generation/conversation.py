"""Questions asked in messages instead of token ids: the interface to teachers, local or behind an endpoint.

A student is asked with the exact tokens that it was trained on (`engine.py`). A teacher writes in its own
chat format, and an endpoint accepts nothing but messages.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lark import config


@dataclass(frozen=True)
class Ask:
    """One question to a teacher, and how many independent samples of its answer are wanted."""

    messages: tuple[Mapping[str, str], ...]
    """Chat messages with `role` and `content`; the last one is the user's."""
    seed: int
    """Seed of the first sample; further samples count up from it."""
    samples: int = 1


@dataclass(frozen=True)
class AskSampling:
    """Sampling parameters of a teacher, the same for all questions of a call."""

    temperature: float
    top_p: float
    max_new_tokens: int
    logprobs: bool = False
    """Whether the log-probability of every generated token is asked for."""
    top_k: int = -1
    """Sample from this many of the most likely tokens. -1: off."""

    @classmethod
    def of(cls, teacher: config.Teacher) -> "AskSampling":
        return cls(
            teacher.temperature, teacher.top_p, teacher.max_new_tokens, teacher.logprobs, teacher.top_k
        )


@dataclass(frozen=True)
class Reply:
    """One sample of a teacher's answer."""

    text: str
    """The answer as the teacher gave it, without the reasoning that is returned apart."""
    reasoning: str | None
    """Reasoning that came apart from the answer, or was separated from it by the teacher's tags. None: there
    is none, or it is part of the text.
    """
    finish_reason: str
    """"stop" (it ended itself) or "length" (it was cut off)."""
    n_tokens: int
    """Generated tokens, reasoning included. An endpoint counts those of all samples of a request together;
    they are then divided by the samples' lengths.
    """
    n_prompt_tokens: int
    """Prompt tokens that were read for all samples of the question together: a request with several samples
    reads its prompt once.
    """
    model: str
    """The model as it names itself; a folder's name for local teachers."""
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Failure:
    """A question that this teacher does not answer, however often it is asked."""

    reason: str
    """The word that failures are counted by: content_filter, too_long, empty, too_large, invalid_answer,
    refused_request, server_error or timeout.
    """
    detail: str
    """A sentence for the person, without credentials."""


class RunningTeacher(Protocol):
    """A running teacher."""

    def ask(self, asks: Sequence[Ask], sampling: AskSampling) -> Iterator[tuple[int, list[Reply] | Failure]]:
        """Yield (index of the question, its `samples` replies or why there are none), in any order, as soon
        as they are complete. Raise a LarkError for what no further question can survive: a wrong key, an
        unknown model, a closed port.
        """
        ...

    def close(self) -> None:
        """Free memory and connections, and end every process that was started."""
        ...


def start(
    name: str, teacher: config.Teacher, engine: config.EngineSettings, device: str, weights: str | None = None
) -> RunningTeacher:
    """Start a teacher, or connect to its endpoint. `name`: its name in the settings.

    The others are for a model that is run here: `engine` has its memory, batch, …; `weights` is where the
    weights are if not at the teacher's path.
    """
    if not teacher.is_local:
        from lark.generation.endpoint import EndpointTeacher  # noqa: PLC0415

        return EndpointTeacher(name, teacher)
    from lark.generation.local_teacher import LocalTeacher  # noqa: PLC0415  # imports torch

    return LocalTeacher(name, teacher, engine, device, weights)


@contextlib.contextmanager
def asking(teacher: RunningTeacher) -> Iterator[RunningTeacher]:
    """Close the teacher when the `with` block ends, also after an error."""
    try:
        yield teacher
    finally:
        teacher.close()
