"""Scores of trained students that another program measures (compare.criterion=command), such as lm-eval or
lighteval.

The command gets the student's folder and a folder for its results. Its score is a number or a list of
numbers, one per problem in the same order for all students; higher is better. It is read from, in this
order: a file `scores.json` in the results' folder, samples that lm-eval writes there (`--log_samples`), and
the last line that the command prints.
"""

import json
import os
import shlex
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import checks
from experiments.harness.sweep import Sweep, Trial
from lark.reading.rows import jsonl_rows
from lark.selection.paired import Floats
from lark.store.integrity import verify
from lark.store.store import Artifact, Kind, write_text
from lark.store.writing import remove
from lark.training.checkpoints import CHECKPOINT

SCORES = Kind("command_scores", 1, "scores.json")
"""The scores that the command gave one trained student."""
LOG = "command.log"
"""What the command printed."""
RESULTS = "results"
"""Folder for the files that the command writes."""
ENDING = 65536
"""Bytes at the end of the log in which the last line is looked for."""


def scores_artifact(trial: Trial) -> Artifact:
    checkpoint = trial.artifact(CHECKPOINT)
    assert checkpoint is not None
    part = {"command": trial.config.compare.command}
    return Artifact(SCORES, checkpoint.name, part, {CHECKPOINT.name: checkpoint})


def command_scores(sweep: Sweep, trial: Trial) -> Floats | None:
    """[P] The scores of a run's student. None: not measured yet."""
    artifact = scores_artifact(trial)
    if sweep.store.state(artifact) != "finished":
        return None
    folder = sweep.store.path(artifact)
    verify(folder)
    scores = np.array(json.loads((folder / SCORES.file).read_text(encoding="utf-8")), dtype=np.float64)
    # A comparison needs two problems. One number, repeated, has no spread between them.
    return np.repeat(scores, 2) if len(scores) == 1 else scores


def measure(sweep: Sweep, trial: Trial) -> None:
    """Run the command on a run's trained student, unless that is done."""
    checkpoint = trial.artifact(CHECKPOINT)
    assert checkpoint is not None
    settings = trial.config.compare
    command = settings.command or ""

    def write(folders: list[Path]) -> list[dict[str, Any]]:
        (folder,) = folders
        results = folder / RESULTS
        # Results of a command that was killed are not this one's.
        if results.exists():
            remove(results)
        results.mkdir()
        words = command_line(command, sweep.store.path(checkpoint), results)
        _run(words, folder / LOG, settings.command_minutes)
        scores = read_scores(results, folder / LOG)
        write_text(folder / SCORES.file, json.dumps(scores) + "\n")
        return [{"scores": len(scores), "mean": float(np.mean(scores))}]

    sweep.store.ensure((scores_artifact(trial),), write)


def command_line(command: str, checkpoint: Path, results: Path) -> list[str]:
    """The words of the command. No shell reads them, so paths may contain anything."""
    words = []
    for word in shlex.split(command):
        with_checkpoint = word.replace("{checkpoint}", str(checkpoint.resolve()))
        words.append(with_checkpoint.replace(checks.OUTPUT, str(results.resolve())))
    return words


def _run(words: list[str], log: Path, minutes: int) -> None:
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise checks.command_not_started(words[0], error) from error
        try:
            status = process.wait(timeout=60 * minutes)
        except BaseException as error:
            # The command's own children end with it: engines start several processes.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise checks.command_too_long(minutes, log) from error
            raise
    checks.command_succeeded(status, last_line(log), log)


def last_line(log: Path) -> str:
    """The last line that is not blank."""
    with log.open("rb") as handle:
        handle.seek(max(0, log.stat().st_size - ENDING))
        lines = handle.read().decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def read_scores(results: Path, log: Path) -> list[float]:
    """The scores that a command has written or printed."""
    own = results / SCORES.file
    if own.is_file():
        return checks.are_scores(_own_scores(own), str(own))
    samples = sorted(results.rglob("samples_*.jsonl"))
    if samples:
        scores = [score for file in samples for score in _of_samples(file)]
        return checks.are_scores(scores, f"{results} (samples of lm-eval)")
    line = last_line(log)
    number = None
    with suppress(ValueError):
        number = [float(line)]
    return checks.are_scores(number, f"the last line that the command printed, {line[:60]!r} ({log})")


def _own_scores(file: Path) -> list[float] | None:
    """A number or a list of numbers; None for anything else."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None
    values = value if isinstance(value, list) else [value]
    is_numbers = all(isinstance(number, int | float) for number in values)
    return [float(number) for number in values] if is_numbers else None


def _of_samples(file: Path) -> list[float]:
    """The first metric of each document of a task of lm-eval, in the order of the documents. Of several
    filters, the first one in the file counts.
    """
    scores: dict[int, float] = {}
    for row in jsonl_rows(file):
        metrics = row.values.get("metrics")
        first = metrics[0] if isinstance(metrics, list) and metrics else None
        value = row.values.get(str(first))
        document, score = checks.sample_score(row.values.get("doc_id"), value, row.where)
        scores.setdefault(document, score)
    return [scores[document] for document in sorted(scores)]
