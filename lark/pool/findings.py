"""What a pool's summary finds in its trajectories: faults, verdicts that disagree, answers that are not
read.
"""

from collections import Counter, defaultdict
from typing import Any

from lark import config as conf
from lark.config.pool import ANSWERS
from lark.grading.final_answers import HASHES
from lark.pool.cleaning import EXAMPLES
from lark.pool.hygiene import faults_of
from lark.pool.trajectory import Trajectory, compared, with_answer_from

MOST_TASKS = 50
"""Groups of questions by which disagreements are counted. More of them are not tasks."""


class Findings:
    """Counts that JSON can hold, one trajectory at a time. Two names in a key are separated by a tab."""

    def __init__(self) -> None:
        self.faults: Counter[str] = Counter()
        """Trajectories by fault and teacher."""
        self.fault_examples: dict[str, list[str]] = {}
        self.branches: Counter[str] = Counter()
        """Turns of thought by teacher."""
        self.words: Counter[str] = Counter()
        self.disagreements: Counter[str] = Counter()
        """Trajectories by the pool's verdict, and by teacher or task, where our reading differs."""
        self.compared: Counter[str] = Counter()
        """Trajectories with both verdicts, by teacher or task."""
        self.disagreement_examples: list[str] = []
        self.unread: Counter[str] = Counter()
        """Responses with a gold answer and without an answer that was read, and what other places have."""

    def add(self, trajectory: Trajectory, pool: conf.Pool, is_correct: bool | None, is_voted: bool) -> None:
        """Add a trajectory. `is_correct`: its verdict."""
        self._add_faults(trajectory, pool)
        if trajectory.correct is not None and not is_voted:
            self._add_disagreement(trajectory, pool)
        elif is_correct is None and trajectory.answer:
            self._add_unread(trajectory, pool)

    def _add_faults(self, trajectory: Trajectory, pool: conf.Pool) -> None:
        teacher = trajectory.teacher
        self.branches[teacher] += trajectory.branches
        self.words[teacher] += trajectory.words
        for fault in faults_of(trajectory, pool):
            self.faults[f"{fault}\t{teacher}"] += 1
            examples = self.fault_examples.setdefault(fault, [])
            if len(examples) < EXAMPLES:
                examples.append(named(trajectory))

    def _add_disagreement(self, trajectory: Trajectory, pool: conf.Pool) -> None:
        ours = compared(trajectory, pool)
        if ours is None:
            return
        keys = (f"teacher\t{trajectory.teacher}", f"task\t{task_of(trajectory.question_id)}")
        self.compared.update(keys)
        if ours is trajectory.correct:
            return
        self.disagreements.update(keys)
        self.disagreements["right" if trajectory.correct else "wrong"] += 1
        if len(self.disagreement_examples) < EXAMPLES:
            answer, _ = trajectory.final_answer(pool.answer_from)
            gold = trajectory.answer or ""
            self.disagreement_examples.append(f"{named(trajectory)} ({answer:.40} for {gold:.40})")

    def _add_unread(self, trajectory: Trajectory, pool: conf.Pool) -> None:
        self.unread["trajectories"] += 1
        self.unread["gold after ####"] += HASHES in str(trajectory.answer)
        for place in ANSWERS:
            is_right = compared(trajectory, with_answer_from(pool, place))
            if is_right is not None:
                self.unread[f"{place}\tread"] += 1
                self.unread[f"{place}\tright"] += is_right

    def merge(self, other: "Findings") -> None:
        """Add the findings of a later part of the pool."""
        for name, counts in vars(other).items():
            if isinstance(counts, Counter):
                getattr(self, name).update(counts)
        for fault, examples in other.fault_examples.items():
            self.fault_examples[fault] = (self.fault_examples.get(fault, []) + examples)[:EXAMPLES]
        self.disagreement_examples = (self.disagreement_examples + other.disagreement_examples)[:EXAMPLES]

    def to_dict(self, pool: conf.Pool) -> dict[str, Any]:
        """The entries of the manifest, without empty ones."""
        entries = {
            "faults": self._faults(pool),
            "branching": self._branching(),
            "disagreements": self._disagreements(),
            "unread": self._unread(),
        }
        return {name: entry for name, entry in entries.items() if entry}

    def _faults(self, pool: conf.Pool) -> dict[str, Any]:
        """Each fault: trajectories by teacher, most first, and examples."""
        teachers: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for key, count in self.faults.most_common():
            fault, teacher = key.split("\t", 1)
            teachers[fault][teacher] = count
        faults = {}
        for fault, counts in teachers.items():
            examples = self.fault_examples[fault]
            threshold = pool.threshold(fault)
            faults[fault] = {"teachers": counts, "threshold": threshold, "examples": examples}
        return faults

    def _branching(self) -> dict[str, float]:
        """Turns of thought per 1,000 words of each teacher that has any."""
        rates = {}
        for teacher, count in self.branches.items():
            if count:
                rates[teacher] = round(1000 * count / self.words[teacher], 2)
        return dict(sorted(rates.items(), key=lambda pair: -pair[1]))

    def _disagreements(self) -> dict[str, Any]:
        """Trajectories whose verdict and answer disagree: how many the pool calls right, and where."""
        right = self.disagreements["right"]
        wrong = self.disagreements["wrong"]
        if not right + wrong:
            return {}
        groups = {name: _group(self.disagreements, name) for name in ("task", "teacher")}
        tasks = _group(self.compared, "task")
        is_grouped = 1 < len(tasks) <= MOST_TASKS
        by = "task" if is_grouped else "teacher"
        total = sum(_group(self.compared, "teacher").values())
        return {
            "right": right,
            "wrong": wrong,
            "compared": total,
            "by": by,
            "groups": groups[by],
            "examples": self.disagreement_examples,
        }

    def _unread(self) -> dict[str, Any]:
        """The places that answers could be read from, with how many there are and how many are right."""
        total = self.unread["trajectories"]
        if not total:
            return {}
        places = {}
        for place in ANSWERS:
            if self.unread[f"{place}\tread"]:
                places[place] = {name: self.unread[f"{place}\t{name}"] for name in ("read", "right")}
        return {"trajectories": total, "gold_after_hashes": self.unread["gold after ####"], "places": places}


def _group(counts: Counter[str], kind: str) -> dict[str, int]:
    """The counts of one kind of key, most first."""
    pairs = [(key.split("\t", 1), count) for key, count in counts.most_common() if "\t" in key]
    return {parts[1]: count for parts, count in pairs if parts[0] == kind}


def named(trajectory: Trajectory) -> str:
    return f"{trajectory.question_id}/{trajectory.candidate_id}"


def task_of(question_id: str) -> str:
    """The task that a question's id names: `gcd-017` is a question of gcd."""
    return question_id.rstrip("0123456789abcdef").rstrip("-_.:/#") or "all"
