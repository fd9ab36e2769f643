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

    def correct_samples(self, grader: str) -> np.ndarray:
        """[N] How many samples of a problem are correct, over all seeds."""
        return np.bincount(self.problem[self.correct[grader]], minlength=len(self.problems))

    @property
    def samples(self) -> np.ndarray:
        """[N] How many samples a problem has, over all seeds."""
        return np.bincount(self.problem, minlength=len(self.problems))

    @property
    def disagree(self) -> np.ndarray:
        """[N] Whether the graders differ on a sample of a problem."""
        return self.any(np.not_equal(*self.correct.values()))

    def any(self, flags: np.ndarray) -> np.ndarray:
        """[N] Whether any sample of a problem has a flag."""
        return np.bincount(self.problem[flags], minlength=len(self.problems)) > 0

    def text(self, sample: int) -> str:
        """The text of one sample."""
        with reading(self.path), self.path.open("rb") as handle:
            start, end = self.offset[sample : sample + 2].tolist()
            handle.seek(start)
            return str(json.loads(handle.read(end - start))["text"])


def answers_of(evaluation: Evaluation, context: Context) -> Answers:
    folder = evaluation.generations.folder
    files = [folder / "problems.jsonl", folder / GENERATIONS.file, evaluation.metrics.file("grades.jsonl")]
    return context.cached(("answers", evaluation.metrics.folder), files, lambda: _read(*files))


def _read(problems_file: Path, generations: Path, grades_file: Path) -> Answers:
    problems = _lines(problems_file)
    grades = _lines(grades_file)
    with reading(generations):
        offset, truncated, n_tokens = _scan(generations)
        # A grade belongs to the answer at the same place in the other file.
        if len(truncated) != len(grades):
            raise ValueError(f"it has {len(truncated)} answers, but {len(grades)} grades")
    with reading(problems_file):
        place = {row["id"]: i for i, row in enumerate(problems)}
    with reading(grades_file):
        return Answers(
            path=generations,
            problems=problems,
            problem=np.array([place[row["problem"]] for row in grades], dtype=np.int64),
            seed=_whole(grades, "seed"),
            sample=_whole(grades, "sample"),
            answer=[row["answer"] for row in grades],
            answer_verify=[row.get("answer_verify") for row in grades],
            correct={grader: _whole(grades, grader).astype(bool) for grader in GRADERS},
            boxed=np.array([row["answer"] is not None for row in grades], dtype=bool),
            truncated=truncated,
            n_tokens=n_tokens,
            offset=offset,
        )


def _lines(path: Path) -> list[dict[str, Any]]:
    with reading(path):
        return [json.loads(line) for line in path.read_bytes().splitlines()]


def _whole(rows: list[dict[str, Any]], key: str) -> np.ndarray:
    return np.array([int(row[key]) for row in rows], dtype=np.int64)


def _scan(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each line starts, whether the answer was cut off, and its tokens. Lines are not parsed: they
    can be hundreds of MB.
    """
    offsets = [0]
    truncated = []
    n_tokens = []
    with path.open("rb") as handle:
        for line in handle:
            offsets.append(offsets[-1] + len(line))
            match = TAIL.search(line[-END:])
            if match is None:  # written by another version, with other fields
                row = json.loads(line)
                truncated.append(row["finish_reason"] == "length")
                n_tokens.append(int(row["n_tokens"]))
            else:
                truncated.append(match[1] == b"length")
                n_tokens.append(int(match[2]))
    return (
        np.array(offsets, dtype=np.int64),
        np.array(truncated, dtype=bool),
        np.array(n_tokens, dtype=np.int64),
    )
