"""The registry of selection methods. Each turns data about a trajectory into one score.

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
from dataclasses import replace

import numpy as np
import pandas as pd

from lark.errors import LarkError
from lark.scoring.by_question import Floats, z_score
from lark.scoring.learnability import learnability_score
from lark.scoring.selection_method import SelectionMethod
from lark.scoring.sources import INDICATORS


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
    question = trajectories["question_id"]
    length, check, explore, granularity = (
        z_score(_column(trajectories, name), question) for name in INDICATORS
    )
    # Written out: a matrix product may round a row differently depending on its position, and break ties.
    return 0.30 * length + 0.20 * check + 0.25 * explore + 0.25 * granularity


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
    """||grad l_k||, the norm of the gradient (GraNd at the student's weights: Paul et al., 2021,
    arXiv:2107.07075), from the sketches of `lark_exact`.
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


METHODS: dict[str, SelectionMethod] = {
    method.name: method
    for method in (
        SelectionMethod("lark", frozenset({"statistics"}), lark),
        SelectionMethod("random", frozenset({"lengths"}), random),
        SelectionMethod("token_length", frozenset({"lengths"}), token_length),
        SelectionMethod("shortest", frozenset({"lengths"}), shortest, higher_is_better=False),
        SelectionMethod("rule_quality", frozenset({"text"}), rule_quality),
        SelectionMethod("llm_judge", frozenset({"judge"}), llm_judge),
        SelectionMethod("grape", frozenset({"statistics"}), grape),
        SelectionMethod("local_naturalness", frozenset({"local"}), local_naturalness),
        SelectionMethod("rsr", frozenset({"statistics"}), rsr, higher_is_better=False),
        SelectionMethod("medium_loss", frozenset({"statistics"}), medium_loss, higher_is_better=False),
        SelectionMethod("correct_then_likely", frozenset({"statistics", "correctness"}), correct_then_likely),
        SelectionMethod("ifd", frozenset({"statistics", "unprompted"}), ifd),
        SelectionMethod("lark_top50", frozenset({"statistics", "top50"}), lark_top50),
        SelectionMethod("lark_gram", frozenset({"gram"}), lark_gram),
        SelectionMethod("lark_exact", frozenset({"exact"}), lark_exact),
        SelectionMethod("gnorm", frozenset({"exact"}), gnorm),
        SelectionMethod("less", frozenset({"exact", "influence"}), less),
        SelectionMethod("entropy", frozenset({"entropy"}), entropy),
        SelectionMethod("renyi2", frozenset({"entropy"}), renyi2),
        SelectionMethod("external", frozenset({"external"}), external),
        SelectionMethod("inverse_loss", frozenset({"statistics"}), inverse_loss),
        SelectionMethod("brier", frozenset({"statistics"}), brier),
        SelectionMethod("rho", frozenset({"statistics"}), rho),
    )
}


def find_method(name: str, higher_is_better: bool = True, reverse: bool = False) -> SelectionMethod:
    """The method called `name`. `reverse`: in the opposite direction (method.reverse=true).

    `higher_is_better` applies only to `external`; the direction of the others is fixed.
    """
    if name not in METHODS:
        raise LarkError(f"method={name}: choose one of {', '.join(METHODS)}.")
    method = METHODS[name]
    upwards = higher_is_better if name == "external" else method.higher_is_better
    return replace(method, higher_is_better=upwards != reverse)
