"""The registry of selection methods. Each turns what is known about a trajectory into one score.

A method is data plus one function. To add one: write its function here, add it to `METHODS`, and add
`conf/method/<name>.yaml`. A method's options are keyword arguments of its function (`options:` in the YAML
file). Functions see only candidates with at least one response token, in any order:

    question_id, candidate_id   always
    n_tokens                    |a_k|, response tokens                            always (lengths)
    nll                         sum_t -log p_t                                    statistics
    brier                       sum_t ||pi_t - e_y||^2                            statistics
    rank_sum                    sum_t min(rank_t, r_max)                          statistics
    entropy                     1/|a_k| sum_t -sum_v p_t(v) log p_t(v)            entropy
    renyi2                      1/|a_k| sum_t -log sum_v p_t(v)^2                 entropy
    top50_residual              brier with pi_t over the 50 likeliest tokens      top50
    local_naturalness           the score of App. C.2                             local
    judge                       overall_score of the judge model                  judge
    external                    the score of another tool                         external
    unprompted_nll              sum_t -log p_t without the prompt                 unprompted
    g_gram                      g* from forward-only sketches of gradients        gram
    g_exact, gradient_norm      g* and ||grad l_k|| from sketched gradients       exact
    influence                   cosine with the gradient of a validation set      influence
    correct                     1, 0, or NaN where nobody knows                   correctness
    words, self_verification, exploration, granularity                            text (lark/scoring/text.py)
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from lark.errors import LarkError
from lark.scoring.learnability import Floats, Labels, encode, group_sum, learnability_score
from lark.scoring.options import converted
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
"""Statistics of every token, which the scoring pass writes if `scoring.tokens` is set
(lark/scoring/tokens.py).
"""
TEXT_COLUMNS = ("words", "self_verification", "exploration", "granularity")


@dataclass(frozen=True)
class Source:
    """Data about every trajectory: the artifact that contains it (None: a file of the user) and its
    columns.
    """

    kind: Kind | None
    columns: tuple[str, ...]


SOURCES: dict[str, Source] = {
    "lengths": Source(LENGTHS_TABLE, ("n_tokens",)),
    "statistics": Source(SCORES_TABLE, ("n_tokens", "nll", "brier", "rank_sum")),
    "entropy": Source(ENTROPY_TABLE, ("entropy", "renyi2")),
    "top50": Source(TOP50_TABLE, ("top50_residual",)),
    "unprompted": Source(UNPROMPTED_TABLE, ("unprompted_nll",)),
    "correctness": Source(CORRECTNESS_TABLE, ("correct",)),
    "local": Source(LOCAL_TABLE, ("local_naturalness",)),
    "gram": Source(GRAM_TABLE, ("g_gram",)),
    "exact": Source(EXACT_TABLE, ("g_exact", "gradient_norm")),
    "influence": Source(INFLUENCE_TABLE, ("influence",)),
    "judge": Source(JUDGE_TABLE, ("judge",)),
    "external": Source(None, ("external",)),
    "text": Source(TEXT_TABLE, TEXT_COLUMNS),
}
"""The possible values of `Method.needs`."""
RESERVED = frozenset(
    {
        "method",
        "weighting",
        "budget",
        "teacher",
        "scores",
        "higher_is_better",
        "reverse",
        "share_weights",
        "whole_weights",
    }
)
"""Names in a selection's fingerprint, which an option must not take."""


@dataclass(frozen=True)
class Method:
    """How candidates are ranked."""

    name: str
    needs: frozenset[str]
    """Keys of SOURCES. `lengths` is always available: a candidate has at least one response token (decision
    13).
    """
    function: Callable[..., Floats]
    """Takes candidates, and options as keyword arguments. Returns one score per row, NaN or infinite where
    it is undefined.
    """
    higher_is_better: bool = True

    def score(self, trajectories: pd.DataFrame, options: Mapping[str, Any] | None = None) -> Floats:
        """[R] One score per row; NaN where the trajectory has no response token or the score is undefined."""
        wanted = {
            "question_id",
            "candidate_id",
            "n_tokens",
            *(column for source in self.needs for column in SOURCES[source].columns),
        }
        missing = sorted(wanted - set(trajectories.columns))
        if missing:
            raise LarkError(
                f"method={self.name} needs the column(s) {', '.join(missing)}, which the scores lack."
            )
        arguments = self.check(options or {})
        candidate = trajectories["n_tokens"].to_numpy(dtype=np.float64, na_value=np.nan) > 0
        score = np.full(len(trajectories), np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            score[candidate] = self.function(trajectories[candidate], **arguments)
        score[np.isinf(score)] = np.nan
        return score

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options in the types that the function declares. Refuses those that it does not take."""
        for name in options:
            if name in RESERVED:
                raise LarkError(
                    f"method.options.{name}: an option cannot have this name; rename it in"
                    f" method={self.name}."
                )
        return converted(options, self.function, self.name)


def _column(trajectories: pd.DataFrame, name: str) -> Floats:
    return trajectories[name].to_numpy(dtype=np.float64, na_value=np.nan)


def loss(trajectories: pd.DataFrame) -> Floats:
    """l_k = 1/|a_k| sum_t -log p_t, Algorithm 1 line 3."""
    return _column(trajectories, "nll") / _column(trajectories, "n_tokens")


def rho(trajectories: pd.DataFrame) -> Floats:
    """rho-hat_k = sum_t ||pi_t - e_y||^2 / sum_t -log p_t, Algorithm 1 line 4 (decision 1). Ablation,
    Section 5.3.
    """
    return _column(trajectories, "brier") / _column(trajectories, "nll")


def lark(trajectories: pd.DataFrame) -> Floats:
    """g-hat_k, Algorithm 1 line 7: the local gradient of learnability at uniform weights."""
    return learnability_score(loss(trajectories), rho(trajectories), trajectories["question_id"])


def lark_top50(trajectories: pd.DataFrame) -> Floats:
    """g-hat_k with the residual over the 50 most likely tokens, whose probabilities are scaled to a sum of
    1, and the exact loss. As in the authors' code (docs/authors-code.md), to measure what the approximation
    changes: `lark` is exact and costs less.
    """
    rho_top50 = _column(trajectories, "top50_residual") / _column(trajectories, "nll")
    return learnability_score(loss(trajectories), rho_top50, trajectories["question_id"])


def inverse_loss(trajectories: pd.DataFrame) -> Floats:
    """1 / l_k. Ablation, Section 5.3."""
    return 1 / loss(trajectories)


def brier(trajectories: pd.DataFrame) -> Floats:
    """sum_t ||pi_t - e_y||^2, not divided by the length. Ablation, Section 5.3."""
    return _column(trajectories, "brier")


def random(trajectories: pd.DataFrame, *, seed: int = 42) -> Floats:
    """Uniform in [0, 1): the top B are B candidates drawn without replacement (App. C.2).

    A hash of (seed, question, candidate) instead of a generator's stream, so that a trajectory's draw
    depends neither on the order of the rows nor on which other questions are in the pool.
    """
    keys = zip(trajectories["question_id"].tolist(), trajectories["candidate_id"].tolist(), strict=True)
    digests = b"".join(
        hashlib.blake2b(f"{seed}\x1f{question}\x1f{candidate}".encode(), digest_size=8).digest()
        for question, candidate in keys
    )
    return (np.frombuffer(digests, dtype="<u8") >> 11).astype(np.float64) * 2.0**-53


def token_length(trajectories: pd.DataFrame) -> Floats:
    """|a_k| (App. C.2)."""
    return _column(trajectories, "n_tokens")


def shortest(trajectories: pd.DataFrame) -> Floats:
    """|a_k|; lower is better. The plainest rule, to compare others with: many scores follow the length."""
    return _column(trajectories, "n_tokens")


def medium_loss(trajectories: pd.DataFrame) -> Floats:
    """|l_k - median_i l_i| over the candidates of the question; lower is better.

    Neither what the student already writes nor what is far from it. Marion et al. (2023, arXiv:2309.04564)
    find the middle of the perplexity distribution best for pruning pretraining data; here the middle is
    that of the question's candidates.
    """
    losses = loss(trajectories)
    median = pd.Series(losses).groupby(np.asarray(trajectories["question_id"])).transform("median")
    return np.asarray(np.abs(losses - median), dtype=np.float64)


def correct_then_likely(trajectories: pd.DataFrame) -> Floats:
    """c_k + exp(-l_k) with c_k = 1 for a correct trajectory, else 0: correct ones first, each group by its
    likelihood.

    Rejection sampling by the answer, as in STaR (Zelikman et al., 2022, arXiv:2203.14465), with GRAPE's
    order among what it keeps. exp(-l_k), the geometric mean of the tokens' probabilities, is at most 1, so
    it never outweighs the answer. A trajectory that nobody has judged counts as not correct.
    """
    return (_column(trajectories, "correct") == 1) + np.exp(-loss(trajectories))


def ifd(trajectories: pd.DataFrame) -> Floats:
    """IFD_k = l_k / l_k(without the prompt), Instruction-Following Difficulty (Li et al., 2024,
    arXiv:2308.12032).

    High: the prompt hardly helps the student to write the response. From 1 on it does not help at all, and
    the source removes these responses; here they rank after all others, the smallest excess first, with the
    score 1 - IFD.
    """
    ratio = _column(trajectories, "nll") / _column(trajectories, "unprompted_nll")
    return np.where(ratio < 1, ratio, 1 - ratio)


def rule_quality(trajectories: pd.DataFrame) -> Floats:
    """0.30 z(words) + 0.20 z(self-verification) + 0.25 z(exploration) + 0.25 z(granularity), LIMO-style
    (App. C.2).
    """
    length, check, explore, granularity = (
        z_score(_column(trajectories, name), trajectories["question_id"]) for name in TEXT_COLUMNS
    )
    # Written out: a matrix product may round a row differently depending on its position, which would then
    # break ties.
    return 0.30 * length + 0.20 * check + 0.25 * explore + 0.25 * granularity


def z_score(values: Floats, question: Labels) -> Floats:
    """[R] (x - mean) / std within each question, 0 where all candidates are equal.

    This is the population standard deviation. The sample's would scale a question's scores by one factor
    and select the same.
    """
    codes, labels = encode(question)
    order = np.lexsort((values, codes))
    values, codes = values[order], codes[order]
    count = np.bincount(codes, minlength=len(labels))
    # Relative to the smallest value: otherwise, rounding in the mean would give equal values a spread.
    values = values - values[np.cumsum(count) - count][codes]
    deviation = values - (group_sum(values, codes, len(labels)) / count)[codes]
    spread = np.sqrt(group_sum(deviation**2, codes, len(labels)) / count)[codes]
    score = np.zeros_like(deviation)
    score[order] = np.divide(deviation, spread, out=np.zeros_like(deviation), where=spread > 0)
    return score


def llm_judge(trajectories: pd.DataFrame) -> Floats:
    """The judge model's overall_score (App. C.2)."""
    return _column(trajectories, "judge")


def grape(trajectories: pd.DataFrame) -> Floats:
    """-l_k, the mean log-likelihood: global naturalness (App. C.2)."""
    return -loss(trajectories)


def local_naturalness(trajectories: pd.DataFrame) -> Floats:
    """The mean over steps of the mean log-likelihood given the last m steps (App. C.2)."""
    return _column(trajectories, "local_naturalness")


def rsr(trajectories: pd.DataFrame) -> Floats:
    """sum_t min(rank_t, r_max) / sum_t -log p_t, the rank-surprisal ratio; lower is better (App. C.2)."""
    return _column(trajectories, "rank_sum") / _column(trajectories, "nll")


def entropy(trajectories: pd.DataFrame) -> Floats:
    """1/|a_k| sum_t H(pi_t) with H = -sum_v p(v) log p(v) (Shannon, 1948): the student's mean uncertainty
    over the response.

    Unlike the loss, it does not depend on which token the teacher wrote. That higher is better is a choice:
    it selects the responses along which the student is least certain.
    """
    return _column(trajectories, "entropy")


def renyi2(trajectories: pd.DataFrame) -> Floats:
    """1/|a_k| sum_t H_2(pi_t) with H_2 = -log sum_v p(v)^2 (Rényi, 1961), which counts the likely tokens
    and ignores the tail.

    That higher is better is a choice, as for `entropy`.
    """
    return _column(trajectories, "renyi2")


def lark_gram(trajectories: pd.DataFrame) -> Floats:
    """g*_k = (2 g_k·g-bar - rho(p) l_k) / l-bar, eq. (gstar-closed), from sketched gradients g_k of a
    forward pass alone.

    g_k: 1/n sum_t e_t x a_t for each output projection, with the gradient e_t behind the final norm in
    every layer, and the head's 1/n sum_t (pi_t - e_y) x h_t (lark/scoring/gradient_sketches.py). It
    estimates g* better than `lark`; that does not make it a better selector.
    """
    return _column(trajectories, "g_gram")


def lark_exact(trajectories: pd.DataFrame) -> Floats:
    """g*_k = (2 g_k·g-bar - rho(p) l_k) / l-bar, eq. (gstar-closed), from sketches of the exact gradients
    g_k of the output projections and the head. It estimates g* better than `lark`; that does not make it a
    better selector.
    """
    return _column(trajectories, "g_exact")


def gnorm(trajectories: pd.DataFrame) -> Floats:
    """||grad l_k||, the norm of the gradient (GraNd at the student's weights: Paul et al., 2021, arXiv:2107.07075), from the
    sketches of `lark_exact`.
    """
    return _column(trajectories, "gradient_norm")


def less(trajectories: pd.DataFrame) -> Floats:
    """cos(grad l_k, mean gradient of a validation set): LESS (Xia et al., 2024, arXiv:2402.04333), at one
    checkpoint.

    The source trains adapters first, weights several of their checkpoints by the learning rate and
    preconditions gradients as Adam does. Here gradients are those of plain descent at the student's own
    weights (`method.validation` sets what to compare with).
    """
    return _column(trajectories, "influence")


def external(trajectories: pd.DataFrame) -> Floats:
    """Another tool's score; method.higher_is_better sets its direction."""
    return _column(trajectories, "external")


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("lark", frozenset({"statistics"}), lark),
        Method("random", frozenset({"lengths"}), random),
        Method("token_length", frozenset({"lengths"}), token_length),
        Method("shortest", frozenset({"lengths"}), shortest, higher_is_better=False),
        Method("rule_quality", frozenset({"text"}), rule_quality),
        Method("llm_judge", frozenset({"judge"}), llm_judge),
        Method("grape", frozenset({"statistics"}), grape),
        Method("local_naturalness", frozenset({"local"}), local_naturalness),
        Method("rsr", frozenset({"statistics"}), rsr, higher_is_better=False),
        Method("medium_loss", frozenset({"statistics"}), medium_loss, higher_is_better=False),
        Method("correct_then_likely", frozenset({"statistics", "correctness"}), correct_then_likely),
        Method("ifd", frozenset({"statistics", "unprompted"}), ifd),
        Method("lark_top50", frozenset({"statistics", "top50"}), lark_top50),
        Method("lark_gram", frozenset({"gram"}), lark_gram),
        Method("lark_exact", frozenset({"exact"}), lark_exact),
        Method("gnorm", frozenset({"exact"}), gnorm),
        Method("less", frozenset({"exact", "influence"}), less),
        Method("entropy", frozenset({"entropy"}), entropy),
        Method("renyi2", frozenset({"entropy"}), renyi2),
        Method("external", frozenset({"external"}), external),
        Method("inverse_loss", frozenset({"statistics"}), inverse_loss),
        Method("brier", frozenset({"statistics"}), brier),
        Method("rho", frozenset({"statistics"}), rho),
    )
}


def find_method(name: str, higher_is_better: bool = True, reverse: bool = False) -> Method:
    """The method called `name`. `higher_is_better` applies only to `external`; the direction of the others
    is fixed.

    `reverse`: the opposite direction (method.reverse=true).
    """
    if name not in METHODS:
        raise LarkError(f"method={name}: choose one of {', '.join(METHODS)}.")
    found = METHODS[name]
    upwards = higher_is_better if name == "external" else found.higher_is_better
    return replace(found, higher_is_better=upwards != reverse)
