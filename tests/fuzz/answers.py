"""Random answers for both graders: a notation of the gold answer is right, a hedge or another value is
wrong, none takes long.
"""

import random
import re
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from lark.grading.answers import AnswerFormat, extract_boxed, extract_boxed_list, grade_paper
from lark.grading.choices import choice_letter
from lark.grading.verify import Verifier
from tests.fuzz.case import DIFFERENT, HANG, SAME, Case, Result

FREE, NUMERIC, CHOICE = AnswerFormat.FREE_FORM, AnswerFormat.NUMERIC, AnswerFormat.CHOICE
BATCH = 60
SLOW = 2.0
"""Seconds that the paper's grader may take for a text."""
Gold = tuple[str, str]
"""A gold answer, and what it is: number, symbol, list, tuple, set, interval, equation or word."""


def number(rng: random.Random) -> Fraction:
    return Fraction(rng.randint(-60, 400), rng.choice([1, 1, 1, 1, 2, 3, 4, 5, 7, 8, 10]))


def latex(value: Fraction, rng: random.Random) -> str:
    """A notation of a number. All of them are the same answer."""
    top, bottom = abs(value.numerator), value.denominator
    sign = "-" if value < 0 else ""
    if bottom == 1:
        return sign + rng.choice(
            [
                f"{top}",
                f"{top}",
                f"{top}.0",
                f"{top}.",
                f"{{{top}}}",
                f"{top:,}",
                rf"\frac{{{2 * top}}}{{2}}",
                f"0{top}",
            ]
        )
    decimal = [f"{top / bottom:g}"] if bottom in (2, 4, 5, 8, 10) and len(f"{top / bottom:g}") < 6 else []
    mixed = [rf"{top // bottom}\frac{{{top % bottom}}}{{{bottom}}}"] if top > bottom else []
    return sign + rng.choice(
        [rf"\frac{{{top}}}{{{bottom}}}", rf"\dfrac{{{top}}}{{{bottom}}}", f"{top}/{bottom}", *decimal, *mixed]
    )


def plain(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    return rf"{'-' if value < 0 else ''}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


SYMBOLS = [
    "x+1",
    "2x",
    r"\frac{x}{y}",
    "3R^2",
    r"2\sqrt{3}",
    r"\pi r^2",
    "x^2-4x+4",
    r"\frac{\pi}{6}",
    "ab+c",
    r"e^{2x}",
    r"\sin x",
    "n!",
    "a_1+d",
]
WORDS = [r"\text{Evelyn}", r"\text{even}", r"\text{Tuesday}", r"\text{north}"]


def gold(rng: random.Random) -> tuple[Gold, list[Fraction]]:
    """A gold answer, and its numbers."""
    kind = rng.choice(["number"] * 4 + ["symbol", "list", "tuple", "set", "interval", "equation", "word"])
    if kind == "symbol":
        return (rng.choice(SYMBOLS), kind), []
    if kind == "word":
        return (rng.choice(WORDS), kind), []
    count = {"number": 1, "equation": 1, "interval": 2}.get(kind, rng.choice([2, 3]))
    numbers = sorted(rng.sample(range(-20, 90), count))
    values = [number(rng)] if kind == "number" else [Fraction(n) for n in numbers]
    joined = ",".join(map(plain, values))
    forms = {
        "number": "{}",
        "equation": "x={}",
        "list": "{}",
        "tuple": "({})",
        "set": r"\{{{}\}}",
        "interval": "[{})",
    }
    return (forms[kind].format(joined), kind), values


def honest(given: Gold, values: list[Fraction], rng: random.Random) -> str:
    """Another notation of the same answer."""
    text, kind = given
    if kind == "number":
        text = latex(values[0], rng)
    elif kind in ("list", "set", "tuple", "interval"):
        order = list(values)
        if kind in ("list", "set"):
            rng.shuffle(order)
        inner = rng.choice([",", ", "]).join(plain(value) for value in order)
        text = {"list": inner, "tuple": f"({inner})", "set": rf"\{{{inner}\}}", "interval": f"[{inner})"}[
            kind
        ]
    layouts: list[Callable[[str], str]] = [
        lambda a: a, lambda a: f" {a} ", lambda a: rf"\displaystyle {a}", lambda a: f"${a}$",
        lambda a: rf"\,{a}\;",
        lambda a: f"{{{a}}}",
        lambda a: rf"\text{{The answer is }} {a}",
        lambda a: a.replace("(", r"\left(").replace(")", r"\right)"),
        lambda a: rf"\boxed{{{a}}}",
        lambda a: a.replace(r"\frac", r"\dfrac"), lambda a: f"{a}\n",
    ]  # fmt: skip
    if kind == "number":
        layouts += [lambda a: f"x={a}", lambda a: rf"{a}\text{{ cm}}", lambda a: rf"\text{{Area}} = {a}"]
    return rng.choice(layouts)(text)


AFTER = [
    r"\text{ is not the answer}", r" \text{ or } 777", r", 777", r"=777", "?", r" \to 777", r" \text{ maybe}",
    r"\pm 777",
    r" \ne 777",
    r" \text{ (wrong)}", r" \text{ I guess}", " or 777", " and 777", r" \text{ but actually } 777",
    r"\cdot 777", "+777", "-777",
    r" \text{ not}",
    r" \mid 777", "; 777", r" \Rightarrow 777", r" \text{ xor } 777", r" \equiv 777", r"\text{, no, } 777",
    " % 777", r"\not",
    r"\text{ — or } 777",
    "\u2192 777", "\u2260 777", " / 777", "|777", "...", r"\ldots", r" \text{ at least}", r" \leq 777",
    r"\text{ if } x>777", "!!",
    "^{777}",
    r"_{777}", r"\text{ million}", r" \text{edit: } 777", r"\hspace{1cm} 777", r"\color{white}777",
    r"\phantom{x} 777",
    r" \lor 777",
]  # fmt: skip
BEFORE = [
    r"\text{not } ", r"\neq ", r"\neg ", r"777=", r"777, ", r"777 \text{ or } ", r"\text{anything but } ",
    r"\approx ", ">",
    r"\geq ", "\u2260",
    r"\text{maybe } ", "777/", r"777 \to ", r"\sim ", r"-777+", r"\text{It was } ", r"\text{ not equal to } ",
    r"1-",
    r"\text{less than }", "~",
]  # fmt: skip
AROUND = [
    r"\cancel{%s}",
    r"\sout{%s}",
    r"\not{%s}",
    r"\overline{%s}777",
    r"\text{strike }%s",
    r"\xcancel{%s}",
    r"\underline{%s} 777",
]


def cheat(given: Gold, values: list[Fraction], rng: random.Random) -> str:
    """Something that contains the answer but does not say it, or says another one."""
    text, kind = given
    how = rng.choice(["after", "after", "before", "around", "other"])
    if how == "after":
        is_power_of_one = re.search(r"(?<![0-9.])[01]$", text)  # x+1^{777} is x+1
        return text + rng.choice(
            [after for after in AFTER if not (is_power_of_one and after.startswith("^"))]
        )
    if how == "before":
        return rng.choice(BEFORE) + text
    if how == "around":
        return rng.choice(AROUND) % text
    if kind == "number":
        return latex(values[0] + rng.choice([1, -1, Fraction(1, 10), 10, 100]), rng)
    if values:
        return (
            honest((text, kind), [values[0] - 1, *values[1:]], rng)
            if kind != "equation"
            else f"x={plain(values[0] + 1)}"
        )
    return text + rng.choice(["1", "x", "+1", "'", r"\cdot 2", r"\text{x}"])


PIECES = [
    *"\\{}()[]^_=,.|5xB) ",
    r"\boxed{",
    r"\frac",
    r"\text{",
    r"\sqrt",
    "boxed{",
    r"\fbox",
    "\n",
    "and",
    "or",
    "1/",
    "9^",
    "\x00",
    "\u202e",
    "∞",
    "½",
]


def soup(rng: random.Random) -> str:
    """Text without a meaning. Sometimes it is long."""
    return "".join(rng.choices(PIECES, k=rng.choice([3, 10, 30]))) * rng.choice([1, 1, 1, 1, 3000])


def choices(rng: random.Random) -> tuple[str, bool]:
    """An answer to a multiple-choice problem whose right letter is B, and whether it is right."""
    right = rng.choice(
        [
            "B",
            "b",
            "(B)",
            "B.",
            "B)",
            r"\text{B}",
            "B) 5 cm",
            "**B**",
            "B: the second law",
            r"\textbf{(B)}",
            "[B]",
            "The answer is B",
        ]
    )
    wrong = rng.choice([
        "B{0}", "{0}B", "B or {0}", "B/{0}", "B, {0}", "B) {0})", "B: maybe {0}", "B? {0}", "not B",
        "B is wrong", "{0} (not B)",
        "B -> {0}", "{0}) B",
        "B and {0}", "B; {0}", "B\n{0}", "B ({0})", "B|{0}", "B = {0}", "B \\to {0}", "B, no, {0}",
        "either B or {0}",
        "B (or {0})", "B. {0}.",
        "B) or {0})", "\\text{{B}}\\text{{{0}}}", "B & {0}", "B+{0}", "B vs {0}", "B — {0}", "B… {0}",
        "not A, B",
        "anything but B", "B not", "B – no, {0}",
        "B) 5 cm; {0}) 6 cm", "B: on second thought {0}", "{0}, not B", "B then {0}", "I would say B but {0}",
        "B (unsure)", "~B",
        "!B", "¬B", "B?",
    ]).format(rng.choice("ACD"))  # fmt: skip
    return rng.choice([(right, True), (wrong, False), (wrong, False)])


class Answers:
    """Batches of random answers."""

    name = "answers"
    share = 1.5

    def prepare(self, shared: Path) -> None:
        self.verifier = Verifier(processes=1).__enter__()

    def run(self, case: Case, folder: Path) -> Result:
        rng = case.rng
        asked: list[tuple[str, str, AnswerFormat, bool]] = []
        for _ in range(BATCH):
            given, values = gold(rng)
            is_honest = rng.random() < 0.4
            asked.append(((honest if is_honest else cheat)(given, values, rng), given[0], FREE, is_honest))
            letter, right = choices(rng)
            asked.append((letter, "B", CHOICE, right))
        asked += [(text, "123456789.5", FREE, False) for text in (soup(rng) for _ in range(8))]
        started = time.monotonic()
        grades = self.verifier.grade_many([(prediction, right, form) for prediction, right, form, _ in asked])
        if time.monotonic() - started > 120:
            return Result(HANG, "a batch of answers", f"{time.monotonic() - started:.0f} s")
        wrong = [
            f"{p!r:.100} for {g!r}: {grade}"
            for (p, g, _, expected), grade in zip(asked, grades, strict=True)
            if grade is not expected
        ]
        wrong += self._paper(rng)
        return (
            Result(DIFFERENT, f"{len(wrong)} answers", "\n".join(wrong))
            if wrong
            else Result(SAME, f"{len(asked)} answers")
        )

    def _paper(self, rng: random.Random) -> list[str]:
        """The paper's grader: exact on numbers, and fast on any text."""
        wrong = []
        for _ in range(BATCH):
            value, other = number(rng), number(rng)
            shown = latex(value, rng).replace("{,}", ",")
            if (
                grade_paper(shown, plain(other), NUMERIC) is not (value == other)
                and shown != rf"{{{shown[1:-1]}}}"
            ):
                wrong.append(f"paper, numeric: {shown!r} for {plain(other)!r}")
        for _ in range(5):
            text, started = soup(rng), time.monotonic()
            for found in (extract_boxed(text), extract_boxed_list(text)):
                for form in (FREE, NUMERIC, CHOICE):
                    grade_paper(found, "5", form)
                choice_letter(found or "")
            if time.monotonic() - started > SLOW:
                wrong.append(
                    f"paper: {time.monotonic() - started:.1f} s for {text[:60]!r}, {len(text)} characters"
                )
        return wrong


KINDS = (Answers(),)
