"""The verify grader cannot be gamed: cheating answers are wrong, honest ones right, for the corpus and for
random answers.
"""

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark.grading.answers import AnswerFormat, extract_boxed_list, grade_paper
from lark.grading.choices import choice_letter
from lark.grading.strict.equality import compare
from lark.grading.verify import Pair, Verifier
from tests.grading.corpus import corpus

FREE_FORM, CHOICE = AnswerFormat.FREE_FORM, AnswerFormat.CHOICE


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(processes=2) as verifier:
        yield verifier


@pytest.mark.parametrize(("is_honest", "at_least"), [(False, 2700), (True, 2200)], ids=["cheating", "honest"])
def test_every_answer_of_the_corpus_is_graded_as_a_careful_marker_would(
    verifier: Verifier, is_honest: bool, at_least: int
) -> None:
    pairs = corpus(is_honest)
    grades = verifier.grade_many(pairs)
    assert len(pairs) >= at_least
    assert [
        (pair[0], pair[1]) for pair, grade in zip(pairs, grades, strict=True) if grade is not is_honest
    ] == []


LISTED = {
    "5": [r"5 \text{ is not the answer}", r"5\text{ is wrong, it is 6}", "6=5", "no=5", "y6=5", "5_6"],
    "3R^2": ["3r^2"], r"\emptyset": ["3<5"], "0": ["x-5=0"], "x=5": ["x-5=0"], "1,2": [r"\{1,2,2\}"],
    r"\infty": [r"\infty+5"], "0.33": ["1/3"], "-0x16ca2": ["-0x26ca2"], "pear, plum": ["plum, pear"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("gold", "prediction"), [(gold, answer) for gold, answers in LISTED.items() for answer in answers]
)
def test_an_answer_that_contradicts_itself_is_wrong(gold: str, prediction: str) -> None:
    assert not compare(prediction, gold)
    assert compare(gold, gold)


@pytest.mark.parametrize(
    "answer", ["B)C)D)", "B: or maybe C", "B. Actually C", "B) \u2192 C)", "B) " + "x " * 600 + "or C"]
)
def test_a_choice_that_names_two_options_is_wrong(answer: str) -> None:
    assert choice_letter(answer) is None


CHEATS: list[Callable[[str], str]] = [
    lambda gold: rf"{gold} \text{{ is not the answer}}",
    lambda gold: rf"{gold} \text{{ or }} 77",
    lambda gold: rf"77 = {gold}",
    lambda gold: rf"{gold} = 77",
    lambda gold: rf"{gold}, 77",
    lambda gold: rf"\text{{not }} {gold}",
    lambda gold: rf"{gold} \to 77",
    lambda gold: rf"\cancel{{{gold}}}",
]
LAYOUTS: list[Callable[[str], str]] = [
    lambda gold: rf"\displaystyle {gold}",
    lambda gold: f"{{{gold}}}",
    lambda gold: rf"\text{{The answer is }} {gold}",
    lambda gold: rf"\;{gold}\,.",
    lambda gold: rf"\boxed{{{gold}}}",
]


def golds(shared_data: Path) -> list[str]:
    """Every fourth gold answer of MATH-500, AIME and AMC."""
    rows = [
        json.loads(line)
        for name in ("math500", "aime24", "amc83")
        for line in (shared_data / f"benchmarks/{name}.jsonl").open()
    ]
    return sorted({str(row["answer"]) for row in rows})[::4]


def test_no_cheat_works_on_the_benchmarks_golds_and_no_layout_matters(
    verifier: Verifier, shared_data: Path
) -> None:
    answers = golds(shared_data)
    for ways, expected in ((CHEATS, False), (LAYOUTS, True)):
        # one way per gold answer, all ways in turn
        pairs: list[Pair] = [(ways[i % len(ways)](gold), gold, FREE_FORM) for i, gold in enumerate(answers)]
        grades = verifier.grade_many(pairs)
        assert [pair[0] for pair, grade in zip(pairs, grades, strict=True) if grade is not expected] == []


def test_a_percentage_is_right_for_one_number() -> None:
    """The sign is a unit or a division by 100. It cannot be both, or one answer would be right for two
    numbers.
    """
    for whole in (2, 33, 75, 100, 150):
        hundredth = f"{whole / 100:g}"
        fraction = rf"\frac{{{whole}}}{{100}}"
        assert [compare(rf"{whole}\%", gold) for gold in (str(whole), hundredth, fraction)] == [
            True,
            False,
            False,
        ]
        assert compare(rf"{hundredth} = {whole}\%", hundredth)


@settings(deadline=None, max_examples=60)
@given(value=st.integers(-(2**40), 2**40), other=st.integers(-(2**40), 2**40))
def test_literals_are_numbers_in_both_graders(value: int, other: int) -> None:
    notations: list[Callable[[int], str]] = [hex, bin, lambda number: hex(number).upper(), str]
    for written in notations:
        for gold in (hex(value), bin(value)):
            assert compare(written(value), gold)
            assert compare(written(other), gold) is (other == value)
            for answer_format in (FREE_FORM, AnswerFormat.NUMERIC):
                assert grade_paper(written(value), gold, answer_format)
                assert grade_paper(written(other), gold, answer_format) is (other == value)


@settings(deadline=None, max_examples=60)
@given(numerator=st.integers(-300, 300), denominator=st.integers(1, 60), decimals=st.integers(2, 8))
def test_an_exact_answer_is_right_for_a_gold_that_is_its_rounding(
    numerator: int, denominator: int, decimals: int
) -> None:
    value = Fraction(numerator, denominator)
    gold = f"{Decimal(numerator) / Decimal(denominator):.{decimals}f}"
    digits = gold.lstrip("-").replace(".", "").lstrip("0")
    is_finite = 10**60 % value.denominator == 0
    is_precise = decimals >= 3 and len(digits) >= 3
    is_right = value == Fraction(gold) or (is_precise and not is_finite)
    assert compare(f"{numerator}/{denominator}", gold) is is_right
    assert not compare(f"{numerator + 1}/{denominator}", gold)


def expressions() -> st.SearchStrategy[tuple[str, Fraction]]:
    """LaTeX of a number, and its value by Python's own arithmetic."""
    whole = st.integers(0, 99).map(lambda n: (str(n), Fraction(n)))
    decimal = st.integers(1, 999).map(lambda n: (f"{n // 100}.{n % 100:02d}", Fraction(n, 100)))
    fraction = st.tuples(st.integers(0, 50), st.integers(1, 50)).map(
        lambda ab: (rf"\frac{{{ab[0]}}}{{{ab[1]}}}", Fraction(*ab))
    )

    def compound(inner: st.SearchStrategy[tuple[str, Fraction]]) -> st.SearchStrategy[tuple[str, Fraction]]:
        pair = st.tuples(inner, inner)
        return st.one_of(
            pair.map(lambda ab: (rf"\left({ab[0][0]} + {ab[1][0]}\right)", ab[0][1] + ab[1][1])),
            pair.map(lambda ab: (rf"\left({ab[0][0]} - {ab[1][0]}\right)", ab[0][1] - ab[1][1])),
            pair.map(lambda ab: (rf"({ab[0][0]})({ab[1][0]})", ab[0][1] * ab[1][1])),
            pair.map(lambda ab: (rf"\left({ab[0][0]} \cdot {ab[1][0]}\right)", ab[0][1] * ab[1][1])),
            inner.map(lambda a: (rf"({a[0]})^{{2}}", a[1] ** 2)),
        )

    return st.recursive(st.one_of(whole, decimal, fraction), compound, max_leaves=4)


FEW = settings(deadline=None, max_examples=40)


@FEW
@given(expressions())
def test_a_number_equals_its_value_and_nothing_else(expression: tuple[str, Fraction]) -> None:
    latex, value = expression
    gold = f"{value.numerator}/{value.denominator}"
    assert compare(latex, gold)
    assert not compare(f"{latex} + 1", gold)


SYMBOLIC = st.recursive(
    st.sampled_from(["x", "y", "2", "7", r"\pi", "R"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda ab: rf"\frac{{{ab[0]}}}{{{ab[1]}}}"),
        st.tuples(inner, inner).map(lambda ab: f"({ab[0]} + {ab[1]})"),
        inner.map(lambda a: rf"\sqrt{{{a}}}"),
        inner.map(lambda a: f"({a})^{{3}}"),
        st.tuples(inner, inner).map(lambda ab: f"({ab[0]}, {ab[1]})"),
    ),
    max_leaves=5,
)
WRAPPERS = st.sampled_from(
    [
        lambda a: rf"\displaystyle {a}",
        lambda a: f"  {a}\n",
        lambda a: a.replace("(", r"\left(").replace(")", r"\right)"),
        lambda a: rf"\boxed{{{a}}}",
        lambda a: f"${a}$",
        lambda a: a.replace(r"\frac", r"\dfrac"),
        lambda a: a.replace(" ", r"\,"),
    ]
)
HEDGES = st.sampled_from([
    r" \text{ or so}", r" \text{ maybe}", r" \text{ is wrong}", "?", r" \text{ or } 8123", ", 8123",
    " = 8123",
    r" \text{ not really}",
    r" \to 8123", " or maybe not", r" \ne 8123", r"\text{, I guess}", " 8 9",
])  # fmt: skip


@FEW
@given(gold=SYMBOLIC, wrap=WRAPPERS)
def test_every_answer_equals_itself_in_any_layout(gold: str, wrap: Callable[[str], str]) -> None:
    assert compare(gold, gold)
    assert compare(wrap(gold), gold)
    assert extract_boxed_list(rf"so \boxed{{{wrap(gold)}}}") is not None


@FEW
@given(gold=SYMBOLIC, hedge=HEDGES)
def test_a_hedge_after_the_right_answer_makes_it_wrong(gold: str, hedge: str) -> None:
    assert not compare(gold + hedge, gold)


@FEW
@given(
    letter=st.sampled_from("ABCD"),
    other=st.sampled_from("ABCD"),
    text=st.sampled_from(
        [
            "{0}) or {1}",
            "{0}: maybe {1}",
            "{0}. {1}",
            "{0}) 5 {1}) 6",
            "{0} {1}",
            "({0})({1})",
            "{0}) -> {1}",
            "{0}: the answer is {1}",
        ]
    ),
)
def test_a_second_option_makes_a_choice_wrong(letter: str, other: str, text: str) -> None:
    assert choice_letter(text.format(letter, other)) is None
    assert choice_letter(letter) == letter


@settings(deadline=None, max_examples=150)
@given(
    st.text(max_size=40)
    | st.lists(st.sampled_from([*r"\{}()[]^_=,.|5x ", r"\frac", r"\text{", r"\sqrt"]), max_size=25).map(
        "".join
    )
)
def test_no_answer_makes_the_grader_raise_or_equals_what_it_is_not(text: str) -> None:
    assert compare(text, "123456789.5") is False
    assert choice_letter(text) in (None, *(chr(code) for code in range(65, 91)))


def test_the_paper_grader_keeps_the_rules_of_the_paper() -> None:
    """MATH's rules remove any text on the right as a unit, and a name of two characters. docs/grading.md
    lists these.
    """
    accepted = [r"5 \text{ is not the answer}", r"5\text{ is wrong, it is 6}", "no=5", "y6=5"]
    assert all(grade_paper(answer, "5", FREE_FORM) for answer in accepted)
    assert not any(grade_paper(answer, "5", AnswerFormat.NUMERIC) for answer in accepted)
    assert not grade_paper("6=5", "5", FREE_FORM)
