"""Hold out questions of a pool: they become a benchmark, and their correct trajectories a set whose loss is
measured.

The rest of the sampled questions is trained on (`pool.ids`). All three are decided by hashes of the
questions' ids, so they do not depend on the order or the size of the pool's files.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from math import floor
from operator import itemgetter
from pathlib import Path
from typing import Any

from lark.config import Config, Pool
from lark.errors import LarkError
from lark.pool.hashing import hash64
from lark.pool.identity import pool_identity
from lark.pool.read import read
from lark.pool.trajectory import Trajectory, verdict
from lark.reading.untrusted import read_object
from lark.selection.write import training_row
from lark.store.store import Artifact, Checksums, Kind, write_text

HELD_OUT = Kind("held_out", 1)
PROBLEMS = "problems.jsonl"
TRAJECTORIES = "trajectories.jsonl"
SPLIT = "split.json"
LEAST = 2
"""Questions on each side."""
Questions = dict[str, tuple[str, str | None]]
"""The text and the answer of each question, by its id."""


@dataclass(frozen=True)
class Split:
    """Ids of the questions that are trained on and of those that are held out."""

    training: tuple[str, ...]
    held_out: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> "Split":
        values = read_object(folder / SPLIT)
        return cls(tuple(values["training"]), tuple(values["held_out"]))


def held_out_artifact(config: Config, questions: int, graded: bool, checksums: Checksums) -> Artifact:
    """The artifact with the three files. `graded`: held-out questions must have an answer."""
    depends = {
        "pool": pool_identity(source(config.pool, questions), checksums),
        "questions": questions,
        "share": config.compare.held_out,
        "trajectories": config.compare.trajectories,
        "graded": graded,
        "instruction": config.student.instruction,
    }
    return Artifact(HELD_OUT, f"{config.pool.label}-{questions}", depends)


def source(pool: Pool, questions: int) -> Pool:
    """The pool that questions are taken from: all of a pool that is read; as many as needed of one that is
    generated.
    """
    return replace(pool, questions=questions if pool.is_generated else None, decontaminate=False)


def write_held_out(config: Config, questions: int, graded: bool, folder: Path) -> dict[str, Any]:
    """Write the split, the benchmark and the trajectories. Returns counts."""
    pool = source(config.pool, questions)
    by_id = _questions(pool)
    split = _split(config, pool, by_id, questions, graded)
    trajectories = _correct_trajectories(config, pool, set(split.held_out))
    problems = []
    for id_ in split.held_out:
        text, answer = by_id[id_]
        if answer is not None:
            problems.append({"id": id_, "problem": text, "answer": answer})
    _write_lines(folder / PROBLEMS, problems)
    _write_lines(folder / TRAJECTORIES, trajectories)
    write_text(folder / SPLIT, json.dumps(asdict(split)))
    return {
        "training": len(split.training),
        "held_out": len(split.held_out),
        "trajectories": len(trajectories),
    }


def _questions(pool: Pool) -> Questions:
    """Every question of the pool. Its answer is the first that any of its trajectories has."""
    by_id: Questions = {}
    for trajectory in read(pool):
        answer = trajectory.answer if trajectory.answer and trajectory.answer.strip() else None
        _, earlier = by_id.get(trajectory.question_id, ("", None))
        if earlier is None:
            by_id[trajectory.question_id] = trajectory.question, answer
    return by_id


def _split(config: Config, pool: Pool, by_id: Questions, questions: int, graded: bool) -> Split:
    order = sorted(by_id, key=lambda id_: hash64(str(pool.seed), "held out", id_))
    count = min(questions, len(order))
    n_held_out = max(LEAST, floor(count * config.compare.held_out))
    eligible = order
    if graded:
        eligible = _different([id_ for id_ in order if by_id[id_][1] is not None], by_id)
        _check_answers(pool, len(eligible), len(order), n_held_out)
    _check_enough(pool, count, len(order), n_held_out)
    held_out = set(eligible[:n_held_out])
    # With `graded`, questions without an answer, or asked twice, can still be trained on.
    training = [id_ for id_ in order if id_ not in held_out][: count - n_held_out]
    return Split(tuple(sorted(training)), tuple(sorted(held_out)))


def _check_answers(pool: Pool, answered: int, questions: int, n_held_out: int) -> None:
    """Refuse a pool with too few questions that can be graded."""
    if answered < n_held_out:
        raise LarkError(
            f"Only {answered} of the {questions} questions of pool {pool.name} have an answer (repeated ones"
            f" count once), and {n_held_out} are to be held out. Hold out fewer (compare.held_out), name a"
            " benchmark (benchmark=<name>), give the pool an `answer` column (pool.fields.answer=<column>),"
            " or compare by the loss of held-out trajectories (compare.criterion=loss)."
        )


def _check_enough(pool: Pool, count: int, questions: int, n_held_out: int) -> None:
    """Refuse a pool that leaves too few questions to train on."""
    if count < n_held_out + LEAST:
        raise LarkError(
            f"Pool {pool.name} has {questions} questions, too few to hold out {n_held_out} and train on the"
            " rest. Use a larger pool."
        )


def _different(ids: list[str], by_id: Questions) -> list[str]:
    """One id of each question: a problem that is there twice would count as two."""
    first = dict[str, str]()
    for id_ in ids:
        text, _ = by_id[id_]
        first.setdefault(" ".join(text.split()).casefold(), id_)
    return list(first.values())


def _correct_trajectories(config: Config, pool: Pool, held_out: set[str]) -> list[dict[str, Any]]:
    """Rows of a training set: a few trajectories of each held-out question that are not known to be wrong."""
    most = config.compare.trajectories
    if not most:
        return []
    ranked = defaultdict[str, list[tuple[int, Trajectory]]](list)
    for trajectory in read(pool):
        question = trajectory.question_id
        if question in held_out and verdict(trajectory, pool) is not False:
            rank = hash64(str(pool.seed), "held out", question, trajectory.candidate_id)
            # Only the first ones are kept, so that a pool need not fit into memory.
            ranked[question].append((rank, trajectory))
            ranked[question].sort(key=itemgetter(0))
            del ranked[question][most:]
    rows = []
    for id_ in sorted(ranked):
        rows += [training_row(config, asdict(trajectory), 1.0) for _, trajectory in ranked[id_]]
    return rows


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
