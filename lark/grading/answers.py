"""Extract the answer from a generation and grade it by the paper's rules (App. C.4, "Answer extraction").

Pure, and linear in the length of the text: a generation of 32,768 tokens that ends in a loop of braces is
cheap. `lark.grading.canonical` has the forms in which answers are compared. The other grader,
`lark.grading.verify`, extracts with `extract_boxed_list` and has other rules (docs/grading.md).
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from lark.grading.canonical import canonical_latex, canonical_number, canonical_text


class AnswerFormat(StrEnum):
    """Format of a benchmark's answers. It decides how they are compared."""

    NUMERIC = "numeric"
    """AIME, AMC: one number."""
    CHOICE = "choice"
    """GPQA-Diamond: one letter."""
    FREE_FORM = "free_form"
    """MATH-500: any LaTeX."""
    EXACT_TEXT = "exact_text"
    """Puzzles such as reasoning-gym's: a text, in a box or in `<answer>` tags."""


# A backslash is matched with the character after it, so that `\{` is not a brace, but the brace of `\\{` is.
_BRACES = r"\\.|[{}]"
_BOXED = r"(?P<open>\\boxed\s*+\{|(?<![A-Za-z])boxed\{)"
_ANY_BOX = (
    r"(?P<open>\\(?:boxed|fbox)\s*+\{|(?<![A-Za-z])boxed\{)"
    r"|\\(?:boxed|fbox)\s*+(?P<bare>-?[0-9][0-9,]*+(?:\.[0-9]+)?|[A-Za-z](?![A-Za-z]))"
)
_PAPER_TOKEN = re.compile(f"{_BOXED}|{_BRACES}", re.DOTALL)
_LENIENT_TOKEN = re.compile(f"{_ANY_BOX}|{_BRACES}", re.DOTALL)


@dataclass(frozen=True)
class _Box:
    """Position of a box in its text. Offsets instead of contents, because the contents of nested boxes
    would be quadratic.
    """

    start: int
    content: slice
    end: int | None = None
    """None if the box is never closed."""


def _find_boxes(text: str, token: re.Pattern[str]) -> list[_Box]:
    """All boxes in the order in which they open. One pass."""
    boxes: list[_Box] = []
    open_braces: list[int | None] = []
    """For each open brace, the place of its box in `boxes`; None if it is not a box's."""
    for match in token.finditer(text, _first_box(text)):
        if match.lastgroup == "bare":
            boxes.append(_Box(match.start(), slice(*match.span("bare")), match.end()))
        elif match.lastgroup == "open":
            open_braces.append(len(boxes))
            boxes.append(_Box(match.start(), slice(match.end(), None)))
        elif match[0] == "{":
            open_braces.append(None)
        elif match[0] == "}" and open_braces:
            index = open_braces.pop()
            if index is not None:
                opened = boxes[index]
                boxes[index] = _Box(opened.start, slice(opened.content.start, match.start()), match.end())
    return boxes


def _first_box(text: str) -> int:
    """Where the first box may begin, or the end of the text. Braces before it close no box, and most of a
    long text is before it.
    """
    place = text.find("box")
    if place < 0:
        return len(text)
    if place > 0 and text[place - 1] == "f":
        place -= 1
    # With all backslashes before it: the first of them decides which are escaped.
    while place > 0 and text[place - 1] == "\\":
        place -= 1
    return place


def extract_boxed(text: str) -> str | None:
    """The content of the last `\\boxed{…}`, stripped. None (wrong) if there is no box, or if it is empty or
    unterminated.

    The last box is the one that opens last: of nested boxes, the inner one. A bare `boxed{…}` counts,
    because the paper's system prompts ask for it. `\\fbox{…}` and `\\boxed 5` do not count, because the
    paper's rule is `\\boxed{…}`.
    """
    boxes = _find_boxes(text, _PAPER_TOKEN)
    if not boxes or boxes[-1].end is None:
        return None
    return text[boxes[-1].content].strip() or None


def boxed_places(text: str) -> list[slice]:
    """Places of the contents of all closed boxes, in the order in which they open, by the rules of
    `extract_boxed`.
    """
    return [box.content for box in _find_boxes(text, _PAPER_TOKEN) if box.end is not None]


def unboxed(text: str) -> str:
    """The text with the contents of its boxes in their place. A box that either grader would read is
    removed, closed or not.
    """
    return _without(text, slice(0, len(text)), _find_boxes(text, _LENIENT_TOKEN))


def _without(text: str, part: slice, boxes: list[_Box]) -> str:
    """A part of the text without the commands and braces of the boxes in it."""
    cuts: list[tuple[int, int]] = []
    for box in boxes:
        cuts.append((box.start, box.content.start))
        if box.end is not None:
            cuts.append((box.content.stop, box.end))
    pieces: list[str] = []
    start = part.start
    # In the order of the text: a nested box closes before the one around it, but opens after it.
    for cut_start, cut_end in sorted(cuts):
        pieces.append(text[start:cut_start])
        start = cut_end
    pieces.append(text[start : part.stop])
    return "".join(pieces)


_GLUE = re.compile(r"\s|\$|\\[()\[\],;:! ]|\\q?quad|\\text(?![A-Za-z])|[{}]")
_JOINT = re.compile(
    r"(?:[,;/&|]|or|and|not|but|maybe|perhaps|possibly|probably|also|either|else|alternatively)+",
    re.IGNORECASE,
)
_ALTERNATIVE = re.compile(
    r"(?:\s|[$,;(){}]|\\[()\[\],;:! ]|\\q?quad|\\text(?![A-Za-z]))*or(?![A-Za-z])", re.IGNORECASE
)
_LONGEST_GLUE = 80
"""Characters between two boxes of a list."""
_OTHER_SCRIPT = re.compile(r"[^\W\d_A-Za-z]")
"""A letter of a script that may have no spaces between words."""
_SENTENCE_END = re.compile(r"[.!?]|\n\s*\n")
_WORD = re.compile(r"\\[A-Za-z]+|\\.|([A-Za-z0-9]+(?:['-][A-Za-z]+)*)")


def extract_boxed_list(text: str) -> str | None:
    """Like `extract_boxed`, with the rules of the `verify` grader.

    `\\fbox{…}` and `\\boxed 5` count as boxes. Boxes with nothing but a comma, `and`, `or` or the like
    between them (`\\boxed{1} and \\boxed{2}`) are one list, `1, 2`. Boxes with nothing, signs or a single
    word between them (`\\boxed{6} vs \\boxed{5}`) are alternatives, `6 or 5`. After prose (two words, or
    the beginning of a sentence), a box is an answer by itself, and a box that is only repeated is not a
    list. `or` after a box always begins an alternative. A box before `</think>` belongs to the reasoning.
    Of nested boxes, the outer one counts with everything in it.
    """
    boxes = _find_boxes(text, _LENIENT_TOKEN)
    if not boxes or boxes[-1].end is None or not text[boxes[-1].content].strip():
        return None
    answer = ""
    following: _Box | None = None
    # Backwards, because the last box of the text is the answer, and a list ends with it.
    for box, inner in reversed(_nested(boxes)):
        joint = _joint(text, box, following) if following else ""
        if box.end is None or joint is None:
            break
        content = _without(text, box.content, inner).strip()
        if not content or (following and content == answer):
            break
        answer = content + joint + answer
        following = box
    return answer or None


def _nested(boxes: list[_Box]) -> list[tuple[_Box, list[_Box]]]:
    """The boxes that are not in another box, each with the boxes in it."""
    outer: list[tuple[_Box, list[_Box]]] = []
    end = 0
    for box in boxes:
        if box.end is not None and box.end <= end:
            outer[-1][1].append(box)
        else:
            outer.append((box, []))
            end = box.end or end
    return outer


def _joint(text: str, box: _Box, following: _Box) -> str | None:
    """The text that joins two boxes of a list; None if they are not a list."""
    between = text[box.end : following.start]
    if len(between) > _LONGEST_GLUE or "</think>" in between:
        return None
    glue = _GLUE.sub("", between).lower()
    if glue.strip(",;()") == "or" or not glue:
        return " or "
    if glue == "=":
        return " = "
    if _JOINT.fullmatch(glue):
        return ", "
    if _is_prose(between) and not _ALTERNATIVE.match(between):
        return None
    return " or "


def _is_prose(text: str) -> bool:
    """True if the text has two words, or one that begins a sentence or has a colon: `. Wait \\boxed{…}`,
    `Answer: \\boxed{…}`.
    """
    if len(_OTHER_SCRIPT.findall(text)) > 2:
        return True
    words = [match for match in _WORD.finditer(text) if match[1]]
    if len(words) != 1:
        return len(words) > 1
    word = words[0]
    before = text[: word.start()]
    begins_sentence = word[1][0].isupper() and _SENTENCE_END.search(before) is not None
    return begins_sentence or ":" in text[word.end() :]


def grade_paper(prediction: str | None, gold: str, answer_format: AnswerFormat) -> bool:
    """The `paper` grader (App. C.4): True if an extracted answer equals the gold answer. A missing answer is
    wrong.

    - numeric: equal as numbers, including fractions (`canonical_number`); equal as text if the gold answer is
      not a number.
    - choice: equal after upper-casing and stripping white space, nothing else: `(B)`, `B.` and `\\text{B}`
      are wrong.
    - free form: equal as strings in the canonical form of MATH (`canonical_latex`).
    - exact: equal as texts, apart from case and layout (`canonical_text`). Not in the paper.
    """
    if prediction is None:
        return False
    prediction = prediction.strip()
    gold = gold.strip()
    match AnswerFormat(answer_format):
        case AnswerFormat.CHOICE:
            return prediction.upper() == gold.upper()
        case AnswerFormat.NUMERIC:
            number = canonical_number(gold)
            return prediction == gold if number is None else canonical_number(prediction) == number
        case AnswerFormat.FREE_FORM:
            return prediction == gold or canonical_latex(prediction) == canonical_latex(gold)
        case AnswerFormat.EXACT_TEXT:
            return prediction == gold or canonical_text(prediction) == canonical_text(gold)
