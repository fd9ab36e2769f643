"""The cost of each method's score in seconds per trajectory (paper, App. D.1), side by side in one process.

Every method gets the same trajectories one by one, as in the paper's seconds per sample, in rounds whose
order rotates, so that other load on the machine affects all of them equally. The baselines are timed as
they are usually implemented: all logits of the response in memory, then their statistic. `statistics` is
this project's way: one pass that gives GRAPE's, LARK's and RSR's numbers together, without holding the
logits; `local_blocks` is its Local Naturalness. The judge is timed only if it can be loaded next to the
student (`judge_left_out`); its time for a whole pool is in the manifest of its own artifact.
"""

import logging
import time
from collections.abc import Callable, Mapping
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
from lark.scoring.pass_sizes import job_tokens
from lark.scoring.sources import LENGTHS_TABLE
from lark.scoring.worker import summarise
from lark.store.store import atomic
from lark.work.devices import start_torch
from lark.work.machine import memory_gib
from lark.work.operation import Job

log = logging.getLogger(__name__)

TOP_LOGITS = 100
"""RSR's r_max: the number of logits that the usual implementation searches for the rank."""
Scorer = Callable[[LoadedStudent, Encoded, Job], object]


def measure(job: Job) -> dict[str, Any]:
    """Time every method on the same trajectories: `cost.parquet`, a row per method, round and trajectory."""
    device = start_torch(job)
    settings = job.config.student
    chat = load_chat(job.weights, settings, job.config.pool.turns == "last")
    student = LoadedStudent.load(job.weights, settings, device, fused=job.config.scoring.liger)
    lengths = pd.read_parquet(job.inputs["lengths"] / LENGTHS_TABLE.file)
    rows = read(job.inputs["pool"] / pools.FILE, sample(lengths, job.config.analysis.samples))
    encoded = chat.encode_many(rows, settings.max_length, offsets=True)
    scorers = {name: _bound(score, student, encoded, job) for name, score in SCORERS.items()}
    scorers["local_blocks"] = _local_blocks(student, encoded, job)
    left_out = judge_left_out(job)
    if left_out is None:
        scorers["llm_judge"] = _judge(rows, job, device)
    else:
        log.warning("The judge is not timed: %s.", left_out)
    for scorer in scorers.values():  # compilation and first allocations are not part of a sample's cost
        scorer(0)
    table = _timings(scorers, student, encoded, job.config.analysis.rounds)
    with atomic(job.folder / TIMINGS.file) as draft:
        table.to_parquet(draft, index=False)
    on_cpu = f"CPU, {job.machine.threads} thread(s)"
    counts = {
        "device": on_cpu if device == "cpu" else torch.cuda.get_device_name(),
        "trajectories": len(encoded),
        "mean_tokens": round(float(table["n_tokens"].mean()), 1),
    }
    if left_out is not None:
        counts["judge_left_out"] = left_out
    return counts


def _bound(
    score: Scorer, student: LoadedStudent, encoded: list[Encoded], job: Job
) -> Callable[[int], object]:
    return lambda i: score(student, encoded[i], job)


def _timings(
    scorers: Mapping[str, Callable[[int], object]],
    student: LoadedStudent,
    encoded: list[Encoded],
    rounds: int,
) -> pd.DataFrame:
    """One row per method, round and trajectory. The order of methods rotates."""
    names = list(scorers)
    rows = []
    for number in tqdm(range(rounds), desc="timing", unit="round"):
        for index, trajectory in enumerate(encoded):
            first = (number + index) % len(names)
            for name in names[first:] + names[:first]:
                seconds = _time(scorers[name], index, student)
                rows.append((name, number, index, trajectory.n_response, len(trajectory.ids), seconds))
    return pd.DataFrame(rows, columns=["method", "round", "trajectory", "n_tokens", "length", "seconds"])


def sample(lengths: pd.DataFrame, count: int) -> pd.DataFrame:
    """`count` trajectories spread evenly over the pool's lengths, so that their mean length is the pool's."""
    usable = lengths[lengths["n_tokens"] > 0].sort_values(["n_tokens", *KEY], ignore_index=True)
    count = min(count, len(usable))
    places = (np.arange(count) + 0.5) / count * len(usable)
    return usable.iloc[places.astype(int)]


def read(pool: Path, sampled: pd.DataFrame) -> list[dict[str, Any]]:
    """The sampled trajectories' texts, in the pool's order.

    Not through pandas, which turns a system prompt of None into NaN.
    """
    keys = set(sampled[KEY].astype(str).itertuples(index=False, name=None))
    rows = []
    for row in pools.iterate(pool, columns=pools.TEXT_COLUMNS):
        if tuple(str(row[name]) for name in KEY) in keys:
            rows.append(row)
    return rows


def _time(scorer: Callable[[int], object], index: int, student: LoadedStudent) -> float:
    _wait(student)  # a GPU may still be busy with what was launched before
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
    """The loss and the clipped rank, looked up among the largest logits."""
    logits, targets = _logits(student, trajectory)
    is_target = logits.topk(min(TOP_LOGITS, logits.shape[-1]), dim=-1).indices == targets[:, None]
    rank = torch.where(is_target.any(-1), is_target.int().argmax(-1) + 1, TOP_LOGITS)
    return float(functional.cross_entropy(logits, targets)), float(rank.sum())


def local_naturalness(student: LoadedStudent, trajectory: Encoded, job: Job) -> list[float]:
    """m+1 passes over the trajectory, each with its likelihoods: the cost that the paper assumes for it."""
    return [grape(student, trajectory, job) for _ in range(job.config.scoring.local_context + 1)]


def statistics(student: LoadedStudent, trajectory: Encoded, job: Job) -> dict[str, float]:
    """Everything that GRAPE, LARK and RSR need, as the score stage computes it."""
    (tokens,) = response_statistics(student, [trajectory])
    return summarise(tokens, job.config.scoring.rank_clip)


SCORERS: dict[str, Scorer] = {
    "grape": grape,
    "lark": lark,
    "rsr": rsr,
    "local_naturalness": local_naturalness,
    "statistics": statistics,
}


def _local_blocks(student: LoadedStudent, encoded: list[Encoded], job: Job) -> Callable[[int], object]:
    """Local Naturalness as the score stage computes it, for one trajectory: its prompt is run, not shared."""
    tokens = job_tokens(job, job.config.student)
    blocks = LocalScorer(student, job.config.scoring.local_context, tokens)
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
    if shape is None:
        return None
    needed = shape.parameters * (4 if judge.dtype == "float32" else 2) / 2**30
    available = memory_gib(job.machine.device)
    if needed <= available:
        return None
    return (
        f"the weights of method.judge.path={judge.path} take {needed:.0f} GiB, and this device has"
        f" {available:.0f}"
    )


def _judge(rows: list[dict[str, Any]], job: Job, device: str) -> Callable[[int], object]:
    """One verdict, from prompt to text; an invalid answer is not retried. A packaged judge is an input."""
    from lark.generation import engine as engines  # noqa: PLC0415  # scoring needs no engine
    from lark.scoring.judge_worker import Asker, load_tokenizer  # noqa: PLC0415

    settings = job.config.method.judge
    path = str(job.inputs[CONVERTED_JUDGE]) if CONVERTED_JUDGE in job.inputs else location(settings.model)
    asker = Asker(settings, *load_tokenizer(path, settings))
    engine = engines.start(job.config.engine, settings.model, path, asker.tokenizer, device)

    def verdict(i: int) -> object:
        prompt, _ = asker.prompt(rows[i]["question"], response_text(rows[i]))
        request = engines.Request(prompt, i, settings.max_new_tokens)
        return engines.answers(engine, [request], asker.sampling(0))

    return verdict
