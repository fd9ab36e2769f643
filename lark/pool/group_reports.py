"""The report of a process on a group of a pool's files, as two files: JSON, and an array of sketches.

On a cluster, groups are read on other machines. Their reports tell the machine that leads what is in them.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lark import config as conf
from lark.pool.cleaning import Tally
from lark.pool.findings import Findings
from lark.pool.partition import GroupReport
from lark.pool.summary import Summary
from lark.reading.untrusted import read_object, readable_object
from lark.store.store import atomic, write_text

SUMMARY_COUNTS = ("candidates", "right", "wrong", "sources", "traits", "texts", "answers", "contradicted")
"""Attributes of a summary that JSON can hold."""


def report_files(part: Path) -> tuple[Path, Path]:
    """The two files of a part's report."""
    return part.with_suffix(".json"), part.with_suffix(".npy")


def write_report(report: GroupReport, part: Path, start: Mapping[str, int]) -> None:
    """Write the report of a part. `start`: the numbers that its questions started with."""
    summary = report.summary
    values: dict[str, Any] = {
        "start": start,
        "counts": report.counts,
        "numbered": report.numbered,
        "texts": report.texts,
        "keys": report.keys.tolist(),
        "missing": report.missing,
        "questions": report.questions,
        "tally": _not_empty(vars(report.tally)),
        "summary": {name: getattr(summary, name) for name in SUMMARY_COUNTS},
        "lengths": summary.lengths,
        "findings": vars(summary.findings),
        "near": summary.near.names,
    }
    json_file, array_file = report_files(part)
    # In the order of the names in `near`: the reader deals the sketches to questions by their number.
    sketches = [sketch for of_question in summary.near.sketches.values() for sketch in of_question]
    with atomic(array_file) as draft, draft.open("wb") as handle:
        np.save(handle, np.array(sketches, dtype=np.uint32))
    # The JSON file last: `has_report` takes it as the sign that everything is there. JSON has no sets and
    # no arrays, so `list` stores them.
    write_text(json_file, json.dumps(values, default=list))


def _not_empty(counts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: count for name, count in counts.items() if count}


def has_report(part: Path, start: Mapping[str, int]) -> bool:
    """Whether a part and its report are there, with these numbers."""
    json_file, array_file = report_files(part)
    values = readable_object(json_file) or {}
    return part.exists() and array_file.exists() and values.get("start") == start


def read_report(part: Path, pool: conf.Pool) -> GroupReport:
    """The report of a part, as `write_report` has stored it."""
    json_file, array_file = report_files(part)
    values = read_object(json_file)
    tally = Tally()
    _restore(tally, values["tally"])
    summary = Summary(pool, tally)
    _restore(summary, values["summary"])
    _restore(summary.findings, values["findings"])
    for teacher, lengths in values["lengths"].items():
        summary.lengths[teacher].extend(lengths)
    sketches = iter(np.load(array_file, allow_pickle=False))
    for question, names in values["near"].items():
        summary.near.names[question] = names
        summary.near.sketches[question] = [next(sketches) for _ in names]
    return GroupReport(
        tally=tally,
        summary=summary,
        counts=Counter(values["counts"]),
        numbered=set(values["numbered"]),
        texts=values["texts"],
        keys=np.array(values["keys"], dtype=np.uint64),
        missing=set(values["missing"]),
        questions=set(values["questions"]),
    )


def _restore(empty: Tally | Summary | Findings, counts: Mapping[str, Any]) -> None:
    """Fill an object without counts. What it has now says what a list of JSON was: a set, a counter."""
    for name, count in counts.items():
        kind = type(getattr(empty, name))
        setattr(empty, name, kind(count))
