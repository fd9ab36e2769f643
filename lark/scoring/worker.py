"""The scoring stage's processes: `score` runs the student over the pool once, `unprompted` over responses
without their prompts and `local` over blocks.

The scoring pass has up to four outputs: the scores, the entropies and the residuals over the 50 most likely
tokens if the method needs them, and the statistics of each token if `scoring.tokens` is set. It computes
what the missing ones need, on the rows that they need.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from lark.models.chat import Encoded
from lark.models.load import load_chat, load_tokenizer
from lark.models.pieces import vocabulary_pieces
from lark.scoring import sources
from lark.scoring.distribution import top_residual
from lark.scoring.forward import LoadedStudent, response_statistics
from lark.scoring.local import LocalScorer, score_locally
from lark.scoring.pass_sizes import job_tokens
from lark.scoring.pool_pass import (
    Advance,
    Content,
    Rows,
    ShardScorer,
    as_arrow,
    id_table,
    in_batches,
    naming,
    pass_over,
)
from lark.scoring.shards import Shards
from lark.scoring.sources import ENTROPIES, SUMMARY
from lark.scoring.statistics import DetailedStatistics, TokenStatistics
from lark.scoring.token_files import write_pieces
from lark.scoring.tokens import ALTERNATIVES, TrajectoryTokens
from lark.work.operation import Job
from lark.work.sharding import Work, in_shards

TOP = 50
"""Most likely tokens in the residual of `method=lark_top50`."""


@in_shards
def score(job: Job) -> Work:
    """Every statistic of every trajectory, with `scoring.tokens` also of every token (Alg. 1 lines 1-5)."""
    cut = Shards.of(job.inputs["lengths"], job.config.scoring.shard_tokens)
    tokens = sources.TOKENS.name
    if tokens not in job.outputs:
        return pass_over(job, cut, "scoring", lambda student: _of_job(student, job), fused=True)
    if job.is_main:
        _write_vocabulary(job)
    questions = cut.first_questions(job.config.scoring.token_questions)
    with_tokens = cut.only(questions)
    # If only tokens are missing, the student is not run on other questions.
    needed = with_tokens if len(job.outputs) == 1 else cut

    def scorer(student: LoadedStudent) -> ShardScorer:
        return _of_job(student, job, questions)

    return pass_over(job, needed, "scoring", scorer, partial={tokens: with_tokens}, fused=True)


@in_shards
def unprompted(job: Job) -> Work:
    """Σ_t -log p_t of every response without its prompt, for method=ifd: the same tokens, after the
    generation prompt alone.
    """
    config = job.config
    cut = Shards.of(job.inputs["lengths"], config.scoring.shard_tokens, prompts=False)
    opening = load_chat(job.weights, config.student, config.pool.turns == "last").opening()

    def scorer(student: LoadedStudent) -> ShardScorer:
        budget = job_tokens(job, config.student)

        def score_shard(rows: Rows, encoded: Sequence[Encoded], advance: Advance) -> dict[str, Content]:
            responses = [without_prompt(e, opening, config.student.max_length) for e in encoded]
            nll = np.full(len(rows), np.nan)
            for index, statistics in _each(student, rows, responses, budget, advance):
                nll[index] = float(statistics.surprisal.double().sum())
            return {sources.UNPROMPTED_TABLE.name: as_arrow(id_table(rows, encoded, unprompted_nll=nll))}

        return score_shard

    return pass_over(job, cut, "scoring without prompts", scorer, fused=True)


def without_prompt(encoded: Encoded, opening: Sequence[int], longest: int) -> Encoded:
    """The same response after `opening` in place of its prompt. Turns that follow keep their context."""
    rest = encoded.ids[encoded.prompt_length :]
    # At least one token, because the first response token is predicted from the one before it.
    opening = opening[: max(1, longest - len(rest))]
    shift = len(opening) - encoded.prompt_length
    context = tuple((start + shift, stop + shift) for start, stop in encoded.context)
    return Encoded([*opening, *rest], len(opening), encoded.truncated, context)


@in_shards
def local(job: Job) -> Work:
    """Local Naturalness of every trajectory (lark/scoring/local.py)."""
    scoring = job.config.scoring
    # Every step is run once for itself and as context of m others. These sequences are short.
    cut = Shards.of(job.inputs["lengths"], scoring.shard_tokens, blocks=scoring.local_context + 1)

    def scorer(student: LoadedStudent) -> ShardScorer:
        blocks = LocalScorer(student, scoring.local_context, job_tokens(job, job.config.student))

        def score_shard(rows: Rows, encoded: Sequence[Encoded], advance: Advance) -> dict[str, Content]:
            return score_locally(blocks, rows, encoded, scoring.local_steps, advance)

        return score_shard

    return pass_over(job, cut, "scoring steps", scorer, offsets=True, fused=True)


def _write_vocabulary(job: Job) -> None:
    """The text of each token, for readers of the tokens' statistics. A resumed run writes it again: it may
    have changed since.
    """
    student = job.config.student
    tokenizer = load_tokenizer(job.weights, student.revision, f"{student.setting}.path={job.weights}")
    write_pieces(job.outputs[sources.TOKENS.name], *vocabulary_pieces(tokenizer))


def _of_job(student: LoadedStudent, job: Job, questions: frozenset[str] = frozenset()) -> "StatisticsPass":
    budget = job_tokens(job, job.config.student)
    return StatisticsPass(student, frozenset(job.outputs), budget, job.config.scoring.rank_clip, questions)


@dataclass(frozen=True)
class StatisticsPass:
    """Scores the rows of a shard: a `ShardScorer`."""

    student: LoadedStudent
    outputs: frozenset[str]
    """The names of the tables to make."""
    budget: int
    """Tokens of a batch."""
    rank_clip: int
    questions: frozenset[str] = frozenset()
    """Those whose tokens are kept."""

    def __call__(self, rows: Rows, encoded: Sequence[Encoded], advance: Advance) -> dict[str, Content]:
        """One row per trajectory, in the pool's order; NaN where truncation left no response token."""
        summaries: list[dict[str, float]] = [{} for _ in rows]
        entropies: list[dict[str, float]] = [{} for _ in rows]
        top50: list[dict[str, float]] = [{} for _ in rows]
        tokens = self._without_tokens(rows)

        def n_alternatives(batch: Sequence[int]) -> int | None:
            return self._n_alternatives(with_tokens=not tokens.keys().isdisjoint(batch))

        for index, statistics in _each(self.student, rows, encoded, self.budget, advance, n_alternatives):
            summaries[index] = summarise(statistics, self.rank_clip)
            if isinstance(statistics, DetailedStatistics):
                # The loss is in this table too, for the selection's character.
                entropies[index] = {**mean_entropies(statistics), "nll": summaries[index]["nll"]}
                if sources.TOP50_TABLE.name in self.outputs:
                    targets = torch.tensor(encoded[index].response, device=statistics.alternatives.device)
                    top50[index] = {"top50_residual": float(top_residual(statistics, targets).double().sum())}
                if index in tokens:
                    tokens[index] = trajectory_tokens(rows[index], encoded[index], statistics)
        ids = id_table(rows, encoded)
        return {
            sources.SCORES_TABLE.name: _joined(ids, summaries, SUMMARY),
            sources.ENTROPY_TABLE.name: _joined(ids, entropies, (*ENTROPIES, "nll")),
            sources.TOP50_TABLE.name: _joined(ids, top50, ("top50_residual",)),
            sources.TOKENS.name: list(tokens.values()),
        }

    def _without_tokens(self, rows: Rows) -> dict[int, TrajectoryTokens]:
        """The trajectories whose tokens are kept, before any is scored. Those without a response stay so."""
        return {
            index: TrajectoryTokens.empty(row["question_id"], row["candidate_id"])
            for index, row in enumerate(rows)
            if row["question_id"] in self.questions
        }

    def _n_alternatives(self, with_tokens: bool) -> int | None:
        """The most likely tokens that a batch needs (`response_statistics`)."""
        if sources.TOP50_TABLE.name in self.outputs:
            return TOP
        if with_tokens:
            return ALTERNATIVES
        return 0 if sources.ENTROPY_TABLE.name in self.outputs else None


def _each(
    student: LoadedStudent,
    rows: Rows,
    encoded: Sequence[Encoded],
    budget: int,
    advance: Advance,
    n_alternatives: Callable[[Sequence[int]], int | None] = lambda batch: None,
) -> Iterator[tuple[int, TokenStatistics]]:
    """The statistics of each trajectory that has a response, with its index, batch by batch.
    `n_alternatives`: see `response_statistics`, for the indices of a batch.
    """
    usable = [index for index, e in enumerate(encoded) if e.n_response > 0]
    for batch in in_batches(student, encoded, usable, budget, advance):
        sequences = [encoded[index] for index in batch]
        with naming(rows, batch):
            yield from zip(batch, response_statistics(student, sequences, n_alternatives(batch)), strict=True)


def _joined(ids: pd.DataFrame, results: list[dict[str, float]], columns: Sequence[str]) -> pa.Table:
    return as_arrow(pd.concat([ids, pd.DataFrame(results, columns=list(columns))], axis=1))


def trajectory_tokens(
    row: Mapping[str, Any], encoded: Encoded, statistics: DetailedStatistics
) -> TrajectoryTokens:
    """A trajectory's tokens in the types of the file, so that a shard of them fits into memory."""
    # The most likely ones come first, and method=lark_top50 needs more than are kept.
    alternatives = statistics.alternatives[:, :ALTERNATIVES]
    return TrajectoryTokens(
        row["question_id"],
        row["candidate_id"],
        token=np.array(encoded.response, dtype=np.int32),
        surprisal=_numbers(statistics.surprisal.half()),
        residual=_numbers(statistics.residual.half()),
        rank=_numbers(statistics.rank),
        entropy=_numbers(statistics.entropy.half()),
        alternatives=_numbers(alternatives),
        alternative_p=_numbers(statistics.alternative_p.half()[:, :ALTERNATIVES]),
    )


def _numbers(column: Tensor) -> np.ndarray:
    return column.cpu().numpy()


def mean_entropies(statistics: DetailedStatistics) -> dict[str, float]:
    return {name: float(getattr(statistics, name).double().mean()) for name in ENTROPIES}


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
