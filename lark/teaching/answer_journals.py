"""Answers that a teacher has given so far, in the journals of its processes.

A line is the answer to one request: some samples for a question, or why there are none. Lines are indexed,
not kept: the answers of a large run do not fit into memory.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lark.config.teacher import Price
from lark.generation import journal
from lark.generation.conversation import Ask, Failure, Reply
from lark.generation.journal import Journal, Place

log = logging.getLogger(__name__)

JOURNALS = "shard-*.jsonl"
TAKEN = "taken"
"""Writer of the journal with the answers of earlier artifacts."""
CARRIED = "carried"
"""Writer of the journal with the answers of the heat before."""


def journal_file(folder: Path, writer: str) -> Path:
    """The journal of a process. `writer`: `Job.writer`."""
    return folder / f"shard-{writer}.jsonl"


def cost(price: Price, reply: Reply, samples: int) -> float:
    """The cost of one of several samples, whose request had one prompt."""
    return (price.input * reply.n_prompt_tokens / samples + price.output * reply.n_tokens) / 1e6


def answered(key: str, first: int, ask: Ask, replies: list[Reply], price: Price) -> dict[str, Any]:
    """The line of a request that was answered. `first`: number of its first sample."""
    samples = []
    for number, reply in enumerate(replies):
        labels = {"seed": ask.seed + number, "cost": cost(price, reply, len(replies))}
        samples.append(labels | asdict(reply))
    return {"key": key, "first": first, "samples": samples}


def unanswered(key: str, first: int, failure: Failure) -> dict[str, Any]:
    """The line of a request that this teacher does not answer."""
    return {"key": key, "first": first, "failure": asdict(failure)}


@dataclass
class StoredSamples:
    """What is stored for one question."""

    lines: list[tuple[int, int, Place]] = field(default_factory=list)
    """First sample, number of samples, and place of each line."""
    failure: Mapping[str, str] | None = None
    """Why the teacher does not answer the question."""

    @property
    def samples(self) -> int:
        """Number of samples, counted from the first one to the first that is missing."""
        count = 0
        for first, number, _ in sorted(self.lines):
            if first <= count:
                count = max(count, first + number)
        return count

    def is_complete(self, samples: int) -> bool:
        return self.failure is not None or self.samples >= samples

    def rows(self, samples: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """The first `samples` samples with their numbers, each once."""
        following = 0
        for first, number, place in sorted(self.lines):
            last = min(first + number, samples)
            if first > following or last <= following:
                continue
            stored = journal.record_at(place)["samples"]
            for sample in range(following, last):
                yield sample, stored[sample - first]
            following = last


class JournalIndex:
    """An index of all journals of a folder, by the keys of the questions."""

    def __init__(self, folder: Path, report: bool = False, but: str = "") -> None:
        """`report`: log which lines are left out. `but`: a writer whose journal is not read."""
        self.by_key: dict[str, StoredSamples] = {}
        self.tokens = 0
        self.cost = 0.0
        lost: list[str] = []
        paths = [path for path in folder.glob(JOURNALS) if path != journal_file(folder, but)]
        for record, place in journal.located(paths, folder.name, _no_problem, lost):
            self._add(record, place)
        if lost and report:
            log.warning("%s: %s. Only this is left out, and asked again.", folder, "; ".join(lost[:3]))

    def _add(self, record: Mapping[str, Any], place: Place) -> None:
        answer = self.by_key.setdefault(record["key"], StoredSamples())
        if "failure" in record:
            answer.failure = record["failure"]
            return
        samples = record["samples"]
        answer.lines.append((record["first"], len(samples), place))
        self.tokens += sum(sample["n_tokens"] for sample in samples)
        self.cost += sum(sample["cost"] for sample in samples)

    def get(self, key: str) -> StoredSamples:
        return self.by_key.get(key) or StoredSamples()


def _no_problem(record: Mapping[str, Any]) -> None:
    """Keys that are not wanted are no problem: the questions of a sibling may be others."""
    return


class Limit:
    """The limits on tokens and money of a teacher, over all processes that write journals in a folder."""

    def __init__(self, folder: Path, tokens: float | None, money: float | None) -> None:
        self.folder = folder
        self.tokens = tokens
        self.money = money
        self.places: dict[Path, int] = {}
        """Bytes of each journal that are counted."""
        self.spent_tokens = 0
        self.spent_money = 0.0

    def reached(self) -> bool:
        """Whether one of them is reached. Reads what was added to the journals since the last call."""
        if self.tokens is None and self.money is None:
            return False
        for path in self.folder.glob(JOURNALS):
            self._count(path)
        has_tokens = self.tokens is None or self.spent_tokens < self.tokens
        has_money = self.money is None or self.spent_money < self.money
        return not (has_tokens and has_money)

    def _count(self, path: Path) -> None:
        start = self.places.get(path, 0)
        if path.stat().st_size == start:
            return
        with path.open("rb") as handle:
            handle.seek(start)
            for line in handle:
                if not line.endswith(b"\n"):
                    break
                start += len(line)
                for sample in journal.values(line).get("samples", ()):
                    self.spent_tokens += sample["n_tokens"]
                    self.spent_money += sample["cost"]
        self.places[path] = start


def write(folder: Path, writer: str, records: Iterator[dict[str, Any]]) -> int:
    """Write a whole journal; return the number of its samples."""
    path = journal_file(folder, writer)
    path.unlink(missing_ok=True)
    count = 0
    with Journal(path, folder.name) as lines:
        for record in records:
            lines.append(record)
            count += len(record.get("samples", ()))
    return count
