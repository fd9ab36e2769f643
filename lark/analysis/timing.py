"""The cost of each method's score in seconds per trajectory (paper, App. D.1), measured side by side in one
process.

Every method gets the same trajectories one by one, as in the paper's seconds per sample, in rounds whose
order rotates, so that other load on the machine affects all of them equally. The baselines are timed as
they are usually implemented: all logits of the response in memory, then their statistic. `statistics` is
what this project runs instead: one pass that gives GRAPE's, LARK's and RSR's numbers together, without
holding the logits; `local_blocks` is its Local Naturalness. The judge is timed only if it can be loaded
next to the student (`judge_left_out`); its time for a whole pool is in the manifest of its own artifact.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from lark.analysis.kinds import CONVERTED_JUDGE, TIMINGS
from lark.models.chat import Encoded
from lark.models.dialogue import response_text
from lark.models.head import last_hidden_state, predicting
from lark.models.load import load_chat
from lark.models.shapes import shape_of
from lark.models.students import location
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.scoring.forward import LoadedStudent, response_statistics
from lark.scoring.local import LocalScorer, steps_of
from lark.scoring.sources import LENGTHS_TABLE
from lark.scoring.worker import summarise
from lark.store.store import atomic
from lark.work.devices import start_torch
from lark.work.machine import memory_gib
from lark.work.operation import Job

log = logging.getLogger(__name__)
TOP = 100
"""RSR's r_max: the number of logits that the usual implementation searches for the rank."""
Scorer = Callable[[LoadedStudent, Encoded, Job], object]


def measure(job: Job) -> dict[str, Any]:
    """Time every method on the same trajectories: `cost.parquet`, one row per method, round and trajectory."""
    device = start_torch(job)
    asked, config = job.config.analysis, job.config.student
    chat = load_chat(job.weights, config, job.config.pool.turns == "last")
    student = LoadedStudent.load(job.weights, config, device)
    chosen = sample(pd.read_parquet(job.inputs["lengths"] / LENGTHS_TABLE.file), asked.samples)
    rows = read(job.inputs["pool"] / pools.FILE, chosen)
    encoded = chat.encode_many(rows, config.max_length, offsets=True)
    left_out = judge_left_out(job)
    if left_out is not None:
        log.warning("The judge is not timed: %s.", left_out)
    scorers: dict[str, Callable[[int], object]] = {
        **{name: lambda i, score=score: score(student, encoded[i], job) for name, score in SCORERS.items()},  # type: ignore[misc]
        "local_blocks": _local_blocks(student, encoded, job),
        **({"llm_judge": _judge(rows, job, device)} if left_out is None else {}),
    }
    for scorer in scorers.values():  # compilation and first allocations are not part of a sample's cost
        scorer(0)
    names, timings = list(scorers), []
    for number in tqdm(range(asked.rounds), desc="timing", unit="round"):
        for index, trajectory in enumerate(encoded):
            turn = (number + index) % len(names)
            for name in names[turn:] + names[:turn]:
                seconds = _time(scorers[name], index, student)
                timings.append((name, number, index, trajectory.n_response, len(trajectory.ids), seconds))
    table = pd.DataFrame(timings, columns=["method", "round", "trajectory", "n_tokens", "length", "seconds"])
    with atomic(job.folder / TIMINGS.file) as draft:
        table.to_parquet(draft, index=False)
    name = torch.cuda.get_device_name() if device != "cpu" else f"CPU, {job.machine.threads} thread(s)"
    counts = {
        "device": name,
        "trajectories": len(encoded),
        "mean_tokens": round(float(table["n_tokens"].mean()), 1),
    }
    return counts if left_out is None else {**counts, "judge_left_out": left_out}


def sample(lengths: pd.DataFrame, count: int) -> pd.DataFrame:
    """`count` trajectories spread evenly over the pool's lengths, so that their mean length is the pool's."""
    usable = lengths[lengths["n_tokens"] > 0].sort_values(["n_tokens", *KEY], ignore_index=True)
    places = (np.arange(min(count, len(usable))) + 0.5) / min(count, len(usable)) * len(usable)
    return usable.iloc[places.astype(int)]


def read(pool: Path, chosen: pd.DataFrame) -> list[dict[str, Any]]:
    """The chosen trajectories' texts, in the pool's order. Not through pandas, which turns a system prompt
    of None into NaN.
    """
    wanted = set(chosen[KEY].astype(str).itertuples(index=False, name=None))
    return [
        row
        for row in pools.iterate(pool, columns=pools.TEXT)
        if tuple(str(row[name]) for name in KEY) in wanted
    ]


def _time(scorer: Callable[[int], object], index: int, student: LoadedStudent) -> float:
    _wait(student)
    started = time.perf_counter()
    scorer(index)
    _wait(student)
    return time.perf_counter() - started


def _wait(student: LoadedStudent) -> None:
    if student.head.weight.is_cuda:
        torch.cuda.synchronize()


@torch.no_grad()
def _logits(student: LoadedStudent, trajectory: Encoded) -> tuple[Tensor, Tensor]:
    """All logits of the response [T, V], and its tokens [T]."""
    device = student.head.weight.device
    ids = torch.tensor(trajectory.ids, device=device)
    hidden = predicting(last_hidden_state(student.model, ids[None])[0], trajectory)
    return student.head.logits(hidden), torch.tensor(trajectory.response, device=device)


def grape(student: LoadedStudent, trajectory: Encoded, job: Job) -> float:
    """The mean log-likelihood from all logits."""
    logits, targets = _logits(student, trajectory)
    return -float(functional.cross_entropy(logits, targets))


def lark(student: LoadedStudent, trajectory: Encoded, job: Job) -> tuple[float, float]:
    """The loss and the residual ||pi - e_y||^2 = sum_v pi_v^2 - 2 pi_y + 1, from all logits."""
    logits, targets = _logits(student, trajectory)
    probabilities = logits.softmax(-1)
    gold = probabilities.gather(-1, targets[:, None])[:, 0]
    residual = probabilities.square().sum(-1) - 2 * gold + 1
    return float(functional.cross_entropy(logits, targets)), float(residual.sum())


def rsr(student: LoadedStudent, trajectory: Encoded, job: Job) -> tuple[float, float]:
    """The loss and the clipped rank, looked up among the TOP largest logits."""
    logits, targets = _logits(student, trajectory)
    found = logits.topk(min(TOP, logits.shape[-1]), dim=-1).indices == targets[:, None]
    rank = torch.where(found.any(-1), found.int().argmax(-1) + 1, TOP)
    return float(functional.cross_entropy(logits, targets)), float(rank.sum())


def local_naturalness(student: LoadedStudent, trajectory: Encoded, job: Job) -> list[float]:
    """m+1 passes over the trajectory, each with its likelihoods: the cost that the paper assumes for it."""
    return [grape(student, trajectory, job) for _ in range(job.config.scoring.local_context + 1)]


def statistics(student: LoadedStudent, trajectory: Encoded, job: Job) -> dict[str, float]:
    """Everything that GRAPE, LARK and RSR need, as the score stage computes it."""
    (found,) = response_statistics(student, [trajectory])
    return summarise(found, job.config.scoring.rank_clip)


SCORERS: dict[str, Scorer] = {
    "grape": grape,
    "lark": lark,
    "rsr": rsr,
    "local_naturalness": local_naturalness,
    "statistics": statistics,
}


def _local_blocks(student: LoadedStudent, encoded: list[Encoded], job: Job) -> Callable[[int], object]:
    """Local Naturalness as the score stage computes it, for one trajectory: its prompt is run once and not
    shared.
    """
    blocks = LocalScorer(student, job.config.scoring.local_context, job.config.hardware.score_tokens)
    steps = [steps_of(e, job.config.scoring.local_steps) for e in encoded]
    return lambda i: blocks.surprisals([encoded[i]], [steps[i]])


def judge_left_out(job: Job) -> str | None:
    """Why the judge cannot be timed in this process; None if it can. A judge of unknown size is tried."""
    if job.config.engine.name != "hf":
        return (
            f"engine={job.config.engine.name} would need the memory that the student occupies; engine=hf"
            " shares it"
        )
    judge = job.config.method.judge
    shape = shape_of(judge.model)
    needed = 0.0 if shape is None else shape.parameters * (4 if judge.dtype == "float32" else 2) / 2**30
    there = memory_gib(job.machine.device)
    if needed > there:
        return (
            f"the weights of method.judge.path={judge.path} take {needed:.0f} GiB, and this device has"
            f" {there:.0f}"
        )
    return None


def _judge(rows: list[dict[str, Any]], job: Job, device: str) -> Callable[[int], object]:
    """One verdict, from prompt to text; an invalid answer is not retried. A packaged judge is an input of
    the step.
    """
    from lark.generation import engine as engines  # noqa: PLC0415  # scoring needs no engine
    from lark.scoring.judge_worker import Asker, load_tokenizer  # noqa: PLC0415

    settings = job.config.method.judge
    path = str(job.inputs[CONVERTED_JUDGE]) if CONVERTED_JUDGE in job.inputs else location(settings.model)
    asker = Asker(settings, *load_tokenizer(path, settings))
    engine = engines.start(job.config.engine, settings.model, path, asker.tokenizer, device)

    def verdict(i: int) -> object:
        prompt, _ = asker.prompt(rows[i]["question"], response_text(rows[i]))
        return engines.answers(
            engine, [engines.Request(prompt, i, settings.max_new_tokens)], asker.sampling(0)
        )

    return verdict
