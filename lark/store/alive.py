"""What the system knows about a process of this machine: whether it has ended, and the processor time that
it has used.
"""

import os
from pathlib import Path


def processor_ticks(number: int) -> str:
    """Processor time of a process of this machine, in ticks, to be compared with an earlier one."""
    try:
        return " ".join(process_fields(str(number))[11:13])
    except OSError:
        return ""


def exit_code(number: int) -> int | None:
    """The exit code of a process that has ended and that its parent has not asked for yet; None if it runs
    or is unknown.
    """
    try:
        fields = process_fields(str(number))
        return os.waitstatus_to_exitcode(int(fields[-1])) if fields[0] == "Z" else None
    except (OSError, ValueError):
        return None


def process_fields(number: str) -> list[str]:
    """Fields of a process's /proc/<number>/stat after its name: the twelfth and thirteenth are its
    processor time.
    """
    return (
        Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    )
