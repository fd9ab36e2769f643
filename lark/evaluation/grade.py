"""Grade generations: both graders on every sample, and the metrics of each. Needs no GPU and can be repeated at any time."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from lark.config import Task
from lark.evaluation import shards
from lark.evaluation.benchmarks import is_here, load
from lark.evaluation.metrics import GradedSample, benchmark_metrics
from lark.evaluation.shards import GENERATIONS, PROBLEMS, Plan
from lark.grading.answers import AnswerFormat, extract_boxed, extract_boxed_list, grade_paper
from lark.grading.verify import Verifier
from lark.reading.rows import jsonl_rows
from lark.runtime.store import Kind, write_text

if TYPE_CHECKING:
    from lark.runtime.operation import Counts, Job

METRICS = Kind("metrics", 5, "metrics.json")


def collect(job: "Job", counts: "Counts") -> "Counts":
    """When every process is done, merge the generations of each benchmark."""
    decoding = job.config.benchmark.decoding
    merged = {}
    for name, folder in job.outputs.items():
        problems = tuple(row["id"] for row in _read(folder / PROBLEMS))
        merged[name] = shards.merge(folder, Plan(problems, tuple(decoding.seeds), decoding.samples))
    return {name: {**counts[name], **merged[name]} for name in merged}


def grade_all(job: "Job") -> dict[str, Any]:
    """Grade the generations of every benchmark in `job.outputs`. Does not load torch."""
    tasks = job.config.benchmark.tasks
    with Verifier(processes=min(2, os.cpu_count() or 1)) as verifier:
        return {
            name: grade(job.inputs[f"{GENERATIONS.name}:{name}"], name, tasks[name], folder, verifier)
            for name, folder in job.outputs.items()
        }


def grade(generations: Path, name: str, task: Task, folder: Path, verifier: Verifier) -> dict[str, Any]:
    """Write `grades.jsonl` and `metrics.json` for an artifact of generations, with the benchmark's current gold answers."""
    problems = {row["id"]: row for row in _read(generations / PROBLEMS)}
    if is_here(task):
        problems |= {problem.id: asdict(problem) for problem in load(name, task)}
    samples = _read(generations / GENERATIONS.file)
    form = AnswerFormat(task.answer_format)
    answers = [extract_boxed(sample["text"]) for sample in samples]
    lists = [extract_boxed_list(sample["text"]) for sample in samples]
    golds = [problems[sample["problem"]]["answer"] for sample in samples]
    with tqdm(total=len(samples), desc="grading", unit="answer") as bar:
        verify = verifier.grade_many([(a, g, form) for a, g in zip(lists, golds, strict=True)], progress=bar.update)
    extracted = {"paper": answers, "verify": lists}
    verdicts = {"paper": [grade_paper(a, g, form) for a, g in zip(answers, golds, strict=True)], "verify": verify}
    lines = [
        {"problem": s["problem"], "seed": s["seed"], "sample": s["sample"], "answer": answers[i], "gold": golds[i],
         "answer_verify": lists[i], **{grader: marks[i] for grader, marks in verdicts.items()}}
        for i, s in enumerate(samples)
    ]  # fmt: skip
    write_text(folder / "grades.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    metrics = {
        grader: benchmark_metrics(
            GradedSample(
                s["problem"], s["seed"], s["sample"], marks[i], s["finish_reason"] == "length", extracted[grader][i] is not None,
                problems[s["problem"]]["level"],
            )
            for i, s in enumerate(samples)
        ).to_dict()
        for grader, marks in verdicts.items()
    }  # fmt: skip
    write_text(folder / METRICS.file, json.dumps(metrics, indent=2) + "\n")
    return {"problems": len(problems), "answers": len(samples)}


def _read(path: Path) -> list[dict[str, Any]]:
    return [dict(row.values) for row in jsonl_rows(path)]
