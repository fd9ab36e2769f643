"""After a heat of teaching: which teachers are significantly behind, and stop (lark/teaching/heats.py).

A rollout's lead is the share of the other teachers' rollouts for the same question that the method ranks
after it (equal scores count half). A teacher's result on a question is the mean lead of its rollouts. Only
the order within a question counts, as in a selection. A rollout that cannot be selected ranks last: the
teacher failed, or the pool's settings leave it out, or its score is undefined.

Teachers that have answered the same questions are compared as students are that have solved the same
problems (paired.py), with intervals for all pairs together. With D decisions, each has an error of 4%/D: a
bootstrap keeps its error only roughly, and the teacher with the best expected lead is to stop in at most 5%
of the runs. (With 5%/D, six equal teachers lost one in 6.4% of 1,000 simulated runs;
tests/selection/simulated_heats.py.)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lark.config import Config
from lark.scoring.by_question import Floats
from lark.scoring.own_method import method_of
from lark.selection.choose import candidates
from lark.store.manifest import read_manifest
from lark.teaching.artifacts import ROLLOUTS
from lark.teaching.asked import entrants
from lark.teaching.heats import Standing, Stopped, standing_of, write_standing
from lark.teaching.question_files import QUESTIONS, stored
from lark.work.operation import Job

ERROR = 0.04
"""Nominal share of runs in which any teacher stops by chance."""


def decide(job: Job) -> dict[str, Any]:
    """Write which teachers stop after a heat, whose number is the label of the output."""
    (heat, folder), *_ = job.outputs.items()
    before = standing_of(job.inputs)
    names = [name for name in entrants(job.config) if name not in before.stopped]
    questions = [question.question_id for question in stored(job.inputs[QUESTIONS.name])]
    spent, not_asked = _asked(job, [*names, *before.stopped])
    results = _results(job, names, questions)
    undecided = None
    if not_asked:
        undecided = (
            f"a limit was reached before these teachers were asked all questions: {', '.join(not_asked)}"
        )
    elif len(names) < 2:
        undecided = "only one teacher is left"
    elif len(questions) < 2:
        undecided = "one question is too few to compare teachers"
    stopped = dict(before.stopped)
    if undecided is None:
        stopped |= behind(results, int(heat), job.config.teach.decisions)
    leads = {name: float(values.mean()) for name, values in results.items()}
    standing = Standing(int(heat), len(questions), leads, stopped, spent, undecided)
    write_standing(standing, folder)
    return {heat: standing.to_dict()}


def _asked(job: Job, names: Sequence[str]) -> tuple[dict[str, dict[str, float]], list[str]]:
    """What each teacher has spent so far, and the teachers that a limit has kept from being asked."""
    counts = {name: read_manifest(job.inputs[f"{ROLLOUTS.name}:{name}"]).counts for name in names}
    spent = {name: {key: made[key] for key in ("tokens", "cost")} for name, made in counts.items()}
    return spent, [name for name, made in counts.items() if made.get("not_asked")]


def _results(job: Job, names: Sequence[str], questions: Sequence[str]) -> dict[str, Floats]:
    """[Q] The mean leads of these teachers, by question."""
    preference = _preference(job.config, candidates(job.inputs))
    numbers = {question: number for number, question in enumerate(questions)}
    columns = {name: number for number, name in enumerate(names)}
    samples = job.config.teach.samples
    values = np.full((len(questions), len(names), samples), -np.inf)
    is_here = preference["question_id"].isin(numbers) & preference["teacher"].isin(columns)
    rows = preference[is_here & preference["score"].notna()]
    place = rows.groupby(["question_id", "teacher"]).cumcount().to_numpy()
    values[rows["question_id"].map(numbers), rows["teacher"].map(columns), place] = rows["score"]
    return dict(zip(names, leads(values).T, strict=True))


def _preference(config: Config, table: pd.DataFrame) -> pd.DataFrame:
    """The ids and teachers of a pool with the method's scores, negated where lower is better."""
    method = method_of(config.method)
    score = method.score(table, config.method.options)
    return table.assign(score=score if method.higher_is_better else -score)


def leads(values: Floats) -> Floats:
    """[Q, T] The mean leads of T teachers with S rollouts each; `values` [Q, T, S]: higher is better."""
    from scipy.stats import rankdata  # noqa: PLC0415  # the plan imports this module

    questions, teachers, samples = values.shape
    overall = rankdata(values.reshape(questions, -1), axis=1).reshape(values.shape)
    # An average rank counts the rollouts below, and half of those with the same value.
    below = overall - rankdata(values, axis=2)
    return np.asarray(below.mean(axis=2) / max(1, (teachers - 1) * samples))


def behind(results: Mapping[str, Floats], heat: int, decisions: int) -> dict[str, Stopped]:
    """The teachers that are significantly behind another one, and by how much. `results` [Q]: on the same
    questions.
    """
    from lark.selection.paired import compare  # noqa: PLC0415  # imports scipy

    tables = {name: values[np.newaxis] for name, values in results.items()}
    comparison = compare(tables, joint_level=1 - ERROR / decisions, seed=heat, trained=False)
    stopped = {}
    for place, name in enumerate(comparison.names):
        better = np.flatnonzero(comparison.significant[:, place])
        if len(better):
            first = better[np.argmax(comparison.means[better])]
            difference = float(comparison.difference[first, place])
            half = float(comparison.joint_half[first, place])
            interval = (difference - half, difference + half)
            questions = len(results[name])
            ahead = comparison.names[first]
            stopped[name] = Stopped(heat, questions, ahead, difference, *interval)
    return stopped
