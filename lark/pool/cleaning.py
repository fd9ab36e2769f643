"""Which trajectories are kept, and counts of those that are not: wrong, incomplete, with control tokens."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lark import config as conf
from lark.errors import LarkError
from lark.pool.checks import no_verdict
from lark.pool.files import SourceFiles
from lark.pool.hygiene import faults_of
from lark.pool.trajectory import Trajectory, verdict
from lark.pool.votes import Votes
from lark.printing import some
from lark.reading.values import is_invisible

CONTROL_TOKEN = re.compile(
    r"<\|[^|<>\s]{1,60}\|>|<｜[^｜<>\s]{1,60}｜>|</?s>|<[be]os>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>"
)
"""Text that looks like a control token of a chat template."""
MARKS = ("<|", "<｜", "<s>", "</s>", "<bos>", "<eos>", "_of_turn>", "INST]", "SYS>>")
"""Each match of CONTROL_TOKEN contains one of these. Looking for them first is much faster."""
MOST_COLUMNS = 1000
"""Columns whose use is counted. A file with more has data in place of names."""
EXAMPLES = 5
"""Examples that a summary names of each thing that it counts."""
NEARLY = 0.9
"""Share of a teacher's trajectories from which on a filter that leaves them out is the first note."""


def special_token(trajectory: Trajectory) -> str | None:
    """The first text in a trajectory that looks like a control token."""
    for text in trajectory.texts:
        if any(mark in text for mark in MARKS):
            match = CONTROL_TOKEN.search(text)
            if match:
                return match[0]
    return None


def has_no_text(turn: str) -> bool:
    """Whether an assistant turn has nothing to train on: no visible character, or control tokens alone. The
    latter is what remains of an empty turn if its end-of-turn token was decoded as text.
    """
    if any(mark in turn for mark in MARKS):
        turn = CONTROL_TOKEN.sub("", turn)
    return is_invisible(turn)


@dataclass
class Tally:
    """Counts of what was read, and of what was left out."""

    layouts: Counter[str] = field(default_factory=Counter)
    """Rows of each layout."""
    unused: Counter[str] = field(default_factory=Counter)
    """Rows in which a column has a value that is not used."""
    lost: set[str] = field(default_factory=set)
    """Unused columns that may hold trajectories."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Files that are not read, and why."""
    empty: set[str] = field(default_factory=set)
    """Files without rows."""
    notes: list[str] = field(default_factory=list)
    incomplete: int = 0
    cut: int = 0
    """Conversations whose last turns are left out, because no assistant turn follows them."""
    weighted: int = 0
    """Trajectories in which a turn is masked or has another weight than 1."""
    masked: int = 0
    """Trajectories that are left out because every assistant turn is masked."""
    special: int = 0
    examples: list[str] = field(default_factory=list)
    """The first trajectories with text like control tokens."""
    without: Counter[str] = field(default_factory=Counter)
    """Why rows, or parts of them, have no trajectory."""
    verdict_columns: set[str] = field(default_factory=set)
    """Columns, or layouts, that the pool's verdicts come from."""
    named_by_file: int = 0
    """Trajectories whose teacher is the name of their file."""
    trimmed: int = 0
    """Trajectories whose text after the conclusion was cut."""
    faulty: Counter[str] = field(default_factory=Counter)
    """Trajectories that each fault in pool.drop has left out."""
    teachers: Counter[str] = field(default_factory=Counter)
    """Trajectories of each teacher before filters, and of each teacher that a filter leaves out."""
    dropped: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    """Trajectories whose correctness is not known, with pool.correct_only."""
    wrong: int = 0
    right_questions: set[str] = field(default_factory=set)
    """Questions with a correct trajectory."""
    wrong_questions: set[str] = field(default_factory=set)
    """Questions with a dropped trajectory."""
    contaminated: dict[str, str] = field(default_factory=dict)
    """Questions that are in a benchmark, and which problem they are like."""
    votes: Votes | None = None
    damaged: int = 0
    """Trajectories that were damaged on purpose."""

    def count_files(self, files: SourceFiles) -> None:
        self.skipped |= files.skipped
        self.notes += files.notes

    def drop(self, teacher: str) -> None:
        """Count a trajectory that is left out."""
        self.teachers[teacher] += 1
        self.dropped[teacher] += 1

    def row(self, layout: str, unused: Iterable[str], lost: Iterable[str]) -> None:
        self.layouts[layout] += 1
        self._columns(Counter(unused), lost)

    def _columns(self, unused: Mapping[str, int], lost: Iterable[str]) -> None:
        for name, rows in unused.items():
            if name in self.unused or len(self.unused) < MOST_COLUMNS:
                self.unused[name] += rows
        self.lost.update(name for name in lost if name in self.unused)

    def merge(self, other: "Tally") -> None:
        """Add the counts of a later part of the pool."""
        self.layouts.update(other.layouts)
        self._columns(other.unused, other.lost)
        self.empty |= other.empty
        self.incomplete += other.incomplete
        self.cut += other.cut
        self.weighted += other.weighted
        self.masked += other.masked
        self.without.update(other.without)
        self.verdict_columns |= other.verdict_columns
        self.named_by_file += other.named_by_file
        self.trimmed += other.trimmed
        self.faulty.update(other.faulty)
        self.teachers.update(other.teachers)
        self.dropped.update(other.dropped)
        self.unknown += other.unknown
        self.special += other.special
        self.examples = (self.examples + other.examples)[:EXAMPLES]
        self.wrong += other.wrong
        self.right_questions |= other.right_questions
        self.wrong_questions |= other.wrong_questions

    def _removed(self, pool: conf.Pool) -> dict[str, Any]:
        """What the filters remove, if that is (nearly) all of a teacher or most of the pool."""
        total = self.teachers.total()
        gone = {}
        nearly = {}
        for name, count in self.dropped.items():
            if count == self.teachers[name]:
                gone[name] = count
            elif count >= NEARLY * self.teachers[name]:
                nearly[name] = [count, self.teachers[name]]
        if not gone and not nearly and self.dropped.total() <= total / 2:
            return {}
        counts = {"trajectories": self.dropped.total(), "of": total, "teachers": gone, "nearly": nearly}
        return {**counts, "settings": filters(pool)}

    def to_dict(self, pool: conf.Pool) -> dict[str, Any]:
        """The entries of the manifest, without those that are empty."""
        entries = {
            "layouts": dict(self.layouts),
            "unused": dict(sorted(self.unused.items())),
            "lost": sorted(self.lost),
            "skipped_files": dict(sorted(self.skipped.items())),
            "empty_files": sorted(self.empty),
            "notes": self.notes,
            "incomplete": self.incomplete,
            "cut": self.cut,
            "weighted": self.weighted,
            "masked": self.masked,
            "without": dict(sorted(self.without.items())),
            "verdict_columns": sorted(self.verdict_columns - {"correct"}),
            "named_by_file": self.named_by_file,
            "trimmed": self.trimmed,
            "faulty": dict(self.faulty),
            "removed": self._removed(pool),
            "special_tokens": self.special,
            "special_examples": self.examples,
            "contaminated": self.contaminated,
            "votes": self.votes.to_dict() if self.votes else {},
        }
        counts: dict[str, Any] = {key: value for key, value in entries.items() if value}
        if pool.correct_only:
            lost = self.wrong_questions - self.right_questions
            counts["dropped"] = {"trajectories": self.wrong, "questions": len(lost)}
            if self.unknown:
                counts["dropped"]["unknown"] = {"kept" if pool.unknown == "keep" else "dropped": self.unknown}
        if pool.noise_share:
            share = {"kind": pool.noise, "share": pool.noise_share}
            counts["damaged"] = {**share, "trajectories": self.damaged}
        return counts


def filters(pool: conf.Pool) -> list[str]:
    """The settings that leave trajectories out."""
    settings = {
        "pool.correct_only=true": pool.correct_only,
        "pool.special_tokens=drop": pool.special_tokens == "drop",
        "pool.incomplete=drop": pool.incomplete == "drop",
        f"pool.drop=[{','.join(pool.drop)}]": bool(pool.drop),
        "pool.decontaminate=true": pool.decontaminate,
    }
    return [setting for setting, is_on in settings.items() if is_on]


def kept_by(pool: conf.Pool) -> str:
    """A clause to add to a noun: ` that pool.correct_only=true keeps`. Empty without filters."""
    settings = filters(pool)
    if not settings:
        return ""
    verb = "keep" if len(settings) > 1 else "keeps"
    return f" that {' and '.join(settings)} {verb}"


def left_out(pool: conf.Pool, tally: Tally) -> list[str]:
    """How many trajectories or questions each filter has left out, for messages."""
    counts = {
        "pool.correct_only=true": (tally.wrong, "wrong trajectories"),
        "pool.special_tokens=drop": (tally.special, "trajectories with text like a control token"),
        "pool.incomplete=drop": (tally.incomplete, "incomplete trajectories"),
        f"pool.drop=[{','.join(pool.drop)}]": (tally.faulty.total(), "trajectories with such faults"),
        "pool.decontaminate=true": (len(tally.contaminated), "questions of the benchmarks"),
    }
    phrases = []
    for setting in filters(pool):
        count, noun = counts[setting]
        if count:
            phrases.append(f"{setting} leaves out {count:,} {noun}")
    return phrases


@dataclass
class Filter:
    """Keeps trajectories by the pool's settings, and counts the others."""

    pool: conf.Pool
    tally: Tally

    def keeps(self, trajectory: Trajectory, where: str) -> bool:
        is_kept = self._is_clean(trajectory) and self._may_be_correct(trajectory, where)
        if is_kept:
            self.tally.teachers[trajectory.teacher] += 1
        else:
            self.tally.drop(trajectory.teacher)
        return is_kept

    def _is_clean(self, trajectory: Trajectory) -> bool:
        special = special_token(trajectory)
        if special is not None:
            self.tally.special += 1
            if len(self.tally.examples) < EXAMPLES:
                self.tally.examples.append(f"{trajectory.question_id}/{trajectory.candidate_id} ({special})")
            if self.pool.special_tokens == "drop":
                return False
        if not self.pool.drop:
            return True
        faults = [fault for fault in faults_of(trajectory, self.pool) if fault in self.pool.drop]
        self.tally.faulty.update(faults[:1])
        return not faults

    def _may_be_correct(self, trajectory: Trajectory, where: str) -> bool:
        """Whether pool.correct_only keeps it. What cannot be judged is not wrong."""
        if not self.pool.correct_only:
            return True
        is_correct = verdict(trajectory, self.pool)
        if is_correct is None and self.pool.labels != "vote":
            return self._keeps_unknown(trajectory, where)
        if is_correct:  # a tie is None: the vote does not say that it is right
            self.tally.right_questions.add(trajectory.question_id)
        else:
            self.tally.wrong_questions.add(trajectory.question_id)
            self.tally.wrong += 1
        return bool(is_correct)

    def _keeps_unknown(self, trajectory: Trajectory, where: str) -> bool:
        self.tally.unknown += 1
        if self.pool.unknown == "drop":
            self.tally.wrong_questions.add(trajectory.question_id)
            return False
        if not (trajectory.answer and trajectory.answer.strip()):
            raise no_verdict(where, trajectory)
        self.tally.right_questions.add(trajectory.question_id)
        return True


def check_special(pool: conf.Pool, tally: Tally) -> None:
    """Refuse the pool if it has text like control tokens and pool.special_tokens=error."""
    if pool.special_tokens == "error" and tally.special:
        raise LarkError(
            f"pool.special_tokens=error: {tally.special} trajectories of {pool.name} contain text like a"
            f" control token: {some(tally.examples)}. Remove it, or use pool.special_tokens=drop (leaves them"
            " out) or text (keeps them, encoded as text)."
        )
