"""What the trials of a sweep (`-m`) ended with, for the table at its end (lark/output/sweep_table.py).

Trials run one after the other in one process, side by side in several, or as jobs of a cluster. Each appends
a line to a file that the sweep's first process names in the environment.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lark.config import Config
from lark.secrets import redact

RECORD = "LARK_SWEEP_RECORD"
"""The environment variable with the file to which trials append."""
FOLDER = Path("report") / "sweeps"


@dataclass(frozen=True)
class TrialResult:
    """What a trial ended with, as rows of a table."""

    title: str
    """Explains the columns."""
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def start_sweep(outputs: Path) -> None:
    """Name the file to which the trials of this process and of its jobs append."""
    name = f".{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.jsonl"
    os.environ[RECORD] = str(Path(os.path.realpath(outputs)) / FOLDER / name)


def in_sweep() -> bool:
    return RECORD in os.environ


def record_trial(config: Config, typed: Sequence[str], result: TrialResult) -> None:
    """Append the result of a trial, if this run is one."""
    _append({"typed": list(typed), "tracking": asdict(config.tracking), **asdict(result)})


def record_failure(typed: Sequence[str], reason: str) -> None:
    """Append why a trial failed, if this run is one."""
    _append({"typed": list(typed), "error": reason})


def _append(line: Mapping[str, Any]) -> None:
    if not in_sweep():
        return
    path = Path(os.environ[RECORD])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as handle:
        handle.write(redact(json.dumps(line)) + "\n")


def recorded_trials() -> list[dict[str, Any]]:
    """The lines of all trials. Ends the record."""
    path = Path(os.environ.pop(RECORD))
    if not path.is_file():  # a dry run, or nothing started
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    path.unlink()
    return [json.loads(line) for line in lines]
