"""What a process has found in a group of a pool's files, as files: JSON, and arrays without pickled objects.

On a cluster, groups are read on other machines, and this is how the machine that leads learns about them.
"""

import json
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from lark import config as conf
from lark.pool.cleaning import Tally
from lark.pool.partition import GroupReport
from lark.pool.summary import Summary
from lark.reading.untrusted import read_object, readable_object
from lark.store.store import atomic, write_text

NUMBERS = ("incomplete", "cut", "special", "wrong")
SETS = ("lost", "right_questions", "wrong_questions", "empty")
COUNTS = ("boxed", "thinking", "conversations", "instructed")


def paths(part: Path) -> tuple[Path, Path]:
    """The two files of a part's report."""
    return part.with_suffix(".json"), part.with_suffix(".npz")


def write_report(group: GroupReport, part: Path, start: dict[str, int]) -> None:
    """Write the report of a part. `start`: the numbers that its questions started with."""
    tally, summary = group.tally, group.summary
    near = {question: [name for name, _ in found] for question, found in summary.near.sketches.items()}
    values: dict[str, Any] = {
        "start": start,
        "counts": group.counts,
        "numbered": sorted(group.numbered),
        "texts": group.texts,
        "missing": sorted(group.missing),
        "named": sorted(group.named),
        "tally": {"layouts": tally.layouts, "unused": tally.unused, "examples": tally.examples}
        | {name: getattr(tally, name) for name in NUMBERS}
        | {name: sorted(getattr(tally, name)) for name in SETS},
        "summary": {
            "candidates": summary.candidates,
            "near": near,
            "sources": sorted(summary.sources),
            "verdicts": [[*key, count] for key, count in summary.verdicts.items()],
            "teachers": {teacher: len(found) for teacher, found in summary.lengths.items()},
            "texts": summary.texts,
            "answers": summary.answers,
            "contradicted": sorted(summary.contradicted),
        }
        | {name: getattr(summary, name) for name in COUNTS},
    }
    json_file, array_file = paths(part)
    sketches = [values for found in summary.near.sketches.values() for _, values in found]
    with atomic(array_file) as draft, draft.open("wb") as handle:
        np.savez(
            handle,
            keys=group.keys,
            sketches=np.array(sketches, dtype=np.uint32),
            lengths=np.array([n for found in summary.lengths.values() for n in found], dtype=np.int64),
        )
    write_text(json_file, json.dumps(values))


def has_report(part: Path, start: dict[str, int]) -> bool:
    """Whether a part and its report are there, with these numbers."""
    json_file, array_file = paths(part)
    report = readable_object(json_file) or {}
    return part.exists() and array_file.exists() and report.get("start") == start


def read_report(part: Path, pool: conf.Pool) -> GroupReport:
    json_file, array_file = paths(part)
    values = read_object(json_file)
    with np.load(array_file, allow_pickle=False) as arrays:
        keys, sketches, lengths = arrays["keys"], arrays["sketches"], arrays["lengths"].tolist()
    tally, said = Tally(), values["tally"]
    tally.layouts, tally.unused, tally.examples = (
        Counter(said["layouts"]),
        Counter(said["unused"]),
        said["examples"],
    )
    for name in NUMBERS:
        setattr(tally, name, said[name])
    for name in SETS:
        setattr(tally, name, set(said[name]))
    summary, said = Summary(pool, tally), values["summary"]
    summary.candidates, summary.sources = Counter(said["candidates"]), set(said["sources"])
    summary.verdicts = Counter({(teacher, verdict): count for teacher, verdict, count in said["verdicts"]})
    summary.texts, summary.answers, summary.contradicted = (
        said["texts"],
        said["answers"],
        set(said["contradicted"]),
    )
    for name in COUNTS:
        setattr(summary, name, said[name])
    place = 0
    for teacher, count in said["teachers"].items():
        summary.lengths[teacher] = array("L", lengths[place : place + count])
        place += count
    place = 0
    for question, names in said["near"].items():
        summary.near.sketches[question] = list(zip(names, sketches[place : place + len(names)], strict=True))
        place += len(names)
    return GroupReport(
        tally, summary, Counter(values["counts"]), set(values["numbered"]),
        {question: (int(text), int(row)) for question, (text, row) in values["texts"].items()}, keys,
        set(values["missing"]), set(values["named"]),
    )  # fmt: skip
