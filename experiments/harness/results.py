"""Grades and losses of trained students problem by problem, for paired comparisons."""

import json
from collections import defaultdict
from math import nan
from pathlib import Path

import numpy as np

from experiments.harness.sweep import Sweep, Trial
from lark.evaluation.grade import GRADES_FILE, METRICS
from lark.reading.rows import jsonl_rows
from lark.selection.paired import Floats
from lark.store.integrity import verify
from lark.training.checkpoints import CHECKPOINT, HELD_OUT_LOSSES
from lark.training.training_set import shown


def accuracies(sweep: Sweep, trial: Trial, single: bool = False, trained: bool = True) -> Floats | None:
    """[P] Of each problem, the share of decoding seeds that solve it (Acc@k), or of its samples that are
    right (`single`).

    With several benchmarks, problems are weighted so that the mean is the average of the benchmarks. None:
    not evaluated yet.
    """
    model = "trained" if trained else "base"
    step = next((step for step in trial.plan if step.makes(METRICS) and step.model == model), None)
    if step is None or sweep.pending(step):
        return None
    grader = trial.config.benchmark.grader
    tasks = [_shares(sweep.store.path(artifact), grader, single) for artifact in step.artifacts]
    # Benchmarks count equally, as in Avg, whatever their number of problems.
    problems = sum(map(len, tasks))
    weighted = [task * (problems / len(task) / len(tasks)) for task in tasks]
    return np.concatenate(weighted)


def _shares(folder: Path, grader: str, single: bool) -> Floats:
    """[P] Share of each problem of a benchmark, in the order of their ids."""
    grades = grades_of(folder, grader)
    share = np.mean if single else max
    shares = []
    for problem in sorted(grades):
        by_seed = [float(share(samples)) for samples in grades[problem].values()]
        shares.append(np.mean(by_seed))
    return np.array(shares)


def grades_of(folder: Path, grader: str) -> dict[str, dict[int, list[bool]]]:
    """The grades of each problem's samples, by decoding seed."""
    verify(folder, GRADES_FILE)
    grades: dict[str, dict[int, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for row in jsonl_rows(folder / GRADES_FILE):
        samples = grades[str(row.values["problem"])][int(row.values["seed"])]
        samples.append(bool(row.values[grader]))
    return grades


def losses(sweep: Sweep, trial: Trial) -> Floats | None:
    """[P] The mean loss of each held-out question's trajectories after training. None: not measured."""
    return _measured(sweep, trial, "loss")


def token_accuracies(sweep: Sweep, trial: Trial) -> Floats | None:
    """[P] The same for their token accuracy. None: not measured, as in students of older versions."""
    return _measured(sweep, trial, "token_accuracy")


def _measured(sweep: Sweep, trial: Trial, measure: str) -> Floats | None:
    checkpoint = trial.artifact(CHECKPOINT)
    measured = trial.config.training.held_out.path
    if checkpoint is None or measured is None or sweep.store.state(checkpoint) != "finished":
        return None
    folder = sweep.store.path(checkpoint)
    if not (folder / HELD_OUT_LOSSES).exists():
        return None
    verify(folder, HELD_OUT_LOSSES)
    by_question = by_held_out_question(folder / HELD_OUT_LOSSES, Path(measured), measure)
    if not by_question:
        return None
    return np.array([np.mean(by_question[question]) for question in sorted(by_question)])


def by_held_out_question(file: Path, measured: Path, measure: str = "loss") -> dict[str, list[float]]:
    """A measure of the trajectories in `file`, by question; empty if the file does not have it. `measured`:
    the trajectories that were held out.
    """
    # By joined ids, because files of older versions have nothing else.
    questions: dict[str, str] = {}
    for row in jsonl_rows(measured):
        question_id = str(row.values["question_id"])
        candidate_id = str(row.values["candidate_id"])
        questions[shown((question_id, candidate_id))] = question_id
    by_question: dict[str, list[float]] = defaultdict(list)
    for line in file.read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        question = values.get("question_id") or questions[values["trajectory"]]
        if measure in values:
            value = values[measure]
            by_question[question].append(nan if value is None else float(value))
    return by_question


def seconds(sweep: Sweep, trials: list[Trial]) -> float:
    """Time that all finished steps of these trials took, each counted once. Artifacts of a step are made
    together.
    """
    steps = {step.key: step for trial in trials for step in trial.steps}
    total = 0.0
    for step in steps.values():
        manifests = [sweep.store.manifest(artifact) for artifact in step.artifacts]
        total += max((manifest.seconds for manifest in manifests if manifest.finished), default=0.0)
    return total
