"""One artifact: its settings, inputs and users, its log, and a training curve if it has one."""

from typing import Any

from lark.errors import LarkError
from lark.explorer.context import Context
from lark.explorer.listing import Entry, Listing
from lark.explorer.pages.overview import row
from lark.explorer.pages.runs import runs_with
from lark.explorer.progress import LOG, curve, last_point, progress, tail
from lark.selection.write import SELECTION
from lark.training.checkpoints import CHECKPOINT

MANY = 200
"""Files or users that are listed."""


def artifact(context: Context, kind: str, fingerprint: str) -> dict[str, Any]:
    listing = context.listing()
    entry = listing.get(kind, fingerprint)
    users = listing.used_by(entry)
    return {
        **row(listing, entry),
        **(progress(entry) if not entry.finished else {}),
        "git": entry.manifest.git,
        "versions": entry.manifest.versions,
        "counts": entry.counts,
        "inputs": [{"label": label, **_link(listing, *key)} for label, key in entry.inputs.items()],
        "used_by": [_link(listing, *user.key) for user in users[:MANY]],
        "runs": runs_with(context, listing, entry.key),
        "files": _files(entry),
        "config": _config(listing, entry),
        "log": tail(entry.file(LOG)),
    }


def _link(listing: Listing, kind: str, fingerprint: str) -> dict[str, Any]:
    entry = listing.entries.get((kind, fingerprint))
    name = None if entry is None else entry.name
    state = "missing" if entry is None else listing.state(entry)
    return {"kind": kind, "fingerprint": fingerprint, "name": name, "state": state}


def _files(entry: Entry) -> list[dict[str, Any]]:
    try:
        paths = [path for path in sorted(entry.folder.iterdir()) if not path.name.startswith(".")]
        return [
            {"name": path.name, "bytes": path.stat().st_size if path.is_file() else None}
            for path in paths[:MANY]
        ]
    except OSError:
        return []


def _config(listing: Listing, entry: Entry) -> dict[str, Any]:
    try:
        return {"depends": listing.config(entry)["depends"]}
    except LarkError as problem:
        return {"problem": str(problem)}


def training_curve(context: Context, fingerprint: str) -> dict[str, Any]:
    listing = context.listing()
    entry = listing.get(CHECKPOINT.name, fingerprint)
    return {"name": entry.name, "state": listing.state(entry), "columns": curve(entry)}


def curves(context: Context) -> dict[str, Any]:
    """The training runs that have a curve, newest first."""
    listing = context.listing()
    rows = []
    for entry in listing.of(CHECKPOINT.name)[:MANY]:
        last = last_point(entry)
        if last is not None:
            rows.append({**row(listing, entry), **last, "method": _method(listing, entry)})
    return {"curves": rows}


def _method(listing: Listing, checkpoint: Entry) -> str | None:
    """The method whose selection a student was trained on."""
    selection = listing.input(checkpoint, SELECTION.name)
    try:
        return None if selection is None else str(listing.config(selection)["depends"].get("method"))
    except LarkError:
        return None
