"""Load benchmarks: a JSONL, Parquet or CSV file, a dataset of the hub, or the generated demo. A new one is
one YAML file.
"""

import hashlib
import json
import logging
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lark.config import Benchmark, Task
from lark.config.checks import user_path
from lark.errors import LarkError
from lark.evaluation import checks, public
from lark.evaluation.checks import OPTION_LETTERS
from lark.grading.answers import AnswerFormat, extract_boxed_list
from lark.grading.final_answers import READERS
from lark.models import prompts
from lark.reading.fields import Fields
from lark.reading.rows import Row, is_table, rows
from lark.reading.untrusted import require_characters

log = logging.getLogger(__name__)

SYSTEM_PROMPTS = {
    "numeric": prompts.NUMERIC,
    "choice": prompts.CHOICE,
    "free_form": prompts.FREE_FORM,
    "exact_text": prompts.FREE_FORM,
}
LARGEST_LEVEL = 10**6
LEVEL = re.compile(r"Level ([0-9]{1,6}|\?)")
"""A level as MATH writes it."""
DOUBTFUL = {
    "contain a box": re.compile(r"\\f?box(?:ed)?\b"),
    "are in dollar signs": re.compile(r"\A\$.*\$\Z", re.DOTALL),
    "are a solution that ends in `####`": re.compile(r"^####", re.MULTILINE),
    "look like a missing value": re.compile(r"\A(?:n/?a|none|nan|null|nil|-+|\?+|<na>)\Z", re.IGNORECASE),
}
"""Ways to write a gold answer in which no response is written, and patterns that find them."""


@dataclass(frozen=True)
class Problem:
    """One problem of a benchmark."""

    id: str
    question: str
    answer: str
    level: int | None = None
    options: tuple[str, ...] = ()
    """Options of a multiple-choice problem in the order shown: the shuffle is stored, not only its seed."""


def system_prompt(problem: Problem, task: Task) -> str:
    """The paper's system prompt; that of choices names the letters which the problem has."""
    prompt = SYSTEM_PROMPTS[task.answer_format]
    if not problem.options:
        return prompt
    letters = ", ".join(OPTION_LETTERS[: len(problem.options)])
    return prompt.replace(prompts.LETTERS, letters)


def check(benchmark: Benchmark) -> None:
    """Read every benchmark that is a file, also of a public dataset, so that errors in it are reported
    before training.
    """
    for name, task in benchmark.tasks.items():
        if public.is_public(name, task) or is_here(name, task):
            for note in doubtful(load(name, task), task):
                log.warning("benchmark %s: %s", name, note)


def fetch(benchmark: Benchmark) -> bool:
    """Download the benchmarks that are read from public datasets and are not here yet. True if there were
    any.
    """
    absent = {}
    for name, task in benchmark.tasks.items():
        if public.is_public(name, task) and not is_here(name, task):
            absent[name] = public.downloaded(name, task)
    return bool(absent)


def doubtful(problems: Sequence[Problem], task: Task) -> Iterator[str]:
    """Sentences about gold answers that no boxed answer is likely to equal under the paper's rules.

    The question may ask for exactly that, so they are not errors.
    """
    if task.answer_format != AnswerFormat.FREE_FORM:
        return  # `checks.gradable` refuses such answers in the other formats
    for description, pattern in DOUBTFUL.items():
        matches = [problem for problem in problems if pattern.search(problem.answer.strip())]
        if matches:
            first = matches[0]
            yield (
                f"{len(matches)} of {len(problems)} gold answers {description}, such as"
                f" {first.answer.strip()[-40:]!r} of problem {first.id}. The paper's grader compares"
                " a response's \\boxed{} with the whole text, so such a problem is never solved. Store only"
                " the final answer, in this column or in another one (answer_field)."
            )


def load_if_here(name: str, task: Task) -> Sequence[Problem] | None:
    """None if the benchmark is not on this machine or cannot be read. It is then identified by its source,
    and `check` reports errors in it.
    """
    try:
        return load(name, task) if is_here(name, task) else None
    except LarkError:
        return None


def is_here(name: str, task: Task) -> bool:
    """True if nothing must be downloaded: the benchmark is a file, is generated, or is a local path that does
    not exist.
    """
    if public.is_public(name, task):
        return public.cached(task) is not None
    return not task.path or task.is_generated or _path(name, task).is_file() or _is_missing(name, task)


def _path(name: str, task: Task) -> Path:
    return user_path(f"benchmark.tasks.{name}.path", task.path or "")


def _is_missing(name: str, task: Task) -> bool:
    """True if this can only be a local path, and does not exist."""
    path = task.path or ""
    looks_local = path.startswith((".", "/", "~")) or is_table(Path(path))
    return looks_local and not _path(name, task).exists()


_loaded: dict[tuple[str, str, tuple[int, int] | None], tuple[Problem, ...]] = {}
"""Benchmarks that were read, by name, settings, and the file's size and time."""


def load(name: str, task: Task) -> Sequence[Problem]:
    """The problems of a benchmark, checked. A file is parsed only once, until it changes."""
    if public.is_public(name, task):
        task = public.downloaded(name, task)
    path = _path(name, task)
    stamp = (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else None
    if stamp is None and not task.is_generated:
        return _load(name, task)
    key = (name, json.dumps(asdict(task), sort_keys=True), stamp)
    if key not in _loaded:
        _loaded[key] = _load(name, task)
    return _loaded[key]


def _load(name: str, task: Task) -> tuple[Problem, ...]:
    problems: list[Problem] = []
    first: dict[str, tuple[Problem, str]] = {}
    """The first problem with each question, and where it is."""
    for index, row in enumerate(_rows(name, task)):
        problem = _problem(row, index, name, task)
        question = " ".join(problem.question.split())
        earlier, where = first.setdefault(question, (problem, row.where))
        checks.same_gold(problem, row.where, earlier, where, name, task)
        problems.append(problem)
    checks.any_problems(problems, name, task)
    checks.complete_benchmark(problems, name, task)
    checks.distinct_ids(problems, name, task)
    return tuple(problems[: task.limit])


def _problem(row: Row, index: int, name: str, task: Task) -> Problem:
    """A problem; with wrong options, they are shuffled and the answer becomes a letter."""
    where = f"benchmark {name}, {row.where}"
    columns = f"benchmark.tasks.{name}.question_field, answer_field and so on"
    fields = Fields(row.values, where, f"Set {columns} to the names in the file.")
    # A boolean may be an option, but no box is sure to have the same text.
    read_answer = fields.option if task.distractor_fields else fields.answer
    problem = Problem(
        id=fields.identity(task.id_field) if task.id_field else str(index),
        question=fields.text(task.question_field),
        answer=read_answer(task.answer_field),
        level=_level(fields, task.level_field),
    )
    wrong = [fields.option(field) for field in task.distractor_fields]
    options = fields.options(task.options_field) if task.options_field else []
    require_characters([problem.id, problem.question, problem.answer, *wrong, *options], where)
    if not wrong:
        problem = replace(problem, answer=_final(problem.answer, where, name, task))
        checks.gradable(problem.answer, where, name, task)
        checks.letter_of(options, problem.answer, where)
        return _with_options(problem, options)
    checks.distinct_options(problem.answer, wrong, where)
    checks.enough_letters(wrong, where)
    return _as_choice(problem, wrong, key=f"{name}/{problem.question}")


def _final(answer: str, where: str, name: str, task: Task) -> str:
    """The final answer of a solution, if the column has solutions."""
    if task.answer_from is None:
        return answer
    final = READERS[task.answer_from](answer)
    if final is None and task.answer_from == "box":
        final = extract_boxed_list(answer)  # some solutions of MATH end in \fbox{5} or \boxed 5
    return checks.answer_found(final, answer, where, name, task)


def _level(fields: Fields, name: str | None) -> int | None:
    if name is None:
        return None
    text = LEVEL.fullmatch(str(fields.get(name)).strip())
    if text:
        return None if text[1] == "?" else int(text[1])
    return fields.whole(name, LARGEST_LEVEL, "Fix the row, or leave level_field out.")


def _as_choice(problem: Problem, wrong: Sequence[str], key: str) -> Problem:
    """The problem with its options, in an order that depends only on the key: it is the same in every run
    and for every student.
    """
    options = [problem.answer, *wrong]
    # Python's hash of a string differs from process to process.
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    random.Random(seed).shuffle(options)
    return replace(_with_options(problem, options), answer=OPTION_LETTERS[options.index(problem.answer)])


def _with_options(problem: Problem, options: Sequence[str]) -> Problem:
    """The problem with its options in this order, after the question. Unchanged without options."""
    if not options:
        return problem
    lines = [f"{letter}) {option.strip()}" for letter, option in zip(OPTION_LETTERS, options, strict=False)]
    question = "\n".join([problem.question.strip(), "", *lines])
    return replace(problem, question=question, options=tuple(options))


def _rows(name: str, task: Task) -> Iterator[Row]:
    if task.is_generated:
        yield from _demo_rows(name)
        return
    checks.path_given(name, task)
    checks.existing_path(name, task, is_missing=_is_missing(name, task))
    path = _path(name, task)
    if path.is_file():
        yield from rows(path)
    else:
        yield from _hub_rows(name, task)


def _demo_rows(name: str) -> Iterator[Row]:
    from lark.demo.exams import problems  # noqa: PLC0415  # the demo is generated, not read

    for number, row in enumerate(problems(name), start=1):
        yield Row(row, f"problem {number} of the demo")


def _hub_rows(name: str, task: Task) -> Iterator[Row]:
    checks.installed_datasets(name)
    import datasets  # noqa: PLC0415  # only hub benchmarks need it

    try:
        is_folder = _path(name, task).is_dir()  # read as it is, without a copy in the cache of datasets
        data = datasets.load_dataset(
            task.path, task.subset, split=task.split, revision=task.revision, streaming=is_folder
        )
        for number, row in enumerate(data, start=1):
            yield Row(row, f"problem {number} of {task.path}")
    except Exception as error:
        raise checks.unreadable_dataset(name, task, error) from error
