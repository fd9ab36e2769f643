"""Refusals of teaching: one function and one sentence each."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lark.config.teaching import Command, Questions, Teach
from lark.errors import LarkError

if TYPE_CHECKING:
    from lark.teaching.question_files import AskedQuestion


def require_path(source: Questions) -> None:
    if not source.path:
        raise LarkError("pool=taught needs questions: add questions.path=<file, folder or dataset id>.")


def same_question(question: "AskedQuestion", key: str, where: str) -> None:
    """Refuse an id that an earlier row gave to another question. `key`: of that row."""
    if question.key != key:
        raise LarkError(
            f"{where}: the id {question.question_id!r} is already that of another question. Give every"
            " question its own id, or name the column with questions.fields.question_id=<column>."
        )


def enough(source: Questions, count: int) -> None:
    if source.number is not None and source.number > count:
        raise LarkError(
            f"questions.number={source.number}, but {source.path} has only {count} different questions: use"
            " fewer, or null for all."
        )


def any_questions(source: Questions, count: int) -> None:
    if count == 0:
        raise LarkError(
            f"questions.path={source.path}: there is no question left to ask. Give a file with at least one"
            " question that is not in a benchmark (pool.decontaminate)."
        )


def all_asked(name: str, missing: Sequence[str], count: int) -> None:
    """Refuse to merge before every question was asked."""
    if missing:
        raise LarkError(
            f"teacher {name}: {len(missing):,} of {count:,} questions have no answer yet. Run the command"
            " again; only these are asked."
        )


def any_teachers(count: int) -> None:
    """Refuse batch files of a run without teachers."""
    if count == 0:
        raise LarkError(
            "There is no teacher to ask with batch files: give the settings of a run with pool=taught and"
            " teacher=[…], other than self."
        )


def any_results(folder: Path, count: int) -> None:
    """Refuse to read from a folder without results."""
    if count == 0:
        raise LarkError(
            f"{folder}: there is no file with results. Save the output of the batch API, or of `vllm"
            " run-batch`, here as .jsonl, beside the requests."
        )


def all_verified(name: str, count: int, rollouts: int) -> None:
    if count != rollouts:
        raise LarkError(
            f"teacher {name}: {count:,} of {rollouts:,} rollouts have a verdict. Run the command again; the"
            " others are verified."
        )


def program_works(settings: Command, failures: int, most: int, line: str) -> None:
    """Refuse a program that ends at every answer. `line`: the last one that it wrote as an error."""
    if failures >= most:
        reason = f" Its last words: {line}" if line else ""
        raise LarkError(
            f"teach.command.run={settings.run}: the program ended {failures} times in a row without a"
            f" verdict.{reason} It must read one JSON object per line and write one with `correct`"
            " for each, at once (flush the output). It may need more memory (teach.command.memory_gib)."
        )


def no_program(settings: Command, error: OSError) -> LarkError:
    return LarkError(
        f"teach.command.run={settings.run}: the program cannot be started ({error.strerror}). Give a command"
        " line that works in this folder."
    )


def not_a_verdict(where: str, line: bytes) -> LarkError:
    text = line.decode(errors="replace").strip()[:80]
    return LarkError(
        f"{where}: the program wrote {text!r}. Each line must be a JSON object with `correct` (true, false or"
        " null)."
    )


def has_rates(rates: Sequence[float], name: str) -> None:
    if not rates:
        raise LarkError(
            f"teacher {name}: no sample has a verdict, so there is no pass rate. Give the questions an"
            " answer, or set teach.verify=judge or teach.verify=command."
        )


def any_asked(count: int, source: Questions) -> None:
    """Refuse pass rates that leave no question."""
    if count == 0 and source.pass_rate is not None:
        least, most = source.pass_rate
        raise LarkError(
            f"questions.pass_rate: no question has a pass rate from {least:g} to {most:g}. Widen the"
            " interval, or sample the student more often (teach.samples)."
        )


def no_batches_between_heats(teach: Teach) -> None:
    """Refuse batch files of a run whose requests depend on other teachers' answers."""
    name = "heats" if teach.heats else "enough"
    if teach.heats or teach.enough is not None:
        raise LarkError(
            f"teach.{name}: what a teacher is asked depends on the answers of others, which batch files"
            " cannot wait for. Leave it out; rollouts from batch files are taken over by a run that has it."
        )
