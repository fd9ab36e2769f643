"""The answers that processes have stored so far, checked against the plan: each problem and seed once, with
all its samples.

Imports no model code: workers and the pipeline use it.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lark.errors import LarkError
from lark.generation import journal
from lark.reading.rows import jsonl_rows
from lark.store.store import Kind, checksum, write_text

log = logging.getLogger(__name__)

GENERATIONS = Kind("generations", 2, "generations.jsonl")
PROBLEMS = "problems.jsonl"
SHARDS = "shard-*.jsonl"
CHECKSUM = "generations.sha256"
"""Checksum of the merged file. Between merging, which removes the shards, and the manifest, nothing else
would show a change.
"""
Samples = list[dict[str, Any]]


def shard(writer: str) -> str:
    """File in which a process stores its answers until all of them are merged. `writer`: `Job.writer`."""
    return f"shard-{writer}.jsonl"


@dataclass(frozen=True)
class Plan:
    """What must be generated for one benchmark."""

    problems: tuple[str, ...]
    """Ids, in the benchmark's order."""
    seeds: tuple[int, ...]
    samples: int

    @property
    def keys(self) -> list[tuple[str, int]]:
        """Problem and seed of every set of samples, in the order of the merged file."""
        return [(problem, seed) for seed in sorted(self.seeds) for problem in self.problems]

    def problem(self, row: Mapping[str, Any]) -> str | None:
        """Why a row does not belong to the plan, or None."""
        if row.get("problem") not in self.problems:
            return "this benchmark has no such problem"
        if row.get("seed") not in self.seeds or isinstance(row.get("seed"), bool):
            return "benchmark.decoding.seeds has no such seed"
        samples = row.get("samples")
        if not isinstance(samples, list) or len(samples) != self.samples:
            return f"{self.samples} samples are expected"
        return None if all(map(_is_sample, samples)) else "a sample is incomplete"


def _is_sample(sample: Any) -> bool:
    return (
        isinstance(sample, dict)
        and isinstance(sample.get("text"), str)
        and sample.get("finish_reason") in ("stop", "length")
        and isinstance(sample.get("n_tokens"), int)
    )


def stored(folder: Path, plan: Plan, report: bool = False) -> dict[tuple[str, int], Samples]:
    """The valid answers in the shards. `report`: log which lines are left out."""
    lost: list[str] = []
    found: dict[tuple[str, int], Samples] = {}
    for row in journal.read(folder.glob(SHARDS), folder.name, plan.problem, lost):
        key = (row["problem"], row["seed"])
        if key in found:
            lost.append(f"problem {key[0]}, seed {key[1]}: the answer is stored twice; the first one counts")
        else:
            found[key] = row["samples"]
    if lost and report:
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        log.warning(
            "%s: %s%s. Only this is left out, and generated again if it is missing.", folder, lost[0], more
        )
    return found


def merged(folder: Path, plan: Plan, report: bool = False) -> bool:
    """Whether the merged file exists, is unchanged and has exactly what was planned: if a run was killed
    right after merging.

    `report`: log that there is one, but that it is damaged.
    """
    path = folder / GENERATIONS.file
    if not path.is_file():
        return False
    try:
        rows = [row.values for row in jsonl_rows(path)]
    except LarkError:
        rows = []
    expected = [(*key, sample) for key in plan.keys for sample in range(plan.samples)]
    found = [(row.get("problem"), row.get("seed"), row.get("sample")) for row in rows]
    whole = found == expected and all(map(_is_sample, rows)) and _is_unchanged(folder)
    if report and not whole:
        log.warning("%s does not contain exactly the planned answers: it is made again.", path)
    return whole


def _is_unchanged(folder: Path) -> bool:
    try:
        return (folder / CHECKSUM).read_bytes().decode("ascii", "replace").strip() == checksum(
            folder / GENERATIONS.file
        )
    except OSError:
        return False


def merge(folder: Path, plan: Plan) -> dict[str, Any]:
    """Merge the shards into `generations.jsonl`: one sample per line, in the benchmark's order. The shards
    are removed.
    """
    if not merged(folder, plan):
        answers = stored(folder, plan)
        missing = [key for key in plan.keys if key not in answers]
        if missing:
            problem, seed = missing[0]
            raise LarkError(
                f"{folder}: {len(missing)} of {len(plan.keys)} answers are missing or damaged (problem"
                f" {problem}, seed {seed}). Run the same command again to generate them."
            )
        write_text(folder / GENERATIONS.file, "".join(_lines(answers, plan.keys)))
        write_text(folder / CHECKSUM, checksum(folder / GENERATIONS.file) + "\n")
    for path in sorted(folder.glob(SHARDS)):
        path.unlink()
    return {"generations": len(plan.keys) * plan.samples}


def _lines(answers: Mapping[tuple[str, int], Samples], keys: Sequence[tuple[str, int]]) -> Iterator[str]:
    for problem, seed in keys:
        for number, sample in enumerate(answers[problem, seed]):
            yield (
                json.dumps({"problem": problem, "seed": seed, "sample": number, **sample}, ensure_ascii=False)
                + "\n"
            )
