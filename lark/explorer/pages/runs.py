"""Runs of run.py: the folders below outputs/runs, with their settings, steps and results."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lark.explorer.context import Context
from lark.explorer.listing import Key, Listing
from lark.explorer.lists import Rows
from lark.explorer.progress import tail
from lark.explorer.run_records import LOG, Done, RunRecord, read_runs
from lark.explorer.values import moment
from lark.reading.untrusted import read_yaml, regular
from lark.work.record import RECORD_FILE

MOST = 1000
SHOWN_RUNS = 20
"""Runs that an artifact's page lists."""
NamedRun = tuple[str, RunRecord, dict[str, Any]]
"""Name and record of a run, with its overrides, results and last line."""


def runs(context: Context) -> Rows:
    """All runs, the last one first."""
    listing = context.listing()
    rows = [row(listing, name, run, more) for name, run, more in all_runs(context, listing)]
    when = np.array([moment(row["changed"]) for row in rows], dtype=np.float64)
    flags = {
        f"state:{s}": np.array([r["state"] == s for r in rows], dtype=bool)
        for s in ("running", "failed", "interrupted")
    }
    return Rows(
        len(rows),
        rows.__getitem__,
        lambda i: f"{rows[i]['name']} {' '.join(rows[i]['overrides'])}",
        flags,
        {"changed": when},
    )


def all_runs(context: Context, listing: Listing) -> list[NamedRun]:
    """The runs, the last one first."""
    if "runs" not in listing.derived:
        listing.derived["runs"] = _all_runs(context)
    return listing.derived["runs"]


def _all_runs(context: Context) -> list[NamedRun]:
    folder = context.root / "runs"
    found = []
    for path in _folders(folder):
        files = [path / name for name in (RECORD_FILE, LOG, "summary.json", ".hydra/overrides.yaml")]
        found += context.cached(("run", path), files, lambda path=path: _read(path, folder))  # type: ignore[misc]
    return sorted(found, key=lambda run: run[1].changed, reverse=True)


def _folders(folder: Path) -> list[Path]:
    found: list[Path] = []
    for path, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name != "wandb" and not name.startswith("."))
        if LOG in files or RECORD_FILE in files:
            found.append(Path(path))
        if len(found) >= MOST:
            break
    return found


def _read(path: Path, folder: Path) -> list[NamedRun]:
    """The runs of one folder. Settings and results of the folder are those of its last run."""
    name = path.relative_to(folder).as_posix()
    found = []
    for i, run in enumerate(read_runs(path)):
        typed = run.typed if run.typed is not None else tuple(_overrides(path / ".hydra" / "overrides.yaml"))
        last = tail(path / LOG).rsplit("\n", 1)[-1][:400] if i == 0 else ""
        results = _results(path / "summary.json", run.started) if i == 0 else []
        shown = [value for value in typed if not value.startswith("outputs=")]
        found.append((name, run, {"overrides": shown, "results": results, "last": last}))
    return found


def row(listing: Listing, name: str, run: RunRecord, more: dict[str, Any]) -> dict[str, Any]:
    """A run in a list."""
    return {
        "name": name,
        "state": state(listing, run),
        "started": run.started or None,
        "changed": run.changed,
        "took": _took(run),
        "done": len(run.steps),
        "total": max(len(run.plan), len(run.steps)),
        "current": next(
            (title for title in run.plan if title not in {done.step for done in run.steps}), None
        ),
        "steps": [_step(listing, done) for done in run.steps],
        "error": run.error,
        **more,
    }


def state(listing: Listing, run: RunRecord) -> str | None:
    """finished, failed, running or interrupted; None if the run's version did not record it."""
    if run.ended:
        return "finished" if run.error is None else "failed"
    if run.ended is None:
        return None
    making = (listing.entries.get(key) for key in run.planned)
    is_running = run.is_alive or any(
        entry is not None and listing.state(entry) == "running" for entry in making
    )
    return "running" if is_running else "interrupted"


def _took(run: RunRecord) -> float | None:
    seconds = moment(run.changed) - moment(run.started)
    return seconds if run.plan and np.isfinite(seconds) else None


def _step(listing: Listing, done: Done) -> dict[str, Any]:
    made, reused = ([link(listing, key) for key in keys] for keys in (done.made, done.reused))
    return {"title": done.step, "seconds": done.seconds, "made": made, "reused": reused, "where": done.where}


def link(listing: Listing, key: Key) -> dict[str, Any]:
    """An artifact that a run names. It may have been deleted since."""
    entry = listing.entries.get(key)
    return {"kind": key[0], "fingerprint": key[1], "name": None if entry is None else entry.name}


def runs_with(context: Context, listing: Listing, key: Key) -> list[dict[str, Any]]:
    """The runs that made or reused an artifact, the last one first."""
    if "runs by artifact" not in listing.derived:
        listing.derived["runs by artifact"] = _by_artifact(all_runs(context, listing))
    return listing.derived["runs by artifact"].get(key, [])[:SHOWN_RUNS]


def _by_artifact(runs: list[NamedRun]) -> dict[Key, list[dict[str, Any]]]:
    users: dict[Key, list[dict[str, Any]]] = {}
    for name, run, more in runs:
        reused = {key: "reused" for done in run.steps for key in done.reused}
        made = {key: "made" for done in run.steps for key in done.made}
        for key, how in {**reused, **made}.items():
            users.setdefault(key, []).append(
                {"name": name, "how": how, "when": run.started, "overrides": more["overrides"]}
            )
    return users


def running(context: Context, listing: Listing) -> list[dict[str, Any]]:
    """Runs that are in progress: how many steps are done, and which is next."""
    live = [(name, run, more) for name, run, more in all_runs(context, listing) if run.ended is False]
    rows: Sequence[dict[str, Any]] = [row(listing, *each) for each in live]
    keys = ("name", "started", "done", "total", "current", "overrides")
    return [{key: found[key] for key in keys} for found in rows if found["state"] == "running"]


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
