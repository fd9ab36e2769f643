"""The columns that methods may need, and the artifacts that contain them."""

from dataclasses import dataclass
from typing import Literal

from lark.store.store import Kind

LENGTHS_TABLE = Kind("lengths", 2, "lengths.parquet")
SCORES_TABLE = Kind("scores", 1, "scores.parquet")
LOCAL_TABLE = Kind("local", 1, "local.parquet")
TEXT_TABLE = Kind("text", 1, "text.parquet")
JUDGE_TABLE = Kind("judge", 3, "judge.parquet")
GRAM_TABLE = Kind("gram", 1, "gram.parquet")
EXACT_TABLE = Kind("exact", 1, "exact.parquet")
FEATURES_TABLE = Kind("features", 1, "features.parquet")
"""Short vectors of the trajectories' gradients, which the pass `exact` writes for methods that need them."""
INFLUENCE_TABLE = Kind("influence", 1, "influence.parquet")
UNPROMPTED_TABLE = Kind("unprompted", 1, "unprompted.parquet")
CORRECTNESS_TABLE = Kind("correctness", 1, "correctness.parquet")
ENTROPY_TABLE = Kind("entropy", 1, "entropy.parquet")
"""Mean entropies of the student's distribution, which the scoring pass writes for methods that need them."""
TOP50_TABLE = Kind("top50", 1, "top50.parquet")
"""Residuals over the 50 most likely tokens, which the scoring pass writes for methods that need them."""
TOKENS = Kind("tokens", 2)
"""Statistics of every token, which the scoring pass writes if `scoring.tokens` is set (tokens.py)."""
BY_QUESTION = {kind.name: kind.file for kind in (GRAM_TABLE, EXACT_TABLE, FEATURES_TABLE)}
"""Outputs of passes over whole questions. Their shards are not ranges of the pool's rows, and are named
differently.
"""
BY_ROW = (
    LENGTHS_TABLE, SCORES_TABLE, ENTROPY_TABLE, TOP50_TABLE, UNPROMPTED_TABLE, LOCAL_TABLE, TOKENS
)  # fmt: skip
FILES = {kind.name: kind.file for kind in BY_ROW} | BY_QUESTION
"""The outputs of a pass, and the file that their shards are merged into. Empty: the statistics of tokens are
too large for one file.
"""
INDICATORS = ("words", "self_verification", "exploration", "granularity")


@dataclass(frozen=True)
class ColumnSource:
    """Data about every trajectory."""

    kind: Kind | None
    """The artifact that contains it. None: a file of the user."""
    columns: tuple[str, ...]


SOURCES: dict[str, ColumnSource] = {
    "lengths": ColumnSource(LENGTHS_TABLE, ("n_tokens",)),
    "statistics": ColumnSource(SCORES_TABLE, ("n_tokens", "nll", "brier", "rank_sum")),
    "entropy": ColumnSource(ENTROPY_TABLE, ("entropy", "renyi2")),
    "top50": ColumnSource(TOP50_TABLE, ("top50_residual",)),
    "unprompted": ColumnSource(UNPROMPTED_TABLE, ("unprompted_nll",)),
    "correctness": ColumnSource(CORRECTNESS_TABLE, ("correct",)),
    "local": ColumnSource(LOCAL_TABLE, ("local_naturalness",)),
    "gram": ColumnSource(GRAM_TABLE, ("g_gram",)),
    "exact": ColumnSource(EXACT_TABLE, ("g_exact", "gradient_norm")),
    "influence": ColumnSource(INFLUENCE_TABLE, ("influence",)),
    "judge": ColumnSource(JUDGE_TABLE, ("judge",)),
    "external": ColumnSource(None, ("external",)),
    "text": ColumnSource(TEXT_TABLE, INDICATORS),
}
"""The possible values of `SelectionMethod.needs`."""


SUMMARY = ("nll", "brier", "rank_sum", "ties", "p_gold", "wrong_p2", "sum_p2")
"""Sums over response tokens of surprisal, residual, clipped rank and ties; means of p(y), Σ_{v≠y} p² and Σ
p².
"""
ENTROPIES = ("entropy", "renyi2")
"""Means over response tokens of the entropies of the student's distribution."""
By = Literal["conversation", "candidates", "verdict"]
"""What identifies the content of a row (lark/scoring/contents.py)."""


@dataclass(frozen=True)
class Reuse:
    """How rows of a table are recognised in finished artifacts of its kind (lark/scoring/take_over.py)."""

    kind: Kind
    columns: tuple[str, ...]
    """All columns of the table but the ids. A table of an earlier version of the code that lacks one is not
    used.
    """
    by: By = "conversation"
    but: tuple[str, ...] = ()
    """Settings that decide which rows a table has, and not what is in them."""
    whole_questions: bool = False
    """Whether its pass goes through the pool question by question (`BY_QUESTION`)."""
    of_tokens: bool = False
    """Whether it has the statistics of tokens, of some questions and in files of their own (tokens.py)."""


_COMMON = ("n_tokens", "truncated")
_GRADIENTS = (*_COMMON, "nll", "gradient_norm")
REUSE = {
    reuse.kind.name: reuse
    for reuse in (
        Reuse(LENGTHS_TABLE, (*_COMMON, "n_prompt")),
        Reuse(SCORES_TABLE, (*_COMMON, *SUMMARY)),
        Reuse(ENTROPY_TABLE, (*_COMMON, *ENTROPIES, "nll")),
        Reuse(TOP50_TABLE, (*_COMMON, "top50_residual")),
        Reuse(UNPROMPTED_TABLE, (*_COMMON, "unprompted_nll")),
        Reuse(LOCAL_TABLE, (*_COMMON, "n_steps", "local_naturalness")),
        Reuse(GRAM_TABLE, (*_GRADIENTS, "g_gram"), "candidates", whole_questions=True),
        Reuse(EXACT_TABLE, (*_GRADIENTS, "g_exact"), "candidates", whole_questions=True),
        # The direction of one gradient: it does not depend on the other candidates.
        Reuse(FEATURES_TABLE, (*_COMMON, "gradient_norm", "feature"), whole_questions=True),
        Reuse(TOKENS, (), but=("questions",), of_tokens=True),
        Reuse(TEXT_TABLE, INDICATORS),
        Reuse(CORRECTNESS_TABLE, ("correct",), "verdict"),
    )
}
"""Tables whose rows can be taken over. Rows of others are computed: `influence` compares all rows with each
other in seconds, and a judge has a cache of its own, in which verdicts are found by content too
(lark/scoring/judge.py).
"""
