"""Log messages of a process on another node, passed on by the step's worker process through a file in the
job's folder.
"""

import contextlib
import json
import logging
from pathlib import Path

RELAY_FILE = ".relay.jsonl"


class Relay(logging.Handler):
    """Appends messages to the file. One process of a step uses it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(logging.INFO)
        self.file = folder / RELAY_FILE

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING and not record.name.startswith("lark"):
            return
        line = json.dumps({"level": record.levelno, "message": record.getMessage()}) + "\n"
        with contextlib.suppress(OSError), self.file.open("a", encoding="utf-8") as handle:
            handle.write(line)


class Tail:
    """Reads the file as it grows."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / RELAY_FILE
        self.read = 0
        self.close()

    def log(self, log: logging.Logger) -> None:
        """Log what is new."""
        with contextlib.suppress(FileNotFoundError), self.file.open("rb") as handle:
            handle.seek(self.read)
            for line in handle:
                if not line.endswith(b"\n"):  # it is being written
                    return
                self.read += len(line)
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    record = json.loads(line)
                    log.log(int(record["level"]), "%s", record["message"])

    def close(self) -> None:
        self.file.unlink(missing_ok=True)
