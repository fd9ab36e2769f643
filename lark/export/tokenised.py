"""The examples of a training set with the tokens of a student, for trainers whose weights depend on them."""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lark.config import Student
from lark.errors import LarkError, first_line
from lark.export.checks import require_response
from lark.export.examples import ExportExample
from lark.models.chat import ChatFormat, Factors
from lark.models.dialogue import Dialogue
from lark.models.load import load_chat

TEXTS_AT_ONCE = 512
"""Trajectories whose tokens are in memory."""


class WeightedTokens:
    """A student's chat format, and how its tokens are weighted."""

    def __init__(self, chat: ChatFormat, max_length: int, factors: Factors) -> None:
        self.chat = chat
        self.max_length = max_length
        self.factors = factors

    @classmethod
    def of(cls, options: argparse.Namespace) -> "WeightedTokens":
        """By the command line: --student, --thinking-weight and --answer-weight."""
        settings = student(*options.student)
        factors = Factors(options.thinking_weight, options.answer_weight)
        return cls(load_chat(settings.path, settings), settings.max_length, factors)

    def added(self, examples: Iterable[ExportExample]) -> Iterator[ExportExample]:
        """The examples with their tokens, in the same order."""
        examples = iter(examples)
        while batch := list(islice(examples, TEXTS_AT_ONCE)):
            dialogues = [Dialogue(example.messages, example.tools).without_tail() for example in batch]
            encodings = self.chat.encode_dialogues(dialogues, self.max_length, factors=self.factors)
            for example, encoded in zip(batch, encodings, strict=True):
                require_response(encoded.n_response, example.where, self.max_length)
                yield replace(example, encoded=encoded)


def student(path: str, *settings: str) -> Student:
    """The student at a path, with settings like chat_template=llama3."""
    try:
        values = OmegaConf.from_dotlist(list(settings))
        given = OmegaConf.create({"name": "student", "path": path})
        merged = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Student), given, values))
    except (OmegaConfBaseException, ValueError) as error:
        raise LarkError(f"--student {path} {' '.join(settings)}: {first_line(error)}") from error
    assert isinstance(merged, Student)
    return merged
