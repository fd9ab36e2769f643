"""Damage a share of a pool's trajectories on purpose, to see which methods still select good ones (`make noise`).

A trajectory is chosen by a hash of its ids: the trajectories that are damaged at 10% are also damaged at 30%. `correct` becomes
unknown; `answer` stays what it is. Questions are never changed.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from lark import config as conf
from lark.grading.answers import extract_boxed
from lark.pool.hashing import hash64
from lark.pool.trajectory import Trajectory

LETTERS = "ABCD"
BREAKS = (re.compile(r"\n+"), re.compile(r"(?<=[.!?])\s+"), re.compile(r"(?<=[;,])\s+"))
"""Where steps end: lines, or sentences, or clauses, whichever gives at least three."""


def noisy(trajectories: Iterable[Trajectory], pool: conf.Pool) -> Iterator[Trajectory]:
    """The trajectories with a share of them damaged (pool.noise, pool.noise_share)."""
    if not pool.noise_share:
        yield from trajectories
        return
    damage, first = DAMAGES.get(pool.noise), dict[str, str]()
    for trajectory in trajectories:
        key = (str(pool.seed), pool.noise, trajectory.question_id, trajectory.candidate_id)
        original = first.setdefault(trajectory.question_id, trajectory.response)
        if hash64("noise", *key) >= pool.noise_share * 2**64:
            yield trajectory
        else:
            response = original if damage is None else damage(trajectory.response, hash64("damage", *key))
            yield with_response(trajectory, response)


def with_response(trajectory: Trajectory, response: str) -> Trajectory:
    """The trajectory with another text in its last turn. Whether it is correct is then unknown."""
    changed = replace(trajectory, response=response, correct=trajectory.correct if response == trajectory.response else None)
    if trajectory.conversation is None:
        return changed
    stored = json.loads(trajectory.conversation)
    stored["messages"][-1]["content"] = response
    return replace(changed, conversation=json.dumps(stored, ensure_ascii=False))


def wrong(response: str, draw: int) -> str:
    """Another answer in the last box: a digit or a letter is changed. The reasoning before it stays. Without a box: unchanged."""
    answer = extract_boxed(response)
    place = -1 if answer is None else response.rfind(answer)
    if answer is None or place < 0:
        return response
    return f"{response[:place]}{_another(answer, draw)}{response[place + len(answer) :]}"


def _another(answer: str, draw: int) -> str:
    digits = [place for place, character in enumerate(answer) if character in "0123456789"]
    if digits:
        place = digits[draw % len(digits)]
        changed = (int(answer[place]) + 1 + draw // 7 % 8) % 10
        return f"{answer[:place]}{changed or 9}{answer[place + 1 :]}" if answer[place] != "9" or changed else f"{answer}1"
    if answer.strip() in LETTERS:
        return LETTERS[(LETTERS.index(answer.strip()) + 1 + draw % 3) % 4]
    return f"{answer}1"


def truncated(response: str, draw: int) -> str:
    """The first 30% to 80% of the characters, to the end of a word."""
    length = int(len(response) * (0.3 + 0.5 * (draw % 1000) / 1000))
    cut = response[: max(1, length)]
    return cut.rsplit(" ", 1)[0] or cut


def shuffled(response: str, draw: int) -> str:
    """The steps in another order; the last one, with the answer, stays last. Fewer than three steps: unchanged."""
    for pattern in BREAKS:
        ends = [match.end() for match in pattern.finditer(response)]
        steps = [response[a:b] for a, b in zip([0, *ends], [*ends, len(response)], strict=True) if response[a:b]]
        if len(steps) >= 3:
            break
    else:
        return response
    *body, last = steps
    order = sorted(range(len(body)), key=lambda step: hash64(str(draw), str(step)))
    if order == list(range(len(body))):
        order = [*order[1:], order[0]]
    parts = [body[step] for step in order]
    return "".join(part if part[-1:].isspace() else f"{part} " for part in parts) + last


DAMAGES: dict[str, Callable[[str, int], str]] = {"wrong": wrong, "truncated": truncated, "shuffled": shuffled}
"""Values of `pool.noise` besides `none` and `duplicated`, which copies the response of the question's first candidate."""
