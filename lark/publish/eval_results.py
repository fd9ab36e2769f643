"""Evaluation results as model repositories store them: `.eval_results/<benchmark>.yaml`, which the hub shows
on the model's page and on the leaderboard of the benchmark's dataset.
"""

from dataclasses import dataclass
from pathlib import Path

import yaml

from lark.output.evaluations import FinishedEvaluation, evaluations_of

FOLDER = ".eval_results"


@dataclass(frozen=True)
class ResultFile:
    """A file of results, for one benchmark."""

    name: str
    """Its path in the repository."""
    content: bytes


@dataclass(frozen=True)
class Results:
    """What is published about a student's evaluations."""

    files: tuple[ResultFile, ...] = ()
    left_out: tuple[str, ...] = ()
    """Sentences about evaluations that are not published."""


def results_of(checkpoint: Path, grader: str, repository: str) -> Results:
    """The results of a trained student, from its evaluations in the same store."""
    files = []
    left_out = []
    for evaluation in evaluations_of(checkpoint):
        if evaluation.dataset.get("task_id"):
            files.append(_file(evaluation, grader, repository))
        else:
            left_out.append(
                f"The results on {evaluation.task} are left out: they are not of a complete public dataset"
                " with a leaderboard (task_id in conf/benchmark)."
            )
    return Results(tuple(files), tuple(left_out))


def _file(evaluation: FinishedEvaluation, grader: str, repository: str) -> ResultFile:
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml  # noqa: PLC0415  # slow to import

    dataset = evaluation.dataset
    reading = evaluation.resampled(grader)
    low, high = reading.interval
    decoding = evaluation.decoding
    sampling = f"temperature {decoding.get('temperature')}, top_p {decoding.get('top_p')}"
    notes = (
        f"pass@1 over {reading.samples} samples per problem (95% interval over problems {low:.1f} to"
        f" {high:.1f}), grader {grader}, {sampling}; pass@{reading.k} {reading.pass_at_k:.1f},"
        f" maj@{reading.k} {reading.majority_at_k:.1f}"
    )
    entry = EvalResultEntry(
        dataset_id=dataset["id"],
        task_id=dataset["task_id"],
        value=round(reading.pass_at_1, 2),
        dataset_revision=dataset.get("revision"),
        date=evaluation.metrics.manifest.started[:10] or None,
        source_url=f"https://huggingface.co/{repository}",
        source_name="Model card",
        notes=notes,
    )
    text = yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False, width=float("inf"))
    return ResultFile(f"{FOLDER}/{evaluation.task}.yaml", text.encode())
