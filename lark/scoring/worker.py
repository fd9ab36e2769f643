"""The scoring stage's processes: `lengths` counts tokens, `score` runs the student over the pool once and `local` over blocks.

The passes differ only in what they do with a shard's rows. Shards are assigned to processes, those that an earlier run
finished are skipped, and each is written when it is complete. The pipeline merges them (lark/scoring/shards.py).
"""

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from lark.errors import LarkError
from lark.models.chat import Encoded
from lark.models.load import load_chat, load_model
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.runtime.devices import start_torch
from lark.runtime.operation import Job
from lark.runtime.store import atomic
from lark.scoring import shards
from lark.scoring.forward import Student, batches, response_statistics
from lark.scoring.local import LocalScorer, local_naturalness, steps_of
from lark.scoring.methods import LENGTHS_TABLE, LOCAL_TABLE, SCORES_TABLE, TOKENS
from lark.scoring.shards import Shards
from lark.scoring.statistics import TokenStatistics

log = logging.getLogger(__name__)

Rows = Sequence[Mapping[str, Any]]
Advance = Callable[[float], object]
"""Advances the progress bar by a number of tokens."""
ShardScorer = Callable[[Rows, Sequence[Encoded], Advance], Mapping[str, pa.Table]]
"""Maps a shard's rows and their tokens to one table per output."""


def lengths(job: Job) -> dict[str, Any]:
    """Tokens of every trajectory under the student's tokenizer and chat template: `lengths.parquet`, in the pool's order."""
    chat = load_chat(job.weights, job.config.student, job.config.pool.turns == "last")
    path = job.inputs["pool"] / pools.FILE
    parts = []
    with tqdm(total=pq.read_metadata(path).num_rows, desc="tokenising", unit="traj") as bar:
        for rows in pools.row_groups(path, pools.TEXT):
            encoded = chat.encode_many(rows, job.config.student.max_length)
            parts.append(_table(rows, encoded, n_prompt=[len(e.ids) - e.n_response for e in encoded]))
            bar.update(len(rows))
    table = pd.concat(parts, ignore_index=True)
    with atomic(job.folder / LENGTHS_TABLE.file) as draft:
        table.to_parquet(draft, index=False)
    return {
        "trajectories": len(table),
        "tokens": int((table["n_prompt"] + table["n_tokens"]).sum()),
        "truncated": int(table["truncated"].sum()),
        "without_response": int((table["n_tokens"] == 0).sum()),
    }


def score(job: Job) -> dict[str, Any]:
    """Every statistic of every trajectory, and of every token if `scoring.tokens` is set (paper, Alg. 1 lines 1-5)."""
    wants_tokens = TOKENS.name in job.outputs
    cut = Shards.of(job.inputs["lengths"], job.config.scoring.shard_tokens)

    def scorer(student: Student) -> ShardScorer:
        return lambda rows, encoded, advance: _score_rows(student, job, rows, encoded, advance, wants_tokens)

    return _run_shards(job, cut, "scoring", scorer)


def local(job: Job) -> dict[str, Any]:
    """Local Naturalness of every trajectory (lark/scoring/local.py)."""
    # Every step is run once for itself and as context of m others. These sequences are short.
    cut = Shards.of(job.inputs["lengths"], job.config.scoring.shard_tokens, blocks=job.config.scoring.local_context + 1)

    def scorer(student: Student) -> ShardScorer:
        blocks = LocalScorer(student, job.config.scoring.local_context, job.config.hardware.score_tokens)
        return lambda rows, encoded, advance: _score_locally(blocks, rows, encoded, advance)

    return _run_shards(job, cut, "scoring steps", scorer, offsets=True)


def _run_shards(
    job: Job, cut: Shards, label: str, scorer: Callable[[Student], ShardScorer], offsets: bool = False
) -> dict[str, Any]:
    """Score this process's shards of the pool, except those that already exist."""
    bounds = [(rows.start, rows.stop) for rows in cut.rows]
    mine = cut.deal(job.world)[job.rank]
    missing = [rows for rows in mine if not all(shards.done(output, folder, rows) for output, folder in job.outputs.items())]
    if not missing:
        return {"shards": bounds, "tokens_per_second": None}
    total, left = (sum(map(cut.tokens_in, some)) for some in (mine, missing))
    config, device = job.config.student, start_torch(job)
    chat = load_chat(job.weights, config, job.config.pool.turns == "last")
    score_shard = scorer(Student.of(load_model(job.weights, config, device)))
    label = label if job.world == 1 else f"{label} (process 1 of {job.world})"
    with tqdm(total=total, initial=total - left, desc=label, unit="tok", unit_scale=True, disable=not job.is_main) as bar:
        for where in sorted(missing, key=lambda rows: rows.start):
            rows = shards.read_rows(job.inputs["pool"] / pools.FILE, where, pools.TEXT)
            tables = score_shard(rows, chat.encode_many(rows, config.max_length, offsets), bar.update)
            for output, folder in job.outputs.items():
                if not shards.done(output, folder, where):
                    with atomic(folder / shards.name(output, where)) as draft:
                        pq.write_table(tables[output], draft, compression="zstd", write_page_checksum=True)
        rate = bar.format_dict["rate"]
    return {"shards": bounds, "tokens_per_second": rate}


def _score_rows(
    student: Student, job: Job, rows: Rows, encoded: Sequence[Encoded], advance: Advance, wants_tokens: bool
) -> dict[str, pa.Table]:
    """One row of statistics per trajectory, in the pool's order; NaN where truncation left no response token."""
    results: list[dict[str, float]] = [{} for _ in rows]
    kept: dict[int, TokenStatistics] = {}
    usable = [i for i, e in enumerate(encoded) if e.n_response > 0]
    for batch in batches([len(encoded[i].ids) for i in usable], job.config.hardware.score_tokens, padded=not student.packs):
        chosen = [usable[i] for i in batch]
        with _naming(rows, chosen):
            for index, statistics in zip(chosen, response_statistics(student, [encoded[i] for i in chosen]), strict=True):
                results[index] = summarise(statistics, job.config.scoring.rank_clip)
                if wants_tokens:
                    kept[index] = statistics
        advance(sum(len(encoded[i].ids) for i in chosen))
    table = pd.concat([_table(rows, encoded), pd.DataFrame(results, columns=list(SUMMARY))], axis=1)
    tables = {SCORES_TABLE.name: pa.Table.from_pandas(table, preserve_index=False)}
    return {**tables, TOKENS.name: _token_table(rows, encoded, kept)} if wants_tokens else tables


def _score_locally(scorer: LocalScorer, rows: Rows, encoded: Sequence[Encoded], advance: Advance) -> dict[str, pa.Table]:
    """One row per trajectory, in the pool's order. Trajectories that share a prompt are run together."""
    score, n_steps = np.full(len(rows), np.nan), np.zeros(len(rows), dtype=np.int64)
    groups: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, e in enumerate(encoded):
        if e.n_response > 0:
            groups[tuple(e.ids[: e.prompt_length])].append(index)
    for chosen in groups.values():
        group = [encoded[i] for i in chosen]
        steps = [steps_of(encoded[i]) for i in chosen]
        work = sum(e.prompt_length + (scorer.m + 1) * e.n_response for e in group)
        with _naming(rows, chosen):
            found = scorer.surprisals(group, steps, lambda share, work=work: advance(share * work))  # type: ignore[misc]
        for index, surprisal, numbers in zip(chosen, found, steps, strict=True):
            score[index], n_steps[index] = local_naturalness(surprisal, numbers), numbers[-1] + 1
    table = _table(rows, encoded, n_steps=n_steps, local_naturalness=score)
    return {LOCAL_TABLE.name: pa.Table.from_pandas(table, preserve_index=False)}


SUMMARY = ("nll", "brier", "rank_sum", "ties", "p_gold", "wrong_p2", "sum_p2")
"""Sums over response tokens of surprisal, residual, clipped rank and ties; means of p(y), Σ_{v≠y} p² and Σ p²."""


def summarise(statistics: TokenStatistics, rank_clip: int) -> dict[str, float]:
    """A trajectory's statistics from those of its tokens, summed in float64."""
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


def _token_table(rows: Rows, encoded: Sequence[Encoded], kept: Mapping[int, TokenStatistics]) -> pa.Table:
    """One row per response token, in the pool's order; `position` is 0 at the response's first token."""
    order = sorted(kept)
    sizes = [encoded[i].n_response for i in order]
    positions = [np.arange(size, dtype=np.int32) for size in sizes]
    ids = [np.asarray(encoded[i].response, dtype=np.int32) for i in order]
    statistics = {f.name: [getattr(kept[i], f.name).cpu().numpy() for i in order] for f in fields(TokenStatistics)}
    columns = {"position": positions, "token": ids, **statistics}
    return pa.table(
        {
            **{name: _repeated([str(rows[i][name]) for i in order], sizes) for name in KEY},
            **{name: np.concatenate(parts) if parts else np.empty(0, np.int32) for name, parts in columns.items()},
        }
    )


def _repeated(values: list[str], counts: list[int]) -> pa.Array:
    """Each value repeated `count` times, but stored once."""
    distinct = list(dict.fromkeys(values))
    code = {value: index for index, value in enumerate(distinct)}
    indices = np.repeat(np.array([code[value] for value in values], dtype=np.int32), counts)
    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(distinct, pa.string()))


@contextlib.contextmanager
def _naming(rows: Rows, chosen: Sequence[int]) -> Iterator[None]:
    """Add the names of the trajectories to an error."""
    try:
        yield
    except LarkError as error:
        named = ", ".join(f"{rows[i]['question_id']}/{rows[i]['candidate_id']}" for i in chosen[:5])
        more = "…" if len(chosen) > 5 else "."
        raise LarkError(f"{error} This occurred in a batch of {len(chosen)} trajectories: {named}{more}") from error


def _table(rows: Rows, encoded: Sequence[Encoded], **columns: Iterable[Any]) -> pd.DataFrame:
    ids = {name: [row[name] for row in rows] for name in KEY}
    counts = {"n_tokens": [e.n_response for e in encoded], "truncated": [e.truncated for e in encoded]}
    return pd.DataFrame({**ids, **counts, **columns})
