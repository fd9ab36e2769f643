"""Extraction and the paper's grader: a long table of cases, and properties that hold for any text."""

import json
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark.grading.answers import (
    AnswerFormat,
    extract_boxed,
    extract_boxed_list,
    grade_paper,
)
from lark.grading.canonical import canonical_latex, canonical_number

NUMERIC, CHOICE, FREE_FORM = AnswerFormat.NUMERIC, AnswerFormat.CHOICE, AnswerFormat.FREE_FORM

EXTRACTION = [
    # text, the last box, the boxes as a list
    (r"so \boxed{5}.", "5", "5"),
    ("so boxed{5}.", "5", "5"),
    (r"\boxed {5}", "5", "5"),
    (r"\\boxed{5}", "5", "5"),
    (r"\boxed{ 5 }", "5", "5"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", r"\frac{1}{2}"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}", r"\{1, 2\}"),
    (r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right.", r"\left\{ 1 \right."),
    (r"\boxed{a \\{b}}", r"a \\{b}", r"a \\{b}"),
    (r"\boxed{答え５}", "答え５", "答え５"),
    (r"{ \boxed{5}", "5", "5"),
    (r"} \boxed{5}", "5", "5"),
    (r"first \boxed{1}, then I saw that \boxed{2}", "2", "2"),
    (r"\boxed{x = \boxed{5}}", "5", "x = 5"),
    (r"\boxed{6 \boxed{5}}", "5", "6 5"),
    (r"\boxed{\boxed{5} \text{ or } \boxed{6}}", "6", r"5 \text{ or } 6"),
    (r"\boxed{\boxed{\boxed{5}}}", "5", "5"),
    (r"\boxed{5 \boxed{}}", None, None),
    (r"\boxed{\boxed{5}", "5", "5"),
    (r"\boxed{\boxed{5", None, None),
    (r"\boxed{12}. Once more: \boxed{", None, None),
    (r"\boxed{12}, so \boxed{}", None, None),
    (r"\boxed{12}, so \boxed{  }", None, None),
    (r"\boxed{5\}", None, None),
    ("no box", None, None),
    ("", None, None),
    (r"\boxed", None, None),
    ("I boxed {this}", None, None),
    ("unboxed{5}", None, None),
    (r"\fbox{5}", None, "5"),
    (r"$\boxed 5$", None, "5"),
    (r"$\boxed5$", None, "5"),
    (r"\boxed -1,234.5 is it", None, "-1,234.5"),
    (r"\boxed\pi", None, None),
    (r"\boxed{1} and \boxed{2} and \boxed{3}", "3", "1, 2, 3"),
    (r"$\boxed{1}$, $\boxed{2}$", "2", "1, 2"),
    (r"$$\boxed{(2, 2)} \quad \text{and} \quad \boxed{(6, 2)}$$", "(6, 2)", "(2, 2), (6, 2)"),
    ("\\boxed{5}\n\n\\boxed{5}", "5", "5"),
    (r"\boxed{}, \boxed{5}", "5", "5"),
    (r"\boxed{6}\boxed{5}", "5", "6 or 5"),
    ("\\boxed{6}\n\\boxed{5}", "5", "6 or 5"),
    (r"\boxed{6} or \boxed{5}", "5", "6 or 5"),
    (r"\boxed{6} or maybe \boxed{5}", "5", "6, 5"),
    (r"\boxed{6}, not \boxed{5}", "5", "6, 5"),
    (r"\boxed{6} (or equivalently \boxed{5})", "5", "6 or 5"),
    (r"\boxed{6}, or if we count both ends, \boxed{5}", "5", "6 or 5"),
    (r"<think>\boxed{6}</think>\boxed{5}", "5", "5"),
    ("<think>It is \\boxed{6}\n</think>\n\n\\boxed{5}", "5", "5"),
    (r"\boxed{6} (or) \boxed{5}", "5", "6 or 5"),
    (r"\boxed{6} vs \boxed{5}", "5", "6 or 5"),
    (r"\boxed{6} xor \boxed{5}", "5", "6 or 5"),
    (r"\boxed{6} then \boxed{5}", "5", "6 or 5"),
    (r"\boxed{6}=\boxed{5}", "5", "6 = 5"),
    (r"\boxed{x} = \boxed{5}", "5", "x = 5"),
    (r"\boxed{6}\\\boxed{5}", "5", "6 or 5"),
    (r"\boxed{6}\mid\boxed{5}", "5", "6 or 5"),
    (r"\boxed{6} \to \boxed{5}", "5", "6 or 5"),
    (r"\boxed{6}.\boxed{5}", "5", "6 or 5"),
    (r"\boxed{6} \ne \boxed{5}", "5", "6 or 5"),
    (r"$\boxed{6}$ -- $\boxed{5}$", "5", "6 or 5"),
    ("\\boxed{6}\n\nAnswer: \\boxed{5}", "5", "5"),
    (r"\boxed{6}. Wait: \boxed{5}", "5", "5"),
    (r"\boxed{6} was wrong: \boxed{5}", "5", "5"),
    (r"\boxed{6}，所以答案是 \boxed{5}", "5", "5"),
    (r"\boxed{6} 或 \boxed{5}", "5", "6 or 5"),
    (r"**Answer:** \boxed{6}. **Correction:** \boxed{5}", "5", "5"),
    (r"\boxed{6}. Wait, it is \boxed{5}", "5", "5"),
    (r"\boxed{3}, and after a long while of checking the second case, also \boxed{4}", "4", "4"),
]


@pytest.mark.parametrize(("text", "last", "listed"), EXTRACTION)
def test_the_answer_is_in_the_last_box(text: str, last: str | None, listed: str | None) -> None:
    assert extract_boxed(text) == last
    assert extract_boxed_list(text) == listed


GRADES = [
    # prediction, gold, format, the paper's grade
    ("142", "142.0", NUMERIC, True),
    (" 142 ", "142", NUMERIC, True),
    ("142.0", "142", NUMERIC, True),
    ("142.", "142", NUMERIC, True),
    ("73", "073", NUMERIC, True),
    ("073", "73", NUMERIC, True),
    ("+5", "5", NUMERIC, True),
    ("-4", "-4.0", NUMERIC, True),
    ("\u22124", "-4.0", NUMERIC, True),
    ("3/4", "0.75", NUMERIC, True),
    ("-3 / 4", "-.75", NUMERIC, True),
    (r"\frac{3}{4}", "0.75", NUMERIC, True),
    (r"-\dfrac{6}{8}", "-3/4", NUMERIC, True),
    ("1/3", "2/6", NUMERIC, True),
    (r"\frac34", "0.75", NUMERIC, True),
    (r"\frac{3}4", "0.75", NUMERIC, True),
    (r"\frac{3}{-4}", "-0.75", NUMERIC, True),
    ("5/-1", "-5", NUMERIC, True),
    (r"1\frac{2}{3}", "5/3", NUMERIC, True),
    (r"1 \dfrac23", "5/3", NUMERIC, True),
    (r"-1\frac{1}{2}", "-1.5", NUMERIC, True),
    (r"-1\frac{1}{2}", "-0.5", NUMERIC, False),
    (r"1\frac{2}{3}", "4", NUMERIC, False),
    ("4", r"1\frac{2}{3}", NUMERIC, False),
    (r"2\frac{3}{2}", "11.5", NUMERIC, False),
    (r"1\frac{-2}{3}", "1/3", NUMERIC, False),
    (r"1.5\frac{1}{2}", "2", NUMERIC, False),
    (r"\frac{1}{2}5", "0.04", NUMERIC, False),
    (r"\frac{1}{2}5", "2.5", NUMERIC, False),
    (r"\frac{1}{0}", "1", NUMERIC, False),
    ("1,296", "1296.0", NUMERIC, True),
    ("1{,}296", "1296.0", NUMERIC, True),
    (r"1,\!296", "1296.0", NUMERIC, True),
    ("1, 296", "1296.0", NUMERIC, False),
    ("12,96", "1296.0", NUMERIC, False),
    ("0.333333", "1/3", NUMERIC, False),
    ("125", "025", NUMERIC, False),
    ("450", "045", NUMERIC, False),
    ("1", "100", NUMERIC, False),
    ("10000", "10001", NUMERIC, False),
    ("204 minutes", "204", NUMERIC, False),
    (r"204\text{ minutes}", "204", NUMERIC, False),
    ("x=5", "5", NUMERIC, False),
    ("1/0", "1", NUMERIC, False),
    ("٣", "3", NUMERIC, False),
    ("", "0", NUMERIC, False),
    (None, "5", NUMERIC, False),
    ("see text", "see text", NUMERIC, True),
    ("0x23C8B81", "0x23c8b81", NUMERIC, True),
    (" - 0x1F", "-31", NUMERIC, True),
    ("\u22120b101", "-5.0", NUMERIC, True),
    ("0o17", "15", NUMERIC, True),
    ("-0x26ca2", "-0x16ca2", NUMERIC, False),
    ("0x1g", "0x1h", NUMERIC, False),
    ("0b12", "12", NUMERIC, False),
    ("1F", "0x1F", NUMERIC, False),
    ("B", "B", CHOICE, True),
    ("b", "B", CHOICE, True),
    (" B\n", "B", CHOICE, True),
    ("A", "B", CHOICE, False),
    ("(B)", "B", CHOICE, False),
    ("B.", "B", CHOICE, False),
    (r"\text{B}", "B", CHOICE, False),
    (None, "B", CHOICE, False),
    (r"\frac12", r"\frac{1}{2}", FREE_FORM, True),
    (r"\frac 12", r"\frac{1}{2}", FREE_FORM, True),
    (r"\frac 1 2", r"\frac{1}{2}", FREE_FORM, True),
    (r"\frac1{2}", r"\frac{1}{2}", FREE_FORM, True),
    (r"\frac{1}2", r"\frac{1}{2}", FREE_FORM, True),
    (r"\dfrac{1}{2}", r"\tfrac12", FREE_FORM, True),
    (r"\frac\pi2", r"\frac{\pi}{2}", FREE_FORM, True),
    (r"\frac\pi x", r"\frac{\pi}{x}", FREE_FORM, True),
    ("1/2", r"\frac{1}{2}", FREE_FORM, True),
    ("-1/2", r"-\frac{1}{2}", FREE_FORM, True),
    (r"\frac{-1}{2}", r"-\frac{1}{2}", FREE_FORM, True),
    ("0.5", r"\frac{1}{2}", FREE_FORM, True),
    (".5", "0.5", FREE_FORM, True),
    (".35625", "0.35625", FREE_FORM, True),
    (r"\sqrt2", r"\sqrt{2}", FREE_FORM, True),
    (r"10\sqrt3 + \sqrt4", r"10\sqrt{3}+\sqrt{4}", FREE_FORM, True),
    (r"\sqrt[3]{2}", r"\sqrt[3]{2}", FREE_FORM, True),
    ("x^{2}", "x^2", FREE_FORM, True),
    ("x^{12}", "x^12", FREE_FORM, False),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})", FREE_FORM, True),
    (r"90^\circ", "90", FREE_FORM, True),
    (r"90^{\circ}", r"90^\circ", FREE_FORM, True),
    (r"\$18.90", "18.90", FREE_FORM, True),
    (r"10\%", "10", FREE_FORM, True),
    ("10%", "10", FREE_FORM, True),
    (r"1\frac{2}{3}", r"\frac{5}{3}", FREE_FORM, False),
    (r"5.4 \text{ cents}", "5.4", FREE_FORM, True),
    (r"15\text{ cm}^2", "15", FREE_FORM, True),
    (r"6 \text{ and } 8", "6", FREE_FORM, False),
    (r"\text{even}", r"\text{odd}", FREE_FORM, False),
    ("x = 5", "5", FREE_FORM, True),
    ("y=2x+3", "2x + 3", FREE_FORM, True),
    ("11a+c", "7 = 11a+c", FREE_FORM, False),
    ("1", "2x + z = 1", FREE_FORM, False),
    (r"10,\!080", "10,080", FREE_FORM, True),
    ("10080", "10,080", FREE_FORM, False),
    ("1,-2", "-2,1", FREE_FORM, False),
    ("p-q", "p - q", FREE_FORM, True),
    ("q-p", "p - q", FREE_FORM, False),
    (None, "p - q", FREE_FORM, False),
    ("0x23C8B81", "0x23c8b81", FREE_FORM, True),
    ("x = 0x1F", "0x1f", FREE_FORM, True),
    ("-0b101", "-0x5", FREE_FORM, True),
    ("0x1F", "31", FREE_FORM, True),
    ("-0x26ca2", "-0x16ca2", FREE_FORM, False),
    ("0xg", "0xG", FREE_FORM, False),
    ("0x1F + 1", "0x20", FREE_FORM, False),
]


@pytest.mark.parametrize(("prediction", "gold", "answer_format", "grade"), GRADES)
def test_the_paper_grader(
    prediction: str | None, gold: str, answer_format: AnswerFormat, grade: bool
) -> None:
    assert grade_paper(prediction, gold, answer_format) is grade


def test_a_format_may_be_given_by_its_name_as_in_a_config() -> None:
    assert grade_paper("1/2", "0.5", "numeric")  # type: ignore[arg-type]


def test_every_reference_solution_of_math500_is_graded_correct(shared_data: Path) -> None:
    problems = [
        json.loads(line) for line in (shared_data / "benchmarks" / "math500.jsonl").open(encoding="utf-8")
    ]
    wrong = [
        p["answer"] for p in problems if not grade_paper(extract_boxed(p["solution"]), p["answer"], FREE_FORM)
    ]
    assert len(problems) == 500
    assert wrong == []


@pytest.mark.parametrize("benchmark", ["aime24", "amc83"])
def test_numeric_golds_grade_themselves(shared_data: Path, benchmark: str) -> None:
    path = shared_data / "benchmarks" / f"{benchmark}.jsonl"
    golds = [str(json.loads(line)["answer"]) for line in path.open(encoding="utf-8")]
    integers = [str(int(float(gold))) for gold in golds]
    for answers in (golds, integers):
        boxed = [extract_boxed(rf"\boxed{{{answer}}}") for answer in answers]
        assert all(grade_paper(answer, gold, NUMERIC) for answer, gold in zip(boxed, golds, strict=True))


LATEX = st.lists(
    st.sampled_from(
        [
            "\\boxed",
            "boxed",
            "\\fbox",
            "{",
            "}",
            "\\",
            "\\{",
            "\\frac",
            "\\sqrt",
            "\\text{ ",
            "^",
            "=",
            ".",
            "/",
        ]
    )
    | st.text(max_size=3),
    max_size=40,
).map("".join)


@settings(deadline=None)
@given(text=st.text() | LATEX, gold=st.text() | LATEX, answer_format=st.sampled_from(AnswerFormat))
def test_no_text_makes_the_grader_raise(text: str, gold: str, answer_format: AnswerFormat) -> None:
    for answer in (text, extract_boxed(text), extract_boxed_list(text)):
        assert grade_paper(answer, gold, answer_format) in (True, False)


@settings(deadline=None)
@given(answer=st.text() | LATEX, answer_format=st.sampled_from(AnswerFormat))
def test_every_answer_equals_itself(answer: str, answer_format: AnswerFormat) -> None:
    assert grade_paper(answer, answer, answer_format)


@settings(deadline=None)
@given(before=st.text(), content=st.text(alphabet=st.characters(exclude_characters="\\{}")).filter(str.strip))
def test_a_box_at_the_end_is_found_behind_any_text(before: str, content: str) -> None:
    # The space keeps a backslash at the end of the text from escaping the box, as it would in LaTeX.
    assert extract_boxed(f"{before} \\boxed{{{content}}}") == content.strip()


def reference_last_box(text: str) -> str | None:
    """An independent formulation: from the last opening, scan until the depth is back at zero."""
    if "\\boxed{" not in text:
        return None
    depth, position = 1, (start := text.rfind("\\boxed{") + len("\\boxed{"))
    while position < len(text):
        if text[position] == "\\":
            position += 1
        elif text[position] in "{}":
            depth += 1 if text[position] == "{" else -1
            if depth == 0:
                return text[start:position].strip() or None
        position += 1
    return None


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from(["\\boxed{", "{", "}", "\\{", "\\}", "a", " ", "1"]), max_size=30).map("".join)
)
def test_extraction_agrees_with_a_scan_from_the_last_box(text: str) -> None:
    assert extract_boxed(text) == reference_last_box(text)


@settings(deadline=None)
@given(st.integers(-(10**12), 10**12), st.integers(1, 10**6))
def test_fractions_are_numbers(numerator: int, denominator: int) -> None:
    value = Fraction(numerator, denominator)
    assert canonical_number(f"{numerator}/{denominator}") == value
    assert canonical_number(f"{numerator:,}") == numerator
    assert canonical_number(rf"\frac{{{numerator}}}{{{-denominator}}}") == -value


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_mixed_number_is_a_sum(whole: int, numerator: int, more: int) -> None:
    denominator = numerator + more
    value = whole + Fraction(numerator, denominator)
    assert canonical_number(rf"{whole:,}\frac{{{numerator}}}{{{denominator}}}") == value
    assert canonical_number(rf"-{whole} \tfrac{{{numerator}}}{{{denominator}}}") == -value
    assert canonical_number(rf"{whole}\frac{{{denominator}}}{{{numerator}}}") is None


MILLION = 10**6
ADVERSARIAL = {
    "unterminated boxes": "\\boxed{" * (MILLION // 7),
    "nested boxes": "\\boxed{" * (MILLION // 8) + "}" * (MILLION // 8),
    "open braces": "\\boxed{" + "{" * MILLION,
    "closing braces": "\\boxed{5}" + "}" * MILLION,
    "escaped braces": "\\boxed{" + "\\{" * (MILLION // 2) + "}",
    "spaces before a brace": "\\boxed" + " " * MILLION,
    "spaces before many braces": ("\\boxed" + " " * 50) * (MILLION // 56),
    "listed boxes": "\\boxed{1}," * (MILLION // 10),
    "backslashes": "\\boxed{" + "\\" * MILLION + "}",
    "fractions": "\\boxed{" + "\\frac" * (MILLION // 5) + "}",
    "nested fractions": "\\boxed{" + "\\frac{" * (MILLION // 6) + "}" * (MILLION // 6) + "}",
    "a fraction of spaces": "\\boxed{\\frac{a}" + " " * MILLION + "}",
    "units": "\\boxed{1" + "\\text{ a}" * (MILLION // 9) + "}",
    "equals signs": "\\boxed{x" + "=" * MILLION + "}",
    "digits": "\\boxed{" + "9" * MILLION + "}",
    "carets": "\\boxed{" + "^ " * (MILLION // 2) + "}",
}


def seconds_to_grade(text: str) -> float:
    start = time.process_time()
    for answer in (extract_boxed(text), extract_boxed_list(text)):
        for answer_format in AnswerFormat:
            grade_paper(answer, "5", answer_format)
    canonical_latex(text)
    return time.process_time() - start


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_a_million_characters_take_linear_time(name: str) -> None:
    """CPU seconds. Quadratic work on a million characters would take hours; 0.1 to 2 seconds are measured."""
    assert seconds_to_grade(ADVERSARIAL[name]) < 6
