"""Refusals of weights of tokens, and of what is made of them for other trainers. No model code."""

from collections.abc import Collection, Sequence
from pathlib import Path

from lark.errors import LarkError


def check_any_left(examples: int, path: Path) -> None:
    """Refuse factors that mask every token of a training set."""
    if not examples:
        raise LarkError(
            f"{path}: training.thinking_weight and training.answer_weight mask every token. Raise the one"
            " that is 0; if the pool has no separate thinking, training.answer_weight covers the whole"
            " response."
        )


def check_whole_response(is_whole: bool, path: Path, name: str) -> None:
    """Refuse two ways of weighting the tokens of thinking."""
    if not is_whole:
        raise LarkError(
            f"{path}: {name} has token_weights, which cover its thinking and its answer. Leave out"
            " training.thinking_weight and training.answer_weight, or the weights of tokens."
        )


def check_token_count(weights: int, tokens: int, truncated: bool, path: Path, name: str) -> None:
    """Refuse weights that do not belong to the response's tokens. A cut response may have more weights."""
    if weights != tokens and not (truncated and weights > tokens):
        raise LarkError(
            f"{path}: token_weights of {name} has {weights} numbers, but its response has {tokens}"
            " tokens with this student, including the end of the turn. `scoring.tokens=true` writes the"
            " tokens (docs/tokens.md)."
        )


def check_some_weighted(weighted: int, listed: int, path: Path, example: str) -> None:
    """Refuse a file of token weights that has none of the selected trajectories."""
    if not weighted:
        raise LarkError(
            f"training.token_weights={path}: none of its {listed} trajectories is in the selection, such"
            f" as {example}. Use the question_id and candidate_id of the selection's train.jsonl."
        )


def check_columns(columns: Collection[str], needed: Sequence[str]) -> None:
    """Refuse a dataset that `weighted_dataset` has not made."""
    if not set(needed) <= set(columns):
        raise LarkError(
            f"WeightedSFTTrainer: the training set has the columns {', '.join(columns)} instead of"
            f' {", ".join(needed)}. Make it with weighted_dataset("train.jsonl", student).'
        )


def check_unpacked(is_packed: bool) -> None:
    """Refuse packing by TRL, which would drop the weights."""
    if is_packed:
        raise LarkError(
            "WeightedSFTTrainer pads its batches: set packing=False and padding_free=False in SFTConfig."
        )
