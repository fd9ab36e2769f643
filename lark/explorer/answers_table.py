"""Answers of a student to a benchmark: grades in memory, texts read from the file when they are shown."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lark.config import GRADERS
from lark.evaluation.grade import GENERATIONS
from lark.explorer.context import Context
from lark.explorer.evaluated import Evaluation
from lark.explorer.problems import reading

TAIL = re.compile(rb'"finish_reason": "(\w+)", "n_tokens": (\d+)\}\s*$')
END = 200
"""Bytes at the end of a line that hold everything but the text."""


@dataclass(frozen=True)
class Answers:
    """Arrays have one entry per sample, in the order of the file: by seed, problem, sample."""

    path: Path
    problems: list[dict[str, Any]]
    problem: np.ndarray
    """Number of the problem."""
    seed: np.ndarray
    sample: np.ndarray
    answer: list[str | None]
    answer_verify: list[Any]
    gold: list[str]
    correct: dict[str, np.ndarray]
    """By grader."""
    boxed: np.ndarray
    truncated: np.ndarray
    n_tokens: np.ndarray
    offset: np.ndarray
    """Where the sample's line starts in generations.jsonl; one more entry for the end."""

    def solved(self, grader: str) -> np.ndarray:
        """[N] The share of seeds in which a problem is solved by at least one sample (Acc@k of this
        problem).
        """
        seeds, code = np.unique(self.seed, return_inverse=True)
        table = np.zeros((len(self.problems), len(seeds)), dtype=bool)
        np.logical_or.at(table, (self.problem, code), self.correct[grader])
        return table.mean(axis=1)

    def any(self, flags: np.ndarray) -> np.ndarray:
        """[N] Whether any sample of a problem has a flag."""
        return np.bincount(self.problem[flags], minlength=len(self.problems)) > 0

    def text(self, sample: int) -> str:
        """The text of one sample."""
        with reading(self.path), self.path.open("rb") as handle:
            handle.seek(int(self.offset[sample]))
            return str(json.loads(handle.read(int(self.offset[sample + 1] - self.offset[sample])))["text"])


def answers_of(evaluation: Evaluation, context: Context) -> Answers:
    folder = evaluation.generations.folder
    files = [folder / "problems.jsonl", folder / GENERATIONS.file, evaluation.metrics.file("grades.jsonl")]
    return context.cached(("answers", evaluation.metrics.folder), files, lambda: _read(*files))


def _read(problems_file: Path, generations: Path, grades_file: Path) -> Answers:
    with reading(problems_file):
        problems = [json.loads(line) for line in problems_file.read_bytes().splitlines()]
        place = {row["id"]: i for i, row in enumerate(problems)}
    with reading(grades_file):
        grades = [json.loads(line) for line in grades_file.read_bytes().splitlines()]
        correct = {grader: np.array([bool(row[grader]) for row in grades], dtype=bool) for grader in GRADERS}
        problem = np.array([place[row["problem"]] for row in grades], dtype=np.int64)
        seed, sample = (
            np.array([int(row[key]) for row in grades], dtype=np.int64) for key in ("seed", "sample")
        )
        answer = [row["answer"] for row in grades]
        gold = [str(row["gold"]) for row in grades]
        verify = [row.get("answer_verify") for row in grades]
    with reading(generations):
        offset, cut, size = _scan(generations)
        if len(cut) != len(grades):
            raise ValueError(f"it has {len(cut)} answers, but {len(grades)} grades")
    return Answers(
        generations, problems, problem, seed, sample, answer, verify, gold, correct,
        np.array([value is not None for value in answer], dtype=bool), cut, size, offset,
    )  # fmt: skip


def _scan(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each line starts, whether the answer was cut off, and its tokens. Lines are not parsed: they
    can be hundreds of MB.
    """
    offsets, cut, size = [0], [], []
    with path.open("rb") as handle:
        for line in handle:
            offsets.append(offsets[-1] + len(line))
            match = TAIL.search(line[-END:])
            if match is None:  # written by another version, with other fields
                row = json.loads(line)
                reason, n = str(row["finish_reason"]).encode(), int(row["n_tokens"])
            else:
                reason, n = match[1], int(match[2])
            cut.append(reason == b"length")
            size.append(n)
    return np.array(offsets, dtype=np.int64), np.array(cut, dtype=bool), np.array(size, dtype=np.int64)
