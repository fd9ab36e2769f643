"""Runs of run.py: the folders below outputs/runs, with their settings, steps and results."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lark.explorer.context import Context
from lark.explorer.listing import Key, Listing
from lark.explorer.lists import Rows, list_of
from lark.explorer.progress import tail
from lark.explorer.run_records import LOG, Done, RunRecord, read_runs
from lark.explorer.values import moment
from lark.reading.untrusted import read_yaml, regular
from lark.work.record import RECORD_FILE

MOST = 1000
"""Folders of runs that are read."""
SHOWN_RUNS = 20
"""Runs that an artifact's page lists."""
NamedRun = tuple[str, RunRecord, dict[str, Any]]
"""Name and record of a run, with its overrides, results and last line."""


def runs(context: Context) -> Rows:
    """All runs, the last one first."""
    listing = context.listing()
    rows = [row(listing, *run) for run in all_runs(context, listing)]
    return list_of(
        rows,
        lambda row: f"{row['name']} {' '.join(row['overrides'])}",
        {"state": ("running", "failed", "interrupted")},
        {"changed": [moment(row["changed"]) for row in rows]},
    )


def all_runs(context: Context, listing: Listing) -> list[NamedRun]:
    """The runs, the last one first."""
    return listing.once("runs", lambda: _all_runs(context))


def _all_runs(context: Context) -> list[NamedRun]:
    folder = context.root / "runs"
    every_run = []
    for path in _folders(folder):
        files = [path / name for name in (RECORD_FILE, LOG, "summary.json", ".hydra/overrides.yaml")]
        every_run += context.cached(("run", path), files, partial(_read, path, folder))
    return sorted(every_run, key=lambda run: run[1].changed, reverse=True)


def _folders(folder: Path) -> list[Path]:
    """The folders of runs, at most MOST."""
    folders: list[Path] = []
    for path, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name != "wandb" and not name.startswith("."))
        if LOG in files or RECORD_FILE in files:
            folders.append(Path(path))
        if len(folders) >= MOST:
            break
    return folders


def _read(path: Path, folder: Path) -> list[NamedRun]:
    """The runs of one folder. Results and the log of the folder are those of its last run."""
    name = path.relative_to(folder).as_posix()
    named = []
    for i, run in enumerate(read_runs(path)):
        typed = _overrides(path / ".hydra" / "overrides.yaml") if run.typed is None else run.typed
        more: dict[str, Any] = {"results": [], "last": ""}
        if i == 0:
            more["results"] = _results(path / "summary.json", run.started)
            more["last"] = tail(path / LOG).rsplit("\n", 1)[-1][:400]
        more["overrides"] = [value for value in typed if not value.startswith("outputs=")]
        named.append((name, run, more))
    return named


def row(listing: Listing, name: str, run: RunRecord, more: dict[str, Any]) -> dict[str, Any]:
    """A run in a list."""
    done = {step.step for step in run.steps}
    return {
        "name": name,
        "state": state(listing, run),
        "started": run.started or None,
        "changed": run.changed,
        "took": _took(run),
        "done": len(run.steps),
        "total": max(len(run.plan), len(run.steps)),
        "current": next((title for title in run.plan if title not in done), None),
        "steps": [_step(listing, step) for step in run.steps],
        "error": run.error,
        **more,
    }


def state(listing: Listing, run: RunRecord) -> str | None:
    """finished, failed, running or interrupted; None if the run's version did not record it."""
    if run.ended:
        return "finished" if run.error is None else "failed"
    if run.ended is None:
        return None
    making = [listing.entries[key] for key in run.planned if key in listing.entries]
    if run.is_alive or any(listing.state(entry) == "running" for entry in making):
        return "running"
    return "interrupted"


def _took(run: RunRecord) -> float | None:
    seconds = moment(run.changed) - moment(run.started)
    return seconds if run.plan and np.isfinite(seconds) else None


def _step(listing: Listing, done: Done) -> dict[str, Any]:
    made = [link(listing, key) for key in done.made]
    reused = [link(listing, key) for key in done.reused]
    return {"title": done.step, "seconds": done.seconds, "made": made, "reused": reused, "where": done.where}


def link(listing: Listing, key: Key) -> dict[str, Any]:
    """An artifact that a run names. It may have been deleted since."""
    entry = listing.entries.get(key)
    return {"kind": key[0], "fingerprint": key[1], "name": None if entry is None else entry.name}


def runs_with(context: Context, listing: Listing, key: Key) -> list[dict[str, Any]]:
    """The runs that made or reused an artifact, the last one first."""
    by_artifact = listing.once("runs by artifact", lambda: _by_artifact(all_runs(context, listing)))
    return by_artifact.get(key, [])[:SHOWN_RUNS]


def _by_artifact(runs: list[NamedRun]) -> dict[Key, list[dict[str, Any]]]:
    users: dict[Key, list[dict[str, Any]]] = {}
    for name, run, more in runs:
        use = {"name": name, "when": run.started, "overrides": more["overrides"]}
        made = {key for done in run.steps for key in done.made}
        reused = {key for done in run.steps for key in done.reused}
        for key in sorted(made | reused):
            how = "made" if key in made else "reused"
            users.setdefault(key, []).append({**use, "how": how})
    return users


def running(context: Context, listing: Listing) -> list[dict[str, Any]]:
    """Runs that are in progress: how many steps are done, and which is next."""
    rows = [row(listing, *run) for run in all_runs(context, listing) if run[1].ended is False]
    keys = ("name", "started", "done", "total", "current", "overrides")
    return [{key: row[key] for key in keys} for row in rows if row["state"] == "running"]


def _overrides(path: Path) -> list[str]:
    try:
        values = read_yaml(path)
        return [str(value) for value in values] if isinstance(values, list) else []
    except (OSError, ValueError):
        return []


def _results(path: Path, started: str) -> list[dict[str, str]]:
    """The rows of the run's results table. A run that is not finished has none; an earlier run's are not
    its own.
    """
    try:
        if path.stat().st_mtime < moment(started):
            return []
        rows = json.loads(regular(path).read_text(encoding="utf-8"))["results"]
        return [{str(key): str(value) for key, value in row.items()} for row in rows]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
