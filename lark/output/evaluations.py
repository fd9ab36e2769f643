"""A finished evaluation as other tools report it: the answers, their grades, and how they were sampled."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lark.evaluation.grade import GRADES_FILE, METRICS
from lark.evaluation.resampled import ANSWERS, Resampled, resampled_metrics
from lark.evaluation.shards import GENERATIONS, PROBLEMS_FILE, read_lines
from lark.output import checks
from lark.output.cards import Facts
from lark.store.integrity import verify


@dataclass(frozen=True)
class GradedAnswer:
    """One sample with its problem and grades."""

    problem: Mapping[str, Any]
    sample: Mapping[str, Any]
    grade: Mapping[str, Any]
    number: int
    """Its number among all samples of the problem, from 1."""

    def read_by(self, grader: str) -> str | None:
        """The answer that a grader read."""
        answer: str | None = self.grade[ANSWERS[grader]]
        return answer


@dataclass(frozen=True)
class FinishedEvaluation:
    """A finished `metrics` artifact with the generations that it grades."""

    metrics: Facts
    generations: Facts

    @classmethod
    def read(cls, folder: Path) -> "FinishedEvaluation":
        """The evaluation in a folder of `outputs/metrics`. Its files are those that were written."""
        metrics = Facts.of(folder)
        checks.require_evaluation(folder, metrics.manifest)
        generations = metrics.input(GENERATIONS.name)
        checks.require_generations(folder, generations.manifest)
        verify(metrics.folder)
        verify(generations.folder)
        return cls(metrics, generations)

    @property
    def task(self) -> str:
        """The benchmark's name, as in benchmark.tasks."""
        student = str(self.generations.input("checkpoint").name)
        if self.checkpoint is None:
            return self.generations.name.split("-base-", 1)[-1]
        return self.generations.name.removeprefix(f"{student}-")

    @property
    def checkpoint(self) -> str | None:
        """The folder of the trained student; None for the base model."""
        return self.generations.manifest.inputs.get("checkpoint")

    @property
    def model(self) -> str:
        """The id of the base model on the hub, if it has one; else the name of the artifact."""
        weights = dict(self.generations.depends.get("student") or {}).get("weights")
        if self.checkpoint is None and isinstance(weights, str) and weights.count("/") == 1:
            return weights.partition("@")[0]
        return self.checkpoint.rpartition("/")[2] if self.checkpoint else self.generations.name

    @property
    def decoding(self) -> Mapping[str, Any]:
        return dict(self.generations.depends.get("decoding") or {})

    @property
    def engine(self) -> str:
        return str(self.generations.depends.get("engine", "unknown"))

    @property
    def dataset(self) -> Mapping[str, Any]:
        """The public dataset of the benchmark: `id`, `revision` and `task_id`. Empty if it was a file, or if
        only a part of it was used.
        """
        dataset = self.metrics.manifest.counts.get("dataset")
        return dataset if isinstance(dataset, dict) else {}

    @property
    def problems(self) -> dict[str, Mapping[str, Any]]:
        return {row["id"]: row for row in read_lines(self.generations.folder / PROBLEMS_FILE)}

    def answers(self) -> Iterator[GradedAnswer]:
        """Every sample, in the order of the file."""
        problems = self.problems
        grades = read_lines(self.metrics.folder / GRADES_FILE)
        samples = read_lines(self.generations.folder / GENERATIONS.file)
        numbers: dict[str, int] = {}
        for sample, grade in zip(samples, grades, strict=True):
            name = sample["problem"]
            numbers[name] = numbers.get(name, 0) + 1
            yield GradedAnswer(problems[name], sample, grade, numbers[name])

    def resampled(self, grader: str) -> Resampled:
        return resampled_metrics(read_lines(self.metrics.folder / GRADES_FILE), grader)


def evaluations_of(checkpoint: Path) -> list[FinishedEvaluation]:
    """The finished evaluations of a trained student in its store, by benchmark; of several, the newest."""
    outputs = checkpoint.parent.parent
    newest: dict[str, FinishedEvaluation] = {}
    for folder in sorted((outputs / METRICS.name).glob("*/")):
        metrics = Facts.of(folder)
        source = metrics.input(GENERATIONS.name).manifest.inputs.get("checkpoint", "")
        if not metrics.manifest.finished or Path(source).name != checkpoint.name:
            continue
        evaluation = FinishedEvaluation.read(folder)
        other = newest.get(evaluation.task)
        if other is None or other.metrics.manifest.started < metrics.manifest.started:
            newest[evaluation.task] = evaluation
    return [newest[task] for task in sorted(newest)]
