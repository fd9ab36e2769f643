"""The demo's candidate pool: for every question, 11 teachers with 3 rollouts each, all correct (paper, Sec.
5.1).
"""

from collections.abc import Iterator

from lark.demo.problems import KINDS, LEVELS, ArithmeticProblem, draw, seeded
from lark.demo.teachers import TEACHERS, rollouts


def trajectories(questions: int, seed: int) -> Iterator[dict[str, object]]:
    """Yield one row per trajectory, question by question: 33 rows for each of `questions` distinct
    questions.

    Kinds and levels alternate, so that every 20 questions contain each combination once. A longer pool with
    the same seed starts with the shorter one.
    """
    for number, problem in enumerate(distinct(questions, seed)):
        for teacher in TEACHERS:
            for rollout, response in enumerate(rollouts(teacher, problem, seed)):
                yield {
                    "question_id": question_id(number),
                    "candidate_id": f"{teacher}.{rollout}",
                    "teacher": teacher,
                    "rollout": rollout,
                    "system": None,
                    "question": problem.question,
                    "response": response,
                    "answer": problem.answer,
                    "correct": True,
                }


def questions(count: int, seed: int) -> Iterator[dict[str, str]]:
    """The questions of that pool alone, with their answers."""
    for number, problem in enumerate(distinct(count, seed)):
        yield {"question_id": question_id(number), "question": problem.question, "answer": problem.answer}


def question_id(number: int) -> str:
    return f"demo-{number:05d}"


def distinct(questions: int, seed: int) -> Iterator[ArithmeticProblem]:
    """The problems of that pool."""
    rng = seeded("pool", seed)
    seen: set[str] = set()
    while len(seen) < questions:
        turn = len(seen)
        problem = draw(KINDS[turn % len(KINDS)], LEVELS[turn // len(KINDS) % len(LEVELS)], rng)
        if problem.question not in seen:
            seen.add(problem.question)
            yield problem
