"""The content of a pool's rows: what a result of a row depends on, whatever the row's ids and place are.

There are three keys. Rows with equal keys have equal results under equal settings:

- `conversation`: the messages that the student's chat format turns into tokens, and which of them carry
  loss. Tokens, loss mask and truncation follow from it and from settings that are part of every student's
  artifact (tokenizer, template, `student.max_length`), so no tokenizer is needed to compare rows. The
  instruction counts as part of the question, as in the prompt.
- `candidates`: the conversation, and those of all candidates of its question. A result that compares the
  candidates of a question with each other, such as g*, changes for all of them if one is added.
- `verdict`: every column of the row but its ids, its teacher and its rollout.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from lark.config import Config
from lark.models.dialogue import dialogue_of, without_scale
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.scoring.sources import By

DIGEST_BYTES = 20
NAMES = (*KEY, "teacher", "rollout")
"""Columns that name a row and say nothing about its correctness."""


@dataclass(frozen=True)
class Chat:
    """The settings that decide how a row becomes a conversation."""

    instruction: str | None
    last_only: bool
    """Whether only the last assistant turn carries loss (`pool.turns=last`)."""

    @classmethod
    def of(cls, config: Config) -> "Chat":
        return cls(config.student.instruction, config.pool.turns == "last")

    def key(self, row: Mapping[str, Any]) -> bytes:
        """The digest of a row's conversation."""
        dialogue = dialogue_of(row, self.instruction, self.last_only)
        return digest([list(map(without_scale, dialogue.messages)), dialogue.tools])


def digest(values: object) -> bytes:
    # Keys stay in their order: a template may write the arguments of a tool call in it.
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True)
class RowKeys:
    """The ids and the keys of some rows of a pool, in its order."""

    question_ids: list[str]
    candidate_ids: list[str]
    keys: list[bytes]

    def add(self, question_id: str, candidate_id: str, key: bytes) -> None:
        self.question_ids.append(question_id)
        self.candidate_ids.append(candidate_id)
        self.keys.append(key)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def ids(self) -> list[tuple[str, str]]:
        return list(zip(self.question_ids, self.candidate_ids, strict=True))

    def of_questions(self, questions: Container[str]) -> "RowKeys":
        """The rows of some questions."""
        rows = [row for row, question in enumerate(self.question_ids) if question in questions]
        return RowKeys(
            [self.question_ids[row] for row in rows],
            [self.candidate_ids[row] for row in rows],
            [self.keys[row] for row in rows],
        )

    def first_questions(self, number: int | None) -> frozenset[str]:
        """The first questions of the pool. None: all."""
        return frozenset(list(dict.fromkeys(self.question_ids))[:number])

    def by(self, by: By) -> "RowKeys":
        """The same rows with another key that follows from the conversations."""
        if by != "candidates":
            return self
        candidates = defaultdict(list)
        for question, key in zip(self.question_ids, self.keys, strict=True):
            candidates[question].append(key)
        together = {question: digest_of_all(keys) for question, keys in candidates.items()}
        pairs = zip(self.question_ids, self.keys, strict=True)
        return replace(self, keys=[key + together[question] for question, key in pairs])


def digest_of_all(keys: Iterable[bytes]) -> bytes:
    """The digest of several keys in any order."""
    return hashlib.blake2b(b"".join(sorted(keys)), digest_size=DIGEST_BYTES).digest()


def contents(pool: Path, by: By, chat: Chat) -> RowKeys:
    """The contents of the rows of a pool. `pool`: the folder of its artifact."""
    path = pool / pools.FILE
    # A pool that was written again is another one for the cache.
    stamp = tuple(part.stat().st_mtime_ns for part in pools.parts(path))
    if by == "verdict":
        return _verdicts(path, stamp)
    return _conversations(path, stamp, chat).by(by)


@lru_cache(maxsize=8)
def _conversations(path: Path, stamp: tuple[int, ...], chat: Chat) -> RowKeys:
    return _read(path, pools.TEXT_COLUMNS, chat.key)


@lru_cache(maxsize=8)
def _verdicts(path: Path, stamp: tuple[int, ...]) -> RowKeys:
    return _read(path, None, verdict_key)


def verdict_key(row: Mapping[str, Any]) -> bytes:
    """The digest of everything in a row that may decide whether it is correct."""
    return digest({name: value for name, value in row.items() if name not in NAMES})


def _read(path: Path, columns: list[str] | None, key: Callable[[Mapping[str, Any]], bytes]) -> RowKeys:
    question, candidate = KEY
    contents = RowKeys([], [], [])
    for row in pools.iterate(path, columns):
        contents.add(row[question], row[candidate], key(row))
    return contents
