"""Select trajectories by score and budget, and weight them (paper, Section 4.3). Pure functions, no I/O.

Rows are trajectories in any order; a label per row names its question. Questions may have different numbers
of candidates K. There is no loop over questions: rows are sorted once, and a question is a range of sorted
rows. Results do not depend on the order of the rows, not even in the last bit: sums are taken over rows
sorted by value.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lark.errors import LarkError
from lark.scoring.by_question import Floats, Integers, Labels, encode, group_sum, z_score
from lark.selection.allocation import Across, allocate, places

BELOW = 1e-8
"""How far the threshold is below the lowest score with `whole="margins"`, as in the authors' code."""


@dataclass(frozen=True)
class Selection:
    """The chosen trajectories. Arrays have one entry per trajectory, ordered by question label, then rank."""

    row: Integers
    """Index into the input's rows."""
    rank: Integers
    """1 is the best of its question."""
    score: Floats
    """As given: not negated where lower is better."""
    weight: Floats
    """q-hat: not negative, sums to 1 in each question."""
    threshold: Floats
    """The question's score of rank B_n+1. Where the budget takes every candidate: NaN, or just below the
    lowest score with `whole="margins"`.
    """
    tau: Floats
    """The question's temperature tau*(B) of Lemma 3, for any weighting; NaN without a threshold."""
    size: Integers
    """B_n: the number of trajectories chosen for this question."""
    n_questions: int
    """Questions in the input, dropped ones included."""
    n_whole: int
    """Questions whose budget takes every valid candidate (decision 4)."""
    n_unreached: int
    """Questions with valid candidates of which the budget takes none (only a budget across questions)."""
    dropped: tuple[object, ...]
    """Labels of the questions without any valid candidate."""

    @property
    def training_weight(self) -> Floats:
        """w = B_n q, the weight of a trajectory's mean loss in training: 1 where weights are uniform
        (decision 3).
        """
        return self.size * self.weight

    @property
    def n_tied(self) -> int:
        """Questions whose last chosen score equals the first one left out, so that the candidate's id
        decided.
        """
        return int(np.sum((self.rank == self.size) & (self.score == self.threshold)))


def select(
    score: npt.ArrayLike,
    question: Labels,
    candidate_id: Labels,
    budget: int | None,
    weighting: str,
    *,
    higher_is_better: bool = True,
    across: Across | None = None,
    whole: str = "uniform",
) -> Selection:
    """The `budget` best trajectories of each question, weighted.

    With `across`, the budget is shared by all questions (allocation.py), and `budget` is the maximum per
    question, if any. `whole`: weights of questions whose budget takes every candidate (`whole_weights` in
    lark/config/schema.py).

    Candidates with a NaN or infinite score are never chosen and do not count in K. Equal scores are ordered
    by candidate_id. Where lower is better, ranking, weights and tau act on the negated score; `score` and
    `threshold` keep their sign.
    """
    _check_weighting(weighting)
    scores = np.asarray(score, dtype=np.float64)
    codes, labels = encode(question)
    candidate, names = encode(candidate_id)
    _require_distinct(codes, labels, candidate, names)

    # A dropped question is an empty range: arrays by question keep an entry for it.
    sign = 1.0 if higher_is_better else -1.0
    utility = sign * scores
    valid = np.flatnonzero(np.isfinite(scores))
    order = valid[np.lexsort((candidate[valid], -utility[valid], codes[valid]))]
    utility, codes = utility[order], codes[order]
    candidates = np.bincount(codes, minlength=len(labels))
    start = np.cumsum(candidates) - candidates
    rank = np.arange(len(order)) - start[codes] + 1

    if across is None:
        size = np.minimum(candidates, len(order) if budget is None else budget)
    else:
        cost = np.ones_like(order) if across.cost is None else across.cost[order]
        # Scores so large that their variance overflows count as equal.
        with np.errstate(over="ignore", invalid="ignore"):
            standard = np.nan_to_num(z_score(utility, codes), nan=0.0, posinf=0.0, neginf=0.0)
        size = allocate(standard, codes, rank, places(labels.tolist()), cost, across.limit, budget)
    threshold = np.full(len(labels), np.nan)
    exceeds = candidates > size
    threshold[exceeds] = utility[start[exceeds] + size[exceeds]]
    if whole == "margins":
        taken = (candidates > 0) & ~exceeds
        threshold[taken] = utility[start[taken] + candidates[taken] - 1] - BELOW
    chosen = rank <= size[codes]
    top = TopB(
        utility=utility[chosen],
        question=codes[chosen],
        best=utility[start[codes[chosen]]],
        threshold=threshold,
        spread=_standard_deviation(utility, codes, candidates),
    )
    return Selection(
        row=order[chosen],
        rank=rank[chosen],
        score=scores[order[chosen]],
        weight=_normalise(WEIGHTINGS[weighting](top), top, size),
        threshold=sign * threshold[top.question],
        tau=top.margin_sum[top.question] / candidates[top.question],
        size=size[top.question],
        n_questions=len(labels),
        n_whole=int(np.sum((candidates > 0) & ~exceeds)),
        n_unreached=int(np.sum((candidates > 0) & (size == 0))),
        dropped=tuple(labels[candidates == 0].tolist()),
    )


def share_weights(selection: Selection, group: npt.ArrayLike) -> Selection:
    """The same trajectories, with q_i ~ q_i / c_i, where c_i of the selected ones say the same as i (itself
    included).

    group [M]: a number per selected trajectory, equal for those of a question that say the same. Without
    this, a response that several teachers wrote alike has their weights together.
    """
    groups = np.asarray(group)
    numbers = np.unique(groups, return_inverse=True)[1]
    copies = np.bincount(numbers)[numbers]
    # Each question's trajectories are consecutive, and its first one has rank 1.
    question = np.cumsum(selection.rank == 1) - 1
    mass = selection.weight / copies
    total = group_sum(mass, question, int(question.max(initial=-1)) + 1)[question]
    return replace(selection, weight=np.divide(mass, total, out=selection.weight.copy(), where=total > 0))


def check_dropped(selection: Selection, limit: float = 0.01) -> None:
    """Raise an error if more than `limit` of the questions have no valid candidate (decision 5)."""
    if len(selection.dropped) > limit * selection.n_questions:
        named = ", ".join(map(str, selection.dropped[:10]))
        if len(selection.dropped) > 10:
            named += ", ..."
        raise LarkError(
            f"{len(selection.dropped)} of {selection.n_questions} questions have no candidate with a valid"
            f" score ({named}); at most {limit:.0%} may be dropped. Look for empty, too long or unscored"
            " responses there."
        )


@dataclass(frozen=True)
class TopB:
    """The top B of each question, as weightings see them; utility is the score, negated where lower is
    better.
    """

    utility: Floats  # [M] by chosen trajectory, sorted by question, best first
    question: Integers  # [M]
    best: Floats  # [M] the highest utility of the trajectory's question
    threshold: Floats  # [N] by question: utility of rank B_n+1, or NaN
    spread: Floats  # [N] standard deviation of all K utilities

    @property
    def margin(self) -> Floats:
        """[M] g_i - g_{B+1}, NaN without a threshold."""
        return self.utility - self.threshold[self.question]

    @property
    def margin_sum(self) -> Floats:
        """[N] K tau*(B) = sum_j (g_j - g_{B+1}), NaN without a threshold."""
        return group_sum(self.margin, self.question, len(self.threshold))


def _uniform(top: TopB) -> Floats:
    """q = 1/B, the baselines' hard top B (paper, App. C.2)."""
    return np.ones_like(top.utility)


def _proportional(top: TopB) -> Floats:
    """q ~ max(g, 0). If lower is better, g is the negated score: positive scores give uniform weights."""
    return np.maximum(top.utility, 0)


def _softmax(top: TopB) -> Floats:
    """q ~ exp(g / T), T the (population) standard deviation of the question's K scores."""
    return _exponential(top, top.spread)


def _kl(top: TopB) -> Floats:
    """q ~ exp(g / (K tau*(B))): the temperature of the chi2 rule in a KL-tempered softmax."""
    return _exponential(top, top.margin_sum)


def _chi2(top: TopB) -> Floats:
    """The χ² weights: q_i = (g_i - g_{B+1}) / sum_j (g_j - g_{B+1}), the maximiser of
    <g, q-p> - tau*(B)/2 chi2(q||p) (Lemma 3). `select` divides by the sum.
    """
    return top.margin


WEIGHTINGS: dict[str, Callable[[TopB], Floats]] = {
    "uniform": _uniform,
    "proportional": _proportional,
    "softmax": _softmax,
    "kl": _kl,
    "chi2": _chi2,
}
"""Each gives the mass of the top B up to a factor per question; a question without mass gets uniform
weights.
"""


def _exponential(top: TopB, temperature: Floats) -> Floats:
    by_row = temperature[top.question]
    # No temperature (0, or NaN without a threshold) means no mass, hence uniform weights.
    exponent = np.divide(top.utility - top.best, by_row, out=np.full_like(by_row, -np.inf), where=by_row > 0)
    return np.exp(exponent)


def _normalise(mass: Floats, top: TopB, size: Integers) -> Floats:
    """Weights that sum to 1 in each question. Uniform without mass, and without a threshold (decision 4)."""
    total = group_sum(mass, top.question, len(size))
    weighted = (total > 0) & np.isfinite(top.threshold)
    equal = 1 / size[top.question]
    return np.divide(mass, total[top.question], out=equal, where=weighted[top.question])


def _standard_deviation(values: Floats, codes: Integers, count: Integers) -> Floats:
    """[N] population standard deviation of each group, 0 for an empty one."""
    divisor = np.maximum(count, 1)
    mean = group_sum(values, codes, len(count)) / divisor
    return np.sqrt(group_sum((values - mean[codes]) ** 2, codes, len(count)) / divisor)


def _check_weighting(weighting: str) -> None:
    if weighting not in WEIGHTINGS:
        raise LarkError(f"weighting={weighting}: choose one of {', '.join(WEIGHTINGS)}.")


def _require_distinct(
    questions: Integers, labels: npt.NDArray, candidates: Integers, names: npt.NDArray
) -> None:
    """Ties are broken by candidate_id, so a question must not use one twice."""
    key = np.sort(questions * len(names) + candidates)
    repeated = key[1:][key[1:] == key[:-1]]
    if len(repeated):
        question, candidate = divmod(int(repeated[0]), len(names))
        raise LarkError(
            f"Question {labels[question]} has more than one candidate {names[candidate]}: "
            "give each trajectory of a question its own candidate_id."
        )
