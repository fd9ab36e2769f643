"""Progress of an artifact that is being made: its log, the parts that exist so far, and training curves."""

import json
import re
from pathlib import Path
from typing import Any

from lark.explorer.listing import Entry
from lark.explorer.problems import PageError, reading
from lark.reading.untrusted import regular

LOG = "log.txt"
CURVE = "metrics.jsonl"
COLUMNS = (
    "step",
    "epoch",
    "loss",
    "token_accuracy",
    "grad_norm",
    "learning_rate",
    "tokens_per_second",
    "held_out_loss",
)
"""Columns of a curve."""
TAIL = 16_384
"""Bytes of a log that are shown."""
BAR = re.compile(r"^(?P<what>[^|]*?):?\s*(?P<percent>\d+)%\|[^|]*\|\s*(?P<rest>.*)$")
CLOCK = re.compile(r"\[(?P<elapsed>[\d:]+)<(?P<left>[\d:?]+)(?:,\s*(?P<rate>[^\],]+))?")
SHARD = re.compile(r"(shard|tokens)-\d+.*\.(parquet|jsonl)")
POINTS = 1500
"""Points of a curve that are sent; a longer one is thinned out."""


def tail(path: Path, size: int = TAIL) -> str:
    """The end of a log, with each progress bar as its last state. Empty if there is no log."""
    try:
        with regular(path).open("rb") as handle:
            handle.seek(0, 2)
            length = handle.tell()
            handle.seek(max(0, length - size))
            text = handle.read(size).decode("utf-8", errors="replace")
    except OSError:
        return ""
    # Only the last state of a progress bar, which a carriage return begins.
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n")]
    if length > size and len(lines) > 1:
        del lines[0]  # begins in the middle
    return "\n".join(lines).strip("\n")


def bar(log: str) -> dict[str, Any] | None:
    """The progress bar at the end of a log: what is being done, percent, time left."""
    for line in reversed(log.split("\n")[-40:]):
        match = BAR.match(line.strip())
        if match:
            clock = CLOCK.search(match["rest"])
            times = clock.groupdict() if clock else {}
            return {
                "what": match["what"].strip(),
                "percent": min(100, int(match["percent"])),
                "done": match["rest"].split(" [", 1)[0].strip(),
                **{key: value for key, value in times.items() if value},
            }
    return None


def parts(entry: Entry) -> int:
    """The number of shards that exist."""
    try:
        return sum(SHARD.fullmatch(path.name) is not None for path in entry.folder.iterdir())
    except OSError:
        return 0


def progress(entry: Entry, reporter: Entry | None = None) -> dict[str, Any]:
    """The progress of an artifact that is being made. `reporter` is the artifact that has the log, if it is
    another one.
    """
    log = tail((reporter or entry).file(LOG))
    return {"bar": bar(log), "last": log.rsplit("\n", 1)[-1][:300], "parts": parts(entry)}


def last_point(entry: Entry) -> dict[str, Any] | None:
    """The last step of a training curve, and its loss. Reads the end of the file only. None if there is no
    curve (yet).
    """
    step = loss = None
    for line in tail(entry.file(CURVE)).split("\n"):
        try:
            values = json.loads(line)
            step = values.get("step", step)
            loss = values.get("loss", loss)
        except (ValueError, AttributeError, RecursionError):
            continue  # cut, or being written
    return None if step is None else {"steps": step, "loss": loss}


def curve(entry: Entry) -> dict[str, list[Any]]:
    """The training curve so far, by column; an incomplete last line is left out."""
    path = entry.file(CURVE)
    if not path.exists():
        raise PageError(f"{entry.kind}/{entry.folder.name} has no training curve (yet).")
    with reading(path):
        lines = path.read_bytes().split(b"\n")[:-1]
        rows = [json.loads(line) for line in lines if line.strip()]
        step = -(-len(rows) // POINTS)  # rounded up
        if step > 1:
            last = len(rows) - 1
            rows = [row for i, row in enumerate(rows) if i % step == 0 or i == last or "held_out_loss" in row]
        return {name: [row.get(name) for row in rows] for name in COLUMNS}
