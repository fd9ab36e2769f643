"""Compare answers, one pair at a time, in a process that is allowed to die. Started by `Verifier`.

Reads `{"prediction", "gold", "limit"}` as one line of JSON and replies with one line, `1` or `0`. The time
limit is a kernel timer whose signal has its default action, so it ends the process even inside a C loop
that holds the GIL, and even after the parent is gone. It counts CPU time, so that a busy machine does not
change a grade.

Only sympy and math-verify's parser are imported here: a worker has to start in about a second and never
loads torch.
"""

import json
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import IO

from lark.grading.strict.equality import compare

MEMORY_LIMIT = 4 << 30
"""Bytes of address space. Otherwise a tower of powers fills the machine's memory before its time is up."""
WALL_FACTOR = 20
"""Wall-clock seconds allowed per second of CPU time, for a call that waits instead of working."""


def _serve(requests: IO[str], replies: IO[str]) -> None:
    replies.write("ready\n")
    replies.flush()
    for line in requests:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["limit"])
        signal.setitimer(signal.ITIMER_REAL, request["limit"] * WALL_FACTOR)
        same = compare(request["prediction"], request["gold"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write("1\n" if same else "0\n")
        replies.flush()


def main() -> None:
    if sys.platform == "linux":  # macOS accepts no such limit; the one on time has to do there
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = MEMORY_LIMIT if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    # A child inherits ignored and blocked signals, but the timers must be able to end this process.
    timers = {signal.SIGPROF, signal.SIGALRM}
    for number in timers:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, timers)
    # Warnings, and output of a parser, must not get into the replies.
    logging.disable(logging.CRITICAL)
    with (
        os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as replies,
        Path(os.devnull).open("w") as nowhere,
    ):
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
        _serve(sys.stdin, replies)


if __name__ == "__main__":
    main()
