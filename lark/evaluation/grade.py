"""Grade generations: both graders on every sample, and the metrics of each. Needs no GPU and can be
repeated at any time.
"""

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lark.config import Task
from lark.errors import LarkError
from lark.evaluation import shards
from lark.evaluation.benchmarks import is_here, load
from lark.evaluation.metrics import GradedSample, benchmark_metrics
from lark.evaluation.shards import GENERATIONS, PROBLEMS, Plan
from lark.generation import journal
from lark.grading.answers import AnswerFormat, extract_boxed, extract_boxed_list, grade_paper
from lark.grading.verify import Verifier
from lark.reading.rows import jsonl_rows
from lark.store.store import Kind, write_text
from lark.work.sharding import Do, Progress, Shard, Work, in_shards

if TYPE_CHECKING:
    from lark.work.operation import Counts, Job

log = logging.getLogger(__name__)

METRICS = Kind("metrics", 7, "metrics.json")
GRADES = "grades.jsonl"
"""The grades of single samples, beside the metrics."""
ANSWERS = 1000
"""Answers in a shard."""
KEYS = {
    "problem": str,
    "seed": int,
    "sample": int,
    "answer": str | None,
    "gold": str,
    "answer_verify": str | None,
    "paper": bool,
    "verify": bool,
}
"""The keys of a grade, and the types of their values."""


def collect(job: "Job", counts: "Counts") -> "Counts":
    """When every process is done, merge the generations of each benchmark."""
    decoding = job.config.benchmark.decoding
    merged = {}
    for name, folder in job.outputs.items():
        problems = tuple(row["id"] for row in _read(folder / PROBLEMS))
        merged[name] = shards.merge(folder, Plan(problems, tuple(decoding.seeds), decoding.samples))
    return {name: {**counts[name], **merged[name]} for name in merged}


@in_shards
def grade_all(job: "Job") -> Work:
    """Grade the generations of every benchmark in `job.outputs`, some answers per shard. Does not load
    torch.
    """
    tasks = job.config.benchmark.tasks
    sources = {name: job.inputs[f"{GENERATIONS.name}:{name}"] for name in job.outputs}
    counts = {name: sum(1 for _ in jsonl_rows(source / GENERATIONS.file)) for name, source in sources.items()}
    every = {
        f"{name}-{start:08d}": (name, range(start, min(start + ANSWERS, count)))
        for name, count in counts.items()
        for start in range(0, count, ANSWERS)
    }

    def part(shard: Shard) -> Path:
        name, rows = every[shard.name]
        return job.outputs[name] / part_name(rows)

    def missing(some: Sequence[Shard]) -> list[Shard]:
        wanted = {part(shard): shard for shard in some if part(shard).is_file()}
        whole: set[Shard] = set()
        for name in {every[shard.name][0] for shard in wanted.values()}:
            golds = gold_answers(sources[name], name, tasks[name])
            for rows, samples in _in_parts(sources[name] / GENERATIONS.file):
                path = job.outputs[name] / part_name(rows)
                if (
                    path in wanted
                    and _graded(path, samples, golds, AnswerFormat(tasks[name].answer_format)) is not None
                ):
                    whole.add(wanted[path])
        return [shard for shard in some if shard not in whole]

    @contextlib.contextmanager
    def load_graders() -> Iterator[Do]:
        with Verifier(processes=min(2, os.cpu_count() or 1)) as verifier:

            def do(some: Sequence[Shard], progress: Progress) -> None:
                for shard in some:
                    name, rows = every[shard.name]
                    samples = [
                        dict(row.values)
                        for row in islice(jsonl_rows(sources[name] / GENERATIONS.file), rows.start, rows.stop)
                    ]
                    golds, form = (
                        gold_answers(sources[name], name, tasks[name]),
                        AnswerFormat(tasks[name].answer_format),
                    )
                    lines = grades(samples, golds, form, verifier, progress.update)
                    owners = [_owner(sample, golds, form) for sample in samples]
                    checks = map(journal.checksum, lines, owners)
                    sealed = [
                        {**line, journal.CHECK: check} for line, check in zip(lines, checks, strict=True)
                    ]
                    write_text(part(shard), _lines(sealed))

            yield do

    def describe(shard: Shard) -> str:
        name, rows = every[shard.name]
        return f"benchmark {name}, answers {rows.start + 1} to {rows.stop}"

    listed = [Shard(name, len(rows), len(rows)) for name, (_, rows) in every.items()]
    return Work(
        listed, missing, load_graders, lambda done: {"answers": counts}, describe, "grading", "answer"
    )


def collect_grades(job: "Job", counts: "Counts") -> "Counts":
    """`grades.jsonl` and `metrics.json` of each benchmark, from the grades of its shards."""
    tasks = job.config.benchmark.tasks
    return {
        name: write_metrics(
            job.inputs[f"{GENERATIONS.name}:{name}"], name, tasks[name], folder, counts["answers"][name]
        )
        for name, folder in job.outputs.items()
    }


def gold_answers(generations: Path, name: str, task: Task) -> dict[str, dict[str, Any]]:
    """The problems by id: as they are now, where the benchmark can be read, or as they were at generation."""
    problems = {row["id"]: row for row in _read(generations / PROBLEMS)}
    if is_here(name, task):
        problems |= {problem.id: asdict(problem) for problem in load(name, task)}
    return problems


def grades(
    samples: Sequence[Mapping[str, Any]],
    problems: Mapping[str, Mapping[str, Any]],
    form: AnswerFormat,
    verifier: Verifier,
    advance: Callable[[int], object] | None = None,
) -> list[dict[str, Any]]:
    """What each grader read in each sample, and its grade."""
    answers = [extract_boxed(sample["text"]) for sample in samples]
    lists = [extract_boxed_list(sample["text"]) for sample in samples]
    golds = [problems[sample["problem"]]["answer"] for sample in samples]
    verify = verifier.grade_many([(a, g, form) for a, g in zip(lists, golds, strict=True)], progress=advance)
    paper = [grade_paper(a, g, form) for a, g in zip(answers, golds, strict=True)]
    return [
        {
            "problem": s["problem"],
            "seed": s["seed"],
            "sample": s["sample"],
            "answer": answers[i],
            "gold": golds[i],
            "answer_verify": lists[i],
            "paper": paper[i],
            "verify": verify[i],
        }
        for i, s in enumerate(samples)
    ]


def write_metrics(generations: Path, name: str, task: Task, folder: Path, count: int) -> dict[str, Any]:
    """Merge the grades of a benchmark, and write its metrics. `count`: the number of answers."""
    problems, samples = gold_answers(generations, name, task), _read(generations / GENERATIONS.file)
    parts, lines = [], []
    for start in range(0, count, ANSWERS):
        rows = range(start, min(start + ANSWERS, count))
        parts.append(folder / part_name(rows))
        lines += (
            _graded(parts[-1], samples[start : rows.stop], problems, AnswerFormat(task.answer_format)) or []
        )
    if len(lines) != len(samples):
        raise LarkError(
            f"{folder}: {len(samples) - len(lines)} of {len(samples)} grades are missing. Run the same"
            " command again."
        )
    write_text(folder / GRADES, _lines(lines))
    metrics = {
        grader: benchmark_metrics(
            GradedSample(
                s["problem"],
                s["seed"],
                s["sample"],
                line[grader],
                s["finish_reason"] == "length",
                line[read] is not None,
                problems[s["problem"]]["level"],
            )
            for s, line in zip(samples, lines, strict=True)
        ).to_dict()
        for grader, read in (("paper", "answer"), ("verify", "answer_verify"))
    }
    write_text(folder / METRICS.file, json.dumps(metrics, indent=2) + "\n")
    for part in parts:
        part.unlink()
    return {"problems": len(problems), "answers": len(samples)}


def part_name(rows: range) -> str:
    """File with the grades of some answers until all of them are merged."""
    return f"shard-{rows.start:08d}-{rows.stop:08d}.jsonl"


def _in_parts(generations: Path) -> Iterator[tuple[range, list[dict[str, Any]]]]:
    """The answers of each shard, with their places in the file."""
    found, start = (dict(row.values) for row in jsonl_rows(generations)), 0
    while samples := list(islice(found, ANSWERS)):
        yield range(start, start + len(samples)), samples
        start += len(samples)


def _owner(sample: Mapping[str, Any], problems: Mapping[str, Mapping[str, Any]], form: AnswerFormat) -> str:
    """What a grade belongs to: this answer, and what it is compared with."""
    graded = [
        sample["problem"],
        sample["seed"],
        sample["sample"],
        sample["text"],
        problems[sample["problem"]]["answer"],
    ]
    return json.dumps([*graded, form.value])


def _graded(
    part: Path,
    samples: Sequence[Mapping[str, Any]],
    problems: Mapping[str, Mapping[str, Any]],
    form: AnswerFormat,
) -> list[dict[str, Any]] | None:
    """The grades in a shard's file. None if it does not exist, or does not have exactly one intact grade of
    each of these answers (with a warning): the numbers in it would be those of other answers.
    """
    if not part.is_file():
        return None
    lines: list[dict[str, Any]] = []
    with contextlib.suppress(LarkError):
        lines = _read(part)
    whole = len(lines) == len(samples) and all(
        line.pop(journal.CHECK, None) == journal.checksum(line, _owner(sample, problems, form))
        and _is_grade(line, sample)
        for line, sample in zip(lines, samples, strict=True)
    )
    if not whole:
        log.warning("%s does not have exactly the grades of its answers: they are graded again.", part)
    return lines if whole else None


def _is_grade(line: Mapping[str, Any], sample: Mapping[str, Any]) -> bool:
    typed = line.keys() == KEYS.keys() and all(isinstance(line[key], kind) for key, kind in KEYS.items())
    return typed and all(line[key] == sample[key] for key in ("problem", "seed", "sample"))


def _lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _read(path: Path) -> list[dict[str, Any]]:
    return [dict(row.values) for row in jsonl_rows(path)]
