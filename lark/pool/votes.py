"""Verdicts by a majority vote of a question's candidates (`pool.labels=vote`)."""

from collections import Counter
from dataclasses import replace

from lark import config as conf
from lark.grading.answers import AnswerFormat, grade_paper
from lark.pool.trajectory import Trajectory


class Votes:
    """Majority votes among the answers of each question's candidates, for questions without an answer
    or verdict.

    An answer wins if at least two candidates give it and no other answer has as many votes. Answers are the
    same if the paper's grader says so. Trajectories without an answer have no vote, and stay unknown.
    """

    def __init__(self, pool: conf.Pool) -> None:
        self.format = AnswerFormat(pool.answer_format)
        self.places = pool.answer_from
        self.counts: dict[str, Counter[str]] = {}
        """Votes of each question, under the first of equal answers."""
        self.given: set[str] = set()
        """Questions with an answer or a verdict of their own."""

    def add(self, trajectory: Trajectory) -> None:
        if (trajectory.answer and trajectory.answer.strip()) or trajectory.correct is not None:
            self.given.add(trajectory.question_id)
        votes = self.counts.setdefault(trajectory.question_id, Counter())
        answer, _ = trajectory.final_answer(self.places)
        if answer is not None:
            votes[self._earlier(answer, votes)] += 1

    def _earlier(self, answer: str, votes: Counter[str]) -> str:
        """The answer under which equal ones are counted: itself, if it is the first."""
        if answer in votes:  # the usual case, without the grader
            return answer
        return next((other for other in votes if self._same(answer, other)), answer)

    def _same(self, answer: str, other: str) -> bool:
        return grade_paper(answer, other, self.format)

    def winner(self, question_id: str) -> str | None:
        """The winning answer, or None."""
        if question_id in self.given:
            return None
        # Padded, so that there is always an answer and a runner-up.
        ranking = [*self.counts[question_id].most_common(2), ("", 0), ("", 0)]
        answer, votes = ranking[0]
        _, runner_up = ranking[1]
        return answer if votes >= 2 and votes > runner_up else None

    def label(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with the vote's verdict. Unchanged if the vote has no winner."""
        winner = self.winner(trajectory.question_id)
        if winner is None:
            return trajectory
        answer, _ = trajectory.final_answer(self.places)
        return trajectory if answer is None else replace(trajectory, correct=self._same(answer, winner))

    def decides(self, question_id: str) -> bool:
        return question_id in self.counts and self.winner(question_id) is not None

    def to_dict(self) -> dict[str, int]:
        open_ = [question for question in self.counts if question not in self.given]
        decided = sum(self.winner(question) is not None for question in open_)
        return {"decided": decided, "undecided": len(open_) - decided, "given": len(self.given)}
