"""The scoring stage's processes: `lengths` counts tokens, `score` runs the student over the pool once,
`unprompted` over responses without their prompts and `local` over blocks.

The passes differ only in what they do with a shard's rows. Shards that an earlier run finished are skipped,
and each is written when it is complete (lark/work/sharding.py). The pipeline merges them
(lark/scoring/shards.py).

The scoring pass has up to four outputs: the scores, the entropies and the residuals over the 50 most likely
tokens if the method needs them, and the statistics of each token if `scoring.tokens` is set. It computes
what the missing ones need, on the rows that they need.
"""

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from lark.errors import LarkError
from lark.models.chat import Encoded
from lark.models.load import load_chat, load_tokenizer
from lark.models.pieces import vocabulary_pieces
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.scoring import shards
from lark.scoring.distribution import top_residual
from lark.scoring.forward import Student, batches, response_statistics
from lark.scoring.local import LocalScorer, local_naturalness, steps_of
from lark.scoring.methods import (
    ENTROPY_TABLE,
    LENGTHS_TABLE,
    LOCAL_TABLE,
    SCORES_TABLE,
    TOKENS,
    TOP50_TABLE,
    UNPROMPTED_TABLE,
)
from lark.scoring.shards import Shards
from lark.scoring.statistics import DetailedStatistics, TokenStatistics
from lark.scoring.tokens import ALTERNATIVES, TrajectoryTokens, write_pieces, write_shard
from lark.store.part_files import intact, write_part
from lark.work.devices import start_torch
from lark.work.operation import Job
from lark.work.sharding import Do, Progress, Shard, Work, in_shards

log = logging.getLogger(__name__)

Rows = Sequence[Mapping[str, Any]]
Advance = Callable[[float], object]
"""Advances the progress bar by a number of tokens."""
Content: TypeAlias = pa.Table | list[TrajectoryTokens]
ShardScorer = Callable[[Rows, Sequence[Encoded], Advance], Mapping[str, Content]]
"""Maps a shard's rows and their tokens to the content of one file per output."""


@in_shards
def lengths(job: Job) -> Work:
    """Tokens of every trajectory under the student's tokenizer and chat template. `shards.collect_lengths`
    merges them.
    """
    path, config = job.inputs["pool"] / pools.FILE, job.config
    groups = {shards.name(LENGTHS_TABLE.name, rows): rows for rows in pools.group_rows(path)}

    def missing(some: Sequence[Shard]) -> list[Shard]:
        keys = pa.Table.from_pandas(pools.frame(path, KEY), schema=pa.schema(dict.fromkeys(KEY, pa.string())))
        if intact(job.folder / LENGTHS_TABLE.file, lambda table: shards.is_lengths(table, keys)):
            return []

        def is_done(shard: Shard) -> bool:
            rows = groups[shard.name]
            return intact(
                job.folder / shard.name,
                lambda table: shards.is_lengths(table, keys.slice(rows.start, len(rows))),
            )

        return [shard for shard in some if not is_done(shard)]

    @contextlib.contextmanager
    def load() -> Iterator[Do]:
        chat = load_chat(job.weights, config.student, config.pool.turns == "last")

        def do(some: Sequence[Shard], progress: Progress) -> None:
            for shard in some:
                rows = shards.read_rows(path, groups[shard.name], pools.TEXT_COLUMNS)
                encoded = chat.encode_many(rows, config.student.max_length)
                table = id_table(rows, encoded, n_prompt=[len(e.ids) - e.n_response for e in encoded])
                write_part(pa.Table.from_pandas(table, preserve_index=False), job.folder / shard.name)
                progress.update(len(rows))

        yield do

    return Work(
        [Shard(name, len(rows), len(rows)) for name, rows in groups.items()], missing, load,
        lambda done: {"shards": [(rows.start, rows.stop) for rows in groups.values()]},
        lambda shard: shards.named(shards.read_rows(path, groups[shard.name], KEY)), "tokenising", "traj",
    )  # fmt: skip


@in_shards
def score(job: Job) -> Work:
    """Every statistic of every trajectory, and of every token if `scoring.tokens` is set (paper, Alg. 1
    lines 1-5).
    """
    cut = Shards.of(job.inputs["lengths"], job.config.scoring.shard_tokens)
    if TOKENS.name not in job.outputs:
        return pass_over(job, cut, "scoring", lambda student: _Pass(student, job))
    if job.is_main:
        _write_vocabulary(job)
    questions = cut.first_questions(job.config.scoring.token_questions)
    with_tokens = cut.only(questions)
    alone = len(job.outputs) == 1
    return pass_over(
        job, with_tokens if alone else cut, "scoring", lambda student: _Pass(student, job, questions),
        some={TOKENS.name: with_tokens},
    )  # fmt: skip


@in_shards
def unprompted(job: Job) -> Work:
    """Σ_t -log p_t of every response without its prompt, for method=ifd: the same tokens, after the
    generation prompt alone.
    """
    cut = Shards.of(job.inputs["lengths"], job.config.scoring.shard_tokens, prompts=False)
    chat = load_chat(job.weights, job.config.student, job.config.pool.turns == "last")
    opening, longest = chat.opening(), job.config.student.max_length

    def scorer(student: Student) -> ShardScorer:
        def score_shard(rows: Rows, encoded: Sequence[Encoded], advance: Advance) -> dict[str, Content]:
            alone = [without_prompt(e, opening, longest) for e in encoded]
            found = _each_batch(student, rows, alone, job.config.hardware.score_tokens, advance)
            sums = {index: float(statistics.surprisal.double().sum()) for index, statistics in found}
            table = id_table(
                rows, encoded, unprompted_nll=[sums.get(index, np.nan) for index in range(len(rows))]
            )
            return {UNPROMPTED_TABLE.name: pa.Table.from_pandas(table, preserve_index=False)}

        return score_shard

    return pass_over(job, cut, "scoring without prompts", scorer)


def without_prompt(encoded: Encoded, opening: Sequence[int], longest: int) -> Encoded:
    """The same response after `opening` in place of its prompt. Turns that follow keep their context."""
    opening = opening[: max(1, longest - len(encoded.ids) + encoded.prompt_length)]
    shift = len(opening) - encoded.prompt_length
    context = tuple((start + shift, stop + shift) for start, stop in encoded.context)
    return Encoded(
        [*opening, *encoded.ids[encoded.prompt_length :]], len(opening), encoded.truncated, context
    )


@in_shards
def local(job: Job) -> Work:
    """Local Naturalness of every trajectory (lark/scoring/local.py)."""
    # Every step is run once for itself and as context of m others. These sequences are short.
    cut = Shards.of(
        job.inputs["lengths"], job.config.scoring.shard_tokens, blocks=job.config.scoring.local_context + 1
    )

    def scorer(student: Student) -> ShardScorer:
        blocks = LocalScorer(student, job.config.scoring.local_context, job.config.hardware.score_tokens)
        split = job.config.scoring.local_steps
        return lambda rows, encoded, advance: _score_locally(blocks, rows, encoded, split, advance)

    return pass_over(job, cut, "scoring steps", scorer, offsets=True)


def pass_over(
    job: Job,
    cut: Shards,
    label: str,
    scorer: Callable[[Student], ShardScorer],
    offsets: bool = False,
    some: Mapping[str, Shards] | None = None,
    gradients: bool = False,
) -> Work:
    """One pass of the student over the pool. `some`: the shards of outputs that lack others. `gradients`:
    it needs them.
    """
    parts = {output: (some or {}).get(output, cut) for output in job.outputs}
    bounds = {output: [(rows.start, rows.stop) for rows in part.rows] for output, part in parts.items()}
    ranges = {f"{rows.start}-{rows.stop}": rows for rows in cut.rows}

    def lacking(wanted: Sequence[range]) -> dict[range, dict[str, Path]]:
        """The files that each of these shards lacks, by output."""
        found: defaultdict[range, dict[str, Path]] = defaultdict(dict)
        for output, folder in job.outputs.items():
            for rows in parts[output].missing(output, folder, set(wanted) & set(parts[output].rows)):
                found[rows][output] = folder / shards.name(output, rows)
        return found

    def missing(wanted: Sequence[Shard]) -> list[Shard]:
        found = lacking([ranges[shard.name] for shard in wanted])
        return [shard for shard in wanted if ranges[shard.name] in found]

    @contextlib.contextmanager
    def load() -> Iterator[Do]:
        config, device = job.config.student, start_torch(job)
        chat = load_chat(job.weights, config, job.config.pool.turns == "last")
        score_shard = scorer(Student.load(job.weights, config, device, gradients))

        def do(wanted: Sequence[Shard], progress: Progress) -> None:
            for where, files in sorted(
                lacking([ranges[s.name] for s in wanted]).items(), key=lambda item: item[0].start
            ):
                read = cut.read(job.inputs["pool"] / pools.FILE, where, pools.TEXT_COLUMNS)
                chosen = [read[row] for row in cut.with_work(where)]
                contents = score_shard(
                    chosen, chat.encode_many(chosen, config.max_length, offsets), progress.update
                )
                for output, path in files.items():
                    _write(path, contents[output])

        yield do

    def describe(shard: Shard) -> str:
        return shards.named(cut.read(job.inputs["pool"] / pools.FILE, ranges[shard.name], KEY))

    listed = [Shard(name, cut.tokens_in(rows), cut.cost_of(rows)) for name, rows in ranges.items()]
    return Work(
        listed,
        missing,
        load,
        lambda done: {"shards": bounds, "tokens_per_second": done.rate},
        describe,
        label,
        "tok",
    )


def _write(path: Path, content: Content) -> None:
    if isinstance(content, pa.Table):
        write_part(content, path)
    else:
        write_shard(path, content)


def _write_vocabulary(job: Job) -> None:
    """The text of each token, for readers of the tokens' statistics. A resumed run writes it again: it may
    have changed since.
    """
    folder, student = job.outputs[TOKENS.name], job.config.student
    tokenizer = load_tokenizer(job.weights, student.revision, f"{student.setting}.path={job.weights}")
    write_pieces(folder, *vocabulary_pieces(tokenizer))


class _Pass:
    """Scores the rows of a shard: a `ShardScorer`."""

    def __init__(self, student: Student, job: Job, questions: frozenset[str] = frozenset()) -> None:
        """`questions`: those whose tokens are kept."""
        self.student, self.config, self.questions = student, job.config, questions
        self.outputs = set(job.outputs)

    def __call__(self, rows: Rows, encoded: Sequence[Encoded], advance: Advance) -> dict[str, Content]:
        """One row per trajectory, in the pool's order; NaN where truncation left no response token."""
        summaries: list[dict[str, float]] = [{} for _ in rows]
        entropies: list[dict[str, float]] = [{} for _ in rows]
        top50: list[dict[str, float]] = [{} for _ in rows]
        tokens = {
            index: TrajectoryTokens.none(row["question_id"], row["candidate_id"])
            for index, row in enumerate(rows)
            if row["question_id"] in self.questions
        }
        budget = self.config.hardware.score_tokens

        def detail(chosen: Sequence[int]) -> int | None:
            return self._detail(tokens.keys() & chosen)

        for index, statistics in _each_batch(self.student, rows, encoded, budget, advance, detail):
            summaries[index] = summarise(statistics, self.config.scoring.rank_clip)
            if isinstance(statistics, DetailedStatistics):
                means = {name: float(getattr(statistics, name).double().mean()) for name in ENTROPIES}
                entropies[index] = {**means, "nll": summaries[index]["nll"]}
                if TOP50_TABLE.name in self.outputs:
                    targets = torch.tensor(encoded[index].response, device=statistics.alternatives.device)
                    top50[index] = {"top50_residual": float(top_residual(statistics, targets).double().sum())}
                if index in tokens:
                    tokens[index] = trajectory_tokens(rows[index], encoded[index], statistics)
        ids = id_table(rows, encoded)
        return {
            SCORES_TABLE.name: _joined(ids, summaries, SUMMARY),
            ENTROPY_TABLE.name: _joined(
                ids, entropies, (*ENTROPIES, "nll")
            ),  # the loss: for the selection's character
            TOP50_TABLE.name: _joined(ids, top50, ("top50_residual",)),
            TOKENS.name: list(tokens.values()),
        }

    def _detail(self, with_tokens: set[int]) -> int | None:
        """What a batch needs beyond the scores (`response_statistics`)."""
        if TOP50_TABLE.name in self.outputs:
            return 50
        if with_tokens:
            return ALTERNATIVES
        return 0 if ENTROPY_TABLE.name in self.outputs else None


def _each_batch(
    student: Student,
    rows: Rows,
    encoded: Sequence[Encoded],
    budget: int,
    advance: Advance,
    detail: Callable[[Sequence[int]], int | None] = lambda chosen: None,
) -> Iterator[tuple[int, TokenStatistics]]:
    """The statistics of each trajectory that has a response, with its index, batch by batch. `detail`: see
    `response_statistics`, for the indices of a batch."""
    usable = [i for i, e in enumerate(encoded) if e.n_response > 0]
    for batch in batches([len(encoded[i].ids) for i in usable], budget, padded=not student.packs):
        chosen = [usable[i] for i in batch]
        with naming(rows, chosen):
            yield from zip(
                chosen,
                response_statistics(student, [encoded[i] for i in chosen], detail(chosen)),
                strict=True,
            )
        advance(sum(len(encoded[i].ids) for i in chosen))


def _joined(ids: pd.DataFrame, results: list[dict[str, float]], columns: Sequence[str]) -> pa.Table:
    return pa.Table.from_pandas(
        pd.concat([ids, pd.DataFrame(results, columns=list(columns))], axis=1), preserve_index=False
    )


def trajectory_tokens(
    row: Mapping[str, Any], encoded: Encoded, statistics: DetailedStatistics
) -> TrajectoryTokens:
    """A trajectory's tokens in the types of the file, so that a shard of them fits into memory."""
    halves = {
        name: getattr(statistics, name).half()
        for name in ("surprisal", "residual", "entropy", "alternative_p")
    }
    whole = {name: getattr(statistics, name) for name in ("rank", "alternatives")}
    columns = {name: column.cpu().numpy() for name, column in (halves | whole).items()}
    for name in ("alternatives", "alternative_p"):
        columns[name] = columns[name][:, :ALTERNATIVES]  # method=lark_top50 asks for more
    return TrajectoryTokens(
        row["question_id"], row["candidate_id"], np.asarray(encoded.response, dtype=np.int32), **columns
    )


def _score_locally(
    scorer: LocalScorer, rows: Rows, encoded: Sequence[Encoded], local_steps: str, advance: Advance
) -> dict[str, Content]:
    """One row per trajectory, in the pool's order. Trajectories that share a prompt are run together."""
    score, n_steps = np.full(len(rows), np.nan), np.zeros(len(rows), dtype=np.int64)
    groups: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, e in enumerate(encoded):
        if e.n_response > 0:
            groups[tuple(e.ids[: e.prompt_length])].append(index)
    for chosen in groups.values():
        group = [encoded[i] for i in chosen]
        steps = [steps_of(encoded[i], local_steps) for i in chosen]
        work = sum(e.prompt_length + (scorer.m + 1) * e.n_response for e in group)
        with naming(rows, chosen):
            found = scorer.surprisals(group, steps, lambda share, work=work: advance(share * work))  # type: ignore[misc]
        for index, surprisal, numbers in zip(chosen, found, steps, strict=True):
            score[index], n_steps[index] = local_naturalness(surprisal, numbers), numbers[-1] + 1
    table = id_table(rows, encoded, n_steps=n_steps, local_naturalness=score)
    return {LOCAL_TABLE.name: pa.Table.from_pandas(table, preserve_index=False)}


SUMMARY = ("nll", "brier", "rank_sum", "ties", "p_gold", "wrong_p2", "sum_p2")
"""Sums over response tokens of surprisal, residual, clipped rank and ties; means of p(y), Σ_{v≠y} p² and Σ
p².
"""
ENTROPIES = ("entropy", "renyi2")
"""Means over response tokens of the entropies of the student's distribution."""


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


@contextlib.contextmanager
def naming(rows: Rows, chosen: Sequence[int]) -> Iterator[None]:
    """Add the names of the trajectories to an error."""
    try:
        yield
    except LarkError as error:
        named = ", ".join(f"{rows[i]['question_id']}/{rows[i]['candidate_id']}" for i in chosen[:5])
        more = "…" if len(chosen) > 5 else "."
        raise LarkError(
            f"{error} This occurred in a batch of {len(chosen)} trajectories: {named}{more}"
        ) from error


def id_table(rows: Rows, encoded: Sequence[Encoded], **columns: Iterable[Any]) -> pd.DataFrame:
    """The columns that all tables of a pass have in common, and further ones."""
    ids = {name: [row[name] for row in rows] for name in KEY}
    counts = {"n_tokens": [e.n_response for e in encoded], "truncated": [e.truncated for e in encoded]}
    return pd.DataFrame({**ids, **counts, **columns})
