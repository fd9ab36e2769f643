"""Find problems of a benchmark, or variants of them, among a pool's questions (paper, App. C.5, Table 2).

Character 8-gram Jaccard similarity of every problem with every question, exact: each text is a row of a
sparse 0/1 matrix over the 8-grams that occur, intersections are one sparse product, and |A ∪ B| = |A| + |B|
- |A ∩ B|.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from lark.config import Benchmark, Pool
from lark.evaluation import benchmarks
from lark.evaluation.benchmarks import Problem
from lark.pool import trajectories as pools
from lark.scoring.by_question import Floats, Integers
from lark.store.store import atomic
from lark.work.operation import Job

GRAM = 8
"""Characters of a gram (paper, App. C.5)."""
THRESHOLDS = (0.4, 0.7, 0.85)
CLOSEST = "closest.parquet"
TABLE = "contamination.parquet"
PROBLEMS_AT_ONCE = 256
"""Problems whose similarities are held at a time: 10 MB with 5,000 questions, for any benchmark."""

QUESTIONS_AT_ONCE = 5000
"""Questions that are compared with the benchmarks at a time, so that memory does not grow with the pool."""

NARROW_SPACING = re.compile(r"\\(?:[,:;!>/]|thinspace\b|medspace\b|thickspace\b|negthinspace\b|allowbreak\b)")
"""Spacing inside a formula or a number (10{,}000, 10,\\!000), which is removed."""
WIDE_SPACING = re.compile(
    r"\\(?:q?quad\b|enspace\b|space\b|hfill\b|noindent\b|[hvm]s(?:pace|kip)\*?\s*\{[^{}]*\}|\s)|(?<!\\)~"
)
"""Spacing between words, which becomes a blank."""


def normalise(text: str) -> str:
    """Lowercase text without LaTeX spacing, with every run of whitespace as one blank (paper, App. C.5)."""
    text = text.replace("\\\\", "\n")
    text = NARROW_SPACING.sub("", text)
    text = WIDE_SPACING.sub(" ", text)
    return " ".join(text.lower().split())


def grams(texts: Sequence[str]) -> sparse.csr_matrix:
    """[n, G] which of the G distinct grams occur in each normalised text. A shorter text is one gram.

    No hashing: letters are numbered, 4-grams are numbered by pairs of pairs of letters, and 8-grams by
    pairs of those.
    """
    padded = [text.ljust(GRAM, "\0") for text in texts]
    lengths = np.array([len(text) for text in padded], dtype=np.int64)
    characters = np.frombuffer("".join(padded).encode("utf-32-le"), dtype=np.uint32)
    _, letters = np.unique(characters, return_inverse=True)
    codes = letters.astype(np.int64)
    for width in (1, 2, 4):  # letters per code: each round doubles it
        pairs = codes[:-width] * (codes.max() + 1) + codes[width:]
        _, codes = np.unique(pairs, return_inverse=True)
    # A gram belongs to the text it starts in. Grams that extend into the next text are discarded.
    starts = np.cumsum(lengths) - lengths
    owner = np.repeat(np.arange(len(padded)), lengths)[: len(codes)]
    inside = np.arange(len(codes)) + GRAM <= (starts + lengths)[owner]
    # Row and column in one number, so that a single sort removes repeated grams of a text.
    width = int(codes.max(initial=0)) + 1
    cells = np.unique(owner[inside] * width + codes[inside])
    ones = np.ones(len(cells), dtype=np.int32)
    return sparse.csr_matrix((ones, np.divmod(cells, width)), shape=(len(padded), width))


@dataclass(frozen=True)
class Closest:
    """The question of the pool that is closest to each problem; the first in case of ties."""

    similarity: Floats
    index: Integers


def closest(problems: Sequence[str], questions: Sequence[str]) -> Closest:
    """For each problem the highest Jaccard similarity of its grams with those of a question."""
    count = len(problems)
    matrix = grams([normalise(text) for text in [*problems, *questions]])
    by_question = matrix[count:].T.tocsc()
    sizes = np.asarray(matrix.sum(axis=1)).ravel()
    similarity = np.zeros(count)
    index = np.zeros(count, dtype=np.int64)
    for start in range(0, count, PROBLEMS_AT_ONCE):
        rows = slice(start, min(count, start + PROBLEMS_AT_ONCE))
        common = (matrix[rows] @ by_question).toarray()
        union = sizes[rows, None] + sizes[None, count:] - common
        # A text has at least one gram, so no union is empty.
        jaccard = common / union
        index[rows] = jaccard.argmax(axis=1)
        similarity[rows] = jaccard.max(axis=1)
    return Closest(similarity, index)


def audit(
    tasks: Mapping[str, Sequence[Problem]], labels: Mapping[str, str], questions: pd.DataFrame
) -> pd.DataFrame:
    """One row per problem: its benchmark, level, the closest question and their similarity, closest first.

    questions: question_id, question. labels: what the table calls each benchmark.
    """
    names, problems = _flat(tasks)
    stems = [stem(problem) for problem in problems]
    nearest = closest(stems, questions["question"].tolist())
    table = pd.DataFrame(
        {
            "benchmark": [labels[name] for name in names],
            "level": pd.array([problem.level for problem in problems], dtype="Int64"),
            "problem_id": [problem.id for problem in problems],
            "similarity": nearest.similarity,
            "exact": nearest.similarity == 1,
            "question_id": questions["question_id"].to_numpy()[nearest.index],
            "problem": stems,
            "question": questions["question"].to_numpy()[nearest.index],
        }
    )
    return table.sort_values("similarity", ascending=False, kind="stable").reset_index(drop=True)


def _flat(tasks: Mapping[str, Sequence[Problem]]) -> tuple[list[str], list[Problem]]:
    """The problems of all benchmarks, and the benchmark of each."""
    names: list[str] = []
    flat: list[Problem] = []
    for name, problems in tasks.items():
        names += [name] * len(problems)
        flat += problems
    return names, flat


def _load(benchmark: Benchmark) -> dict[str, Sequence[Problem]]:
    return {name: benchmarks.load(name, task) for name, task in benchmark.tasks.items()}


def contaminated(texts: Mapping[str, str], pool: Pool, benchmark: Benchmark) -> dict[str, str]:
    """Ids of questions that resemble a problem (pool.similarity), each with its name: `amc problem 17`.
    `texts`: of the questions, by id.
    """
    names, problems = _flat(_load(benchmark))
    stems = [stem(problem) for problem in problems]
    ids = list(texts)
    matches = {}
    for start in range(0, len(ids), QUESTIONS_AT_ONCE):
        part = ids[start : start + QUESTIONS_AT_ONCE]
        nearest = closest([texts[question] for question in part], stems)
        for question, similarity, index in zip(part, nearest.similarity, nearest.index, strict=True):
            if similarity >= pool.similarity:
                matches[question] = f"{names[index]} problem {problems[index].id}"
    return matches


def stem(problem: Problem) -> str:
    """The problem without its multiple-choice options, which a pool's question would not have."""
    if not problem.options:
        return problem.question
    return problem.question.split("\n\nA) ", 1)[0]


def summary(audited: pd.DataFrame) -> pd.DataFrame:
    """Table 2: problems at or above each threshold, per benchmark (per level if it has any) and in total."""
    groups: dict[str, pd.DataFrame] = {}
    for label, rows in audited.groupby("benchmark", sort=False):
        if rows["level"].isna().any():
            groups[str(label)] = rows
            continue
        prefix = "MATH" if label == "MATH-500" else str(label)
        for level, part in rows.groupby("level"):
            groups[f"{prefix}-L{level}"] = part
    order = sorted(groups, key=lambda name: (groups[name]["level"].notna().any(), name))  # levels last
    table = [{"benchmark": name, **_counts(groups[name])} for name in order]
    return pd.DataFrame([*table, {"benchmark": "Total", **_counts(audited)}])


def _counts(rows: pd.DataFrame) -> dict[str, int]:
    near = {f"J>={threshold:g}": int((rows["similarity"] >= threshold).sum()) for threshold in THRESHOLDS}
    return {"N": len(rows), "exact": int(rows["exact"].sum()), **near}


def write_audit(job: Job) -> dict[str, Any]:
    """Compare every benchmark of the configuration with a pool. Writes both tables, returns counts."""
    benchmark = job.config.benchmark
    tasks = _load(benchmark)
    labels = {name: task.label for name, task in benchmark.tasks.items()}
    distinct = {}
    for row in pools.iterate(job.inputs["pool"] / pools.FILE, columns=["question_id", "question"]):
        distinct[row["question_id"]] = row["question"]
    questions = pd.DataFrame({"question_id": list(distinct), "question": list(distinct.values())})
    audited = audit(tasks, labels, questions)
    for name, table in ((CLOSEST, audited), (TABLE, summary(audited))):
        with atomic(job.folder / name) as draft:
            table.to_parquet(draft, index=False)
    return {"problems": len(audited), "questions": len(questions), **_counts(audited)}
