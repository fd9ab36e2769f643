"""The `verify` grader: does everything in the box agree with the gold answer, as mathematics?

Choices are compared by letter (`lark.grading.choices`). Everything else is read into its structure and
compared with sympy (`lark.grading.strict`), which may hang or crash on a model's output, so each comparison
runs in a worker process that dies when its time is up. docs/grading.md lists the rules.

We do not use the processes of a pool library (pebble): its time limits are wall-clock time, which depends on
the machine's load, and its processes inherit their hash seed, on which sympy's results depend, from the
caller. Example:

    with Verifier(processes=2, timeout=5) as verifier:
        grades = verifier.grade_many([(extract_boxed_list(generation), gold, AnswerFormat.FREE_FORM), …])
"""

import contextlib
import importlib.util
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lark.errors import LarkError
from lark.grading.answers import AnswerFormat, grade_paper
from lark.grading.canonical import canonical_number
from lark.grading.choices import choice_letter
from lark.work.machine import pinned

logger = logging.getLogger(__name__)

Pair = tuple[str | None, str, AnswerFormat]
"""The extracted answer (`extract_boxed_list`; None is wrong), the gold answer, and its format."""

LONGEST_ANSWER = 1000
"""Characters. The longest gold answer of MATH-500 has 53. Parsing takes more than linear time."""

_ROOT = Path(__file__).parents[2]
_TIME_IS_UP = (-signal.SIGPROF, -signal.SIGALRM)


def _decide(prediction: str | None, gold: str, answer_format: AnswerFormat) -> bool | None:
    """The grade if it can be decided without sympy, otherwise None."""
    if prediction is None:
        return False
    if answer_format == AnswerFormat.EXACT_TEXT:
        return grade_paper(prediction, gold, answer_format)
    prediction = prediction.strip()
    gold = gold.strip()
    if answer_format == AnswerFormat.CHOICE:
        letter = choice_letter(prediction)
        return letter is not None and letter == choice_letter(gold)
    if prediction == gold:
        return True
    ours = canonical_number(prediction)
    theirs = canonical_number(gold)
    # Only whole numbers: 0.333333 may be a rounded 1/3, which sympy decides.
    if ours is not None and theirs is not None and ours.denominator == theirs.denominator == 1:
        return ours == theirs
    return False if max(len(prediction), len(gold)) > LONGEST_ANSWER else None


@dataclass
class _Comparison:
    """A pending comparison."""

    prediction: str
    gold: str
    crashes: int = 0
    """Workers that died on it."""


class _Worker:
    """A process that compares answers, one task at a time.

    It is started as a plain command instead of through multiprocessing, which would import the caller's
    main module, and with it torch, into every child.
    """

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lark.grading.strict.verify_process"],
            cwd=_ROOT,
            # sympy orders some objects by their hash: with a fixed seed a comparison takes the same path.
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.requests = self.process.stdin
        self.replies = self.process.stdout
        self.task: _Comparison | None = None
        self.is_ready = False

    def give(self, task: _Comparison, timeout: float) -> None:
        self.task = task
        request = {"prediction": task.prediction, "gold": task.gold, "limit": timeout}
        # A worker that died while idle is detected by the end of its replies, like one that dies at work.
        with contextlib.suppress(BrokenPipeError):
            self.requests.write(json.dumps(request).encode() + b"\n")

    def hear(self) -> bytes:
        """The next reply; empty if the worker is dead."""
        # A reply is a short line, which a pipe delivers in one piece.
        return os.read(self.replies.fileno(), 64).strip()

    def stop(self) -> None:
        """Kill the process if it still runs, and wait for it to exit."""
        self.process.kill()
        self.process.wait()
        self.requests.close()
        self.replies.close()


class Verifier:
    """A pool of worker processes, started when there is something to compare and stopped when the `with`
    block ends.

    Grades depend neither on the number of processes nor on the machine's load: `timeout` is in seconds of
    CPU time. If the parent is killed, no process is left behind: a worker exits when its input ends or its
    time is up.
    """

    def __init__(self, processes: int = 2, timeout: float = 5.0) -> None:
        self.processes = processes
        self.timeout = timeout
        self.cut_off = 0
        """Number of comparisons so far whose worker died; they count as wrong."""
        self._workers: list[_Worker] = []

    def __enter__(self) -> "Verifier":
        if importlib.util.find_spec("math_verify") is None:
            raise LarkError(f"The verify grader needs math-verify: pip install {pinned('math-verify')}.")
        return self

    def __exit__(self, *_: object) -> None:
        while self._workers:
            self._workers.pop().stop()

    def grade_many(
        self, pairs: Sequence[Pair], progress: Callable[[int], object] | None = None
    ) -> list[bool]:
        """One grade per pair, in order. `progress` is called with the number of newly finished pairs, like
        `tqdm.update`.
        """
        grades = [False] * len(pairs)
        # Many samples of a question have the same answer: each distinct pair is compared once.
        indices: dict[tuple[str, str], list[int]] = {}
        for index, (prediction, gold, answer_format) in enumerate(pairs):
            decision = _decide(prediction, gold, answer_format)
            if decision is None and prediction is not None:
                indices.setdefault((prediction, gold), []).append(index)
            else:
                grades[index] = bool(decision)
        if progress:
            progress(len(pairs) - sum(map(len, indices.values())))

        def settle(task: _Comparison, grade: bool) -> None:
            settled = indices[task.prediction, task.gold]
            for index in settled:
                grades[index] = grade
            if progress:
                progress(len(settled))

        cut_off = self.cut_off
        try:
            self._run(deque(_Comparison(*pair) for pair in indices), settle)
        except BaseException:
            # Replies to requests before the interruption must not reach a later call.
            self.__exit__()
            raise
        if self.cut_off > cut_off:
            logger.warning(
                "%d of %d comparisons took more than %g s or crashed, and count as wrong.",
                self.cut_off - cut_off,
                len(indices),
                self.timeout,
            )
        return grades

    def _run(self, tasks: deque[_Comparison], settle: Callable[[_Comparison, bool], None]) -> None:
        """Keep the workers busy until every task is settled."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.replies, selectors.EVENT_READ, worker)
            while tasks or any(worker.task for worker in self._workers):
                for worker in self._workers:
                    if tasks and worker.is_ready and worker.task is None:
                        worker.give(tasks.popleft(), self.timeout)
                # After idle workers have their tasks, so that no process is started for nothing.
                while self._needs_worker(len(tasks)):
                    worker = _Worker()
                    self._workers.append(worker)
                    selector.register(worker.replies, selectors.EVENT_READ, worker)
                for key, _ in selector.select():
                    worker = key.data
                    reply = worker.hear()
                    if not reply:
                        selector.unregister(worker.replies)
                        self._bury(worker, tasks, settle)
                    elif worker.task is None:
                        worker.is_ready = True
                    else:
                        settle(worker.task, reply == b"1")
                        worker.task = None

    def _needs_worker(self, pending: int) -> bool:
        """True if there are more pending tasks than workers that are starting."""
        starting = sum(not worker.is_ready for worker in self._workers)
        return starting < pending and len(self._workers) < self.processes

    def _bury(
        self, worker: _Worker, tasks: deque[_Comparison], settle: Callable[[_Comparison, bool], None]
    ) -> None:
        """Remove a dead worker. Its task is tried again, unless its time was up or it killed two workers:
        then it is wrong.
        """
        code = worker.process.wait()
        self._workers.remove(worker)
        worker.stop()
        if not worker.is_ready:
            raise LarkError(
                f"A process of the verify grader ended with code {code} before it was ready. "
                "Run `python -m lark.grading.strict.verify_process` from the repository to see why."
            )
        task = worker.task
        if task is None:
            return
        task.crashes += 1
        # A crash may be due to the machine, such as a lack of memory, so one more try is fair.
        if code in _TIME_IS_UP or task.crashes == 2:
            self.cut_off += 1
            settle(task, False)
        else:
            tasks.appendleft(task)
