"""Rows of a pool that teachers wrote in this run: their rollouts with verdicts and pass rates.

`sources.json` in the pool's folder names the artifacts. Rollouts and verdicts of a teacher have one line each
and the same order, so both are read side by side.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lark.pool.checks import another_rollout
from lark.reading.rows import Row, jsonl_rows
from lark.reading.untrusted import readable_object
from lark.store.store import write_text

SOURCES = "sources.json"
ROLLOUTS = "rollouts.jsonl"
VERDICTS = "verdicts.jsonl"
PASS_RATES = "pass_rates.parquet"


def write_sources(inputs: Mapping[str, Path], folder: Path) -> Path:
    """The list of the artifacts that a pool is made of. `inputs`: their folders, as `rollouts:<teacher>`,
    `verdicts:<teacher>` and `pass_rates`.
    """
    path = folder / SOURCES
    write_text(path, json.dumps({name: str(place) for name, place in inputs.items()}, indent=2) + "\n")
    return path


def taught_rows(sources: Path) -> Iterator[Row]:
    """The rollouts of all teachers, one teacher after the other."""
    places = {name: Path(place) for name, place in (readable_object(sources) or {}).items()}
    rates = pass_rates(places["pass_rates"]) if "pass_rates" in places else {}
    for name, folder in places.items():
        kind, _, teacher = name.partition(":")
        if kind == "rollouts":
            for row in verified(folder, places.get(f"verdicts:{teacher}")):
                rate = rates.get(row.values["question_id"])
                yield Row({**row.values, "pass_rate": rate}, row.where, row.path)


def pass_rates(folder: Path) -> dict[str, float]:
    """The share of the student's samples that are correct, of each question that has one."""
    rates = {}
    for row in pq.read_table(folder / PASS_RATES).to_pylist():
        if row["samples"]:
            rates[row["question_id"]] = row["correct"] / row["samples"]
    return rates


def verified(rollouts: Path, verdicts: Path | None) -> Iterator[Row]:
    """The rollouts of a teacher, with their verdicts if there are any."""
    path = rollouts / ROLLOUTS
    if not path.stat().st_size:
        return
    if verdicts is None:
        for row in jsonl_rows(path):
            yield Row(row.values, row.where, path)
        return
    for row, verdict in zip(jsonl_rows(path), jsonl_rows(verdicts / VERDICTS), strict=True):
        if _ids(row.values) != _ids(verdict.values):
            raise another_rollout(row, verdict)
        yield Row({**row.values, "correct": verdict.values["correct"]}, row.where, path)


def _ids(values: Mapping[str, Any]) -> tuple[Any, Any]:
    return values["question_id"], values["rollout"]
