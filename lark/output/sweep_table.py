"""The table at the end of a sweep (`-m`): `outputs/report/sweeps/<group>.md` and `.csv`."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lark.config import Tracking
from lark.names import file_name, override_key
from lark.output.next_command import explorer_command
from lark.output.tables import csv_text, markdown_table
from lark.printing import near, text_table
from lark.store.store import write_text
from lark.work.sweep_record import FOLDER, recorded_trials
from lark.work.tracking import Tracker

log = logging.getLogger(__name__)

IN_RESULTS = ("student", "method", "budget", "budget.size", "budget.total", "budget.tokens")
"""Swept settings that a table of accuracies shows in columns of its own."""

NAMES = ("student", "method", "B")
"""Columns that name a model in a table of accuracies."""


def end_sweep(outputs: Path) -> None:
    """Print, write and track the table over all trials that were recorded."""
    trials = recorded_trials()
    if not trials:
        return
    finished = [trial for trial in trials if "error" not in trial]
    tracking = Tracking(**finished[0]["tracking"]) if finished else Tracking(mode="none")
    group = tracking.group or "sweep"
    table = sweep_table(trials)
    header = list(table.columns)
    rows = table.to_numpy().tolist()
    titles = list(dict.fromkeys(trial["title"] for trial in finished if trial["title"]))
    page = outputs / FOLDER / f"{file_name(group)}.md"
    data = page.with_name(f"{file_name(group)}.csv")
    is_new = _replaced(page, "\n\n".join([*titles, markdown_table(header, rows)]))
    _replaced(data, table.map(csv_text).to_csv(index=False, lineterminator="\n"))
    if is_new:
        tracker = Tracker(tracking, page.parent, outputs, f"sweep {group}")
        tracker.table("trials", header, rows)
        tracker.finish()
    log.info("\n%s\n", "\n\n".join([*titles, text_table(header, rows, right=len(header))]))
    log.info("%d trials. Saved: %s and .csv", len(trials), near(page))
    log.info("Next: %s  # compare the trials", explorer_command(outputs))


def _replaced(path: Path, text: str) -> bool:
    """Write a file; return whether it was missing or different."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    write_text(path, text)
    return True


def sweep_table(trials: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows of all trials, with the settings that differ between them."""
    settings = [_settings(trial["typed"]) for trial in trials]
    keys = dict.fromkeys(key for values in settings for key in values)
    swept = [key for key in keys if _varies(key, settings)]
    results = Counter(tuple(cells) for trial in trials for cells in trial.get("rows", []))
    rows: list[dict[str, str]] = []
    for trial, values in zip(trials, settings, strict=True):
        shown = {key: values.get(key, "–") for key in swept}
        if "error" in trial:
            rows.append({**shown, "error": trial["error"]})
            continue
        hidden = IN_RESULTS if "method" in trial["header"] else ()
        for cells in trial["rows"]:
            row = dict(zip(trial["header"], cells, strict=True))
            # The base model is the same in every trial: it has one row, and no swept values.
            is_shared = row.get("B") == "–" and results[tuple(cells)] > 1
            own = {} if is_shared else {key: shown[key] for key in swept if key not in hidden}
            rows.append({**own, **row})
    return _arranged(pd.DataFrame(rows), swept)


def _arranged(table: pd.DataFrame, swept: Sequence[str]) -> pd.DataFrame:
    """The names of a row first, then swept settings, and errors last; equal rows once."""
    first = [column for column in dict.fromkeys((*NAMES, *swept)) if column in table]
    last = ["error"] if "error" in table else []
    rest = [column for column in table if column not in (*first, *last)]
    return table[[*first, *rest, *last]].fillna("–").drop_duplicates(ignore_index=True)


def _settings(typed: Sequence[str]) -> dict[str, str]:
    return {override_key(setting): setting.partition("=")[2] for setting in typed}


def _varies(key: str, settings: Sequence[Mapping[str, str]]) -> bool:
    return len({values.get(key) for values in settings}) > 1
