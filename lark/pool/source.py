"""The rows of one source of a pool as checked trajectories: ids, numbers, verdicts, and answers in boxes."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lark import config as conf
from lark.errors import LarkError
from lark.grading.answers import unboxed
from lark.limits import time_limit
from lark.pool.checks import check_question, empty_response
from lark.pool.cleaning import Tally, special_token
from lark.pool.columns import Columns
from lark.pool.file_teachers import teachers_of_files
from lark.pool.hashing import hash64
from lark.pool.hygiene import trimmed
from lark.pool.layouts import DraftTrajectory, check, drafts
from lark.pool.messages import Turns
from lark.pool.trajectory import Trajectory
from lark.reading.fields import Fields, is_blank
from lark.reading.rows import Row
from lark.reading.untrusted import require_characters
from lark.reading.values import is_invisible

Located = tuple[str, Trajectory]
"""A trajectory with its location, for error messages."""
LARGEST = 2**31 - 1
"""Largest rollout: the column has 32 bits."""
PATTERN_SECONDS = 5.0
"""Time limit for pool.answer_pattern in one response."""
SLOW_PATTERN = (
    "pool.answer_pattern={pattern} takes longer than 5 seconds in a response of {length:,} characters. Use a"
    " pattern that cannot match the same text in many ways, such as <answer>((?:(?!<answer>).)*?)</answer>."
)


class SourceReader:
    """Reads rows of a source. `start`: trajectories of each question in earlier rows that others read."""

    def __init__(self, pool: conf.Pool, tally: Tally, start: Mapping[str, int] | None = None) -> None:
        check(pool)
        self.pool = pool
        self.tally = tally
        self.counts = Counter(start)
        """Trajectories of each question so far: the number of its next one, from 0."""
        self.numbered: set[str] = set()
        """Questions with a trajectory that has its number as its candidate_id or rollout."""
        self.missing = set(pool.fields)
        """Names in pool.fields whose column no row has had so far."""
        self.filters: dict[Any, Any] = {}
        self.teachers = teachers_of_files(pool)

    def trajectories(self, rows: Iterable[Row]) -> Iterator[Located]:
        for row in rows:
            columns = Columns(row, self.pool, self.pool.correct_from, self.filters)
            layout, candidates = drafts(columns, self.pool)
            unread: set[str] = set()
            for draft in candidates:
                unread |= draft.turns.unused
                if draft.correct is not None:
                    self.tally.verdict_columns.add(columns.stored("correct") or layout.name)
                self.tally.cut += draft.turns.cut
                self.tally.weighted += draft.turns.is_weighted
                trajectory = self._trajectory(draft, row)
                if self._keeps(draft, trajectory, row.where):
                    yield row.where, self._trimmed(trajectory)
            self.missing = {name for name in self.missing if self.pool.fields[name] not in row.values}
            self.tally.row(layout.name, [*columns.unused(), *unread], columns.lost())
            self.tally.without.update(columns.without)

    def _keeps(self, draft: DraftTrajectory, trajectory: Trajectory, where: str) -> bool:
        """Whether a trajectory can be trained on, and is complete or may be incomplete. One without text is
        refused.
        """
        if draft.turns.is_masked:
            self.tally.masked += 1
            self.tally.drop(trajectory.teacher)
            return False
        is_empty = draft.turns.has_empty_turn
        is_incomplete = is_empty or not draft.complete
        self.tally.incomplete += is_incomplete
        if is_incomplete and self.pool.incomplete == "drop":
            self.tally.drop(trajectory.teacher)
            return False
        control_token = special_token(trajectory) if is_empty else None
        # With pool.special_tokens=drop, the filter leaves out and counts turns of control tokens alone.
        is_dropped_later = control_token is not None and self.pool.special_tokens == "drop"
        if is_empty and not is_dropped_later:
            raise empty_response(where, control_token is not None)
        return True

    def _trimmed(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory without the text after its conclusion, if pool.trim asks for that."""
        if self.pool.trim != "conclusion":
            return trajectory
        shorter = trimmed(trajectory, self.pool.threshold("conclusion"))
        self.tally.trimmed += shorter is not trajectory
        return shorter

    def _teacher(self, draft: DraftTrajectory, row: Row) -> str:
        """The teacher by the row, or else by its file if there is one file per teacher."""
        teacher = _optional(draft.teacher, "teacher", row.where)
        if teacher is None and row.path in self.teachers:
            teacher = self.teachers[row.path]
            self.tally.named_by_file += 1
        return teacher or "unknown"

    def _trajectory(self, draft: DraftTrajectory, row: Row) -> Trajectory:
        """A draft with ids and types that mean something."""
        where = row.where
        check_question(draft.turns.question, where)
        turns = self._boxed(draft.turns, where)
        fields = Fields(vars(draft), where)
        question_id = _identity(fields, "question_id")
        if question_id is None:  # rows with the same question are then candidates of one question
            question_id = f"{hash64(turns.question.strip()):016x}"
        number = self.counts[question_id]
        self.counts[question_id] += 1
        candidate_id = _identity(fields, "candidate_id")
        rollout = None if is_blank(draft.rollout) else _rollout(fields)
        if candidate_id is None or rollout is None:
            self.numbered.add(question_id)
        trajectory = Trajectory(
            question_id=question_id,
            candidate_id=str(number) if candidate_id is None else candidate_id,
            teacher=self._teacher(draft, row),
            rollout=number if rollout is None else rollout,
            system=turns.system,
            question=turns.question,
            response=turns.response,
            answer=_optional(draft.answer, "answer", where),
            correct=fields.verdict("correct", self.pool.correct_from),
            thinking=turns.thinking,
            conversation=turns.conversation(where),
            pass_rate=draft.pass_rate,
        )
        require_characters(list(vars(trajectory).values()), where)
        return trajectory

    def _boxed(self, turns: Turns, where: str) -> Turns:
        """The turns with the final answer in a box, in the response and in the conversation."""
        if self.pool.answer_pattern is None:
            return turns
        try:
            response = box_answer(turns.response, self.pool.answer_pattern)
        except LarkError as error:
            raise LarkError(f"{where}: {error}") from error
        messages = turns.messages
        if messages is not None:
            messages = [*messages[:-1], {**messages[-1], "content": response}]
        return replace(turns, response=response, messages=messages)


def _identity(fields: Fields, name: str) -> str | None:
    if not fields.has(name):
        return None
    return fields.identity(name, "Give an id, or leave the column out.")


def _rollout(fields: Fields) -> int:
    return fields.whole("rollout", LARGEST, "Number the rollouts 0, 1, 2, ….")


def _optional(value: Any, name: str, where: str) -> str | None:
    """A value as text: 5.0 is `5`. A list with one value is that value; a missing number (NaN) is None."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if is_blank(value) or (isinstance(value, str) and is_invisible(value)):
        return None
    remedy = f"Write one text, or name another column with pool.fields.{name}=<column>."
    return Fields({name: value}, where).scalar(name, remedy)


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
