"""Brackets in the tokens of an answer: parts outside of them, what they enclose, braces that nobody sees."""

from collections.abc import Container, Sequence

from lark.grading.strict.answer_tokens import Token, Tokens
from lark.grading.strict.notation import ARGUMENT_COUNTS, CLOSING, OPENING
from lark.grading.strict.unreadable import UnreadableError

ALL_OPENING = OPENING | {"{"}
ALL_CLOSING = CLOSING | {"}"}
_PARTNERS = {"(": ")", "{": "}"}
LIST_SEPARATORS = frozenset({",", ";"})
_BRACED_ARGUMENTS = {**ARGUMENT_COUNTS, "^": 1, "_": 1, r"\overline": 1, r"\vec": 1, "]": 1}
"""Number of arguments in braces after a token. `]` ends the optional argument of a root."""


def split(tokens: Tokens, separators: Container[str]) -> tuple[list[Tokens], list[str]]:
    """The parts between the separators that are not in brackets or matrices, and the separators."""
    parts: list[list[Token]] = [[]]
    marks: list[str] = []
    depth = 0
    for token in tokens:
        depth += token.text in ALL_OPENING or token.text.startswith(r"\begin")
        depth -= token.text in ALL_CLOSING or token.text.startswith(r"\end")
        if depth < 0:
            break
        text = token.text.lower() if token.is_word else token.text
        if depth == 0 and text in separators:
            marks.append(text)
            parts.append([])
        else:
            parts[-1].append(token)
    if depth:
        raise _unbalanced(depth)
    return [tuple(part) for part in parts], marks


def _unbalanced(depth: int) -> UnreadableError:
    if depth < 0:
        return UnreadableError("a closing bracket without an opening one")
    return UnreadableError("a bracket that is not closed")


def end_of_group(tokens: Sequence[Token]) -> int:
    """The index of the bracket that closes the first one."""
    depth = 0
    for i, token in enumerate(tokens):
        depth += (token.text in ALL_OPENING) - (token.text in ALL_CLOSING)
        if depth == 0:
            return i
    raise _unbalanced(depth=1)


def is_enclosed(tokens: Sequence[Token]) -> bool:
    """True if the first bracket closes at the last token."""
    return tokens[0].text in ALL_OPENING and end_of_group(tokens) == len(tokens) - 1


def has_items(tokens: Tokens) -> bool:
    """True if separators of a list divide the tokens."""
    return len(split(tokens, LIST_SEPARATORS)[0]) > 1


def without_outer_brackets(tokens: Tokens, only: str = "({") -> Tokens:
    """`(5)` and `{5}` are 5. A pair keeps its brackets."""
    while len(tokens) > 2 and tokens[0].text in set(only) and is_enclosed(tokens):
        is_pair = tokens[0].text == "(" and has_items(tokens[1:-1])
        if is_pair or tokens[-1].text != _PARTNERS[tokens[0].text]:
            break
        tokens = tokens[1:-1]
    return tokens


def without_idle_braces(tokens: list[Token]) -> list[Token]:
    """The tokens without braces that a reader does not see: around one symbol, one number or one pair of
    parentheses, if they are not an argument. `2 { ( x - 3 ) } ^ { 2 }` is `2 ( x - 3 ) ^ { 2 }`.
    """
    visible: list[Token] = []
    open_braces: list[tuple[int, int]] = []
    """For each open brace, its place in `visible`, and the arguments that its command still expected there,
    this one included; 0 if it is not an argument.
    """
    arguments = 0
    for token in tokens:
        if token.text == "{":
            previous = visible[-1].text if visible else ""
            open_braces.append((len(visible), _BRACED_ARGUMENTS.get(previous, arguments)))
        arguments = 0
        if token.text == "}" and open_braces:
            start, count = open_braces.pop()
            if count == 0 and _is_one_thing(visible[start + 1 :]):
                del visible[start]
                continue
            arguments = max(count - 1, 0)
        visible.append(token)
    return visible


def _is_one_thing(tokens: Sequence[Token]) -> bool:
    """True for one number, one symbol, or something in parentheses."""
    if len(tokens) == 1:
        return tokens[0].is_number or tokens[0].is_symbol
    return len(tokens) > 1 and tokens[0].text == "(" and is_enclosed(tokens)
