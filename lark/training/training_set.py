"""Read and check the rows of a training set (`train.jsonl`), and weights of their tokens. Imports no model
code: the user's own files are read before a run.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lark.models.dialogue import LARGEST_WEIGHT, Dialogue, check_messages
from lark.reading.fields import Fields
from lark.reading.rows import Row, jsonl_rows
from lark.reading.untrusted import require_characters
from lark.training.checks import check_not_empty, check_roles, check_single

TOKEN_WEIGHTS = "token_weights"
COLUMNS_OF_SET = "A line of a training set has question_id, candidate_id, weight and messages."
COLUMNS_OF_TOKENS = (
    f"A line has question_id, candidate_id and {TOKEN_WEIGHTS}. Leave out trajectories whose tokens all"
    " count 1."
)
TrajectoryKey = tuple[str, str]
"""question_id and candidate_id. Joined, the ids of two trajectories may be the same text."""


@dataclass(frozen=True)
class WeightedTrajectory:
    """A trajectory with its weight."""

    question_id: str
    candidate_id: str
    weight: float
    """w = B_n q."""
    dialogue: Dialogue
    token_weights: tuple[float, ...] | None = None
    """One per response token; None: all are 1."""

    @property
    def key(self) -> TrajectoryKey:
        return self.question_id, self.candidate_id

    @property
    def name(self) -> str:
        return shown(self.key)


def shown(key: TrajectoryKey) -> str:
    """A trajectory's name in messages. Nothing may be looked up by it."""
    return "/".join(key)


def read_rows(path: Path) -> Iterator[WeightedTrajectory]:
    """Trajectories in the file's order. Errors name the line."""
    keys: set[TrajectoryKey] = set()
    for row in jsonl_rows(path):
        trajectory = _trajectory(row)
        check_single(trajectory.key not in keys, trajectory.name, row.where)
        keys.add(trajectory.key)
        yield trajectory
    check_not_empty(len(keys), path, "a training set needs at least one trajectory")


def _trajectory(row: Row) -> WeightedTrajectory:
    fields = Fields(row.values, row.where, COLUMNS_OF_SET)
    require_characters(row.values, row.where)
    return WeightedTrajectory(
        question_id=fields.identity("question_id"),
        candidate_id=fields.identity("candidate_id"),
        weight=fields.number("weight"),
        dialogue=_dialogue(fields),
        token_weights=_token_weights(fields) if fields.has(TOKEN_WEIGHTS) else None,
    )


def _dialogue(fields: Fields) -> Dialogue:
    """The conversation of a line: messages that end with an assistant turn, with loss on some turn."""
    messages = fields.get("messages")
    check_messages(messages, fields.where)
    tools = fields.objects("tools", "Give one description per tool.") if fields.has("tools") else None
    dialogue = Dialogue(messages, tools)
    check_roles([message["role"] for message in messages], bool(dialogue.turns), fields.where)
    return dialogue.without_tail()


def read_token_weights(path: Path) -> dict[TrajectoryKey, tuple[float, ...]]:
    """The weights of tokens in a file, by question and candidate. Other fields of its lines are ignored."""
    weights: dict[TrajectoryKey, tuple[float, ...]] = {}
    for row in jsonl_rows(path):
        fields = Fields(row.values, row.where, COLUMNS_OF_TOKENS)
        key = fields.identity("question_id"), fields.identity("candidate_id")
        check_single(key not in weights, shown(key), row.where)
        weights[key] = _token_weights(fields)
    check_not_empty(
        len(weights), path, "give the weights of at least one trajectory, or leave out training.token_weights"
    )
    return weights


def _token_weights(fields: Fields) -> tuple[float, ...]:
    return fields.numbers(TOKEN_WEIGHTS, LARGEST_WEIGHT)
