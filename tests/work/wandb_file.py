"""Reads what W&B writes offline: a LevelDB log of protocol buffers (wandb's own reader is not in Python)."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2 as messages

HEADER = 7
"""Bytes before the first record, and of the header of each piece of a record."""
BLOCK = 32768
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class TrackedFile:
    """A run as an offline file has it."""

    name: str = ""
    group: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: dict[str, list[Any]] = field(default_factory=dict)
    """All logged values of each key."""


def records(path: Path) -> Iterator[bytes]:
    """The records of a file. Those that do not fit into a block are in pieces."""
    data = path.read_bytes()
    assert data.startswith(b":W&B")
    place = HEADER
    record = b""
    while place + HEADER <= len(data):
        rest = BLOCK - place % BLOCK
        if rest < HEADER:
            place += rest
            continue
        _, length, piece = struct.unpack("<IHB", data[place : place + HEADER])
        place += HEADER
        record += data[place : place + length]
        place += length
        if piece in (WHOLE, LAST):
            yield record
            record = b""


def read(path: Path) -> TrackedFile:
    """The run in a file."""
    run = TrackedFile()
    for data in records(path):
        record = messages.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.name = record.run.display_name
            run.group = record.run.run_group
            run.tags = list(record.run.tags)
            run.config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "summary":
            run.summary |= {_key(item): json.loads(item.value_json) for item in record.summary.update}
        elif kind == "history":
            for item in record.history.item:
                run.history.setdefault(_key(item), []).append(json.loads(item.value_json))
    return run


def _key(item: Any) -> str:
    return item.key or ".".join(item.nested_key)


def runs_below(folder: Path) -> list[TrackedFile]:
    """The runs of all offline files below a folder."""
    return [read(path) for path in sorted(folder.glob("**/offline-run-*/*.wandb"))]
