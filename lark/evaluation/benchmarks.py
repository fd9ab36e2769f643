"""Load benchmarks: a JSONL, Parquet or CSV file, a dataset of the hub, or the generated demo. A new one is
one YAML file.
"""

import hashlib
import json
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any

from lark.config import Benchmark, Task
from lark.config.checks import user_path
from lark.errors import LarkError, first_line
from lark.evaluation import public
from lark.grading.answers import AnswerFormat, canonical_number, grade_paper
from lark.models import prompts
from lark.names import is_demo
from lark.reading.rows import Row, id_text, is_invisible, is_table, plain_text, rows

log = logging.getLogger(__name__)

SYSTEM_PROMPTS = {"numeric": prompts.NUMERIC, "choice": prompts.CHOICE, "free_form": prompts.FREE_FORM}
LETTERS = "ABCDEFGHIJ"
LARGEST_LEVEL = 10**6


@dataclass(frozen=True)
class Problem:
    """One problem of a benchmark."""

    id: str
    question: str
    answer: str
    level: int | None = None
    options: tuple[str, ...] = ()
    """Options of a multiple-choice problem in the order shown: the shuffle is stored, not only its seed."""


def check(benchmark: Benchmark) -> None:
    """Read every benchmark that is a file, also of a public dataset, so that errors in it are reported
    before training.
    """
    for name, task in benchmark.tasks.items():
        if public.is_public(name, task) or is_here(name, task):
            for note in doubtful(load(name, task), task):
                log.warning("benchmark %s: %s", name, note)


def fetch(benchmark: Benchmark) -> bool:
    """Download the benchmarks that are read from public datasets and are not here yet. Returns whether
    there were any.
    """
    missing = [(name, task) for name, task in benchmark.tasks.items() if not is_here(name, task)]
    downloads = [(name, task) for name, task in missing if public.is_public(name, task)]
    for name, task in downloads:
        public.downloaded(name, task)
    return len(downloads) > 0


def doubtful(problems: Sequence[Problem], task: Task) -> Iterator[str]:
    """Gold answers that no boxed answer is likely to equal under the paper's rules, as sentences. What is
    asked for is unknown, so they are not errors.
    """
    if task.answer_format != AnswerFormat.FREE_FORM:
        return  # checked by `_problem`
    for what, pattern in DOUBTFUL.items():
        found = [problem for problem in problems if pattern.search(problem.answer.strip())]
        if found:
            yield (
                f"{len(found)} of {len(problems)} gold answers {what}, such as"
                f" {found[0].answer.strip()[-40:]!r} of problem {found[0].id}. The paper's grader compares a"
                " response's \\boxed{} with the whole text, so such a problem is never solved. Store only"
                " the final answer, in this column or in another one (answer_field)."
            )


DOUBTFUL = {
    "contain a box": re.compile(r"\\f?box(?:ed)?\b"),
    "are in dollar signs": re.compile(r"\A\$.*\$\Z", re.DOTALL),
    "are a solution that ends in `####`": re.compile(r"^####", re.MULTILINE),
    "look like a missing value": re.compile(r"\A(?:n/?a|none|nan|null|nil|-+|\?+|<na>)\Z", re.IGNORECASE),
}
"""Gold answers that are written in a way in which no response is, and patterns that find them."""


def load_if_here(name: str, task: Task) -> Sequence[Problem] | None:
    """None if the benchmark is not on this machine or cannot be read. It is then identified by its source,
    and `check` reports errors in it.
    """
    try:
        return load(name, task) if is_here(name, task) else None
    except LarkError:
        return None


def is_here(name: str, task: Task) -> bool:
    """Whether nothing must be downloaded: the benchmark is a file, is generated, or is a local path that
    does not exist.
    """
    if public.is_public(name, task):
        return public.cached(task) is not None
    return not task.path or is_demo(task.path) or _path(name, task).is_file() or _is_missing(name, task)


def _path(name: str, task: Task) -> Path:
    return user_path(f"benchmark.tasks.{name}.path", task.path or "")


def _is_missing(name: str, task: Task) -> bool:
    """Whether this can only be a local path, and does not exist."""
    path = task.path or ""
    looks_local = path.startswith((".", "/", "~")) or is_table(Path(path))
    return looks_local and not _path(name, task).exists()


def load(name: str, task: Task) -> Sequence[Problem]:
    """The problems of a benchmark, checked. A file is parsed only once, until it changes."""
    if public.is_public(name, task):
        task = public.downloaded(name, task)
    path = _path(name, task)
    stamp = (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else None
    if stamp is None and not is_demo(task.path):
        return _load(name, task)
    key = (name, json.dumps(asdict(task), sort_keys=True), stamp)
    if key not in _loaded:
        _loaded[key] = _load(name, task)
    return _loaded[key]


_loaded: dict[tuple[str, str, tuple[int, int] | None], tuple[Problem, ...]] = {}


def _load(name: str, task: Task) -> tuple[Problem, ...]:
    problems, first = [], dict[str, tuple[str, str]]()
    for index, row in enumerate(_rows(name, task)):
        problem = _problem(row, index, name, task)
        where, gold = first.setdefault(" ".join(problem.question.split()), (row.where, problem.answer))
        if not _same_gold(gold, problem.answer, task):
            raise LarkError(
                f"benchmark {name}, {row.where}: the problem of {where} again, with the answer"
                f" {problem.answer.strip()[:40]!r} instead of {gold.strip()[:40]!r}. Correct or remove one of"
                " them."
            )
        problems.append(problem)
    if not problems:
        raise LarkError(
            f"benchmark {name}: {task.path} has no problems; set benchmark.tasks.{name}.path to a file with"
            " problems."
        )
    if task.count is not None and len(problems) != task.count:
        raise LarkError(
            f"benchmark {name}: {task.path} has {len(problems)} problems, but the benchmark has {task.count}:"
            f" get the whole file, or set benchmark.tasks.{name}.count=null."
        )
    (identity, times), *_ = Counter(problem.id for problem in problems).most_common(1)
    if times > 1:
        raise LarkError(
            f"benchmark {name}: {times} problems of {task.path} have the id {identity!r}: set"
            f" benchmark.tasks.{name}.id_field to a field other than {task.id_field}, or to null."
        )
    return tuple(problems[: task.limit])


def _same_gold(one: str, other: str, task: Task) -> bool:
    form = AnswerFormat(task.answer_format)
    return _folded(one) == _folded(other) or grade_paper(one, other, form) or grade_paper(other, one, form)


def _problem(row: Row, index: int, name: str, task: Task) -> Problem:
    where = f"benchmark {name}, {row.where}"

    def get(field: str, as_text: Callable[[object], str] = str) -> str:
        value = row.values.get(field)
        wanted: Any = str if field == task.question_field else str | int | float | Decimal
        if not isinstance(value, wanted | None):
            kind = "text" if wanted is str else "text or a number"
            raise LarkError(f"{where}: `{field}` has type {type(value).__name__}; write it as {kind}.")
        if isinstance(value, float | Decimal) and not isfinite(value):
            raise LarkError(
                f"{where}: `{field}` is {value}, which is not a number that means anything. Tables have it"
                " where a value is missing: write the value, or remove the row."
            )
        if value is None or is_invisible(str(value)):
            raise LarkError(
                f"{where}: there is no `{field}`; the row has {', '.join(map(str, row.values))}. "
                f"Set benchmark.tasks.{name}.question_field, answer_field and so on to the names in the file."
            )
        return _checked_text(as_text(value), field, where)

    if isinstance(row.values.get(task.answer_field), bool) and task.answer_format == "free_form":
        raise LarkError(
            f"{where}: `{task.answer_field}` is the boolean {row.values[task.answer_field]}, and it is"
            " unknown which text that is. Write the answer as a response has it in its box, such as Yes or"
            " true."
        )
    question, answer = get(task.question_field), get(task.answer_field, plain_text)
    identity = get(task.id_field, id_text) if task.id_field else str(index)
    level = _level(get(task.level_field), where) if task.level_field else None
    if not task.distractor_fields:
        if task.answer_format == "choice" and not (
            len(answer.strip()) == 1 and answer.strip().upper() in LETTERS
        ):
            raise LarkError(
                f"{where}: the answer {answer.strip()[:40]!r} is not the letter of a choice (A to"
                f" {LETTERS[-1]}), so no response would be right. Fix the row, name the columns of the wrong"
                f" options in benchmark.tasks.{name}.distractor_fields, or set another answer_format."
            )
        if task.answer_format == "numeric" and canonical_number(answer) is None:
            raise LarkError(
                f"{where}: the answer {answer.strip()[:40]!r} is not a number, so no number is right. Fix the"
                f" row, name another column with benchmark.tasks.{name}.answer_field, or set"
                " answer_format=free_form."
            )
        return Problem(identity, question, answer, level)
    wrong = [get(field, plain_text) for field in task.distractor_fields]
    same = next((option for option in wrong if _folded(option) == _folded(answer)), None)
    if same is not None:
        raise LarkError(
            f"{where}: a wrong option is the same as the right one ({same.strip()[:40]!r} and"
            f" {answer.strip()[:40]!r}), so the answer has no unique letter; fix the row."
        )
    options = [answer, *wrong]
    if len(options) > len(LETTERS):
        raise LarkError(
            f"{where}: {len(options)} options, but letters go from A to {LETTERS[-1]}; name fewer"
            " distractor_fields."
        )
    _shuffle(options, f"{name}/{question}")
    letter = LETTERS[options.index(answer)]
    listed = "\n".join(f"{LETTERS[i]}) {option.strip()}" for i, option in enumerate(options))
    return Problem(identity, f"{question.strip()}\n\n{listed}", letter, level, tuple(options))


def _folded(option: str) -> str:
    """What an option says: numbers by their value, and words in any case. Case counts in formulas, symbols
    and genotypes (AaBb).
    """
    number = canonical_number(option)
    if number is not None:
        return f"number {number}"
    text = " ".join(option.split())
    letters = text.replace(" ", "").casefold()
    return (
        text.casefold() if letters.isalpha() and len(letters) > 2 and not PAIRS.fullmatch(letters) else text
    )


PAIRS = re.compile(r"(?:(\w)\1)+")
"""A genotype, whatever the case of its letters."""


def _checked_text(text: str, field: str, where: str) -> str:
    """Refuse a lone surrogate (half a character): JSON can contain it, but no encoding or tokenizer accepts
    it.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise LarkError(
            f"{where}: `{field}` has a lone surrogate (half a character), {text[error.start]!r}, at position"
            f" {error.start}; write the whole character."
        ) from error
    return text


def _level(value: str, where: str) -> int:
    try:
        level = float(value)
    except ValueError:
        level = 0.5
    if not (level.is_integer() and abs(level) <= LARGEST_LEVEL):
        raise LarkError(
            f"{where}: level {value!r} is not a whole number; fix the row, or leave level_field out."
        )
    return int(level)


def _shuffle(options: list[str], key: str) -> None:
    """Shuffle in an order that depends only on the question, so that it is the same in every run and for
    every student.
    """
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    random.Random(seed).shuffle(options)


def _rows(name: str, task: Task) -> Iterator[Row]:
    if is_demo(task.path):
        from lark.demo.exams import problems  # noqa: PLC0415  # the demo is generated, not read

        yield from (
            Row(row, f"problem {number} of the demo") for number, row in enumerate(problems(name), start=1)
        )
        return
    if not task.path:
        raise LarkError(
            f"benchmark {name} needs its file: add benchmark.tasks.{name}.path=<JSONL, Parquet or CSV file>."
        )
    path = _path(name, task)
    if path.is_file():
        yield from rows(path)
    elif _is_missing(name, task):
        raise LarkError(
            f"benchmark.tasks.{name}.path={task.path}: there is no such file; put it there, or set the right"
            " path."
        )
    else:
        yield from _hub_rows(name, task)


def _hub_rows(name: str, task: Task) -> Iterator[Row]:
    try:
        import datasets  # noqa: PLC0415  # only hub benchmarks need it
    except ImportError as error:
        raise LarkError(
            f"benchmark {name} is a hub dataset: pip install datasets, or set benchmark.tasks.{name}.path to"
            " a file."
        ) from error
    try:
        local = _path(name, task).is_dir()  # read as it is, without a copy in the cache of datasets
        data = datasets.load_dataset(
            task.path, task.subset, split=task.split, revision=task.revision, streaming=local
        )
        yield from (Row(row, f"problem {number} of {task.path}") for number, row in enumerate(data, start=1))
    except Exception as error:
        raise LarkError(
            f"benchmark.tasks.{name}.path={task.path}: neither a file nor a readable hub dataset "
            f"({type(error).__name__}: {first_line(error)})."
        ) from error
