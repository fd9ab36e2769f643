"""Runs of run.py: the folders below outputs/runs, with their settings, log and summary."""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lark.explorer.context import Context
from lark.explorer.listing import FOLDER, Loader
from lark.explorer.lists import Rows
from lark.explorer.progress import tail

LOG = "lark.log"
STEP = re.compile(r"INFO lark\.runtime\.pipeline: (?P<title>\S.*?)\s+(?P<took>[\d.]+ s|reused)\s+(?P<where>\S.*)$")
MOST = 1000


def runs(context: Context) -> Rows:
    """All runs, the last one first."""
    folder = context.root / "runs"
    found: list[Path] = []
    for path, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name != "wandb" and not name.startswith("."))
        if LOG in files:
            found.append(Path(path))
        if len(found) >= MOST:
            break
    rows = [context.cached(("run", path), _files(path), lambda path=path: _read(path, folder)) for path in found]  # type: ignore[misc]
    rows.sort(key=lambda row: row["changed"], reverse=True)
    when = np.array([row["changed"] for row in rows], dtype=np.float64)
    return Rows(
        len(rows), rows.__getitem__, lambda i: f"{rows[i]['name']} {' '.join(rows[i]['overrides'])}", {}, {"changed": when}
    )


def _files(path: Path) -> list[Path]:
    return [path / LOG, path / "summary.json", path / ".hydra" / "overrides.yaml"]


def _read(path: Path, folder: Path) -> dict[str, Any]:
    log, summary, overrides = _files(path)
    text = tail(log, 65_536)
    steps = {match["title"].strip(): match for line in text.split("\n") if (match := STEP.search(line))}
    changed = _time(log)
    return {
        "name": path.relative_to(folder).as_posix(),
        "overrides": [value for value in _overrides(overrides) if not value.startswith("outputs=")],
        "changed": changed,
        "when": time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(changed)),
        "steps": [{"title": title, "took": match["took"], **_artifact(match["where"])} for title, match in steps.items()],
        "results": _results(summary),
        "last": text.rsplit("\n", 1)[-1][:400],
    }


def _artifact(where: str) -> dict[str, Any]:
    kind, _, name = where.strip().partition("/")
    match = FOLDER.fullmatch(name)
    return (
        {"where": where.strip()}
        if match is None
        else {"where": where.strip(), "kind": kind, "fingerprint": match["fingerprint"]}
    )


def _overrides(path: Path) -> list[str]:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
        return [str(value) for value in values] if isinstance(values, list) else []
    except (OSError, ValueError, yaml.YAMLError):
        return []


def _results(path: Path) -> list[dict[str, str]]:
    """The rows of the run's results table. A run that is not finished has none."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["results"]
        return [{str(key): str(value) for key, value in row.items()} for row in rows]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
