"""Read and check candidate pools one trajectory at a time, without loading the pool into memory.

A row comes from a file or the hub (formats.py), is read by its layout (layouts.py), and becomes a checked
`Trajectory` here.
"""

import logging
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lark import config as conf
from lark.errors import LarkError
from lark.grading.answers import unboxed
from lark.limits import time_limit
from lark.names import is_demo
from lark.pool.cleaning import Filter, Tally, Votes, special_token
from lark.pool.columns import Columns, is_blank
from lark.pool.files import some
from lark.pool.formats import source_files, source_rows
from lark.pool.hashing import hash64
from lark.pool.hub import is_remote
from lark.pool.layouts import DraftTrajectory, check, drafts, truth
from lark.pool.messages import Turns
from lark.pool.mixing import members, naming, quotas
from lark.pool.trajectory import Trajectory
from lark.reading.rows import Row, id_text, is_invisible, plain_text
from lark.reading.untrusted import quoted

log = logging.getLogger(__name__)

LARGEST = 2**31 - 1
"""Largest rollout."""
PATTERN_SECONDS = 5.0
"""Time limit for pool.answer_pattern in one response."""
SLOW_PATTERN = (
    "pool.answer_pattern={pattern} takes longer than 5 seconds in a response of {length:,} characters. Use a"
    " pattern that cannot match the same text in many ways, such as <answer>((?:(?!<answer>).)*?)</answer>."
)


def read(pool: conf.Pool, tally: Tally | None = None, without: Collection[str] = ()) -> Iterator[Trajectory]:
    """Yield every trajectory of the pool, checked. Errors name the file and line.

    tally: counts what is left out. without: ids of questions that are left out, before questions are sampled.
    """
    tally = Tally() if tally is None else tally
    tally.votes = _votes(pool) if pool.labels == "vote" else None
    kept = _sample(pool, tally.votes, without)
    keep, known = Filter(pool, tally), Known()
    named: set[str] = set()
    for where, trajectory in _labelled(pool, tally, tally.votes, without):
        if pool.ids:
            named.add(trajectory.question_id)
            if trajectory.question_id not in pool.ids:
                continue
        keeps = keep.keeps(trajectory, where)
        if kept is not None and trajectory.question_id not in kept:
            continue
        known.add(where, trajectory)
        if keeps:
            yield trajectory
    keep.finish()
    check_named(pool, named)


class Known:
    """The trajectories so far, by hashes: a question has one text, and a candidate appears once."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.texts: dict[str, int] = {}
        """Hash of each question's text."""

    def add(self, where: str, trajectory: Trajectory) -> int:
        """Check a trajectory against those before it; return the hash of its ids."""
        text = hash64(trajectory.question.strip())
        if self.texts.setdefault(trajectory.question_id, text) != text:
            raise another_text(where, trajectory)
        # With its length, the first id ends in one place only, whatever characters the ids have.
        key = hash64(str(len(trajectory.question_id)), trajectory.question_id, trajectory.candidate_id)
        if key in self.seen:
            raise second_time(where, trajectory)
        self.seen.add(key)
        return key


def another_text(where: str, trajectory: Trajectory) -> LarkError:
    return LarkError(
        f"{where}: candidate {trajectory.candidate_id!r} of question {trajectory.question_id!r} has another "
        "question text than the candidates before it. Give different questions different ids."
    )


def second_time(where: str, trajectory: Trajectory) -> LarkError:
    return LarkError(
        f"{where}: candidate {trajectory.candidate_id!r} of question {trajectory.question_id!r} appears "
        "a second time. Give every trajectory of a question its own candidate_id."
    )


def check_named(pool: conf.Pool, named: Collection[str]) -> None:
    """Refuse ids in pool.ids that the pool does not have. `named`: those that it has."""
    unknown = [identity for identity in dict.fromkeys(pool.ids) if identity not in named]
    if unknown:
        raise LarkError(
            f"pool.ids: {some(unknown)} not found in {pool.path or pool.name}, which has the ids"
            f" {some(sorted(named))}."
        )


def question_texts(pool: conf.Pool) -> dict[str, str]:
    """The text of every question in the pool's source, by id, whatever the pool's filters keep."""
    return {trajectory.question_id: trajectory.question for _, trajectory in _trajectories(pool, Tally())}


def _labelled(
    pool: conf.Pool, tally: Tally, votes: Votes | None, without: Collection[str]
) -> Iterator[tuple[str, Trajectory]]:
    """Each trajectory with its location, with votes in place of missing verdicts, without the questions in
    `without`.
    """
    for where, trajectory in _trajectories(pool, tally):
        if trajectory.question_id not in without:
            yield where, trajectory if votes is None else votes.label(trajectory)


def _votes(pool: conf.Pool) -> Votes:
    votes = Votes(pool.answer_format)
    for _, trajectory in _trajectories(pool, Tally()):
        votes.add(trajectory)
    return votes


def _trajectories(pool: conf.Pool, tally: Tally) -> Iterator[tuple[str, Trajectory]]:
    """Each trajectory, with its location for error messages."""
    if is_demo(pool.format):
        from lark.demo.pool import trajectories  # noqa: PLC0415  # the demo is generated, not read

        assert pool.questions is not None
        for row in trajectories(pool.questions, pool.seed):
            yield "the demo's pool", Trajectory(**row)  # type: ignore[arg-type]
        return
    if pool.format == "mix":
        for name, member in members(pool).items():
            with naming(name):
                for where, trajectory in _trajectories(member, tally):
                    ids = {
                        "question_id": f"{name}:{trajectory.question_id}",
                        "teacher": f"{name}:{trajectory.teacher}",
                    }
                    yield where, replace(trajectory, **ids)  # type: ignore[arg-type]
        return
    yield from _from_rows(pool, tally)


def _from_rows(pool: conf.Pool, tally: Tally) -> Iterator[tuple[str, Trajectory]]:
    check(pool)
    missing = set(pool.fields)
    found, rows = source_rows(pool)
    tally.found(found)
    yield from from_rows(rows, pool, tally, Numbering(), missing)
    tally.empty |= found.empty
    check_missing(pool, missing)


class Numbering(Counter[str]):
    """How many trajectories of each question there are so far."""

    def __init__(self, start: Mapping[str, int] | None = None) -> None:
        super().__init__(start or {})
        self.used: set[str] = set()
        """Questions with a trajectory that has its number as its candidate_id or rollout."""


def from_rows(
    rows: Iterable[Row], pool: conf.Pool, tally: Tally, counter: Numbering, missing: set[str]
) -> Iterator[tuple[str, Trajectory]]:
    """Each trajectory of some rows, with its location. `missing`: names in pool.fields whose column has not
    been found yet.
    """
    for row in rows:
        columns = Columns(row, pool.fields)
        layout, candidates = drafts(columns, pool)
        unread: set[str] = set()
        for draft in candidates:
            unread |= draft.turns.unused
            tally.cut += draft.turns.cut
            trajectory = _checked(draft, row.where, pool, counter)
            empty = draft.turns.has_empty_turn
            incomplete = empty or not draft.complete
            tally.incomplete += incomplete
            if incomplete and pool.incomplete == "drop":
                continue
            if empty and not (
                pool.special_tokens == "drop" and special_token(trajectory)
            ):  # the filter drops those
                raise _empty_response(row.where, trajectory)
            yield row.where, trajectory
        missing -= {name for name in missing if pool.fields[name] in row.values}
        tally.row(layout.name, [*columns.unused(), *unread], columns.lost())


def _empty_response(where: str, trajectory: Trajectory) -> LarkError:
    reason = " (text like a control token does not count)" if special_token(trajectory) else ""
    return LarkError(
        f"{where}: the response is empty{reason}. Remove the trajectory, give its text, or drop such"
        " trajectories with pool.incomplete=drop."
    )


def check_missing(pool: conf.Pool, missing: Collection[str]) -> None:
    for name in sorted(missing):
        raise LarkError(
            f"pool.fields.{name}={pool.fields[name]}: no row of {pool.path} has such a column. Correct the"
            " name."
        )


def _checked(draft: DraftTrajectory, where: str, pool: conf.Pool, counter: Numbering) -> Trajectory:
    """A draft with ids and types that mean something."""
    turns = draft.turns
    if is_invisible(turns.question):
        raise LarkError(f"{where}: the question is empty. Remove the row, or give the question's text.")
    if pool.answer_pattern is not None:
        turns = _boxed(turns, pool.answer_pattern, where)
    question_id = _identity(draft.question_id, "question_id", where)
    question_id = f"{hash64(turns.question.strip()):016x}" if question_id is None else question_id
    index = counter[question_id]
    counter[question_id] += 1
    candidate = _identity(draft.candidate_id, "candidate_id", where)
    if candidate is None or is_blank(draft.rollout):
        counter.used.add(question_id)
    trajectory = Trajectory(
        question_id=question_id,
        candidate_id=str(index) if candidate is None else candidate,
        teacher=_scalar(draft.teacher, "teacher", where) or "unknown",
        rollout=index if is_blank(draft.rollout) else _whole(draft.rollout, where),
        system=turns.system,
        question=turns.question,
        response=turns.response,
        answer=_scalar(draft.answer, "answer", where),
        correct=truth(draft.correct, "correct", where),
        thinking=turns.thinking,
        conversation=turns.conversation(where),
    )
    try:
        "".join(text for text in vars(trajectory).values() if isinstance(text, str)).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise LarkError(
            f"{where}: lone surrogate {half!r} (half a character). Write the whole character."
        ) from error
    return trajectory


def _identity(value: Any, name: str, where: str) -> str | None:
    """An id as text (`id_text`). Values that cannot identify anything are refused."""
    if value is None:
        return None
    text = id_text(value)
    if isinstance(value, bool | list | dict | bytes) or not _is_finite(value) or is_invisible(text):
        raise LarkError(
            f"{where}: `{name}` must be text or a number, not {quoted(value)}. Give an id, or leave the"
            " column out."
        )
    return text


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _scalar(value: Any, name: str, where: str) -> str | None:
    """A value as text: 5.0 is `5`. A list with one value is that value; a missing number (NaN) is None."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if is_blank(value) or (isinstance(value, str) and is_invisible(value)):
        return None
    if isinstance(value, bool | list | dict | bytes) or not _is_finite(value):  # true may mean Yes
        raise LarkError(
            f"{where}: `{name}` must be text or a number, not {quoted(value)}. Write one text, or name"
            f" another column with pool.fields.{name}=<column>."
        )
    return plain_text(value)


def _whole(value: Any, where: str) -> int:
    try:
        number = int(value)
        if isinstance(value, bool) or (isinstance(value, float) and number != value) or "_" in str(value):
            raise ValueError
    except (OverflowError, TypeError, ValueError) as error:
        raise LarkError(f"{where}: `rollout` must be a whole number, not {quoted(value)}.") from error
    if not -LARGEST <= number <= LARGEST:
        raise LarkError(
            f"{where}: `rollout` must be at most {LARGEST:,}, not {quoted(value)}. Number the rollouts 0, 1,"
            " 2, …."
        )
    return number


def _boxed(turns: Turns, pattern: str, where: str) -> Turns:
    """The turns with the final answer in a box, in the response and in the conversation."""
    try:
        response = box_answer(turns.response, pattern)
    except LarkError as error:
        raise LarkError(f"{where}: {error}") from error
    messages = (
        None
        if turns.messages is None
        else [*turns.messages[:-1], {**turns.messages[-1], "content": response}]
    )
    return replace(turns, response=response, messages=messages)


def box_answer(response: str, pattern: str) -> str:
    """Replace the last match of `pattern` with a box around its first group. It is then the last box, which
    is the answer: boxes in the group and after it are removed, and their contents stay. Without a match, or
    with an empty group, the response is unchanged: an empty box would be an answer that the teacher did not
    give.
    """
    with time_limit(PATTERN_SECONDS, SLOW_PATTERN.format(pattern=pattern, length=len(response))):
        last = None
        for last in re.finditer(pattern, response, re.DOTALL):  # noqa: B007  # the last one is used
            pass
    if last is None or not (last[1] or "").strip():
        return response
    before = response[: last.start()]
    answer = unboxed(last[1]).strip()
    after = unboxed(response[last.end() :])
    return f"{before}\\boxed{{{answer}}}{after}"


def _sample(pool: conf.Pool, votes: Votes | None, without: Collection[str]) -> set[str] | None:
    """The questions to keep, or None for all: those with the smallest hashes, so that the sample does not
    depend on the pool's order or size. A mixed pool has its shares of each source.
    """
    if is_demo(pool.format) or (pool.questions is None and (pool.format != "mix" or pool.ids)):
        return None
    everything, keep = replace(pool, questions=None), Filter(pool, Tally())
    if (
        pool.format == "rsr" and keep.is_off and not is_remote(pool)
    ):  # aligned files: the first has every question
        everything = replace(everything, path=str(source_files(pool)[0]), exclude=[])
    ids = {
        trajectory.question_id
        for where, trajectory in _labelled(everything, Tally(), votes, without)
        if keep.keeps(trajectory, where)
    }
    groups = (
        {name: {i for i in ids if i.startswith(f"{name}:")} for name in pool.mix} if pool.mix else {"": ids}
    )
    wanted = quotas({name: len(group) for name, group in groups.items()}, pool)
    if len(ids) > sum(wanted.values()):
        why = "the shares of pool.mix" if pool.questions is None else "pool.questions; null uses all"
        log.info("pool      using %d of %d questions (%s)", sum(wanted.values()), len(ids), why)
    return {
        question
        for name, group in groups.items()
        for question in sorted(group, key=lambda question: hash64(str(pool.seed), question))[: wanted[name]]
    }
