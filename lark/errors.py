"""The exceptions whose messages are shown to users, and helpers that read the errors of other libraries."""

import re
from pathlib import Path


class LarkError(Exception):
    """An error for the user: what is wrong, where, and what to do. Shown without a stack trace."""


def refuse(sentence: str | None) -> None:
    """Raise an error if there is a reason for it."""
    if sentence is not None:
        raise LarkError(sentence)


class WorkerMemoryError(LarkError):
    """A worker ran out of memory. The pipeline adds a setting that needs less."""


class DamagedError(LarkError):
    """A finished artifact's files are not those that were made. It is marked as damaged, so the next run
    rebuilds it.
    """

    def __init__(self, message: str, folder: Path) -> None:
        super().__init__(f"{message} Run the command that made it again to rebuild it.")
        self.what = message
        self.folder = folder


def first_line(error: BaseException) -> str:
    """The first line of another library's error, with the next one if it ends in a colon; the error's type
    if it is empty.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    count = 2 if lines[0].endswith(":") else 1
    return " ".join(lines[:count]).rstrip(".: ")


NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
"""Parts of PyTorch's messages, on GPUs and on CPU."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if memory, on the host or on a GPU, was exhausted. PyTorch's own types are not compared: not
    every process has it.
    """
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in NO_MEMORY)


def requested_memory(error: BaseException) -> str:
    """The amount that could not be allocated, such as `2.00 GiB`; empty if the error does not state it."""
    match = re.search(r"(?:[Tt]ried to|Unable to) allocate ([\d.]+) (\w+)", str(error))
    if match is None:
        return ""
    amount, unit = match.groups()
    return f"{int(amount) / 2**20:,.0f} MiB" if unit == "bytes" else f"{amount} {unit}"
