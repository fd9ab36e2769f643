"""Run a command of the program in a fork of the test's process, which has imported it already: a second per
case.
"""

import os
import runpy
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

STACK = "Traceback (most recent call last)"
BUG = "This is an error in LARK"
"""What the program says about an error that it does not expect."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    output: str
    hung: bool = False
    """Whether it had to be killed when its time was up."""

    @property
    def sentence(self) -> str:
        """The error message. Fails the test if there is a stack trace, or no message."""
        assert STACK not in self.output, self.output
        assert self.code != 0, self.output
        assert "error: " in self.output, self.output
        return self.output[self.output.rindex("error: ") :].strip()

    @property
    def succeeded(self) -> bool:
        assert self.code == 0, self.output
        return True


def command(
    *arguments: str,
    seconds: float = 60,
    module: str | None = None,
    prepare: Callable[[], object] = lambda: None,
) -> Ended:
    """Run `run.py`, or `python -m module`, with these arguments. `prepare` is called in its process first."""
    ended = forked(lambda: program(arguments, module, prepare), seconds)
    assert not ended.hung, f"does not end within {seconds} s: {ended.output}"
    return ended


def program(
    arguments: tuple[str, ...], module: str | None = None, prepare: Callable[[], object] = lambda: None
) -> None:
    """Be the program. Call it in a fork: it changes the process, and exits."""
    os.chdir(ROOT)
    prepare()
    sys.argv = ["command", *arguments]
    if module is None:
        runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def forked(work: Callable[[], object], seconds: float) -> Ended:
    """Call a function in a fork of this process, as a session of its own. What it raises becomes an exit
    code and output.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _child(work, write)
    os.close(write)
    output, deadline, hung = b"", time.monotonic() + seconds, False
    while (left := deadline - time.monotonic()) > 0:
        if select.select([read], [], [], left)[0]:
            chunk = os.read(read, 65536)
            if not chunk:
                break
            output += chunk
    else:
        hung = True
        os.killpg(child, signal.SIGKILL)
    os.close(read)
    return Ended(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output.decode(errors="replace"), hung)


def _child(work: Callable[[], object], out: int) -> None:
    code: object = 70
    try:
        os.setsid()
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout, sys.stderr = open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
        work()
        code = 0
    except SystemExit as end:
        code = end.code or 0
        if isinstance(code, str):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def small(outputs: Path, *more: str) -> list[str]:
    """Arguments of a run that only makes a small pool."""
    return [f"outputs={outputs}", "stages=[pool]", "pool.questions=2", "tracking=none", *more]
