"""The report of a process on a group of a pool's files, as files: JSON, and arrays without pickled objects.

On a cluster, groups are read on other machines. Their reports tell the machine that leads what is in them.
"""

import json
from array import array
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lark import config as conf
from lark.pool.cleaning import Tally
from lark.pool.partition import GroupReport
from lark.pool.summary import Summary
from lark.reading.untrusted import read_object, readable_object
from lark.store.store import atomic, write_text

TALLY_NUMBERS = ("incomplete", "cut", "special", "wrong")
TALLY_SETS = ("lost", "right_questions", "wrong_questions", "empty")
SUMMARY_NUMBERS = ("boxed", "thinking", "conversations", "instructed")


def report_files(part: Path) -> tuple[Path, Path]:
    """The two files of a part's report."""
    return part.with_suffix(".json"), part.with_suffix(".npz")


def write_report(report: GroupReport, part: Path, start: Mapping[str, int]) -> None:
    """Write the report of a part. `start`: the numbers that its questions started with."""
    values: dict[str, Any] = {
        "start": start,
        "counts": report.counts,
        "numbered": sorted(report.numbered),
        "texts": report.texts,
        "missing": sorted(report.missing),
        "questions": sorted(report.questions),
        "tally": _tally_values(report.tally),
        "summary": _summary_values(report.summary),
    }
    json_file, array_file = report_files(part)
    lengths: list[int] = []
    for of_teacher in report.summary.lengths.values():
        lengths += of_teacher
    sketches: list[np.ndarray] = []
    for candidates in report.summary.near.sketches.values():
        sketches += [sketch for _, sketch in candidates]
    with atomic(array_file) as draft, draft.open("wb") as handle:
        np.savez(
            handle,
            keys=report.keys,
            sketches=np.array(sketches, dtype=np.uint32),
            lengths=np.array(lengths, dtype=np.int64),
        )
    # The JSON file last: `has_report` takes it as the sign that everything is there.
    write_text(json_file, json.dumps(values))


def _tally_values(tally: Tally) -> dict[str, Any]:
    values: dict[str, Any] = {
        "layouts": tally.layouts,
        "unused": tally.unused,
        "examples": tally.examples,
    }
    for name in TALLY_NUMBERS:
        values[name] = getattr(tally, name)
    for name in TALLY_SETS:
        values[name] = sorted(getattr(tally, name))
    return values


def _summary_values(summary: Summary) -> dict[str, Any]:
    near: dict[str, list[str]] = {}
    for question, candidates in summary.near.sketches.items():
        near[question] = [name for name, _ in candidates]
    values: dict[str, Any] = {
        "candidates": summary.candidates,
        "near": near,
        "sources": sorted(summary.sources),
        "verdicts": [[*key, count] for key, count in summary.verdicts.items()],
        "teachers": {teacher: len(lengths) for teacher, lengths in summary.lengths.items()},
        "texts": summary.texts,
        "answers": summary.answers,
        "contradicted": sorted(summary.contradicted),
    }
    for name in SUMMARY_NUMBERS:
        values[name] = getattr(summary, name)
    return values


def has_report(part: Path, start: Mapping[str, int]) -> bool:
    """Whether a part and its report are there, with these numbers."""
    json_file, array_file = report_files(part)
    values = readable_object(json_file) or {}
    return part.exists() and array_file.exists() and values.get("start") == start


def read_report(part: Path, pool: conf.Pool) -> GroupReport:
    json_file, array_file = report_files(part)
    values = read_object(json_file)
    with np.load(array_file, allow_pickle=False) as arrays:
        keys = arrays["keys"]
        sketches = arrays["sketches"]
        lengths = arrays["lengths"].tolist()
    tally = _tally(values["tally"])
    texts = {question: (int(text), int(row)) for question, (text, row) in values["texts"].items()}
    return GroupReport(
        tally=tally,
        summary=_summary(values["summary"], Summary(pool, tally), lengths, sketches),
        counts=Counter(values["counts"]),
        numbered=set(values["numbered"]),
        texts=texts,
        keys=keys,
        missing=set(values["missing"]),
        questions=set(values["questions"]),
    )


def _tally(values: Mapping[str, Any]) -> Tally:
    tally = Tally(
        layouts=Counter(values["layouts"]), unused=Counter(values["unused"]), examples=values["examples"]
    )
    for name in TALLY_NUMBERS:
        setattr(tally, name, values[name])
    for name in TALLY_SETS:
        setattr(tally, name, set(values[name]))
    return tally


def _summary(
    values: Mapping[str, Any], summary: Summary, lengths: list[int], sketches: np.ndarray
) -> Summary:
    """The summary, with lengths and sketches in the order in which `write_report` has joined them."""
    summary.candidates = Counter(values["candidates"])
    summary.sources = set(values["sources"])
    summary.texts = values["texts"]
    summary.answers = values["answers"]
    summary.contradicted = set(values["contradicted"])
    for teacher, verdict, count in values["verdicts"]:
        summary.verdicts[teacher, verdict] = count
    for name in SUMMARY_NUMBERS:
        setattr(summary, name, values[name])
    place = 0
    for teacher, count in values["teachers"].items():
        summary.lengths[teacher] = array("L", lengths[place : place + count])
        place += count
    place = 0
    for question, names in values["near"].items():
        of_question = sketches[place : place + len(names)]
        summary.near.sketches[question] = list(zip(names, of_question, strict=True))
        place += len(names)
    return summary
