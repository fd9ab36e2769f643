"""How far an artifact is that is being made: its log, the parts that exist so far, and training curves."""

import json
import re
from pathlib import Path
from typing import Any

from lark.explorer.listing import Entry
from lark.explorer.problems import PageError, reading
from lark.reading.untrusted import regular

LOG, CURVE = "log.txt", "metrics.jsonl"
TAIL = 16_384
"""Bytes of a log that are shown."""
BAR = re.compile(r"^(?P<what>[^|]*?):?\s*(?P<percent>\d+)%\|[^|]*\|\s*(?P<rest>.*)$")
CLOCK = re.compile(r"\[(?P<elapsed>[\d:]+)<(?P<left>[\d:?]+)(?:,\s*(?P<rate>[^\],]+))?")
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
    lines = text.split("\n")
    shown = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in lines]
    return "\n".join(shown[1:] if length > size and len(shown) > 1 else shown).strip("\n")


def bar(log: str) -> dict[str, Any] | None:
    """The progress bar at the end of a log: what is being done, percent, time left."""
    for line in reversed(log.split("\n")[-40:]):
        match = BAR.match(line.strip())
        if match:
            clock = CLOCK.search(match["rest"])
            done = match["rest"].split(" [", 1)[0].strip()
            times = (
                {}
                if clock is None
                else {key: clock[key] for key in ("elapsed", "left", "rate") if clock[key]}
            )
            return {
                "what": match["what"].strip(),
                "percent": min(100, int(match["percent"])),
                "done": done,
                **times,
            }
    return None


def parts(entry: Entry) -> int:
    """The number of shards that exist."""
    try:
        return sum(
            1
            for path in entry.folder.iterdir()
            if re.match(r"(shard|tokens)-\d+.*\.(parquet|jsonl)$", path.name)
        )
    except OSError:
        return 0


def progress(entry: Entry, reporter: Entry | None = None) -> dict[str, Any]:
    """What is known about an artifact that is being made. `reporter` is the artifact that has the log, if
    it is another one.
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
            step, loss = values.get("step", step), values.get("loss", loss)
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
        if len(rows) > POINTS:
            step = -(-len(rows) // POINTS)
            rows = [
                row
                for i, row in enumerate(rows)
                if i % step == 0 or i == len(rows) - 1 or "held_out_loss" in row
            ]
        names = ("step", "epoch", "loss", "grad_norm", "learning_rate", "tokens_per_second", "held_out_loss")
        return {name: [row.get(name) for row in rows] for name in names}
