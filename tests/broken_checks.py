"""Checks that pass, fail, crash, hang and disappear, for tests/gpu_check/test_gpu_check.py."""

import os
import signal
import subprocess
import sys
import time

from lark.errors import LarkError
from lark.gpu_check.check import CheckPlace, within


def passes(place: CheckPlace) -> str:
    sys.stdout.write("said by the check that passes\n")
    return within("error", 1e-9, 1e-6)


def fails(place: CheckPlace) -> str:
    return within("error", 1e-3, 1e-6)


def undefined(place: CheckPlace) -> str:
    return within("error", float("nan"), 1e-6)


def refuses(place: CheckPlace) -> str:
    raise LarkError("The kernel is missing: install it.\nA second line for the log.")


def raises(place: CheckPlace) -> str:
    raise ValueError("wrong shape\ndetails")


def crashes(place: CheckPlace) -> str:
    os.kill(os.getpid(), signal.SIGSEGV)
    return "not reached"


def leaves(place: CheckPlace) -> str:
    os._exit(0)


def hangs(place: CheckPlace) -> str:
    """With a child, which must not survive either."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (place.folder / "pid").write_text(str(child.pid))
    time.sleep(600)
    return "not reached"
