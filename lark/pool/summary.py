"""Summary of a pool, to check before spending hours on it."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from lark import config as conf
from lark.grading.canonical import canonical_number
from lark.models.dialogue import is_instruction
from lark.pool.cleaning import EXAMPLES, Tally
from lark.pool.duplicates import NearDuplicates
from lark.pool.files import some
from lark.pool.hashing import hash64
from lark.pool.trajectory import Trajectory, is_compared, verdict
from lark.printing import text_table

SOURCES = (
    "the answer in the last \\boxed{}",
    "the pool's own verdict",
    "a majority vote of the candidates (not gold answers)",
)
"""Where verdicts come from."""


class Summary:
    """Statistics of a pool, collected one trajectory at a time."""

    def __init__(self, pool: conf.Pool, tally: Tally | None = None) -> None:
        self.pool = pool
        self.tally = Tally() if tally is None else tally
        self.near = NearDuplicates()
        self.candidates: Counter[str] = Counter()
        self.lengths: defaultdict[str, array[int]] = defaultdict(partial(array, "L"))
        self.verdicts: Counter[tuple[str, bool | None]] = Counter()
        self.sources: set[str] = set()
        self.boxed = 0
        self.thinking = 0
        self.conversations = 0
        self.instructed = 0
        """Trajectories whose system message is the instruction."""
        self.texts: dict[str, int] = {}
        """Hash of each question's text."""
        self.answers: dict[str, int] = {}
        """Hash of the first answer of each question."""
        self.contradicted: set[str] = set()
        """Questions with another answer in a later row."""

    @property
    def trajectories(self) -> int:
        return self.candidates.total()

    def add(self, trajectory: Trajectory) -> None:
        self.candidates[trajectory.question_id] += 1
        self.lengths[trajectory.teacher].append(trajectory.characters)
        known = verdict(trajectory, self.pool)
        self.verdicts[trajectory.teacher, known] += 1
        if known is not None:
            self.sources.add(self._source(trajectory))
        self.boxed += trajectory.boxed is not None
        self.thinking += trajectory.thinking is not None
        self.conversations += trajectory.conversation is not None
        if trajectory.conversation is None:  # a conversation is used as it is
            self.instructed += is_instruction(trajectory.system or "")
        self.near.add(trajectory)
        self.texts.setdefault(trajectory.question_id, hash64(" ".join(trajectory.question.split())))
        if trajectory.answer is not None:
            self._add_answer(trajectory.question_id, hash64(_answer_text(trajectory.answer)))

    def _add_answer(self, question: str, answer: int) -> None:
        if self.answers.setdefault(question, answer) != answer:
            self.contradicted.add(question)

    def merge(self, other: "Summary") -> None:
        """Add the statistics of a later part of the pool."""
        self.candidates.update(other.candidates)
        for teacher, lengths in other.lengths.items():
            self.lengths[teacher].extend(lengths)
        self.verdicts.update(other.verdicts)
        self.sources |= other.sources
        self.boxed += other.boxed
        self.thinking += other.thinking
        self.conversations += other.conversations
        self.instructed += other.instructed
        for question, sketches in other.near.sketches.items():
            self.near.sketches[question] += sketches
        self.texts = {**other.texts, **self.texts}
        self.contradicted |= other.contradicted
        for question, answer in other.answers.items():
            self._add_answer(question, answer)

    def _source(self, trajectory: Trajectory) -> str:
        if is_compared(trajectory):
            return SOURCES[0]
        voted = self.tally.votes is not None and self.tally.votes.decides(trajectory.question_id)
        return SOURCES[2] if voted else SOURCES[1]

    def to_dict(self) -> dict[str, Any]:
        sizes = sorted(self.candidates.values())
        return {
            "questions": len(self.candidates),
            "trajectories": self.trajectories,
            "candidates": (
                {"min": sizes[0], "median": sizes[len(sizes) // 2], "max": sizes[-1]} if sizes else {}
            ),
            "teachers": {teacher: self._part([teacher]) for teacher in sorted(self.lengths)},
            "all": self._part(list(self.lengths)),
            "boxed": self.boxed / max(1, self.trajectories),
            "verdicts": " and, without one, ".join(sorted(self.sources, key=SOURCES.index)),
            **({"thinking": self.thinking} if self.thinking else {}),
            **({"conversations": self.conversations} if self.conversations else {}),
            **({"instruction_as_system": self.instructed} if self.instructed else {}),
            **({"near_duplicates": near} if (near := self.near.to_dict()) else {}),
            **({"same_text": same} if (same := self._same_text()) else {}),
            **({"contradicted": found} if (found := _counted(self.contradicted)) else {}),
        }

    def _same_text(self) -> dict[str, Any]:
        """Questions whose text another question has too."""
        times = Counter(self.texts.values())
        return _counted([question for question, text in self.texts.items() if times[text] > 1])

    def _part(self, teachers: list[str]) -> dict[str, Any]:
        """Number, lengths in characters and share of correct trajectories of some teachers together."""
        lengths = sorted(length for teacher in teachers for length in self.lengths[teacher])
        right, wrong = (sum(self.verdicts[teacher, v] for teacher in teachers) for v in (True, False))
        return {
            "trajectories": len(lengths),
            "characters": {
                "median": lengths[len(lengths) // 2] if lengths else 0,
                "mean": round(sum(lengths) / max(1, len(lengths)), 1),
                "max": lengths[-1] if lengths else 0,
            },
            "correct": right / (right + wrong) if right + wrong else None,
        }


def _answer_text(answer: str) -> str:
    """An answer in a form in which equal ones are the same: 5 and 5.0."""
    number = canonical_number(answer)
    return " ".join(answer.split()) if number is None else str(number)


def _counted(questions: Collection[str]) -> dict[str, Any]:
    return {"questions": len(questions), "examples": sorted(questions)[:EXAMPLES]} if questions else {}


def pool_summary(counts: Mapping[str, Any]) -> str:
    """The summary as text: one line per teacher, and one for all."""
    sizes = counts["candidates"]
    each = f"{sizes['min']} candidates each"
    if sizes["min"] != sizes["max"]:
        each = f"{sizes['min']} to {sizes['max']} candidates each (median {sizes['median']})"
    rows = [_pool_row(name, part) for name, part in [*counts["teachers"].items(), ("all", counts["all"])]]
    table = text_table(["teacher", "trajectories", "median length", "mean", "longest", "correct"], rows)
    notes = "Lengths in characters."
    for key, what in (
        ("thinking", "have separate reasoning"),
        ("conversations", "are conversations of several turns"),
    ):
        notes += f" {counts[key]:,} trajectories {what}." if key in counts else ""
    notes += (
        f" Correct by {counts['verdicts']}."
        if counts["all"]["correct"] is not None
        else " Correctness is not known."
    )
    hints = "".join(f"Note: {hint}\n" for hint in _pool_hints(counts))
    return (
        f"\n{counts['questions']:,} question{'' if counts['questions'] == 1 else 's'},"
        f" {each}\n\n{table}\n\n{hints}{notes}\n"
    )


def _pool_row(name: str, part: Mapping[str, Any]) -> list[str]:
    lengths = (f"{part['characters'][key]:,.0f}" for key in ("median", "mean", "max"))
    return [
        shown(name),
        f"{part['trajectories']:,}",
        *lengths,
        "–" if part["correct"] is None else f"{part['correct']:.1%}",
    ]


def shown(name: str, longest: int = 60) -> str:
    """A name from a file, for the terminal: on one line, without control characters, and not too long."""
    plain = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in name)
    return plain if len(plain) <= longest else f"{plain[:longest]}…"


def _reading_hints(counts: Mapping[str, Any]) -> list[str]:
    """What was not read, or only in part."""
    hints = [shown(note, 200) for note in counts.get("notes", [])]
    skipped = counts.get("skipped_files", {})
    for reason in sorted(set(skipped.values())):
        names = [shown(name) for name, why in skipped.items() if why == reason]
        hints.append(
            f"{len(names):,} file{'' if len(names) == 1 else 's'} not read: {some(names)} ({reason})."
        )
    if empty := [shown(name) for name in counts.get("empty_files", [])]:
        hints.append(f"{len(empty):,} file{'' if len(empty) == 1 else 's'} without rows: {some(empty)}.")
    unused = counts.get("unused", {})
    lost = [shown(name) for name in counts.get("lost", [])]
    if lost:
        hints.append(
            f"the column{'' if len(lost) == 1 else 's'} {some(lost)} may hold trajectories too, but the rows"
            f" were read as {' and '.join(counts['layouts'])}. To read them in another way, use"
            " pool.layout=<layout>."
        )
    if unused:
        hints.append(
            "columns that are not used:"
            f" {some((f'{shown(name)} ({rows:,} rows)' for name, rows in unused.items()), 12)}."
        )
    if "cut" in counts:
        hints.append(f"{counts['cut']:,} conversations end with a user or tool turn, which is left out.")
    if "incomplete" in counts:
        hints.append(
            f"{counts['incomplete']:,} trajectories are marked as cut off or have no response (see"
            " pool.incomplete)."
        )
    if "special_tokens" in counts:
        hints.append(
            f"{counts['special_tokens']:,} trajectories contain text like a control token: "
            f"{some(shown(name) for name in counts['special_examples'])} (see pool.special_tokens)."
        )
    if "instruction_as_system" in counts:
        hints.append(
            f"{counts['instruction_as_system']:,} trajectories have the instruction as their system message."
            " It is left out where the instruction ends the user turn (student.instruction), so that prompts"
            " contain it once."
        )
    return hints


def _cleaning_hints(counts: Mapping[str, Any]) -> list[str]:
    """What was removed or labelled on purpose."""
    hints = []
    if "contaminated" in counts:
        found = (
            f"{shown(question)} (like {shown(problem)})"
            for question, problem in counts["contaminated"].items()
        )
        hints.append(f"pool.decontaminate removed {len(counts['contaminated']):,} questions: {some(found)}.")
    if "damaged" in counts:
        damaged, total = counts["damaged"], counts["trajectories"]
        fewer = damaged["trajectories"] < round(damaged["share"] * total)
        hints.append(
            f"pool.noise={damaged['kind']} damaged {damaged['trajectories']:,} of {total:,} trajectories "
            f"({damaged['trajectories'] / total:.1%})"
            + (f", not {damaged['share']:.1%}: it would not change any other." if fewer else ".")
        )
    if "votes" in counts:
        votes = counts["votes"]
        hints.append(
            f"pool.labels=vote labelled {votes['decided']:,} questions by a majority of their candidates; "
            f"{votes['undecided']:,} have no majority, and {votes['given']:,} have their own answers."
        )
    if "same_text" in counts:
        same = counts["same_text"]
        hints.append(
            f"{same['questions']:,} questions have the text of another question, so their candidates are not"
            f" compared with each other: {some(map(shown, same['examples']))}. Give rows with the same"
            " question the same question_id, or none."
        )
    if "contradicted" in counts:
        found = counts["contradicted"]
        hints.append(
            f"{found['questions']:,} questions have different answers in different rows:"
            f" {some(map(shown, found['examples']))}. Each row is compared with its own."
        )
    if "near_duplicates" in counts:
        near = counts["near_duplicates"]
        hints.append(
            f"{near['trajectories']:,} trajectories of {near['questions']:,} questions are nearly identical"
            f" to another candidate: {some(shown(example) for example in near['examples'])}."
        )
    return hints


def _pool_hints(counts: Mapping[str, Any]) -> list[str]:
    """Properties of the pool that often cause problems later."""
    hints = [*_reading_hints(counts), *_cleaning_hints(counts)]
    if "dropped" in counts:
        hints.append(
            f"pool.correct_only dropped {counts['dropped']['trajectories']:,} wrong trajectories, and "
            f"{counts['dropped']['questions']:,} questions without a correct one."
        )
    if counts["boxed"] < 0.5:
        hints.append(
            f"only {counts['boxed']:.1%} of the responses have a \\boxed{{}} answer, and evaluation reads"
            " nothing else: a student trained on them may score 0. If answers are marked in another way, box"
            " them with a pattern, such as \"pool.answer_pattern='<answer>((?:(?!<answer>).)*?)</answer>'\""
            " (with both kinds of quotes)."
        )
    correct = counts["all"]["correct"]
    if correct is not None and correct < 1:
        hints.append(
            f"{1 - correct:.1%} are known to be wrong and can be selected: pool.correct_only=true drops them."
        )
    return hints
