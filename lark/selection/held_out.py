"""Hold out questions of a pool: they become a benchmark, and their correct trajectories a set whose loss is
measured.

The rest of the sampled questions is trained on (`pool.ids`). All three are decided by hashes of the
questions' ids, so they do not depend on the order or the size of the pool's files.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import floor
from pathlib import Path
from typing import Any

from lark.config import Config, Pool
from lark.errors import LarkError
from lark.models.dialogue import dialogue_of
from lark.names import is_demo
from lark.pool.hashing import hash64
from lark.pool.identity import pool_identity
from lark.pool.read import read
from lark.pool.trajectory import Trajectory, verdict
from lark.reading.untrusted import read_object
from lark.store.store import Artifact, Checksums, Kind, write_text

HELD_OUT = Kind("held_out", 1)
PROBLEMS, TRAJECTORIES, SPLIT = "problems.jsonl", "trajectories.jsonl", "split.json"
LEAST = 2
"""Questions on each side."""
NO_ANSWERS = (
    "Only {known} of the {all} questions of pool {name} have an answer (repeated ones count once), and"
    " {wanted} are to be held out. Hold out fewer (compare.held_out), name a benchmark (benchmark=<name>),"
    " give the pool an `answer` column (pool.fields.answer=<column>), or compare by the loss of held-out"
    " trajectories (compare.criterion=loss)."
)


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
    asked, student = config.compare, config.student
    pool = source(config.pool, questions)
    part = {
        "pool": pool_identity(pool, checksums),
        "questions": questions,
        "share": asked.held_out,
        "trajectories": asked.trajectories,
        "graded": graded,
        "instruction": student.instruction,
    }
    return Artifact(HELD_OUT, f"{config.pool.name}-{questions}", part)


def source(pool: Pool, questions: int) -> Pool:
    """The pool that questions are taken from: all of a pool that is read; as many as needed of one that is
    generated.
    """
    return replace(pool, questions=questions if is_demo(pool.format) else None, decontaminate=False)


def write_held_out(config: Config, questions: int, graded: bool, folder: Path) -> dict[str, Any]:
    """Write the split, the benchmark and the trajectories. Returns counts."""
    pool = source(config.pool, questions)
    split, answers = _split(config, pool, questions, graded)
    chosen = _correct_trajectories(config, pool, set(split.held_out))
    texts = {id_: text for id_, (text, _) in answers.items()}
    problems = ({"id": id_, "problem": texts[id_], "answer": answers[id_][1]} for id_ in split.held_out)
    _write_lines(folder / PROBLEMS, (problem for problem in problems if problem["answer"] is not None))
    _write_lines(folder / TRAJECTORIES, chosen)
    write_text(folder / SPLIT, json.dumps(asdict(split)))
    return {"training": len(split.training), "held_out": len(split.held_out), "trajectories": len(chosen)}


def _split(
    config: Config, pool: Pool, questions: int, graded: bool
) -> tuple[Split, dict[str, tuple[str, str | None]]]:
    """The split, and the text and the answer of every question."""
    found: dict[str, tuple[str, str | None]] = {}
    for trajectory in read(pool):
        answer = trajectory.answer if trajectory.answer and trajectory.answer.strip() else None
        if found.get(trajectory.question_id, ("", None))[1] is None:
            found[trajectory.question_id] = trajectory.question, answer
    order = sorted(found, key=lambda id_: hash64(str(pool.seed), "held out", id_))
    count = min(questions, len(order))
    wanted = max(LEAST, floor(count * config.compare.held_out))
    able = _different([id_ for id_ in order if found[id_][1] is not None], found) if graded else order
    if len(able) < wanted and graded:
        raise LarkError(NO_ANSWERS.format(known=len(able), all=len(order), name=pool.name, wanted=wanted))
    if count < wanted + LEAST:
        raise LarkError(
            f"Pool {pool.name} has {len(order)} questions, too few to hold out {wanted} and train on the"
            " rest. Use a larger pool."
        )
    held = set(able[:wanted])
    training = [id_ for id_ in order if id_ not in held][: count - wanted]
    return Split(tuple(sorted(training)), tuple(sorted(held))), found


def _different(ids: list[str], found: Mapping[str, tuple[str, str | None]]) -> list[str]:
    """One id of each question: a problem that is there twice would count as two."""
    first = dict[str, str]()
    for id_ in ids:
        first.setdefault(" ".join(found[id_][0].split()).casefold(), id_)
    return list(first.values())


def _correct_trajectories(config: Config, pool: Pool, held: set[str]) -> list[Mapping[str, Any]]:
    """Rows of a training set: a few trajectories of each held-out question that are not known to be wrong."""
    most, found = config.compare.trajectories, dict[str, list[tuple[int, Trajectory]]]()
    if not most:
        return []
    for trajectory in read(pool):
        if trajectory.question_id in held and verdict(trajectory, pool) is not False:
            rank = hash64(str(pool.seed), "held out", trajectory.question_id, trajectory.candidate_id)
            best = sorted(
                [*found.get(trajectory.question_id, []), (rank, trajectory)], key=lambda pair: pair[0]
            )[:most]
            found[trajectory.question_id] = best
    return [_row(config, trajectory) for id_ in sorted(found) for _, trajectory in found[id_]]


def _row(config: Config, trajectory: Trajectory) -> Mapping[str, Any]:
    dialogue = dialogue_of(asdict(trajectory), config.student.instruction, config.pool.turns == "last")
    tools = {"tools": dialogue.tools} if dialogue.tools else {}
    ids = {"question_id": trajectory.question_id, "candidate_id": trajectory.candidate_id}
    return {"messages": dialogue.messages, **tools, "weight": 1.0, **ids}


def _write_lines(path: Path, rows: Iterator[Mapping[str, Any]] | list[Mapping[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
