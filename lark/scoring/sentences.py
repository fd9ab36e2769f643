"""Steps of a response, for Local Naturalness (paper, App. C.2): its sentences, or its paragraphs
(`scoring.local_steps`). The paper writes of sentences and does not specify how it splits.

Steps partition the text: `"".join(split_steps(text)) == text`. A sentence ends
- after a newline outside formulas; the blank lines that follow belong to it too;
- after `.`, `!`, `?` or an ellipsis, with the quotes and brackets that close there, when a space follows and
  it ends a sentence: not after an abbreviation, the label of a list item, or a factorial;
- after `。`, `！`, `？`, which need no space.
The space between two sentences belongs to the second, as in the tokens of most vocabularies. If it belonged
to the first, the token " Then" would be scored as the first sentence's last word.

Nothing is split inside `$...$`, `$$...$$`, `\\(...\\)`, `\\[...\\]` and `\\begin...\\end`. A delimiter that
is never closed opens no formula, and neither dollars nor `\\(` extend across a blank line, as in TeX: a
stray `$` affects at most its paragraph.

Every pattern is anchored or bounded, so time is linear in the length of the text.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

NEWLINES = "\n\r\u2028\u2029"
CLOSERS = r"[\"'”’»)\]}*_`]*"
BREAK = re.compile(
    # With blank lines, without the indentation of the next line.
    rf"(?P<newline>[{NEWLINES}](?:\s*[{NEWLINES}])?)"
    r"|(?P<wide>[。！？｡]+[”’」』）】》〉\"')]*)"
    rf"|(?P<mark>[.!?…]+){CLOSERS}"
)
INLINE_SPACE = re.compile(rf"[^\S{NEWLINES}]*")
END_OF_FORMULA = re.compile(r"\s*(?:\$\$?|\\[)\]])")
AFTER_FORMULA = re.compile(CLOSERS)

CONTINUES = frozenset("=+/<>^,;:)]}&|%×÷≤≥≠≈·→")
"""Characters that no sentence begins with: `x = ? + 3`, `(yes!), so`."""

LABEL = re.compile(
    r"[-+>#(\[*_ \t]{0,8}"  # markdown before it
    r"(?:(?:Step|Case|Part|Option|Problem|Question|Example|Method|Theorem|Lemma|Claim|Section)[ ])?"
    r"(?:\d{1,3}(?:\.\d{1,3}){0,3}|[A-Za-z]|[ivx]{1,5}|[IVX]{1,5})"  # 1  2.1  a  iv
)
LONGEST_LABEL = 24
WORD_BEFORE = re.compile(r"[A-Za-z.]*$")
LONGEST_ABBREVIATION = 8
DOTTED = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]")
TITLES = frozenset({"Dr", "Mr", "Mrs", "Ms", "Prof", "St"})  # with a capital only: "5 ms." ends a sentence
NEVER_LAST = frozenset(
    {"e.g", "i.e", "eg", "ie", "cf", "vs", "viz", "resp", "approx", "w.r.t", "s.t", "fig"}
    | {"figs", "eq", "eqs", "eqn", "eqns", "thm", "lem", "prop", "cor", "def", "ch", "vol", "pp"}
)
NUMBERED = frozenset({"no", "nos", "sec", "ex", "p"})
"""Abbreviations before a number, ordinary words otherwise."""
PERHAPS_LAST = frozenset({"etc", "al", "jr", "sr", "inc"})

FORMULA_TOKEN = re.compile(
    r"\\begin\{(?P<begin>[^{}\s]+)\}|\\end\{(?P<end>[^{}\s]+)\}"
    # Any other escape, so that the bracket of `\\[2pt]` opens nothing and `\$` is a dollar.
    r"|\\[()\[\]]|\\."
    r"|\$\$?|\n[^\S\n]*\n"
)
OPENER_OF = {r"\)": r"\(", r"\]": r"\["}


def split_steps(text: str) -> list[str]:
    """The sentence-level steps of a response. No step is only whitespace unless the whole text is."""
    return _partition(text, _cuts(text))


def split_paragraphs(text: str) -> list[str]:
    """Steps that end at blank lines, or at newlines if that gives one step, as in the authors' script."""
    paragraphs = _partition(text, [match.end() for match in re.finditer("\n\n+", text)])
    if len(paragraphs) > 1:
        return paragraphs
    return _partition(text, [match.end() for match in re.finditer("\n", text)])


SPLITTERS: dict[str, Callable[[str], list[str]]] = {"sentences": split_steps, "paragraphs": split_paragraphs}
"""The values of `scoring.local_steps`."""


def _partition(text: str, cuts: Sequence[int]) -> list[str]:
    """The text in parts that end at these positions. A part of whitespace alone joins the one before it."""
    if not text:
        return []
    starts = [0]
    filled = False
    for begin, end in pairwise([0, *cuts, len(text)]):
        if begin < end and not text[begin:end].isspace():
            if filled:
                starts.append(begin)
            filled = True
    return [text[begin:end] for begin, end in pairwise([*starts, len(text)])]


def token_steps(offsets: Sequence[tuple[int, int]], steps: Sequence[str]) -> list[int]:
    """The step number of each token of the response; `offsets` are the tokens' characters, from the
    tokenizer.

    A token belongs to the step of its first character. Tokens without characters belong to the last step if
    they end the response (the end of the turn), and otherwise to the step of the token before them. Numbers
    never decrease and run 0, 1, 2, ... without gaps: a step in which no token begins is merged into the one
    before and has no number.
    """
    if not len(offsets):
        return []
    begin, end = np.asarray(offsets, dtype=np.int64).reshape(-1, 2).T
    ends = np.cumsum([len(step) for step in steps], dtype=np.int64)
    last = max(len(steps) - 1, 0)
    step = np.where(begin < end, np.minimum(np.searchsorted(ends, begin, side="right"), last), 0)
    step[np.flatnonzero(begin < end).max(initial=-1) + 1 :] = last
    step = np.maximum.accumulate(step)
    return np.cumsum(np.diff(step, prepend=step[0]) > 0).tolist()


def _cuts(text: str) -> list[int]:
    """Positions at which a step ends, ascending."""
    cuts: list[int] = []
    formulas = iter([*_formulas(text), (len(text) + 1, len(text) + 1)])
    formula_begin, formula_end = next(formulas)
    step_start = _skip_space(text, 0)
    for match in BREAK.finditer(text):
        begin, end = match.span()
        while formula_end <= begin:
            formula_begin, formula_end = next(formulas)
        if formula_begin <= begin:
            # A sentence that ends with a formula may have its full stop before the closing `$`.
            closing = END_OF_FORMULA.match(text, end)
            if match["mark"] != "." or closing is None or closing.end() != formula_end:
                continue
            end = _end_of(AFTER_FORMULA, text, formula_end)
        if match["newline"] or match["wide"] or _ends_sentence(text, match, end, step_start):
            cuts.append(end)
            step_start = _skip_space(text, end)
    return cuts


def _ends_sentence(text: str, match: re.Match[str], end: int, step_start: int) -> bool:
    """True if the mark is the end of a sentence, and another follows on the line (a newline cuts by
    itself).
    """
    after = _skip_space(text, end)
    if after in (end, len(text)) or text[after] in NEWLINES or text[after] in CONTINUES:
        return False
    mark = match["mark"]
    at = match.start()
    following = text[after]
    if match.end() > match.end("mark") and following.islower():  # "Why?" he asked.
        return False
    if "?" in mark:
        return True
    if "!" in mark:
        return following.isupper() or not _is_factorial(text, at)
    if len(mark) > 1 or mark == "…" or text[at - 1 : at].isspace():  # ". . ." is an ellipsis too
        return following.isupper()
    return _is_full_stop(text, at, following, step_start)


def _is_factorial(text: str, at: int) -> bool:
    """True if a number, a bracket or a single letter precedes the exclamation mark at `at`."""
    last = text[at - 1 : at]
    before_last = text[max(at - 2, 0) : at - 1]
    return last.isdigit() or last in tuple(")]}$") or (last.isalpha() and not before_last.isalpha())


def _is_full_stop(text: str, at: int, following: str, step_start: int) -> bool:
    """True if the single period at `at` ends a sentence; `following` is the next character that is not a
    space.

    A single letter before it is a variable ("the point A. Then"), not the initial of a name. A step that so
    far is only a label ("1", "Step 2") continues.
    """
    if at - step_start <= LONGEST_LABEL and LABEL.fullmatch(text, step_start, at):
        return False
    before = WORD_BEFORE.search(text[max(at - LONGEST_ABBREVIATION, 0) : at])
    assert before is not None  # it also matches the empty string
    word = before.group()
    lower = word.lower()
    if word in TITLES or lower in NEVER_LAST:
        return False
    if lower in NUMBERED:
        return not following.isdigit()
    if lower in PERHAPS_LAST or DOTTED.fullmatch(word):
        return following.isupper()
    return True


def _formulas(text: str) -> list[tuple[int, int]]:
    """Begin and end of the outermost formulas and environments, ascending and disjoint."""
    formulas: list[tuple[int, int]] = []
    opened: dict[str, int] = {}
    environments: defaultdict[str, list[int]] = defaultdict(list)
    for match in FORMULA_TOKEN.finditer(text):
        token, at = match.group(), match.start()
        if match["begin"]:
            environments[match["begin"]].append(at)
        elif match["end"]:
            if environments[match["end"]]:
                formulas.append((environments[match["end"]].pop(), match.end()))
        elif token in OPENER_OF:
            if OPENER_OF[token] in opened:
                formulas.append(_close(OPENER_OF[token], match.end(), opened))
        elif token in OPENER_OF.values():
            opened[token] = at
        elif token[0] == "$":
            _dollars(text, token, at, opened, formulas)
        elif token[0] == "\n":
            opened = {opener: begin for opener, begin in opened.items() if opener == r"\["}
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(formulas):
        if merged and begin < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _close(opener: str, end: int, opened: dict[str, int]) -> tuple[int, int]:
    """The formula from `opener` to `end`. Delimiters opened inside it and not closed are dropped."""
    begin = opened[opener]
    for inner in [inner for inner, at in opened.items() if at >= begin]:
        del opened[inner]
    return begin, end


def _dollars(text: str, token: str, at: int, opened: dict[str, int], formulas: list[tuple[int, int]]) -> None:
    """`$` or `$$` at `at`: closes what it can close, or opens a formula."""
    if token == "$$" and "$$" in opened:
        formulas.append(_close("$$", at + 2, opened))
    elif "$" in opened and _closes_inline(text, opened["$"], at, at + len(token)):
        formulas.append(_close("$", at + 1, opened))
        if token == "$$":  # `$a$$b$`: one formula ends and the next begins
            opened["$"] = at + 1
    else:
        opened.pop("$", None)
        if token == "$$" or not _is_price_before(text, at):
            opened[token] = at


def _closes_inline(text: str, begin: int, at: int, after: int) -> bool:
    """True if the dollar at `at` can close the formula opened at `begin`, rather than belong to a price.

    `$x$`: no space inside on either side, no digit after it, no bracket just opened. `$ x $`: a space
    inside on both sides, on one line. So in "from $5 to $6" neither dollar closes anything.
    """
    if text[after : after + 1].isdigit() or text[begin + 1].isspace() != text[at - 1].isspace():
        return False
    if text[at - 1].isspace():
        return not text[after : after + 1].isalpha() and "\n" not in text[begin:at]
    return text[at - 1] not in "([{"


def _is_price_before(text: str, at: int) -> bool:
    """True if the dollar at `at` is the unit of the number before it, as in "5$, then"."""
    behind = text[at + 1 : at + 2]
    return text[max(at - 1, 0) : at].isdigit() and (not behind or behind.isspace() or behind in ".,;:!?)")


def _skip_space(text: str, at: int) -> int:
    return _end_of(INLINE_SPACE, text, at)


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    """End of the match of a pattern that also matches the empty string."""
    match = pattern.match(text, at)
    assert match is not None
    return match.end()
