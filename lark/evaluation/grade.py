"""Grade generations: both graders on every sample, and the metrics of each. Needs no GPU and can be
repeated at any time.
"""

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lark.config import Task
from lark.errors import LarkError
from lark.evaluation import checks, public, shards
from lark.evaluation.benchmarks import is_here, load
from lark.evaluation.metrics import BenchmarkMetrics, GradedSample, benchmark_metrics
from lark.evaluation.shards import GENERATIONS, PROBLEMS_FILE, WantedSamples, json_lines, read_lines
from lark.generation import journal
from lark.grading.answers import AnswerFormat, extract_boxed, extract_boxed_list, grade_paper
from lark.grading.final_answers import exact_answer
from lark.grading.verify import Verifier
from lark.reading.rows import jsonl_rows
from lark.store.store import Kind, write_text
from lark.work.sharding import Do, Progress, Shard, Work, in_shards

if TYPE_CHECKING:
    from lark.work.operation import Counts, Job

log = logging.getLogger(__name__)

METRICS = Kind("metrics", 7, "metrics.json")
GRADES_FILE = "grades.jsonl"
"""The grades of single samples, beside the metrics."""
ANSWERS_PER_SHARD = 1000
Sample = Mapping[str, Any]
"""A line of `generations.jsonl`."""
Grade = dict[str, Any]
"""A line of `grades.jsonl`."""


@dataclass(frozen=True)
class GoldAnswers:
    """The problems of a benchmark by id, and the format of their answers."""

    problems: Mapping[str, Mapping[str, Any]]
    form: AnswerFormat

    @classmethod
    def read(cls, generations: Path, name: str, task: Task) -> "GoldAnswers":
        """The problems as they are now, where the benchmark can be read, or as they were at generation."""
        problems = {row["id"]: row for row in read_lines(generations / PROBLEMS_FILE)}
        if is_here(name, task):
            problems |= {problem.id: asdict(problem) for problem in load(name, task)}
        return cls(problems, AnswerFormat(task.answer_format))

    def gold(self, sample: Sample) -> str:
        answer: str = self.problems[sample["problem"]]["answer"]
        return answer

    def owner(self, sample: Sample) -> str:
        """A text that identifies what a grade is for: this answer, and what it is compared with."""
        numbers = [sample["problem"], sample["seed"], sample["sample"]]
        return json.dumps([*numbers, sample["text"], self.gold(sample), self.form.value])


def collect(job: "Job", counts: "Counts") -> "Counts":
    """When every process is done, merge the generations of each benchmark."""
    decoding = job.config.benchmark.decoding
    merged = {}
    for name, folder in job.outputs.items():
        problems = tuple(row["id"] for row in read_lines(folder / PROBLEMS_FILE))
        workload = WantedSamples(problems, tuple(decoding.seeds), decoding.samples)
        merged[name] = {**counts[name], **shards.merge(folder, workload)}
    return merged


@in_shards
def grade_all(job: "Job") -> Work:
    """Grade the generations of every benchmark in `job.outputs`, some answers per shard. Does not load
    torch.
    """
    tasks = job.config.benchmark.tasks
    sources = {name: job.inputs[f"{GENERATIONS.name}:{name}"] for name in job.outputs}
    counts: dict[str, int] = {}
    parts: dict[str, tuple[str, range]] = {}
    """Benchmark and answers of each shard, by the shard's name."""
    for name, source in sources.items():
        counts[name] = sum(1 for _ in jsonl_rows(source / GENERATIONS.file))
        for rows in _ranges(counts[name]):
            parts[f"{name}-{rows.start:08d}"] = (name, rows)

    def path_of(shard: Shard) -> Path:
        name, rows = parts[shard.name]
        return job.outputs[name] / part_name(rows)

    def missing(candidates: Sequence[Shard]) -> list[Shard]:
        # A benchmark without a file of grades is not read.
        started = {parts[shard.name][0] for shard in candidates if path_of(shard).is_file()}
        complete: set[Path] = set()
        for name in sorted(started):
            golds = GoldAnswers.read(sources[name], name, tasks[name])
            for rows, samples in _in_parts(sources[name] / GENERATIONS.file):
                path = job.outputs[name] / part_name(rows)
                if _intact_grades(path, samples, golds) is not None:
                    complete.add(path)
        return [shard for shard in candidates if path_of(shard) not in complete]

    @contextlib.contextmanager
    def load_graders() -> Iterator[Do]:
        with Verifier(processes=min(2, os.cpu_count() or 1)) as verifier:

            def do(batch: Sequence[Shard], progress: Progress) -> None:
                for shard in batch:
                    name, rows = parts[shard.name]
                    lines = islice(jsonl_rows(sources[name] / GENERATIONS.file), rows.start, rows.stop)
                    samples = [dict(line.values) for line in lines]
                    golds = GoldAnswers.read(sources[name], name, tasks[name])
                    graded = grades(samples, golds, verifier, progress.update)
                    for sample, grade in zip(samples, graded, strict=True):
                        grade[journal.CHECK] = journal.checksum(grade, golds.owner(sample))
                    write_text(path_of(shard), json_lines(graded))

            yield do

    def describe(shard: Shard) -> str:
        name, rows = parts[shard.name]
        return f"benchmark {name}, answers {rows.start + 1} to {rows.stop}"

    work = [Shard(name, len(rows), len(rows)) for name, (_, rows) in parts.items()]
    return Work(work, missing, load_graders, lambda done: {"answers": counts}, describe, "grading", "answer")


def collect_grades(job: "Job", counts: "Counts") -> "Counts":
    """`grades.jsonl` and `metrics.json` of each benchmark, from the grades of its shards."""
    collected = {}
    for name, folder in job.outputs.items():
        generations = job.inputs[f"{GENERATIONS.name}:{name}"]
        task = job.config.benchmark.tasks[name]
        golds = GoldAnswers.read(generations, name, task)
        collected[name] = write_metrics(generations, golds, folder, counts["answers"][name])
        collected[name] |= public.origin(name, task)
    return collected


def grades(
    samples: Sequence[Sample],
    golds: GoldAnswers,
    verifier: Verifier,
    advance: Callable[[int], object] | None = None,
) -> list[Grade]:
    """The answer that each grader reads in each sample, and its grade."""
    is_exact = golds.form == AnswerFormat.EXACT_TEXT
    read_paper = exact_answer if is_exact else extract_boxed
    read_verify = exact_answer if is_exact else extract_boxed_list
    pairs = [(read_verify(sample["text"]), golds.gold(sample), golds.form) for sample in samples]
    # All at once: the verifier's processes work side by side.
    verified = verifier.grade_many(pairs, progress=advance)
    graded: list[Grade] = []
    for sample, (answer_verify, gold, form), is_verified in zip(samples, pairs, verified, strict=True):
        answer = read_paper(sample["text"])
        graded.append(
            {
                "problem": sample["problem"],
                "seed": sample["seed"],
                "sample": sample["sample"],
                "answer": answer,
                "gold": gold,
                "answer_verify": answer_verify,
                "paper": grade_paper(answer, gold, form),
                "verify": is_verified,
            }
        )
    return graded


def write_metrics(generations: Path, golds: GoldAnswers, folder: Path, count: int) -> dict[str, Any]:
    """Merge the grades of a benchmark, and write its metrics. `count`: the number of answers."""
    samples = read_lines(generations / GENERATIONS.file)
    paths: list[Path] = []
    graded: list[Grade] = []
    for rows in _ranges(count):
        path = folder / part_name(rows)
        graded += _intact_grades(path, samples[rows.start : rows.stop], golds) or []
        paths.append(path)
    checks.all_grades(folder, len(graded), len(samples))
    write_text(folder / GRADES_FILE, json_lines(graded))
    metrics = {
        "paper": _metrics("paper", "answer", samples, graded, golds).to_dict(),
        "verify": _metrics("verify", "answer_verify", samples, graded, golds).to_dict(),
    }
    write_text(folder / METRICS.file, json.dumps(metrics, indent=2) + "\n")
    # Last: a run that is killed before still has the grades.
    for path in paths:
        path.unlink()
    return {"problems": len(golds.problems), "answers": len(samples)}


def _metrics(
    grader: str, answer: str, samples: Sequence[Sample], graded: Sequence[Grade], golds: GoldAnswers
) -> BenchmarkMetrics:
    """Metrics of one grader. `answer`: the key of the answers that it read."""
    results: list[GradedSample] = []
    for sample, grade in zip(samples, graded, strict=True):
        results.append(
            GradedSample(
                problem=sample["problem"],
                seed=sample["seed"],
                sample=sample["sample"],
                correct=grade[grader],
                truncated=sample["finish_reason"] == "length",
                boxed=grade[answer] is not None,
                level=golds.problems[sample["problem"]]["level"],
            )
        )
    return benchmark_metrics(results)


def part_name(rows: range) -> str:
    """File with the grades of some answers until all of them are merged."""
    return f"shard-{rows.start:08d}-{rows.stop:08d}.jsonl"


def _ranges(count: int) -> Iterator[range]:
    """The answers of each shard, as places in the file."""
    for start in range(0, count, ANSWERS_PER_SHARD):
        yield range(start, min(start + ANSWERS_PER_SHARD, count))


def _in_parts(generations: Path) -> Iterator[tuple[range, list[dict[str, Any]]]]:
    """The answers of each shard, with their places in the file. One shard at a time is in memory."""
    lines = jsonl_rows(generations)
    start = 0
    while samples := [dict(line.values) for line in islice(lines, ANSWERS_PER_SHARD)]:
        yield range(start, start + len(samples)), samples
        start += len(samples)


def _intact_grades(path: Path, samples: Sequence[Sample], golds: GoldAnswers) -> list[Grade] | None:
    """The grades in a shard's file. None if there is no file, or if it does not have exactly one intact grade
    of each of these answers (with a warning): its numbers would be those of other answers.
    """
    if not path.is_file():
        return None
    lines: list[Grade] = []
    with contextlib.suppress(LarkError):
        lines = read_lines(path)
    # The checksum's owner is the answer and its gold answer, so a grade of anything else has another one.
    stored = [line.pop(journal.CHECK, None) for line in lines]
    expected = []
    for line, sample in zip(lines, samples, strict=False):
        expected.append(journal.checksum(line, golds.owner(sample)))
    if len(lines) == len(samples) and stored == expected:
        return lines
    log.warning("%s does not have exactly the grades of its answers: they are graded again.", path)
    return None
