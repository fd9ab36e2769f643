"""The columns that methods may need, and the artifacts that contain them."""

from dataclasses import dataclass

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
