"""Ask one teacher: its answers are written to journals as they come, and merged at the end.

A shard is a question with the samples of it that are missing. So a run that was killed asks nothing again
that was answered, and one with more questions or samples takes over what earlier ones have
(lark/teaching/earlier.py). A question's random numbers depend on its text and on the sample's number
alone, so a local teacher gives the same samples in every case.
"""

import contextlib
import hashlib
import json
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lark.generation import conversation
from lark.generation.checks import require_few_failures
from lark.generation.conversation import Ask, AskSampling, Failure, Reply, RunningTeacher
from lark.generation.journal import Journal
from lark.models.dialogue import opening
from lark.reading.untrusted import readable_object
from lark.store.store import atomic, write_text
from lark.teaching import answer_journals, checks
from lark.teaching.answer_journals import JOURNALS, JournalIndex, Limit, StoredSamples
from lark.teaching.artifacts import ROLLOUTS
from lark.teaching.asked import asked, limits
from lark.teaching.question_files import AskedQuestion
from lark.work.operation import Job
from lark.work.sharding import Do, Progress, Shard, Work, in_shards

if TYPE_CHECKING:
    from lark.work.operation import Counts

FAILED = "failures.jsonl"
"""Questions without an answer, and why."""
TAKEN = "taken.json"
"""Rollouts that were taken over, by artifact."""
MERGED = "merged.json"
"""The counts, written when the merged file is complete."""


class TeacherWork:
    """The questions of one teacher's artifact, and how it is asked."""

    def __init__(self, job: Job) -> None:
        self.job = job
        (self.name, self.folder), *_ = job.outputs.items()
        self.teacher = job.config.teacher[self.name]
        self.samples = job.config.teach.samples
        self.questions, self.spared = asked(job, self.name)
        self.by_key = {question.key: question for question in self.questions}
        self.limit = Limit(self.folder, *limits(job, self.name))

    def missing(self, found: JournalIndex) -> list[str]:
        """Keys of the questions that have to be asked, or asked again for more samples."""
        return [key for key in self.by_key if not found.get(key).is_complete(self.samples)]

    def ask(self, question: AskedQuestion, first: int) -> Ask:
        """The request for the samples from `first` on."""
        system = self.teacher.system_prompt(question.system)
        messages = opening(question.question, system, self.teacher.instruction)
        seed = seed_of(question, self.job.config.teach.seed) + first
        return Ask(tuple(messages), seed, self.samples - first)

    @property
    def sampling(self) -> AskSampling:
        return AskSampling.of(self.teacher)


def seed_of(question: AskedQuestion, seed: int) -> int:
    """Seed of a question's first sample. The others count up from it, so it is a hash."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{question.key}".encode()).digest()[:4], "big") >> 1


@in_shards
def teach(job: Job) -> Work:
    """Ask the teacher in `job.outputs` what is missing."""
    workload = TeacherWork(job)

    def missing(candidates: Sequence[Shard]) -> list[Shard]:
        if merged(workload.folder):
            return []
        found = JournalIndex(workload.folder, report=job.is_main)
        if workload.limit.reached():
            return []
        keys = set(workload.missing(found))
        return [shard for shard in candidates if shard.name in keys]

    @contextlib.contextmanager
    def load() -> Iterator[Do]:
        found = JournalIndex(workload.folder)
        with started(workload.name, job) as teacher:

            def do(batch: Sequence[Shard], progress: Progress) -> None:
                _run(workload, teacher, found, [workload.by_key[shard.name] for shard in batch], progress)

            yield do

    def describe(shard: Shard) -> str:
        return f"question {workload.by_key[shard.name].question_id} of teacher {workload.name}"

    shards = [Shard(key) for key in workload.by_key]
    counts: dict[str, Any] = {workload.name: {}}
    label = f"asking {workload.name}"
    return Work(shards, missing, load, lambda done: counts, describe, label, "question", many=True)


def started(name: str, job: Job) -> contextlib.AbstractContextManager[RunningTeacher]:
    """A teacher, for the time of a block."""
    config = job.config
    teacher = conversation.start(name, config.teacher[name], config.engine, job.device, job.weights or None)
    return conversation.asking(teacher)


def _run(
    workload: TeacherWork,
    teacher: RunningTeacher,
    found: JournalIndex,
    questions: Sequence[AskedQuestion],
    progress: Progress,
) -> None:
    firsts = [found.get(question.key).samples for question in questions]
    asks = [workload.ask(question, first) for question, first in zip(questions, firsts, strict=True)]
    price = workload.teacher.price
    failed: Counter[str] = Counter()
    tokens = 0
    cost = 0.0
    start = time.monotonic()
    path = answer_journals.journal_file(workload.folder, workload.job.writer)
    with (
        Journal(path, workload.folder.name) as journal,
        contextlib.closing(_answers(teacher, asks, workload)) as outcomes,
    ):
        for index, outcome in outcomes:
            key = questions[index].key
            if isinstance(outcome, Failure):
                journal.append(answer_journals.unanswered(key, firsts[index], outcome))
                failed[outcome.reason] += 1
                require_few_failures(workload.name, workload.teacher, failed, len(workload.questions))
            else:
                record = answer_journals.answered(key, firsts[index], asks[index], outcome, price)
                journal.append(record)
                tokens += sum(sample["n_tokens"] for sample in record["samples"])
                cost += sum(sample["cost"] for sample in record["samples"])
            rate = tokens / max(time.monotonic() - start, 1e-9)
            progress.note(f"{rate:,.0f} tok/s" + (f", cost {cost:,.2f}" if cost else ""))
            progress.update(1)


def _answers(
    teacher: RunningTeacher, asks: Sequence[Ask], workload: TeacherWork
) -> Generator[tuple[int, list[Reply] | Failure]]:
    """The teacher's answers until a limit is reached. What is in flight then is not waited for."""
    if workload.limit.reached():
        return
    for outcome in teacher.ask(asks, workload.sampling):
        yield outcome
        if workload.limit.reached():
            return


def merged(folder: Path) -> bool:
    """Whether the journals have been merged, as after a run that was killed right after merging."""
    return (folder / MERGED).is_file()


def merge(job: Job, counts: "Counts") -> "Counts":
    """Write one row per sample, in the order of the questions, and remove the journals."""
    workload = TeacherWork(job)
    folder = workload.folder
    if not merged(folder):
        found = JournalIndex(folder)
        if not workload.limit.reached():
            checks.all_asked(workload.name, workload.missing(found), len(workload.by_key))
        tally = RolloutTally(workload)
        with atomic(folder / ROLLOUTS.file) as draft, draft.open("w", encoding="utf-8") as out:
            for question in workload.questions:
                for row in tally.rows(question, found.get(question.key)):
                    out.write(json.dumps(row, ensure_ascii=False) + "\n")
        # Of all processes together; each of them checks its own.
        reasons = tally.reasons
        require_few_failures(workload.name, workload.teacher, reasons, len(workload.questions))
        write_text(folder / FAILED, "".join(json.dumps(row) + "\n" for row in tally.failed))
        # Last but one: a run that is killed before still has the journals.
        write_text(folder / MERGED, json.dumps(tally.to_dict()))
    for path in sorted(folder.glob(JOURNALS)):
        path.unlink()
    (folder / TAKEN).unlink(missing_ok=True)
    return {workload.name: json.loads((folder / MERGED).read_text(encoding="utf-8"))}


@dataclass
class RolloutTally:
    """Counts of an artifact, for its manifest."""

    workload: TeacherWork
    rollouts: int = 0
    cut: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cost: float = 0.0
    answered: int = 0
    failed: list[dict[str, Any]] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    """Names that the model gave itself."""

    def rows(self, question: AskedQuestion, answer: StoredSamples) -> Iterator[dict[str, Any]]:
        """The rows of a question's samples."""
        if answer.failure is not None and not answer.lines:
            self.failed.append({"key": question.key, "question_id": question.question_id, **answer.failure})
        has_samples = False
        for number, sample in answer.rows(self.workload.samples):
            has_samples = True
            self.rollouts += 1
            self.cut += sample["finish_reason"] == "length"
            self.tokens += sample["n_tokens"]
            self.prompt_tokens += sample["n_prompt_tokens"]
            self.cost += sample["cost"]
            self.models.add(sample["model"])
            yield row_of(question, self.workload, number, sample)
        self.answered += has_samples

    @property
    def reasons(self) -> Counter[str]:
        """Questions without an answer, by reason."""
        return Counter(row["reason"] for row in self.failed)

    def to_dict(self) -> dict[str, Any]:
        asked = len(self.workload.questions)
        reasons = self.reasons
        rest = asked - self.answered - len(self.failed)
        spared = self.workload.spared
        return {
            "questions": asked,
            "rollouts": self.rollouts,
            "cut": self.cut,
            "tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "cost": round(self.cost, 6),
            "models": sorted(self.models),
            **({"failures": dict(reasons.most_common())} if reasons else {}),
            **({"not_asked": rest} if rest else {}),
            **({"spared": spared} if spared else {}),
            **self._taken(),
        }

    def _taken(self) -> dict[str, Any]:
        """Rollouts that were taken over, by artifact."""
        taken = readable_object(self.workload.folder / TAKEN)
        return {"taken": taken} if taken else {}


def row_of(
    question: AskedQuestion, workload: TeacherWork, number: int, sample: Mapping[str, Any]
) -> dict[str, Any]:
    """A rollout as a row of a pool, with how it was made."""
    teacher = workload.teacher
    labels = {
        "question_id": question.question_id,
        "candidate_id": f"{workload.name}.{number}",
        "teacher": workload.name,
        "rollout": number,
        "system": question.system,
        "question": question.question,
        "response": sample["text"],
        "reasoning_content": sample["reasoning"],
        "answer": question.answer,
        "key": question.key,
        "temperature": teacher.temperature,
        "top_p": teacher.top_p,
    }
    made = dict(sample)
    del made["text"], made["reasoning"]
    return labels | made


def sample_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The sample that a row was made from, for an artifact that takes it over."""
    names = ("seed", "cost", "finish_reason", "n_tokens", "n_prompt_tokens", "model", "logprobs")
    sample = {name: row[name] for name in names}
    return sample | {"text": row["response"], "reasoning": row["reasoning_content"]}
