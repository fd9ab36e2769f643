"""Whether rollouts are correct: one verdict per rollout, in their order, by the means of `teach.verify`.

A shard is a range of rollouts. Verdicts that earlier artifacts have are taken over, so a judge or a program
is asked about a rollout once.
"""

import contextlib
import itertools
import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lark.pool.hashing import hash64
from lark.reading.rows import jsonl_rows
from lark.reading.untrusted import parse_object, parsed
from lark.store.integrity import verify as intact
from lark.store.manifest import read_manifest, readable_manifest
from lark.store.siblings import siblings
from lark.store.store import atomic, write_text
from lark.teaching import checks
from lark.teaching.artifacts import ROLLOUTS, VERDICTS
from lark.work.operation import Job
from lark.work.sharding import Do, Progress, Shard, Work, in_shards

if TYPE_CHECKING:
    from lark.work.operation import Counts

TAKEN = "taken.jsonl"
PART = "part-*.jsonl"
ROWS = 200
"""Rollouts of a shard."""
Rollout = Mapping[str, Any]
Verdict = dict[str, Any]
"""`correct` (true, false or null) and what its means adds: grades, the answer that was read, a reason."""
Check = Callable[[Sequence[Rollout]], list[Verdict]]
"""Verdicts on some rollouts."""


class Rollouts:
    """The rollouts of an artifact, read by ranges."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ROLLOUTS.file
        self.starts = array("Q")
        """The first byte of every ROWS-th line."""
        self.count = 0
        place = 0
        with self.path.open("rb") as handle:
            for line in handle:
                if self.count % ROWS == 0:
                    self.starts.append(place)
                place += len(line)
                self.count += 1

    @property
    def parts(self) -> range:
        return range(len(self.starts))

    def size(self, part: int) -> int:
        return min(ROWS, self.count - part * ROWS)

    def read(self, part: int) -> list[Rollout]:
        with self.path.open("rb") as handle:
            handle.seek(self.starts[part])
            lines = list(itertools.islice(handle, ROWS))
        return [parse_object(line, str(self.path)) for line in lines]


@in_shards
def verify(job: Job) -> Work:
    """Verify the rollouts of one teacher."""
    (name, folder), *_ = job.outputs.items()
    rollouts = Rollouts(job.inputs[ROLLOUTS.name])
    parts = {str(part): part for part in rollouts.parts}

    def missing(shards: Sequence[Shard]) -> list[Shard]:
        return [shard for shard in shards if len(read_part(folder, parts[shard.name])) != shard.size]

    @contextlib.contextmanager
    def load() -> Iterator[Do]:
        from lark.teaching.verification import checker  # noqa: PLC0415  # starts processes, or a model

        earlier = _taken(folder)
        with checker(job) as check:

            def do(batch: Sequence[Shard], progress: Progress) -> None:
                for shard in batch:
                    rows = rollouts.read(parts[shard.name])
                    write_part(folder, parts[shard.name], verdicts(rows, check, earlier))
                    progress.update(shard.size)

            yield do

    def describe(shard: Shard) -> str:
        first = parts[shard.name] * ROWS + 1
        return f"teacher {name}, rollouts {first} to {first + int(shard.size) - 1}"

    shards = []
    for label, part in parts.items():
        size = rollouts.size(part)
        shards.append(Shard(label, size, size))
    counts = {name: {"parts": len(shards), "rollouts": rollouts.count}}
    return Work(shards, missing, load, lambda done: counts, describe, f"verifying {name}", "rollout")


def verdicts(rows: Sequence[Rollout], check: Check, earlier: Mapping[str, Verdict]) -> list[Verdict]:
    """The verdicts of some rollouts: earlier ones where there are, otherwise new ones."""
    keys = [content(row) for row in rows]
    new = [row for row, key in zip(rows, keys, strict=True) if key not in earlier]
    made = iter(check(new)) if new else iter(())
    result = []
    for row, key in zip(rows, keys, strict=True):
        ids = {"question_id": row["question_id"], "rollout": row["rollout"], "key": key}
        result.append({**(earlier[key] if key in earlier else next(made)), **ids})
    return result


def content(row: Rollout) -> str:
    """What a verdict depends on."""
    parts = (row["question"], row["answer"] or "", row["response"], row["finish_reason"])
    return f"{hash64(*parts):016x}"


def part_file(folder: Path, part: int) -> Path:
    return folder / f"part-{part:06d}.jsonl"


def write_part(folder: Path, part: int, rows: Sequence[Verdict]) -> None:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    write_text(part_file(folder, part), "".join(lines))


def read_part(folder: Path, part: int) -> list[Verdict]:
    """The verdicts of a shard; empty if it is missing or damaged."""
    path = part_file(folder, part)
    if not path.is_file():
        return []
    rows = [parsed(line) for line in path.read_bytes().splitlines()]
    return rows if all(isinstance(row, dict) for row in rows) else []


def merge(job: Job, counts: "Counts") -> "Counts":
    """One file of all verdicts, in the order of the rollouts."""
    (name, folder), *_ = job.outputs.items()
    correct: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    distinct: set[str] = set()
    """Contents of correct rollouts: equal ones count once."""
    with atomic(folder / VERDICTS.file) as draft, draft.open("w", encoding="utf-8") as out:
        for part in range(counts[name]["parts"]):
            rows = read_part(folder, part)
            for row in rows:
                correct[str(row["correct"])] += 1
                if row["correct"]:
                    distinct.add(row["key"])
                reasons.update([row["reason"]] if row.get("reason") else [])
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
    checks.all_verified(name, correct.total(), counts[name]["rollouts"])
    for path in [*folder.glob(PART), folder / TAKEN]:
        path.unlink(missing_ok=True)
    asked = read_manifest(job.inputs[ROLLOUTS.name]).counts
    made = {
        "rollouts": correct.total(),
        "right": correct["True"],
        "wrong": correct["False"],
        "unknown": correct["None"],
        "distinct": len(distinct),
        **{key: asked[key] for key in ("tokens", "cut", "cost")},
    }
    return {name: made | ({"reasons": dict(reasons.most_common())} if reasons else {})}


def verdict_line(counts: "Counts") -> str:
    """The counts of a teacher's artifact in words."""
    rollouts = max(1, counts["rollouts"])
    judged = counts["right"] + counts["wrong"]
    parts = []
    if judged:
        share = 100 * counts["right"] / judged
        parts.append(f"{share:.1f}% correct ({counts['distinct']:,} different ones)")
    parts.append(f"{counts['tokens'] / rollouts:,.0f} tokens on average")
    parts.append(f"{100 * counts['cut'] / rollouts:.1f}% cut off")
    if counts["unknown"]:
        parts.append(f"{counts['unknown']:,} without a verdict")
    if counts["cost"] and counts["distinct"]:
        parts.append(f"cost {counts['cost'] / counts['distinct']:.4g} per correct and different rollout")
    return ", ".join(parts)


def take_over(job: Job) -> None:
    """Copy the verdicts of earlier artifacts that were made in the same way (`Operation.prepare`)."""
    (_, folder), *_ = job.outputs.items()
    with atomic(folder / TAKEN) as draft, draft.open("w", encoding="utf-8") as out:
        for other in siblings(folder):
            manifest = readable_manifest(other)
            if manifest is None or not manifest.finished:
                continue
            intact(other)
            for row in jsonl_rows(other / VERDICTS.file):
                if row.values["correct"] is not None:
                    out.write(json.dumps(dict(row.values), ensure_ascii=False) + "\n")


def _taken(folder: Path) -> dict[str, Verdict]:
    path = folder / TAKEN
    if not path.is_file() or not path.stat().st_size:
        return {}
    return {row.values["key"]: dict(row.values) for row in jsonl_rows(path)}


def stored(folder: Path) -> Iterator[Verdict]:
    """The verdicts of an artifact."""
    if (folder / VERDICTS.file).stat().st_size:
        for row in jsonl_rows(folder / VERDICTS.file):
            yield dict(row.values)
