"""Results of trained students problem by problem, for paired comparisons: what single grades and losses
say.
"""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from experiments.harness.paired import Floats
from experiments.harness.sweep import Sweep, Trial
from lark.evaluation.grade import GRADES_FILE, METRICS
from lark.reading.rows import jsonl_rows
from lark.store.integrity import verify
from lark.training.checkpoints import CHECKPOINT, HELD_OUT
from lark.training.training_set import shown


def accuracies(sweep: Sweep, trial: Trial, single: bool = False, trained: bool = True) -> Floats | None:
    """[P] Of each problem, the share of decoding seeds that solve it (Acc@k), or of its samples that are
    right (`single`).

    With several benchmarks, problems are weighted so that the mean is the average of the benchmarks. None:
    not evaluated yet.
    """
    step = next(s for s in trial.plan if s.makes(METRICS) and s.model == ("trained" if trained else "base"))
    if any(sweep.store.state(artifact) != "finished" for artifact in step.artifacts):
        return None
    tasks = [_grades(sweep, trial, place, single, trained) for place in range(len(step.artifacts))]
    total = sum(len(task) for task in tasks)
    return np.concatenate([task * (total / len(task) / len(tasks)) for task in tasks])


def _grades(sweep: Sweep, trial: Trial, place: int, single: bool, trained: bool) -> Floats:
    step = next(s for s in trial.plan if s.makes(METRICS) and s.model == ("trained" if trained else "base"))
    folder = sweep.store.path(step.artifacts[place])
    verify(folder, GRADES_FILE)
    right: dict[str, dict[int, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for row in jsonl_rows(folder / GRADES_FILE):
        right[str(row.values["problem"])][int(row.values["seed"])].append(
            bool(row.values[trial.config.benchmark.grader])
        )
    share = np.mean if single else max
    return np.array(
        [np.mean([share(samples) for samples in right[problem].values()]) for problem in sorted(right)]
    )


def losses(sweep: Sweep, trial: Trial) -> Floats | None:
    """[P] The mean loss of each held-out question's trajectories after training. None: not measured."""
    checkpoint = trial.artifact(CHECKPOINT)
    measured = trial.config.training.held_out.path
    if checkpoint is None or measured is None or sweep.store.state(checkpoint) != "finished":
        return None
    folder = sweep.store.path(checkpoint)
    if not (folder / HELD_OUT).exists():
        return None
    verify(folder, HELD_OUT)
    found = losses_by_question(folder / HELD_OUT, Path(measured))
    return np.array([np.mean(found[question]) for question in sorted(found)])


def losses_by_question(file: Path, measured: Path) -> dict[str, list[float]]:
    """The losses of the trajectories in `file`, by question. `measured`: the trajectories that were held
    out.
    """
    joined: dict[str, str] = {}
    """Question of each trajectory by its joined ids: files of older versions have nothing else."""
    for row in jsonl_rows(measured):
        question_id, candidate_id = str(row.values["question_id"]), str(row.values["candidate_id"])
        joined[shown((question_id, candidate_id))] = question_id
    found: dict[str, list[float]] = defaultdict(list)
    for line in file.read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        question = values["question_id"] if "question_id" in values else joined[values["trajectory"]]
        found[question].append(float(values["loss"]))
    return found


def seconds(sweep: Sweep, trials: list[Trial]) -> float:
    """Time that all finished steps of these trials took, each counted once. Artifacts of a step are made
    together.
    """
    steps = {step.key: step for trial in trials for step in trial.steps}
    made = ([sweep.store.manifest(artifact) for artifact in step.artifacts] for step in steps.values())
    return sum(
        max(manifest.seconds for manifest in manifests if manifest.finished)
        for manifests in made
        if any(m.finished for m in manifests)
    )
