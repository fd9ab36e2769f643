"""Tokens of a trajectory under the student, as the page takes them: texts and numbers, and the alternatives
in parts.
"""

from functools import partial
from typing import Any, NoReturn

from lark.errors import LarkError
from lark.explorer.cache import stamp
from lark.explorer.listing import Entry
from lark.explorer.pieces import running_text, single
from lark.explorer.problems import PageError, reading
from lark.explorer.tables import OpenView
from lark.explorer.values import rounded
from lark.explorer.views import View
from lark.scoring.tokens import (
    PIECES,
    Pieces,
    TrajectoryTokens,
    candidates,
    places,
    read_pieces,
    read_trajectories,
)

PART = 256
"""Tokens whose alternatives are sent together."""
ASK = "Run the scoring pass with scoring.tokens=true (or a number of questions) to keep them."


def questions_with_tokens(opened: OpenView) -> dict[str, Entry]:
    """The questions whose tokens were kept (so far), and the artifact that has each."""
    holders: dict[str, Entry] = {}
    for entry in opened.view.tokens:
        key = ("token questions", entry.folder)
        try:
            questions = opened.cache.get(key, stamp(entry.folder), partial(_questions, entry))
        except LarkError:
            continue  # the comparison's page says what is wrong
        for question in questions:
            holders.setdefault(question, entry)
    return holders


def _questions(entry: Entry) -> list[str]:
    with reading(entry.folder):
        return list(places(entry.folder))


def candidates_with_tokens(opened: OpenView, n: int) -> frozenset[str]:
    """Candidate ids of a question whose tokens were kept."""
    question_id = opened.pool.questions[n]
    entry = questions_with_tokens(opened).get(question_id)
    try:
        return frozenset() if entry is None else frozenset(candidates(entry.folder, question_id))
    except LarkError:
        return frozenset()


def trajectory_tokens(opened: OpenView, n: int, candidate_id: str) -> tuple[Entry, TrajectoryTokens]:
    """The tokens of one candidate, and the artifact that has them."""
    question_id = opened.pool.questions[n]
    entry = questions_with_tokens(opened).get(question_id) or _without_tokens(opened.view)
    key = ("tokens", entry.folder, question_id)
    tokens = opened.cache.get(key, stamp(entry.folder), lambda: _trajectories(entry, question_id))
    if candidate_id not in tokens:
        raise PageError("The tokens of this candidate were not kept.")
    return entry, tokens[candidate_id]


def _without_tokens(view: View) -> NoReturn:
    """Say why a question has no tokens."""
    for entry in view.tokens:
        _questions(entry)  # raises an error if the artifact cannot be read
    what = "question" if view.tokens else "pool"
    more = "" if all(entry.finished for entry in view.tokens) else " The pass is not finished."
    raise PageError(f"The tokens of this {what} were not kept.{more} {ASK}")


def _trajectories(entry: Entry, question_id: str) -> dict[str, TrajectoryTokens]:
    with reading(entry.folder):
        return {row.candidate_id: row for row in read_trajectories(entry.folder, question_id)}


def describe_tokens(entry: Entry, tokens: TrajectoryTokens) -> dict[str, Any]:
    """All tokens of a trajectory: each distinct text once, its number at every position, and the
    statistics.
    """
    words = _pieces(entry)
    ids = tokens.token.tolist()
    if words is None:
        texts = [f"[{token}]" for token in ids]
        special: list[int] = []
    else:
        texts = running_text(words[token] for token in ids)
        special = [i for i, token in enumerate(ids) if _is_special(words, token)]
    distinct: dict[str, int] = {}
    return {
        "count": len(tokens),
        "piece": [distinct.setdefault(text, len(distinct)) for text in texts],
        "pieces": list(distinct),
        "id": ids,
        "special": special,
        "surprisal": rounded(tokens.surprisal),
        "residual": rounded(tokens.residual),
        "rank": tokens.rank.tolist(),
        "entropy": rounded(tokens.entropy),
        "part": PART,
        "alternatives": int(tokens.alternatives.shape[1]) if len(tokens) else 0,
        "vocabulary": words is not None,
    }


def _is_special(words: Pieces, token: int) -> bool:
    """Whether it is a control token, such as the end of a turn."""
    return 0 <= token < len(words.special) and words.special[token]


def describe_alternatives(entry: Entry, tokens: TrajectoryTokens, part: int) -> dict[str, Any]:
    """The student's most likely tokens at PART positions: ids and probabilities, and the text of each
    distinct id.
    """
    words = _pieces(entry)
    here = slice(part * PART, (part + 1) * PART)
    ids = []
    shares = []
    distinct = set()
    for row, probabilities in zip(tokens.alternatives[here], tokens.alternative_p[here], strict=True):
        present = row >= 0  # a student with few tokens has fewer alternatives
        ids.append(row[present].tolist())
        shares.append(rounded(probabilities[present], 4))
        distinct.update(ids[-1])
    return {
        "start": part * PART,
        "ids": ids,
        "p": shares,
        "texts": {
            str(token): f"[{token}]" if words is None else single(words[token]) for token in sorted(distinct)
        },
    }


def _pieces(entry: Entry) -> Pieces | None:
    """The student's vocabulary; None if it is not there (yet): tokens are then shown by their numbers."""
    return read_pieces(entry.folder) if entry.file(PIECES).exists() else None
