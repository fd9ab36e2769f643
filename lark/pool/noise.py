"""Damage a share of a pool's trajectories on purpose, to see which methods select good ones (`make noise`).

Of the trajectories that the damage would change, those with the smallest hashes of their ids are damaged:
what is damaged at 10% is also damaged at 30%. `correct` becomes unknown; `answer` stays what it is.
Questions are never changed.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from lark import config as conf
from lark.grading.answers import AnswerFormat, boxed_places, grade_paper
from lark.pool.hashing import hash64
from lark.pool.trajectory import Trajectory

DAMAGE = 2
"""Version of the damage. Only a pool with pool.noise_share depends on it."""
LETTERS = "ABCD"
BREAKS = (re.compile(r"\n+"), re.compile(r"(?<=[.!?])\s+"), re.compile(r"(?<=[;,])\s+"))
"""Ends of steps: lines, sentences or clauses, whichever first gives steps that can be reordered."""
ATTEMPTS = 100
"""Other answers that are tried, until one is not equal to the answer for the grader."""


def to_damage(trajectories: Iterable[Trajectory], pool: conf.Pool) -> set[int]:
    """Draws (`_draw`) of the trajectories to damage: pool.noise_share of all, or fewer if the damage would
    not change that many.
    """
    total = 0
    draws: list[int] = []
    first: dict[str, str] = {}
    for trajectory in trajectories:
        total += 1
        original = first.setdefault(trajectory.question_id, trajectory.response)
        if _damaged(trajectory, pool, original) is not None:
            draws.append(_draw("noise", trajectory, pool))
    return set(sorted(draws)[: round(pool.noise_share * total)])


def noisy(trajectories: Iterable[Trajectory], pool: conf.Pool, hit: Collection[int]) -> Iterator[Trajectory]:
    """The trajectories, damaged where `hit` (from `to_damage`) has them."""
    first: dict[str, str] = {}
    for trajectory in trajectories:
        original = first.setdefault(trajectory.question_id, trajectory.response)
        response = None
        if _draw("noise", trajectory, pool) in hit:
            response = _damaged(trajectory, pool, original)
        yield trajectory if response is None else with_response(trajectory, response)


def _draw(purpose: str, trajectory: Trajectory, pool: conf.Pool) -> int:
    return hash64(purpose, str(pool.seed), pool.noise, trajectory.question_id, trajectory.candidate_id)


def _damaged(trajectory: Trajectory, pool: conf.Pool, first: str) -> str | None:
    """The damaged response; None if the damage changes no word of it. `first`: the response of the
    question's first candidate.
    """
    original = trajectory.response
    draw = _draw("damage", trajectory, pool)
    match pool.noise:
        case "wrong":
            response = wrong(original, draw, trajectory.answer, AnswerFormat(pool.answer_format))
        case "truncated":
            response = truncated(original, draw)
        case "shuffled":
            response = shuffled(original, draw)
        case _:
            response = first
    return None if response.split() == original.split() else response


def with_response(trajectory: Trajectory, response: str) -> Trajectory:
    """The trajectory with another text in its last turn. Whether it is correct is then unknown."""
    correct = trajectory.correct if response == trajectory.response else None
    changed = replace(trajectory, response=response, correct=correct)
    if trajectory.conversation is None:
        return changed
    stored = json.loads(trajectory.conversation)
    stored["messages"][-1]["content"] = response
    return replace(changed, conversation=json.dumps(stored, ensure_ascii=False))


def wrong(
    response: str, draw: int, answer: str | None = None, answer_format: AnswerFormat = AnswerFormat.FREE_FORM
) -> str:
    """Another answer in the last closed box, or, without a box, in place of the last mention of `answer`.
    The rest stays.

    The other answer equals neither the one that was there nor `answer` for the grader. Unchanged if there
    is nothing to change.
    """
    place = _answer_place(response, answer)
    if place is None:
        return response
    original = response[place]
    avoided = [original]
    if answer and answer.strip():
        avoided.append(answer)
    for other in islice(_others(original, draw), ATTEMPTS):
        if not any(grade_paper(other, equal, answer_format) for equal in avoided):
            return f"{response[: place.start]}{other}{response[place.stop :]}"
    return response


def _answer_place(response: str, answer: str | None) -> slice | None:
    """The place of the answer: the content of the last closed box, or the last mention of `answer`."""
    for box in reversed(boxed_places(response)):
        content = response[box]
        if content.strip():
            start = box.start + len(content) - len(content.lstrip())
            return slice(start, start + len(content.strip()))
    if not (answer and answer.strip()):
        return None
    # A whole number or word: the 6 of `16`, `6.5`, `1/6` or `-6` is not the answer 6.
    mention = rf"(?<!\w)(?<![-−])(?<![0-9][.,/]){re.escape(answer.strip())}(?!\w)(?![.,/][0-9])"
    last = None
    for last in re.finditer(mention, response):  # noqa: B007  # the last one is used
        pass
    return None if last is None else slice(*last.span())


def _others(answer: str, draw: int) -> Iterator[str]:
    """Other answers: a digit is changed, or the letter of a choice; then a digit is appended."""
    digits = [place for place, character in enumerate(answer) if character in "0123456789"]
    start = draw % len(digits) if digits else 0
    for place in digits[start:] + digits[:start]:
        for step in range(8):
            changed = (int(answer[place]) + 1 + (draw // 7 + step) % 8) % 10
            if answer[place] != "9" or changed:
                yield f"{answer[:place]}{changed or 9}{answer[place + 1 :]}"
    if len(answer) == 1 and answer in LETTERS:
        yield LETTERS[(LETTERS.index(answer) + 1 + draw % 3) % 4]
    for digit in range(1, 10):
        yield f"{answer}{digit}"


def truncated(response: str, draw: int) -> str:
    """The first 30% to 80% of the characters, to the end of a word."""
    length = int(len(response) * (0.3 + 0.5 * (draw % 1000) / 1000))
    cut = response[: max(1, length)]
    return cut.rsplit(" ", 1)[0] or cut


def shuffled(response: str, draw: int) -> str:
    """The steps in another order; the last one, with the answer, stays last. Unchanged if the steps before
    it are all the same.
    """
    steps = _steps(response)
    if not steps:
        return response
    *body, last = steps
    order = sorted(range(len(body)), key=lambda step: hash64(str(draw), str(step)))
    parts = [body[step] for step in order]
    if [part.strip() for part in parts] == [part.strip() for part in body]:
        parts = [*parts[1:], parts[0]]
    # Every step but the last ends with the white space at which it was split.
    return "".join(parts) + last


def _steps(response: str) -> list[str]:
    """The steps of a response; empty if those before the last are all the same."""
    for pattern in BREAKS:
        ends = [match.end() for match in pattern.finditer(response)]
        spans = zip([0, *ends], [*ends, len(response)], strict=True)
        steps = [response[start:end] for start, end in spans if start < end]
        if len({step.strip() for step in steps[:-1]}) >= 2:
            return steps
    return []
