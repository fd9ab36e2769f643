"""One trajectory, and whether it is correct."""

from dataclasses import dataclass
from functools import cached_property

from lark import config as conf
from lark.grading.answers import AnswerFormat, extract_boxed, grade_paper

VERDICTS_VERSION = 2
"""Version of `verdict`. Only a pool that is filtered by verdicts depends on it."""


@dataclass(frozen=True)
class Trajectory:
    """One teacher's answer to one question."""

    question_id: str
    candidate_id: str
    teacher: str
    rollout: int
    system: str | None
    question: str
    """The first user turn."""
    response: str
    """The text of the last assistant turn. Empty only if that turn is a tool call."""
    answer: str | None
    correct: bool | None
    thinking: str | None = None
    """The reasoning of the last assistant turn, if the pool stores it separately from its text."""
    conversation: str | None = None
    """JSON text {"messages": […], "tools": […] or null} of a trajectory that has more than a system, a user
    and an assistant turn with text. Its messages have `role` (system, user, assistant, tool), `content`
    and, where given, `reasoning_content`, `tool_calls`, `tool_call_id` and `name`.
    """

    @cached_property
    def boxed(self) -> str | None:
        """The answer in the last box of the response."""
        return extract_boxed(self.response)

    @property
    def characters(self) -> int:
        """Length of the text that is scored and trained on."""
        if self.conversation is not None:
            return len(self.conversation)
        return len(self.response) + len(self.thinking or "")

    @property
    def texts(self) -> tuple[str, ...]:
        texts = (self.system, self.question, self.response, self.thinking, self.conversation)
        return tuple(text for text in texts if text)


def verdict(trajectory: Trajectory, pool: conf.Pool) -> bool | None:
    """Whether it is correct: by the evaluation's extraction rule (paper, App. C.1), or by the pool's
    `correct` if there is nothing to compare.
    """
    if not is_compared(trajectory):
        return trajectory.correct
    return grade_paper(trajectory.boxed, str(trajectory.answer), AnswerFormat(pool.answer_format))


def is_compared(trajectory: Trajectory) -> bool:
    """Whether the boxed answer is compared with `answer`. Without a box it is then wrong, unless the pool
    has `correct`.
    """
    if not (trajectory.answer and trajectory.answer.strip()):
        return False
    return trajectory.correct is None or trajectory.boxed is not None
