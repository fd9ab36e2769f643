"""An error of a worker, as it is passed to the run: in a file, or from an actor on another node."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lark.errors import LarkError, is_out_of_memory, requested_memory
from lark.printing import message
from lark.store.disk import disk_error


@dataclass(frozen=True)
class WorkerFailure:
    """An error of a worker."""

    message: str
    expected: bool
    """True if the message is a sentence for the user."""
    memory: str | None = None
    """The amount that could not be allocated, if memory was exhausted; empty if it is not known."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class RemoteError(Exception):
    """An error of a process on another node."""

    def __init__(self, failure: WorkerFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def failure_of(error: BaseException, folder: Path) -> WorkerFailure:
    """Describe an error. `folder`: of the artifact that was being made."""
    if isinstance(error, RemoteError):
        return error.failure
    sentence = str(error) if isinstance(error, LarkError) else disk_error(error, folder)
    if sentence is not None:
        return WorkerFailure(message(sentence or f"{type(error).__name__}: {error}"), expected=True)
    memory = requested_memory(error) if is_out_of_memory(error) else None
    return WorkerFailure(message(f"{type(error).__name__}: {error}"), expected=False, memory=memory)
