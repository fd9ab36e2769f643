"""The answers that processes have stored so far, checked against the workload: each problem and seed once,
with all its samples.

Imports no model code: workers and the pipeline use it.
"""

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lark.evaluation import checks
from lark.generation import journal
from lark.reading.rows import jsonl_rows
from lark.store.store import Kind, checksum, write_text

log = logging.getLogger(__name__)

GENERATIONS = Kind("generations", 2, "generations.jsonl")
PROBLEMS_FILE = "problems.jsonl"
SHARD_FILES = "shard-*.jsonl"
CHECKSUM = "generations.sha256"
"""File with the checksum of the merged file. Nothing else would show a change between merging, which removes
the shards, and the manifest.
"""
Samples = list[dict[str, Any]]


def shard(writer: str) -> str:
    """File in which a process stores its answers until all of them are merged. `writer`: `Job.writer`."""
    return f"shard-{writer}.jsonl"


@dataclass(frozen=True)
class WantedSamples:
    """The samples to generate for one benchmark."""

    problems: tuple[str, ...]
    """Ids, in the benchmark's order."""
    seeds: tuple[int, ...]
    samples: int

    @property
    def keys(self) -> list[tuple[str, int]]:
        """Problem and seed of every set of samples, in the order of the merged file."""
        return [(problem, seed) for seed in sorted(self.seeds) for problem in self.problems]

    def problem(self, row: Mapping[str, Any]) -> str | None:
        """Why a row does not belong to the workload, or None."""
        # Only a row that this code wrote has the checksum of its line, so types need no check. But the hub's
        # file, and with it the problems, may have changed since a run was interrupted.
        if row["problem"] not in self.problems or row["seed"] not in self.seeds:
            return "this benchmark has no such problem, or no such seed"
        if len(row["samples"]) != self.samples:
            return f"{self.samples} samples are expected"
        return None


def stored(folder: Path, workload: WantedSamples, report: bool = False) -> dict[tuple[str, int], Samples]:
    """The valid answers in the shards, by problem and seed. `report`: log which lines are left out."""
    lost: list[str] = []
    answers: dict[tuple[str, int], Samples] = {}
    for row in journal.read(folder.glob(SHARD_FILES), folder.name, workload.problem, lost):
        problem = row["problem"]
        seed = row["seed"]
        if (problem, seed) in answers:
            lost.append(f"problem {problem}, seed {seed}: the answer is stored twice; the first one counts")
        else:
            answers[problem, seed] = row["samples"]
    if lost and report:
        others = f" (and {len(lost) - 1:,} more)" if len(lost) > 1 else ""
        log.warning(
            "%s: %s%s. Only this is left out, and generated again if it is missing.", folder, lost[0], others
        )
    return answers


def merged(folder: Path, report: bool = False) -> bool:
    """True if the merged file is there and unchanged, as after a run that was killed right after merging.
    `report`: log if it is there but damaged.
    """
    path = folder / GENERATIONS.file
    if not path.is_file():
        return False
    is_complete = False
    # Without its checksum, the file was not merged to the end.
    with contextlib.suppress(OSError):
        is_complete = (folder / CHECKSUM).read_text().strip() == checksum(path)
    if report and not is_complete:
        log.warning("%s does not contain exactly the planned answers: it is made again.", path)
    return is_complete


def merge(folder: Path, workload: WantedSamples) -> dict[str, Any]:
    """Merge the shards into `generations.jsonl`: one sample per line, in the benchmark's order. The shards
    are removed.
    """
    if not merged(folder):
        answers = stored(folder, workload)
        missing = [key for key in workload.keys if key not in answers]
        checks.all_answers(folder, missing, len(workload.keys))
        write_text(folder / GENERATIONS.file, json_lines(_in_order(answers, workload.keys)))
        write_text(folder / CHECKSUM, checksum(folder / GENERATIONS.file) + "\n")
    # Last: a run that is killed before still has the answers.
    for path in sorted(folder.glob(SHARD_FILES)):
        path.unlink()
    return {"generations": len(workload.keys) * workload.samples}


def _in_order(
    answers: Mapping[tuple[str, int], Samples], keys: Sequence[tuple[str, int]]
) -> Iterator[dict[str, Any]]:
    for problem, seed in keys:
        for number, sample in enumerate(answers[problem, seed]):
            yield {"problem": problem, "seed": seed, "sample": number, **sample}


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [dict(row.values) for row in jsonl_rows(path)]
