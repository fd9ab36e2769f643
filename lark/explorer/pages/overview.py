"""The first page: runs, artifacts, results and progress."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from lark.config import GRADERS
from lark.evaluation.grade import GRADES_FILE, METRICS
from lark.evaluation.metrics import BenchmarkMetrics
from lark.evaluation.resampled import Resampled, resampled_metrics
from lark.evaluation.shards import read_lines
from lark.explorer.context import Context
from lark.explorer.evaluated import Evaluation, evaluations, models_of
from lark.explorer.listing import Entry, Listing, started
from lark.explorer.lists import Rows, list_of
from lark.explorer.pages.runs import running
from lark.explorer.problems import PageError, reading
from lark.explorer.progress import LOG, progress
from lark.explorer.values import moment
from lark.explorer.views import views_of
from lark.pool.trajectories import POOL_TABLE

FLOW = (
    "pool",
    "lengths",
    "scores",
    "tokens",
    "local",
    "text",
    "judge",
    "selection",
    "checkpoint",
    "generations",
    "metrics",
)
"""Kinds in the order of the data flow; others follow."""
STATES = ("finished", "running", "failed", "damaged", "interrupted", "unreadable")
WRONG = ("failed", "damaged", "unreadable")
SHOWN_RUNNING = 12


def overview(context: Context) -> dict[str, Any]:
    """Counts by kind, what is being made, and where each page starts."""
    listing = context.listing()
    totals: Counter[tuple[str, str]] = Counter()
    active = []
    wrong = []
    for entry in listing:
        state = listing.state(entry)
        totals[entry.kind, state] += 1
        if state == "running":
            active.append(entry)
        elif state in WRONG:
            wrong.append(entry)
    counts = []
    for kind in sorted({kind for kind, _ in totals}, key=_place):
        counts.append({"kind": kind, **{state: totals[kind, state] for state in STATES}})
    in_progress = []
    for entry in active[:SHOWN_RUNNING]:
        in_progress.append({**row(listing, entry), **progress(entry, _together(entry, active))})
    return {
        "store": listing.root.name,
        "now": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "kinds": counts,
        "runs": running(context, listing),
        "running": in_progress,
        "failed": [row(listing, entry) for entry in wrong[:SHOWN_RUNNING]],
        "pools": pools(listing),
    }


def _together(entry: Entry, active: list[Entry]) -> Entry:
    """The artifact whose log reports the progress: several artifacts of one step share a log, and the time
    of their start.
    """
    sharing = [other for other in active if started(other) == started(entry) and other.file(LOG).exists()]
    return entry if entry in sharing or not sharing else sharing[0]


def pools(listing: Listing) -> list[dict[str, Any]]:
    """The pools, newest first, with the students that were run on each."""
    return [
        {
            "fingerprint": pool.fingerprint,
            "name": pool.name,
            "state": listing.state(pool),
            "questions": pool.counts.get("questions"),
            "trajectories": pool.counts.get("trajectories"),
            "views": [view.describe() for view in views_of(listing, pool)],
        }
        for pool in listing.of(POOL_TABLE.name)
    ]


def _place(kind: str) -> tuple[int, str]:
    place = FLOW.index(kind) if kind in FLOW else len(FLOW)
    return place, kind


def row(listing: Listing, entry: Entry) -> dict[str, Any]:
    """An artifact in a list."""
    error = entry.problem or entry.manifest.error
    return {
        "kind": entry.kind,
        "name": entry.name,
        "fingerprint": entry.fingerprint,
        "state": listing.state(entry),
        "started": started(entry) or None,
        "seconds": entry.manifest.seconds if entry.manifest.started else None,
        "users": len(listing.used_by(entry)),
        "error": error[:1000] if error else None,
    }


def artifacts(context: Context) -> Rows:
    """All artifacts, newest first."""
    listing = context.listing()
    entries = sorted(listing, key=lambda e: (started(e), -_place(e.kind)[0]), reverse=True)
    rows = [row(listing, entry) for entry in entries]
    kinds = sorted({entry.kind for entry in entries}, key=_place)
    return list_of(
        rows,
        lambda row: f"{row['kind']} {row['name']} {row['fingerprint']}",
        {"state": STATES, "kind": kinds},
        {
            "started": [moment(row["started"]) for row in rows],
            "seconds": [row["seconds"] for row in rows],
            "users": [row["users"] for row in rows],
        },
    )


def results(context: Context) -> dict[str, Any]:
    """Accuracy of every model on every benchmark, by grader, with intervals."""
    graded = evaluations(context.listing())
    tasks = {evaluation.group: evaluation.task for evaluation in graded}
    cells: dict[str, dict[str, Any]] = {}
    notes = []
    for evaluation in graded:
        try:
            cells.setdefault(evaluation.model.id, {})[evaluation.group] = _cell(evaluation, context)
        except PageError as problem:
            notes.append(str(problem))
    models = [model for model in models_of(graded) if model.id in cells]
    return {
        "graders": list(GRADERS),
        "tasks": [{"group": group, "name": name, "label": task_label(name)} for group, name in tasks.items()],
        "models": [{**model.describe(), "cells": cells[model.id]} for model in models],
        "notes": notes,
    }


def task_label(name: str) -> str:
    return name.replace("_", " ")


def _cell(evaluation: Evaluation, context: Context) -> dict[str, Any]:
    path = evaluation.metrics.file(METRICS.file)
    grades = evaluation.metrics.file(GRADES_FILE)

    def read() -> dict[str, Any]:
        with reading(path):
            values = json.loads(path.read_text(encoding="utf-8"))
            numbers = {grader: _numbers(BenchmarkMetrics.from_dict(values[grader])) for grader in GRADERS}
        for grader, readings in _readings(grades).items():
            numbers[grader]["readings"] = readings
        return numbers

    cell = context.cached(("metrics", path), [path, grades], read)
    return {"metrics": evaluation.metrics.fingerprint, **cell}


def _numbers(metrics: BenchmarkMetrics) -> dict[str, Any]:
    return {
        "mean": metrics.accuracy_at_k.mean,
        "std": metrics.accuracy_at_k.std,
        "by_seed": list(metrics.accuracy_at_k.by_seed),
        "interval": list(metrics.interval),
        "problems": metrics.problems,
        "samples": metrics.samples,
        "truncated": metrics.truncated,
        "unboxed": metrics.unboxed,
        "readings": {},
    }


def _readings(grades: Path) -> dict[str, dict[str, Any]]:
    """pass@1, pass@k and maj@k by grader. Without readable grades there are none; Acc@k is still shown."""
    try:
        with reading(grades):
            rows = read_lines(grades)
            return {grader: _reading(resampled_metrics(rows, grader)) for grader in GRADERS}
    except PageError:
        return {}


def _reading(samples: Resampled) -> dict[str, Any]:
    return {
        "pass@1": {"mean": samples.pass_at_1, "interval": list(samples.interval)},
        f"pass@{samples.k}": {"mean": samples.pass_at_k, "interval": None},
        f"maj@{samples.k}": {"mean": samples.majority_at_k, "interval": None},
    }
