"""Extract the answer from a generation and grade it by the paper's rules (App. C.4, "Answer extraction").

Pure, and linear in the length of the text: a generation of 32,768 tokens that ends in a loop of braces is
cheap. The other grader, `lark.grading.verify`, extracts with `extract_boxed_list` and has rules of its own
(docs/grading.md).
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from lark.grading.strict.notation import LITERAL


class AnswerFormat(StrEnum):
    """Format of a benchmark's answers. It decides how they are compared."""

    NUMERIC = "numeric"
    """AIME, AMC: one number."""
    CHOICE = "choice"
    """GPQA-Diamond: one letter."""
    FREE_FORM = "free_form"
    """MATH-500: any LaTeX."""


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
    end: int


def _find_boxes(text: str, token: re.Pattern[str]) -> list[_Box | None]:
    """All boxes in the order in which they open; None for a box that is never closed. One pass over the
    text.
    """
    boxes: list[_Box | None] = []
    open_braces: list[tuple[int, re.Match[str]] | None] = []
    for match in token.finditer(text):
        if match.lastgroup == "bare":
            boxes.append(_Box(match.start(), slice(*match.span("bare")), match.end()))
        elif match.lastgroup == "open":
            open_braces.append((len(boxes), match))
            boxes.append(None)
        elif match[0] == "{":
            open_braces.append(None)
        elif match[0] == "}" and open_braces and (opened := open_braces.pop()):
            index, opening = opened
            boxes[index] = _Box(opening.start(), slice(opening.end(), match.start()), match.end())
    return boxes


def extract_boxed(text: str) -> str | None:
    """The content of the last `\\boxed{…}`, stripped. None (wrong) if there is no box, or if it is empty or
    unterminated.

    The last box is the one that opens last: of nested boxes, the inner one. A bare `boxed{…}` counts,
    because the paper's system prompts ask for it. `\\fbox{…}` and `\\boxed 5` do not count, because the
    paper's rule is `\\boxed{…}`.
    """
    boxes = _find_boxes(text, _PAPER_TOKEN)
    if not boxes or boxes[-1] is None:
        return None
    return text[boxes[-1].content].strip() or None


def boxed_places(text: str) -> list[slice]:
    """Where the contents of all closed boxes are, in the order in which they open, by the rules of
    `extract_boxed`.
    """
    return [box.content for box in _find_boxes(text, _PAPER_TOKEN) if box is not None]


def unboxed(text: str) -> str:
    """The text with the contents of its boxes in their place. A box that either grader would read is
    removed, closed or not.
    """
    cuts: list[tuple[int, int]] = []
    is_box: list[bool] = []
    """Of each brace that is open, whether it is that of a box."""
    for match in _LENIENT_TOKEN.finditer(text):
        if match.lastgroup == "bare":
            cuts.append((match.start(), match.start("bare")))
        elif match.lastgroup == "open":
            cuts.append(match.span())
            is_box.append(True)
        elif match[0] == "{":
            is_box.append(False)
        elif match[0] == "}" and is_box and is_box.pop():
            cuts.append(match.span())
    starts = [0, *(end for _, end in cuts)]
    ends = [*(start for start, _ in cuts), len(text)]
    return "".join(text[start:end] for start, end in zip(starts, ends, strict=True))


_GLUE = re.compile(r"\s|\$|\\[()\[\],;:! ]|\\q?quad|\\text(?![A-Za-z])|[{}]")
_JOINT = re.compile(
    r"(?:[,;/&|]|or|and|not|but|maybe|perhaps|possibly|probably|also|either|else|alternatively)+",
    re.IGNORECASE,
)
_ALTERNATIVE = re.compile(
    r"(?:\s|[$,;(){}]|\\[()\[\],;:! ]|\\q?quad|\\text(?![A-Za-z]))*or(?![A-Za-z])", re.IGNORECASE
)
_LONGEST_GLUE = 80
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
    if not boxes or boxes[-1] is None or not text[boxes[-1].content].strip():
        return None
    answer = ""
    following: _Box | None = None
    for box, inner in reversed(_nested(boxes)):
        joint = _joint(text, box, following) if box and following else ""
        if box is None or joint is None:
            break
        content = _without_boxes(text, box, inner)
        if not content or (following and content == answer):
            break
        answer = content + joint + answer
        following = box
    return answer or None


def _nested(boxes: list[_Box | None]) -> list[tuple[_Box | None, list[_Box]]]:
    """The boxes that are not in another box, each with the boxes in it."""
    outer: list[tuple[_Box | None, list[_Box]]] = []
    end = 0
    for box in boxes:
        if box is not None and box.end <= end:
            outer[-1][1].append(box)
        else:
            outer.append((box, []))
            end = box.end if box else end
    return outer


def _without_boxes(text: str, box: _Box, inner: list[_Box]) -> str:
    """The content of a box without the commands and braces of the boxes in it."""
    cuts = sorted(
        cut
        for nested in inner
        for cut in ((nested.start, nested.content.start), (nested.content.stop, nested.end))
    )
    starts, ends = (
        [box.content.start, *(cut[1] for cut in cuts)],
        [*(cut[0] for cut in cuts), box.content.stop],
    )
    return "".join(text[start:end] for start, end in zip(starts, ends, strict=True)).strip()


def _joint(text: str, box: _Box, following: _Box) -> str | None:
    """What joins two boxes of a list; None if they are not a list."""
    if not 0 <= following.start - box.end <= _LONGEST_GLUE:
        return None
    between = text[box.end : following.start]
    if "</think>" in between:
        return None
    glue = _GLUE.sub("", between).lower()
    if glue.strip(",;()") == "or" or not glue:
        return " or "
    if glue == "=":
        return " = "
    if _JOINT.fullmatch(glue):
        return ", "
    return None if _is_prose(between) and not _ALTERNATIVE.match(between) else " or "


def _is_prose(text: str) -> bool:
    """Whether the text has two words, or one that begins a sentence or has a colon: `. Wait \\boxed{…}`,
    `Answer: \\boxed{…}`.
    """
    words = [match for match in _WORD.finditer(text) if match[1]]
    if len(re.findall(r"[^\W\d_A-Za-z]", text)) > 2:  # a script without spaces between words
        return True
    if len(words) != 1:
        return len(words) > 1
    before, after = text[: words[0].start()], text[words[0].end() :]
    return (words[0][1][0].isupper() and bool(re.search(r"[.!?]|\n\s*\n", before))) or ":" in after


def grade_paper(prediction: str | None, gold: str, answer_format: AnswerFormat) -> bool:
    """The `paper` grader (App. C.4): whether an extracted answer equals the gold answer. A missing answer
    is wrong.

    - numeric: equal as numbers, including fractions (`canonical_number`); equal as text if the gold answer is not a number.
    - choice: equal after upper-casing and stripping white space, nothing else: `(B)`, `B.` and `\\text{B}` are wrong.
    - free form: equal as strings in the canonical form of MATH (`canonical_latex`).
    """
    if prediction is None:
        return False
    prediction, gold = prediction.strip(), gold.strip()
    match AnswerFormat(answer_format):
        case AnswerFormat.CHOICE:
            return prediction.upper() == gold.upper()
        case AnswerFormat.NUMERIC:
            number = canonical_number(gold)
            return prediction == gold if number is None else canonical_number(prediction) == number
        case AnswerFormat.FREE_FORM:
            return prediction == gold or canonical_latex(prediction) == canonical_latex(gold)


_DECIMAL = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
_NUMBER = re.compile(rf"([+-]?\s*{_DECIMAL})(?:\s*/\s*([+-]?\s*{_DECIMAL}))?")
_SIGNED_LITERAL = re.compile(rf"([+-]?)\s*({LITERAL})")
_LATEX_FRACTION = re.compile(
    rf"([+-]?)\s*({_DECIMAL})?\s*\\[dtc]?frac\s*(?:\{{([^{{}}]*)\}}|([0-9]))\s*(?:\{{([^{{}}]*)\}}|([0-9]))"
)
_LONGEST_NUMBER = 200
"""Characters; no benchmark has a number of this length. Arithmetic on a million digits would not be linear.
"""


def canonical_number(text: str) -> Fraction | None:
    """The exact value of a text that is one number; None for any other text.

    The paper strips whitespace and turns a/b into a decimal; a `Fraction` is that decimal without rounding.
    Apart from `3/4`, these notations are read: `073`, `142.0`, `.5`, `+5`, `−5` (U+2212), `\\frac{3}{4}`,
    `\\frac34`, the mixed number `1\\frac{3}{4}`, groups of thousands, `1,296`, `1{,}296`, `1,\\!296`, and
    the literals `0x1F`, `0b101` and `0o17`. Not read: `1, 296` (a list), units, currencies and expressions
    such as `\\frac{1}{2}5`.
    """
    if len(text) > _LONGEST_NUMBER:
        return None
    text = re.sub(r"\\!\s*", "", text.replace("{,}", ",").replace("\u2212", "-")).strip()
    if match := _LATEX_FRACTION.fullmatch(text):
        sign, whole, *parts = match.groups()
        numerator, denominator = (_plain_number(part.strip()) for part in parts if part is not None)
        if numerator is None or denominator is None or denominator == 0:
            return None
        fraction = numerator / denominator
        if whole is not None:
            added = _plain_number(whole)
            if added is None or not (
                _are_whole(added, numerator, denominator) and 0 < numerator < denominator
            ):
                return None
            fraction += added
        return -fraction if sign == "-" else fraction
    return _plain_number(text)


def _plain_number(text: str) -> Fraction | None:
    """The value of a literal, of a decimal or of a quotient of two."""
    if literal := _SIGNED_LITERAL.fullmatch(text):
        return Fraction(_literal_value(literal))
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    value, divisor = (Fraction(re.sub(r"[,\s]", "", part or "1")) for part in match.groups())
    return value / divisor if divisor else None


def _literal_value(literal: re.Match[str]) -> int:
    sign, digits = literal.groups()
    return int(sign + digits, base=0)


def _are_whole(*numbers: Fraction) -> bool:
    return all(number.denominator == 1 for number in numbers)


_ARGUMENT = r"(\\(?!frac|sqrt)[A-Za-z]+|[^\s\\{}\[\]])"
_CANONICAL_STEPS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\n|\\!", ""),
        (r"\\\\", r"\\"),  # over-escaped commands; row ends of matrices change too, on both sides alike
        (r"\\[dt]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:left|right)(?![A-Za-z])", ""),
        (r"\^\s*(?:\\circ|\{\s*\\circ\s*\})", ""),
        (r"\\\$", ""),
        (
            r"(?<=.)\\text\{ [^{}]*\}(?:\^(?:[0-9]|\{[0-9]\}))?\s*$",
            "",
        ),  # a unit on the right: `5\text{ cm}^2`
        (r"\\?%", ""),
        (r"(?<![0-9])\.(?=[0-9])", "0."),
        (
            r"^\s*[A-Za-z][A-Za-z0-9]?\s*=(?=[^=]+$)",
            "",
        ),  # `x = 5`: a name of at most two characters carries no information
        (rf"\\sqrt\s*{_ARGUMENT}", r"\\sqrt{\1}"),
        (rf"\\frac\s*{_ARGUMENT}", r"\\frac{\1}"),
        (rf"(\\frac\s*\{{[^{{}}]*\}})\s*{_ARGUMENT}", r"\1{\2}"),
        (r"\^\s*\{(\\[A-Za-z]+|[^\s\\{}])\}", r"^\1"),
        (r"\s", ""),
        (r"^0\.5$", r"\\frac{1}{2}"),
        (r"^(-?)([0-9]+)/([0-9]+)$", r"\1\\frac{\2}{\3}"),
        (r"\\frac\{-([0-9]+)\}", r"-\\frac{\1}"),
    )
)


def canonical_latex(text: str) -> str:
    """A free-form answer in the canonical form of MATH (Hendrycks et al., 2021). Answers are compared as
    these strings.

    Fractions (`\\frac12`, `\\dfrac{1}{2}`, `1/2`, `0.5`) and roots (`\\sqrt2`) get one notation. `\\left`,
    `\\right`, `\\!`, degrees, dollars, `\\%`, a unit in `\\text{ …}` on the right, a short name on the left
    (`x =`) and spaces are removed. `.5` becomes `0.5`. `10,080` differs from `10080`, and `\\mbox{ cm}` is
    not a unit. Additions to MATH's rules: exponents (`x^{2}`), which the paper names; a bare `%`; the sign
    before a fraction (`\\frac{-1}{2}`, `-1/2`); the power of a unit (`\\text{ cm}^2`); any white space
    where MATH removes spaces, also between arguments (`\\frac 1 2`, `\\sqrt 2`, `^ \\circ`); and the value
    of a hexadecimal or binary literal (`0x1F`).
    """
    for pattern, replacement in _CANONICAL_STEPS:
        text = pattern.sub(replacement, text)
    literal = _SIGNED_LITERAL.fullmatch(text) if len(text) <= _LONGEST_NUMBER else None
    return text if literal is None else str(_literal_value(literal))
