"""Questions with synthetic but consistent statistics: gradients exist, and those of the head are a part of
them.
"""

import numpy as np
import pandas as pd

from lark.analysis.gradients import Gram
from lark.analysis.questions import Question
from lark.scoring.learnability import Floats


def made_up(seed: int = 0, K: int = 6, shared: float = 0.5, brier: Floats | None = None) -> Question:
    """K trajectories whose gradients share a direction, with the fraction `shared`."""
    rng = np.random.default_rng(seed)
    rest, head = (rng.normal(size=(K, 40)) + shared * rng.normal(size=40) for _ in range(2))
    n = rng.integers(5, 40, K)
    loss = rng.uniform(0.2, 2, K)
    table = pd.DataFrame(
        {
            "candidate_id": [f"c{k}" for k in range(K)],
            "teacher": [f"t{k % 2}" for k in range(K)],
            "n_tokens": n,
            "nll": loss * n,
            "brier": (rng.uniform(0.2, 1, K) * loss if brier is None else brier) * n,
            "hidden_min": 9.0,
            "hidden_max": 11.0,
            "hidden_square_sum": 100.0 * n,
            "surprisal_min": 0.01,
            "surprisal_max": 6.0,
        }
    )
    cross = 0.1 * head @ rest.T
    return Question(f"q{seed}", table, Gram(rest @ rest.T, head @ head.T, cross), tied=True)
