"""The demo's four benchmarks: 40 problems each, from the side of the split that no training text is drawn
from.

They stand in for the paper's four: numeric answers (AIME, AMC), choices (GPQA) and free-form answers
(MATH-500).
"""

from functools import cache

from lark.demo.problems import draw, seeded
from lark.errors import LarkError

KIND = {
    "demo_expressions": "expression",
    "demo_words": "word",
    "demo_choice": "choice",
    "demo_algebra": "algebra",
}
"""Kind of problem in each benchmark."""

PROBLEMS_PER_LEVEL = {1: 4, 2: 6, 3: 8, 4: 10, 5: 12}
"""Harder levels have more problems, about as in MATH-500 (43, 90, 105, 128, 134)."""

SEED = 2024


@cache
def problems(name: str) -> list[dict[str, object]]:
    """The benchmark's problems, always the same: rows with id, question, answer and level."""
    if name not in KIND:
        raise LarkError(f"benchmark {name}: the demo has no such benchmark; it has {', '.join(KIND)}.")
    rng = seeded("benchmark", name, SEED)
    rows: dict[str, dict[str, object]] = {}
    for level, count in PROBLEMS_PER_LEVEL.items():
        total = len(rows) + count
        while len(rows) < total:
            problem = draw(KIND[name], level, rng, benchmark=True)
            row = {
                "id": f"{name}-{len(rows):02d}",
                "question": problem.question,
                "answer": problem.answer,
                "level": level,
            }
            # A question that was drawn before is left out, and another one is drawn.
            rows.setdefault(problem.question, row)
    return list(rows.values())
