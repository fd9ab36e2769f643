"""Tokens of a trajectory under the student, as the page takes them: texts and numbers, and the alternatives
in parts.
"""

from functools import partial
from typing import Any

from lark.errors import LarkError
from lark.explorer.cache import Cache, stamp
from lark.explorer.listing import Entry
from lark.explorer.pieces import running_text, single
from lark.explorer.problems import PageError, reading
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


def questions_with_tokens(view: View, cache: Cache) -> dict[str, Entry]:
    """The questions whose tokens were kept (so far), and the artifact that has each."""
    found: dict[str, Entry] = {}
    for entry in view.tokens:
        try:
            for question in cache.get(
                ("token questions", entry.folder), stamp(entry.folder), partial(_questions, entry)
            ):
                found.setdefault(question, entry)
        except LarkError:
            continue  # the comparison's page says what is wrong
    return found


def _questions(entry: Entry) -> list[str]:
    with reading(entry.folder):
        return list(places(entry.folder))


def candidates_with_tokens(view: View, question_id: str, cache: Cache) -> frozenset[str]:
    """Candidate ids of a question whose tokens were kept."""
    entry = questions_with_tokens(view, cache).get(question_id)
    try:
        return frozenset() if entry is None else frozenset(candidates(entry.folder, question_id))
    except LarkError:
        return frozenset()


def trajectory_tokens(
    view: View, question_id: str, candidate_id: str, cache: Cache
) -> tuple[Entry, TrajectoryTokens]:
    """The tokens of one candidate, and the artifact that has them."""
    if not view.tokens:
        raise PageError(f"The tokens of this pool were not kept. {ASK}")
    entry = questions_with_tokens(view, cache).get(question_id)
    if entry is None:
        for other in view.tokens:
            _questions(other)  # raises an error if the artifact cannot be read
        more = "" if all(other.finished for other in view.tokens) else " The pass is not finished."
        raise PageError(f"The tokens of this question were not kept.{more} {ASK}")
    found = _trajectories(entry, question_id, cache).get(candidate_id)
    if found is None:
        raise PageError("The tokens of this candidate were not kept.")
    return entry, found


def _trajectories(entry: Entry, question_id: str, cache: Cache) -> dict[str, TrajectoryTokens]:
    def read() -> dict[str, TrajectoryTokens]:
        with reading(entry.folder):
            return {row.candidate_id: row for row in read_trajectories(entry.folder, question_id)}

    return cache.get(("tokens", entry.folder, question_id), stamp(entry.folder), read)


def describe_tokens(entry: Entry, tokens: TrajectoryTokens) -> dict[str, Any]:
    """All tokens of a trajectory: each distinct text once, its number at every position, and the
    statistics.
    """
    words = _pieces(entry)
    texts = (
        [f"[{token}]" for token in tokens.token.tolist()]
        if words is None
        else running_text(words[token] for token in tokens.token.tolist())
    )
    distinct: dict[str, int] = {}
    piece = [distinct.setdefault(text, len(distinct)) for text in texts]
    return {
        "count": len(tokens),
        "pieces": list(distinct),
        "piece": piece,
        "id": tokens.token.tolist(),
        "special": [] if words is None else _special(words, tokens.token.tolist()),
        "surprisal": rounded(tokens.surprisal),
        "residual": rounded(tokens.residual),
        "rank": tokens.rank.tolist(),
        "entropy": rounded(tokens.entropy),
        "part": PART,
        "alternatives": int(tokens.alternatives.shape[1]) if len(tokens) else 0,
        "vocabulary": words is not None,
    }


def describe_alternatives(entry: Entry, tokens: TrajectoryTokens, part: int) -> dict[str, Any]:
    """The student's most likely tokens at PART positions: ids and probabilities, and the text of each
    distinct id.
    """
    here = slice(part * PART, (part + 1) * PART)
    ids, words = tokens.alternatives[here], _pieces(entry)
    p = rounded(tokens.alternative_p[here].reshape(-1), 4)
    k = ids.shape[1] if ids.ndim == 2 else 0
    known = [
        [(token, p[i * k + j]) for j, token in enumerate(row) if token >= 0]
        for i, row in enumerate(ids.tolist())
    ]
    distinct = sorted({token for row in known for token, _ in row})
    return {
        "start": part * PART,
        "ids": [[token for token, _ in row] for row in known],
        "p": [[share for _, share in row] for row in known],
        "texts": {str(token): f"[{token}]" if words is None else single(words[token]) for token in distinct},
    }


def _pieces(entry: Entry) -> Pieces | None:
    """The student's vocabulary; None if it is not there (yet): tokens are then shown by their numbers."""
    return read_pieces(entry.folder) if entry.file(PIECES).exists() else None


def _special(words: Pieces, ids: list[int]) -> list[int]:
    """Positions of control tokens, such as the end of a turn."""
    return [i for i, token in enumerate(ids) if 0 <= token < len(words.special) and words.special[token]]
