"""What the tokenizer of a student must satisfy: one function and one sentence per refusal.

`label` names the model by the setting that chose it, such as `student.path=<folder>`.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lark.errors import LarkError
from lark.reading.untrusted import quoted

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

DISTINCT_TEXTS = ("3", "4", "12 3", "123", "a", "b")
"""Texts that no usable tokenizer confuses."""


def require_agreement(tokenizer: "PreTrainedTokenizerBase | None", label: str) -> "PreTrainedTokenizerBase":
    """Refuse a tokenizer of which no class gives the tokens of tokenizer.json (None)."""
    if tokenizer is None:
        raise LarkError(
            f"{label}: transformers reads its tokenizer differently from tokenizer.json, so its tokens would"
            " be wrong."
        )
    return tokenizer


def require_special_tokens(tokenizer: "PreTrainedTokenizerBase", label: str) -> None:
    """Refuse special tokens that the tokenizer does not know as tokens, such as an empty text."""
    for name, token in tokenizer.special_tokens_map.items():
        if not isinstance(token, list) and tokenizer.convert_tokens_to_ids(str(token)) is None:
            raise LarkError(
                f"{label}: its tokenizer has the {name} {str(token)!r}, which is not a token. Correct it in "
                "tokenizer_config.json, or download the model again."
            )


def refuse_lost_text(tokenizer: "PreTrainedTokenizerBase", label: str) -> None:
    """Refuse a tokenizer that loses digits, letters or the space between words."""
    text_of: dict[tuple[int, ...], str] = {}
    for text in DISTINCT_TEXTS:
        ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
        if ids and ids not in text_of:
            text_of[ids] = text
            continue
        loss = f"the same tokens for {text_of[ids]!r} and {text!r}" if ids else f"no tokens for {text!r}"
        raise LarkError(
            f"{label}: its tokenizer gives {loss}, so it loses text. Use the tokenizer that belongs to the"
            " model, or download it again."
        )


def require_embedded(
    ids: Iterable[int], tokenizer: "PreTrainedTokenizerBase", config: "PreTrainedConfig | None", label: str
) -> None:
    """Refuse tokens for which the model has no embedding. It may have embeddings without tokens."""
    rows = None if config is None else getattr(config.get_text_config(), "vocab_size", None)
    if not isinstance(rows, int):
        return
    beyond = min((id for id in ids if id >= rows), default=None)
    if beyond is not None:
        raise LarkError(
            f"{label}: its tokenizer has the token {tokenizer.convert_ids_to_tokens(beyond)!r} with the id"
            f" {beyond}, but the model has only {rows} embeddings (`vocab_size` in config.json). Use the"
            " tokenizer that belongs to the model."
        )


def require_stop_ids(ids: Sequence[Any], tokens: int, file: str) -> None:
    """Refuse stop tokens that are not ids of the tokenizer, which has this many `tokens`. Without them,
    answers would continue after their end.
    """
    for id in ids:
        if not isinstance(id, int) or not 0 <= id < tokens:
            raise LarkError(
                f"{file}: `eos_token_id` must be a token's number (0 to {tokens - 1}) or a list of them, not"
                f" {quoted(id)}. Download the model again."
            )
