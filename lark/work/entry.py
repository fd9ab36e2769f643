"""The entry of every command: errors are sentences, files are not writable for everyone, and a bug leaves a
report.

Each entry point (`run.py`, `python -m lark.export`, …) calls its main function with `run_main`.
"""

import contextlib
import logging
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import yaml

from lark.config.hydra_errors import is_of_hydra, sentence
from lark.errors import LarkError, first_line, is_out_of_memory
from lark.printing import message
from lark.store.disk import disk_error

REPORTS = "crashes"
"""Folder below the outputs."""
INTERRUPTED = "interrupted: run the same command again to resume."


def run_main(main: Callable[[], int | str | None], outputs: Path = Path("outputs")) -> NoReturn:
    """Call a main function and exit with what it returns: an exit code, or error messages. Every error is
    one sentence.
    """
    prepare()
    try:
        Path.cwd()
    except FileNotFoundError:
        sys.exit("error: The current folder no longer exists. Change to another one.")
    try:
        result = main()
    except BrokenPipeError:  # the output was piped to a program that has ended, such as `head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        result = INTERRUPTED
    except Exception as error:
        result = f"error: {explain(error, outputs)}"
    sys.exit(message(result) if isinstance(result, str) else result)


def prepare() -> None:
    """Settings of the process: nobody else may write its files, and what the terminal cannot show is
    escaped.
    """
    os.umask(os.umask(0o022) | 0o002)
    # A log that cannot be written, on a full disk, must not print a stack trace for each line.
    logging.raiseExceptions = False
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def explain(error: Exception, outputs: Path, is_running: bool = True) -> str:
    """A sentence for any error. For an unexpected one, its stack trace is saved in a file that the sentence
    names. `is_running`: False while Hydra makes the folder of the run.
    """
    if isinstance(error, LarkError):
        return str(error)
    # Hydra's logging raises a ValueError because of an OSError.
    cause = error if isinstance(error, OSError) else error.__cause__ or error
    refusal = disk_error(cause, outputs) if is_running else _not_writable(cause)
    if refusal is not None:
        return refusal
    if is_of_hydra(error):
        return sentence(error)
    if isinstance(error, yaml.YAMLError | UnicodeDecodeError):
        reason = " ".join(str(error).split())
        return (
            f"A file cannot be read ({reason}). Correct it: it must be text in UTF-8, and configuration files"
            " must be YAML."
        )
    if is_out_of_memory(error):
        return (
            "This process ran out of memory. Close other programs, use a machine with more memory, or use"
            " less data at once: split long lines and large files, or set pool.questions."
        )
    report = _save_report(error, outputs)
    return (
        f"{type(error).__name__}: {first_line(error)}. This is an error in LARK, not in your input. Please"
        f" report it with the file {report}, which has the details. Finished work is kept, and the same"
        " command resumes."
    )


def _not_writable(error: BaseException) -> str | None:
    """A sentence for a folder that Hydra cannot make, which was never there; None for other errors."""
    if not isinstance(error, OSError) or error.filename is None:
        return None
    return (
        f"{error.filename} cannot be written ({error.strerror}): choose another folder with outputs=<folder>."
    )


def _save_report(error: Exception, outputs: Path) -> str:
    """Write the stack trace to a file; return its path."""
    text = "".join(traceback.format_exception(error))
    head = (
        f"{time.strftime('%Y-%m-%dT%H:%M:%S')}, Python {platform.python_version()}, {platform.platform()}\n"
    )
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    for folder, file in ((outputs / REPORTS, name), (Path(tempfile.gettempdir()), f"lark-{name}")):
        # The outputs may be what cannot be written.
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / file).open("x", encoding="utf-8", errors="backslashreplace") as handle:
                handle.write(message(f"{head}{' '.join(sys.argv)}\n\n{text}"))
            return str(folder / file)
    sys.stderr.write(message(text))  # nowhere to write
    return "(not saved: no folder can be written; the text above)"
