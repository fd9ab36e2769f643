"""Check whether problems of a benchmark, or variants of them, are among the questions of a pool (paper,
App. C.5, Table 2).

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
from lark.pool.read import question_texts
from lark.scoring.by_question import Floats, Integers
from lark.store.store import atomic
from lark.work.operation import Job

N = 8
"""Characters of a gram (paper, App. C.5)."""
THRESHOLDS = (0.4, 0.7, 0.85)
CLOSEST = "closest.parquet"
TABLE = "contamination.parquet"
BATCH = 256
"""Problems whose similarities are held at a time: 10 MB with 5,000 questions, for any benchmark."""

QUESTIONS = 5000
"""Questions that are compared with the benchmarks at a time, so that memory does not grow with the pool."""

NARROW = re.compile(r"\\(?:[,:;!>/]|thinspace\b|medspace\b|thickspace\b|negthinspace\b|allowbreak\b)")
"""Spacing inside a formula or a number (10{,}000, 10,\\!000), which is removed."""
WIDE = re.compile(
    r"\\(?:q?quad\b|enspace\b|space\b|hfill\b|noindent\b|[hvm]s(?:pace|kip)\*?\s*\{[^{}]*\}|\s)|(?<!\\)~"
)
"""Spacing between words, which becomes a blank."""


def normalise(text: str) -> str:
    """Lowercase text without LaTeX spacing macros, with every run of whitespace as one blank (paper, App.
    C.5).
    """
    text = WIDE.sub(" ", NARROW.sub("", text.replace("\\\\", "\n")))
    return " ".join(text.lower().split())


def grams(texts: Sequence[str]) -> sparse.csr_matrix:
    """[n, G] which of the G distinct grams occur in each normalised text. A text shorter than a gram is one
    gram.

    No hashing: letters are numbered, 4-grams are numbered by pairs of pairs of letters, and 8-grams by
    pairs of those.
    """
    padded = [text if len(text) >= N else text.ljust(N, "\0") for text in texts]
    lengths = np.array([len(text) for text in padded], dtype=np.int64)
    _, letters = np.unique(
        np.frombuffer("".join(padded).encode("utf-32-le"), dtype=np.uint32), return_inverse=True
    )
    codes = letters.astype(np.int64)
    for width in (1, 2, 4):  # letters per code: each round doubles it
        left, right = codes[:-width], codes[width:]
        _, codes = np.unique(left * (codes.max() + 1) + right, return_inverse=True)
    # A gram belongs to the text it starts in. Grams that extend into the next text are discarded.
    starts = np.cumsum(lengths) - lengths
    owner = np.repeat(np.arange(len(padded)), lengths)[: len(codes)]
    inside = np.arange(len(codes)) + N <= (starts + lengths)[owner]
    words = int(codes.max(initial=0)) + 1
    cells = np.unique(owner[inside] * words + codes[inside])
    return sparse.csr_matrix(
        (np.ones(len(cells), dtype=np.int32), np.divmod(cells, words)), shape=(len(padded), words)
    )


@dataclass(frozen=True)
class Closest:
    """The question of the pool that is closest to each problem; the first in case of ties."""

    similarity: Floats
    index: Integers


def closest(problems: Sequence[str], questions: Sequence[str]) -> Closest:
    """For each problem the highest Jaccard similarity of its grams with those of a question."""
    matrix = grams([normalise(text) for text in [*problems, *questions]])
    ours, theirs = matrix[: len(problems)], matrix[len(problems) :].T.tocsc()
    sizes = np.asarray(matrix.sum(axis=1)).ravel()
    similarity, index = np.zeros(len(problems)), np.zeros(len(problems), dtype=np.int64)
    for start in range(0, len(problems), BATCH):
        rows = slice(start, start + BATCH)
        common = (ours[rows] @ theirs).toarray()
        union = sizes[: len(problems)][rows, None] + sizes[len(problems) :][None, :] - common
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
    everything = [(name, problem) for name, problems in tasks.items() for problem in problems]
    found = closest([stem(problem) for _, problem in everything], questions["question"].tolist())
    table = pd.DataFrame(
        {
            "benchmark": [labels[name] for name, _ in everything],
            "level": pd.array([problem.level for _, problem in everything], dtype="Int64"),
            "problem_id": [problem.id for _, problem in everything],
            "similarity": found.similarity,
            "exact": found.similarity == 1,
            "question_id": questions["question_id"].to_numpy()[found.index],
            "problem": [stem(problem) for _, problem in everything],
            "question": questions["question"].to_numpy()[found.index],
        }
    )
    return table.sort_values("similarity", ascending=False, kind="stable").reset_index(drop=True)


def contaminated(pool: Pool, benchmark: Benchmark) -> dict[str, str]:
    """Questions of a pool that are like a problem of a benchmark, by pool.similarity, and the problem: `amc
    problem 17`.
    """
    problems = [
        (name, problem) for name, task in benchmark.tasks.items() for problem in benchmarks.load(name, task)
    ]
    stems = [stem(problem) for _, problem in problems]
    texts, found = question_texts(pool), {}
    ids = list(texts)
    for start in range(0, len(ids), QUESTIONS):
        part = ids[start : start + QUESTIONS]
        nearest = closest([texts[question] for question in part], stems)
        for question, similarity, index in zip(part, nearest.similarity, nearest.index, strict=True):
            if similarity >= pool.similarity:
                name, problem = problems[index]
                found[question] = f"{name} problem {problem.id}"
    return found


def stem(problem: Problem) -> str:
    """The problem without its multiple-choice options, which a pool's question would not have."""
    return problem.question.split("\n\nA) ", 1)[0] if problem.options else problem.question


def summary(audited: pd.DataFrame) -> pd.DataFrame:
    """Table 2: problems at or above each threshold, per benchmark (per level if it has levels) and in
    total.
    """
    groups: dict[str, pd.DataFrame] = {}
    for label, rows in audited.groupby("benchmark", sort=False):
        if rows["level"].notna().all():
            stem_label = "MATH" if label == "MATH-500" else str(label)
            groups |= {f"{stem_label}-L{level}": part for level, part in rows.groupby("level", sort=True)}
        else:
            groups[str(label)] = rows
    order = sorted(groups, key=lambda name: (groups[name]["level"].notna().any(), name))
    counted = [{"benchmark": name, **_counts(groups[name])} for name in order]
    return pd.DataFrame([*counted, {"benchmark": "Total", **_counts(audited)}])


def _counts(rows: pd.DataFrame) -> dict[str, int]:
    near = {f"J>={threshold:g}": int((rows["similarity"] >= threshold).sum()) for threshold in THRESHOLDS}
    return {"N": len(rows), "exact": int(rows["exact"].sum()), **near}


def write_audit(job: Job) -> dict[str, Any]:
    """Compare every benchmark of the configuration with a normalised pool. Writes both tables, returns
    counts.
    """
    benchmark, pool, folder = job.config.benchmark, job.inputs["pool"] / pools.FILE, job.folder
    tasks = {name: benchmarks.load(name, task) for name, task in benchmark.tasks.items()}
    labels = {name: task.label for name, task in benchmark.tasks.items()}
    distinct = {
        row["question_id"]: row["question"]
        for row in pools.iterate(pool, columns=["question_id", "question"])
    }
    questions = pd.DataFrame({"question_id": list(distinct), "question": list(distinct.values())})
    audited = audit(tasks, labels, questions)
    for name, table in ((CLOSEST, audited), (TABLE, summary(audited))):
        with atomic(folder / name) as draft:
            table.to_parquet(draft, index=False)
    return {"problems": len(audited), "questions": len(questions), **_counts(audited)}
