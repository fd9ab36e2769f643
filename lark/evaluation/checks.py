"""Refusals of evaluation: benchmarks, prompts and samples, each with its sentence."""

import importlib.util
import re
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from lark.config import Task
from lark.config.evaluation import PublicFile
from lark.errors import LarkError, first_line
from lark.grading.answers import AnswerFormat, grade_paper
from lark.grading.canonical import canonical_number

if TYPE_CHECKING:
    from lark.evaluation.benchmarks import Problem
    from lark.evaluation.metrics import BenchmarkMetrics, GradedSample

OPTION_LETTERS = "ABCDEFGHIJ"
ANSWER_PLACES = {
    "box": "from the last \\boxed{}",
    "hashes": "after the last ####",
    "tags": "between the last <answer> tags",
}
_GENOTYPE = re.compile(r"(?:(\w)\1)+")
"""In lower case: AaBb and aabb differ only by the case of their letters."""


def _quoted(answer: str) -> str:
    return repr(answer.strip()[:40])


def gradable(answer: str, where: str, name: str, task: Task) -> None:
    """Refuse a gold answer that no response can equal in the benchmark's format."""
    if task.answer_format == AnswerFormat.CHOICE:
        _is_letter(answer, where, name)
    elif task.answer_format == AnswerFormat.NUMERIC:
        _is_number(answer, where, name)


def _is_letter(answer: str, where: str, name: str) -> None:
    text = answer.strip()
    if len(text) != 1 or text.upper() not in OPTION_LETTERS:
        raise LarkError(
            f"{where}: the answer {_quoted(answer)} is not the letter of a choice (A to"
            f" {OPTION_LETTERS[-1]}), so no response would be right. Fix the row, name the columns of the"
            f" wrong options in benchmark.tasks.{name}.distractor_fields, or set another answer_format."
        )


def _is_number(answer: str, where: str, name: str) -> None:
    if canonical_number(answer) is None:
        raise LarkError(
            f"{where}: the answer {_quoted(answer)} is not a number, so no number is right. Fix the row, name"
            f" another column with benchmark.tasks.{name}.answer_field, or set answer_format=free_form."
        )


def distinct_options(answer: str, wrong: Sequence[str], where: str) -> None:
    """Refuse options from which the right one cannot be told by its letter."""
    for option in wrong:
        if _meaning(option) == _meaning(answer):
            raise LarkError(
                f"{where}: a wrong option is the same as the right one ({_quoted(option)} and"
                f" {_quoted(answer)}), so the answer has no unique letter; fix the row."
            )


def letter_of(options: Sequence[str], answer: str, where: str) -> None:
    """Refuse a letter that no option has, and more options than there are letters."""
    if not options:
        return
    enough_letters(options[1:], where)
    letters = OPTION_LETTERS[: len(options)]
    if answer.strip().upper() not in letters:
        raise LarkError(
            f"{where}: the answer {_quoted(answer)} is not the letter of one of its {len(options)} options"
            f" ({letters[0]} to {letters[-1]}). Fix the row."
        )


def answer_found(final: str | None, solution: str, where: str, name: str, task: Task) -> str:
    """The final answer of a solution; refuses a solution without one."""
    if final is None:
        raise LarkError(
            f"{where}: there is no answer in this solution, which ends in {solution.strip()[-40:]!r}."
            f" benchmark.tasks.{name}.answer_from={task.answer_from} reads it"
            f" {ANSWER_PLACES[task.answer_from or '']}. Fix the row, or set another place or answer_field."
        )
    return final


def enough_letters(wrong: Sequence[str], where: str) -> None:
    """Refuse more options than there are letters."""
    if len(wrong) >= len(OPTION_LETTERS):
        raise LarkError(
            f"{where}: {len(wrong) + 1} options, but letters go from A to {OPTION_LETTERS[-1]}; use fewer."
        )


def _meaning(option: str) -> str:
    """A form that equal options share: numbers by their value, and words in any case. Case counts in
    formulas, symbols and genotypes (AaBb).
    """
    number = canonical_number(option)
    if number is not None:
        return f"number {number}"
    text = " ".join(option.split())
    letters = text.replace(" ", "").casefold()
    is_words = letters.isalpha() and len(letters) > 2 and not _GENOTYPE.fullmatch(letters)
    return text.casefold() if is_words else text


def same_gold(
    problem: "Problem", where: str, other: "Problem", other_where: str, name: str, task: Task
) -> None:
    """Refuse two problems with the same question and different answers."""
    gold = problem.answer
    other_gold = other.answer
    if _meaning(gold) == _meaning(other_gold):
        return
    form = AnswerFormat(task.answer_format)
    if not (grade_paper(gold, other_gold, form) or grade_paper(other_gold, gold, form)):
        raise LarkError(
            f"benchmark {name}, {where}: the problem of {other_where} again, with the answer {_quoted(gold)}"
            f" instead of {_quoted(other_gold)}. Correct or remove one of them."
        )


def any_problems(problems: Sequence["Problem"], name: str, task: Task) -> None:
    """Refuse an empty file."""
    if not problems:
        raise LarkError(
            f"benchmark {name}: {task.path} has no problems; set benchmark.tasks.{name}.path to a file with"
            " problems."
        )


def complete_benchmark(problems: Sequence["Problem"], name: str, task: Task) -> None:
    """Refuse another number of problems than the benchmark has."""
    if task.count is not None and len(problems) != task.count:
        raise LarkError(
            f"benchmark {name}: {task.path} has {len(problems)} problems, but the benchmark has {task.count}:"
            f" get the whole file, or set benchmark.tasks.{name}.count=null."
        )


def distinct_ids(problems: Sequence["Problem"], name: str, task: Task) -> None:
    (identity, times), *_ = Counter(problem.id for problem in problems).most_common(1)
    if times > 1:
        raise LarkError(
            f"benchmark {name}: {times} problems of {task.path} have the id {identity!r}: set"
            f" benchmark.tasks.{name}.id_field to a field other than {task.id_field}, or to null."
        )


def path_given(name: str, task: Task) -> None:
    """Refuse a benchmark without a path."""
    if not task.path:
        raise LarkError(
            f"benchmark {name} needs its file: add benchmark.tasks.{name}.path=<JSONL, Parquet or CSV file>."
        )


def existing_path(name: str, task: Task, is_missing: bool) -> None:
    """Refuse the path of a file that does not exist."""
    if is_missing:
        raise LarkError(
            f"benchmark.tasks.{name}.path={task.path}: there is no such file; put it there, or set the right"
            " path."
        )


def installed_datasets(name: str) -> None:
    """Refuse a hub dataset where its library is not installed."""
    if importlib.util.find_spec("datasets") is None:
        raise LarkError(
            f"benchmark {name} is a hub dataset: pip install datasets, or set benchmark.tasks.{name}.path to"
            " a file."
        )


def unreadable_dataset(name: str, task: Task, error: Exception) -> LarkError:
    return LarkError(
        f"benchmark.tasks.{name}.path={task.path}: neither a file nor a readable hub dataset "
        f"({type(error).__name__}: {first_line(error)})."
    )


def not_downloaded(name: str, source: PublicFile, error: Exception, is_gated: bool) -> LarkError:
    """The refusal of a public dataset that is not here and cannot be fetched."""
    return _gated(name, source) if is_gated else _unreachable(name, source, error)


def _gated(name: str, source: PublicFile) -> LarkError:
    return LarkError(
        f"benchmark {name}: its dataset {source.dataset} is gated. Accept its conditions on its page on the"
        " Hugging Face hub, log in with `hf auth login` (or set HF_TOKEN), and run the command again. If you"
        f" have the file, put it at {source.instead_of}. benchmark.skip=[{name}] continues without it."
    )


def _unreachable(name: str, source: PublicFile, error: Exception) -> LarkError:
    revision = f" --revision {source.revision}" if source.revision else ""
    conditions = ""
    if source.gated:
        conditions = (
            " The dataset is gated: accept its conditions on its page and log in with `hf auth login` first."
        )
    return LarkError(
        f"benchmark {name}: there is no file {source.instead_of}, and its public dataset {source.dataset}"
        f" cannot be downloaded ({type(error).__name__}: {first_line(error)}). On a machine with a network,"
        f" the same command with stages=[fetch] downloads all inputs, and `hf download {source.dataset}"
        f" {source.file} --repo-type dataset{revision}` only this one; copy the hub's cache (HF_HOME) to this"
        f" machine.{conditions} benchmark.skip=[{name}] continues without it."
    )


def room_for_answer(name: str, problem: "Problem", prompt: int, max_length: int) -> None:
    """Refuse a prompt, by its number of tokens, that fills the student's context."""
    if prompt >= max_length:
        raise LarkError(
            f"benchmark {name}, problem {problem.id}: a prompt of {prompt} tokens leaves no room for an"
            f" answer in student.max_length={max_length}; raise it."
        )


def all_answers(folder: Path, missing: Sequence[tuple[str, int]], total: int) -> None:
    """Refuse to merge answers while some are missing. `missing`: their problems and seeds."""
    if missing:
        problem, seed = missing[0]
        raise LarkError(
            f"{folder}: {len(missing)} of {total} answers are missing or damaged (problem {problem}, seed"
            f" {seed}). Run the same command again to generate them."
        )


def all_grades(folder: Path, grades: int, answers: int) -> None:
    """Refuse to merge grades while some are missing."""
    if grades != answers:
        raise LarkError(
            f"{folder}: {answers - grades} of {answers} grades are missing. Run the same command again."
        )


def any_samples(graded: Sequence["GradedSample"]) -> None:
    """Refuse metrics of nothing."""
    if not graded:
        raise LarkError("There are no graded samples: the benchmark is empty, or its evaluation has not run.")


def complete_samples(graded: Sequence["GradedSample"], problems: Sequence[str], seeds: Sequence[int]) -> None:
    """Refuse samples that are not the same k numbers for every problem under every seed."""
    numbers: dict[tuple[str, int], list[int]] = {}
    for sample in graded:
        numbers.setdefault((sample.problem, sample.seed), []).append(sample.sample)
    expected = sorted({sample.sample for sample in graded})
    for problem, seed in product(problems, seeds):
        samples = sorted(numbers.get((problem, seed), []))
        if samples != expected:
            raise LarkError(
                f"Problem {problem} has samples {samples} under seed {seed}, but others have {expected}: the"
                " evaluation is incomplete or was merged twice. Run it again."
            )


def any_benchmark(benchmarks: Sequence["BenchmarkMetrics"]) -> None:
    """Refuse an average over nothing."""
    if not benchmarks:
        raise LarkError("There is no benchmark to average over.")


def comparable(benchmarks: Sequence["BenchmarkMetrics"]) -> None:
    """Refuse to average over different numbers of seeds."""
    counts = {len(benchmark.seeds) for benchmark in benchmarks}
    if len(counts) > 1:
        raise LarkError(
            f"Avg needs the same number of seeds on every benchmark, but they have {sorted(counts)}: evaluate"
            " the rest."
        )
