"""A program of the user's that verifies answers: one JSON object per line in, one per line out.

Each answer has a limit on time, and each process one on memory. An answer at which the program hangs or ends
has no verdict, and the program is started again for the following ones.
"""

import contextlib
import json
import os
import resource
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import IO, Any

from lark.config.teaching import Command
from lark.reading.fields import Fields
from lark.reading.untrusted import parsed
from lark.teaching import checks
from lark.teaching.verdicts import Rollout, Verdict
from lark.work.process import die_with_parent

SENT = ("question_id", "question", "answer", "response", "reasoning_content", "teacher", "rollout")
"""What the program gets of a rollout."""
LONGEST = 1 << 20
"""Bytes of a line of its output."""
FAILURES = 5
"""How often it may end without a verdict, one after the other, before that is an error."""


class Program:
    """The user's program."""

    def __init__(self, settings: Command) -> None:
        self.settings = settings
        self.failures = 0
        """Answers without a verdict since the last one with a verdict."""
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def verdicts(self, rows: Sequence[Rollout]) -> list[Verdict]:
        made: list[Verdict] = []
        while len(made) < len(rows):
            made += self._batch(rows[len(made) : len(made) + self.settings.batch])
        return made

    def _batch(self, rows: Sequence[Rollout]) -> list[Verdict]:
        """The verdicts of one process, up to the first answer that has none."""
        made: list[Verdict] = []
        with tempfile.TemporaryFile() as errors:
            output = self._start(rows, errors)
            lines = _Lines(output)
            for row in rows:
                line = lines.next(self.settings.seconds)
                verdict = _verdict(line, row) if line else {"correct": None, "reason": lines.reason}
                made.append(verdict)
                if not line:
                    self._stop()
                    self.failures += 1
                    if lines.reason != TIME:
                        checks.program_works(self.settings, self.failures, FAILURES, _last_line(errors))
                    return made
                self.failures = 0
            self._stop()
        return made

    def _start(self, rows: Sequence[Rollout], errors: IO[bytes]) -> IO[bytes]:
        command = shlex.split(self.settings.run or "")
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,
                preexec_fn=self._limit,  # noqa: PLW1509  # the child only sets its limits
            )
        except OSError as error:
            raise checks.no_program(self.settings, error) from error
        assert self.process.stdin is not None and self.process.stdout is not None
        # In a thread: a program that writes before it has read everything must not block.
        threading.Thread(target=_send, args=(self.process.stdin, rows), daemon=True).start()
        return self.process.stdout

    def _limit(self) -> None:
        if sys.platform == "linux":  # macOS accepts no such limit
            limit = int(self.settings.memory_gib * 2**30)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        die_with_parent()

    def _stop(self) -> None:
        """End the program and its children."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None


TIME = "time limit"
ENDED = "the program ended"
LONG = "a line that is too long"


class _Lines:
    """The lines of a program's output."""

    def __init__(self, output: IO[bytes]) -> None:
        self.output = output
        self.rest = b""
        self.reason = ""
        """Why there is no line."""

    def next(self, seconds: float) -> bytes:
        """The next line; empty if there is none in time."""
        until = time.monotonic() + seconds
        while b"\n" not in self.rest:
            left = until - time.monotonic()
            ready, _, _ = select.select([self.output], [], [], max(0.0, left))
            if not ready:
                self.reason = TIME
                return b""
            read = os.read(self.output.fileno(), 1 << 16)
            if not read:
                self.reason = ENDED
                return b""
            self.rest += read
            if len(self.rest) > LONGEST:
                self.reason = LONG
                return b""
        line, _, self.rest = self.rest.partition(b"\n")
        return line + b"\n"


def _send(stdin: IO[bytes], rows: Sequence[Rollout]) -> None:
    with contextlib.suppress(OSError):  # it may end before it has read everything
        for row in rows:
            values = {name: row[name] for name in SENT}
            stdin.write(json.dumps(values, ensure_ascii=False).encode() + b"\n")
    with contextlib.suppress(OSError):
        stdin.close()


def _verdict(line: bytes, row: Rollout) -> Verdict:
    where = f"teach.command.run, question {row['question_id']}"
    values: Any = parsed(line)
    if not isinstance(values, dict) or "correct" not in values:
        raise checks.not_a_verdict(where, line)
    verdict: Verdict = {"correct": Fields(values, where).verdict("correct", 1.0)}
    if isinstance(values.get("reason"), str):
        verdict["reason"] = values["reason"][:200]
    return verdict


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - 2000))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
