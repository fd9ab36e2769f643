"""The scoring stage's processes: `lengths` counts tokens, `score` runs the student over the pool once."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
from tqdm import tqdm

from lark import pool as pools
from lark.artifacts import atomic
from lark.chat import Encoded
from lark.errors import LarkError
from lark.models import load_chat, load_model
from lark.scoring import shards
from lark.scoring.forward import Student, batches, response_statistics
from lark.scoring.statistics import TokenStatistics
from lark.worker import Job

log = logging.getLogger(__name__)

KEY = ["question_id", "candidate_id"]
TEXT = [*KEY, "system", "question", "response"]


def lengths(job: Job) -> dict[str, Any]:
    """Tokens of every trajectory under the student's tokenizer and chat template: `lengths.parquet`, in the pool's order."""
    chat = load_chat(str(job.inputs["student"]), job.config.student)
    path = job.inputs["pool"] / pools.FILE
    file = pq.ParquetFile(path)
    parts = []
    with tqdm(total=file.metadata.num_rows, desc="tokenising", unit="traj") as bar:
        for batch in file.iter_batches(pools.ROWS_IN_MEMORY, columns=TEXT):
            rows = batch.to_pylist()
            encoded = chat.encode_many(rows, job.config.student.max_length)
            parts.append(_table(rows, n_prompt=[e.prompt_length for e in encoded], n_tokens=[e.n_response for e in encoded],
                                truncated=[e.truncated for e in encoded]))  # fmt: skip
            bar.update(len(rows))
    table = pd.concat(parts, ignore_index=True)
    with atomic(job.folder / "lengths.parquet") as draft:
        table.to_parquet(draft, index=False)
    total = int((table["n_prompt"] + table["n_tokens"]).sum())
    empty = int((table["n_tokens"] == 0).sum())
    return {
        "trajectories": len(table),
        "tokens": total,
        "truncated": int(table["truncated"].sum()),
        "without_response": empty,
    }


def score(job: Job) -> dict[str, Any]:
    """This process's shards of the pool. The pipeline puts them together when every process is done."""
    torch.set_num_threads(job.machine.threads)
    student_config, path = job.config.student, job.inputs["pool"] / pools.FILE
    table = pd.read_parquet(job.inputs["lengths"] / "lengths.parquet")
    sizes = (table["n_prompt"] + table["n_tokens"]).to_numpy()
    cuts = shards.cut(sizes, job.config.scoring.shard_tokens)
    mine = shards.deal(cuts, sizes, job.world)[job.rank]
    missing = [number for number in sorted(mine) if not (job.folder / shards.name(number)).exists()]
    done = sum(int(sizes[cuts[n].start : cuts[n].stop].sum()) for n in mine if n not in missing)
    if not missing:
        return {"tokens_per_second": None}
    device = f"cuda:{job.rank % torch.cuda.device_count()}" if job.machine.device == "cuda" else "cpu"
    chat = load_chat(str(job.inputs["student"]), student_config)
    student = Student.of(load_model(str(job.inputs["student"]), student_config, device))
    label = "scoring" if job.world == 1 else f"scoring (process 1 of {job.world})"
    total = sum(int(sizes[cuts[n].start : cuts[n].stop].sum()) for n in mine)
    with tqdm(total=total, initial=done, desc=label, unit="tok", unit_scale=True, disable=not job.is_main) as bar:
        for number in missing:
            rows = shards.read_rows(path, cuts[number], TEXT)
            scored = _score_rows(student, rows, chat.encode_many(rows, student_config.max_length), job, bar)
            with atomic(job.folder / shards.name(number)) as draft:
                scored.to_parquet(draft, index=False)
        rate = bar.format_dict["rate"]
    return {"tokens_per_second": rate}


def _score_rows(
    student: Student, rows: Sequence[dict[str, Any]], encoded: Sequence[Encoded], job: Job, bar: tqdm
) -> pd.DataFrame:
    """A row of statistics for each trajectory, in the pool's order; NaN where truncation left no response token."""
    results: list[dict[str, float]] = [{} for _ in rows]
    usable = [i for i, e in enumerate(encoded) if e.n_response > 0]
    for batch in batches([len(encoded[i].ids) for i in usable], job.config.hardware.score_tokens, padded=not student.packs):
        chosen = [usable[i] for i in batch]
        try:
            for index, statistics in zip(chosen, response_statistics(student, [encoded[i] for i in chosen]), strict=True):
                results[index] = summarise(statistics, job.config.scoring.rank_clip)
        except LarkError as error:
            named = ", ".join(f"{rows[i]['question_id']}/{rows[i]['candidate_id']}" for i in chosen[:5])
            raise LarkError(f"{error} It happened in a batch of {len(chosen)} trajectories: {named}…") from error
        bar.update(sum(len(encoded[i].ids) for i in chosen))
    table = _table(rows, n_tokens=[e.n_response for e in encoded], truncated=[e.truncated for e in encoded])
    return pd.concat([table, pd.DataFrame(results, columns=list(SUMMARY))], axis=1)


SUMMARY = ("nll", "brier", "rank_sum", "ties", "p_gold", "wrong_p2", "sum_p2")
"""Sums over response tokens of surprisal, residual, clipped rank and ties; means of p(y), Σ_{v≠y} p² and Σ p²."""


def summarise(statistics: TokenStatistics, rank_clip: int) -> dict[str, float]:
    """A trajectory's statistics from its tokens', summed in float64."""
    values = {
        name: getattr(statistics, name).double().cpu().numpy()
        for name in ("surprisal", "residual", "p_gold", "wrong_p2", "sum_p2")
    }
    rank = statistics.rank.cpu().numpy()
    return {
        "nll": float(values["surprisal"].sum()),
        "brier": float(values["residual"].sum()),
        "rank_sum": float(np.minimum(rank, rank_clip).sum()),
        "ties": float(statistics.ties.sum()),
        **{name: float(values[name].mean()) for name in ("p_gold", "wrong_p2", "sum_p2")},
    }


def _table(rows: Sequence[dict[str, Any]], **columns: Sequence[Any]) -> pd.DataFrame:
    return pd.DataFrame({**{name: [row[name] for row in rows] for name in KEY}, **columns})
