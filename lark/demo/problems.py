"""Arithmetic problems for the demo: four kinds, five levels, and the worked steps that lead to the answer.

| kind         | question                                                    | answer |
|--------------|-------------------------------------------------------------|--------|
| `expression` | Compute 3 + 4 * 2 - 5.                                      | 6      |
| `word`       | Tom has 12 coins. He finds 5 more. How many … ?             | 17     |
| `choice`     | What is 3 + 4 * 2?  A) below 15  B) 15 to 29  …             | A      |
| `algebra`    | Simplify 3x + 4 + 2x - 1.                                   | 5x+3   |

The level is the number of operations. All numbers in a solution are in 0..99, so that a 1M-parameter
student can know all the facts that a solution needs; the hard part is to chain them.

Benchmarks and training questions never overlap: a problem belongs to the benchmarks if and only if a hash
of its bare arithmetic (`ArithmeticProblem.core`, the same for every wording and every set of options) falls
into a reserved bucket.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

KINDS = ("expression", "word", "choice", "algebra")
LEVELS = (1, 2, 3, 4, 5)
LARGEST_NUMBER = 99
OPTIONS = {"A": ("below 15", range(15)), "B": ("15 to 29", range(15, 30)), "C": ("30 to 49", range(30, 50)),
           "D": ("50 or more", range(50, LARGEST_NUMBER + 1))}  # fmt: skip
"""The options of a choice, each of them right about equally often. Always the same four: with half an hour
of training, a 1M-parameter student cannot learn to look a value up in a list that changes.
"""

BUCKETS = 8
"""One problem in eight is reserved for the benchmarks."""


@dataclass(frozen=True)
class Calculation:
    """One binary operation: `left operator right = value`, on numbers or (with `unit` "x") on multiples of
    x.
    """

    left: int
    operator: str
    right: int
    unit: str = ""
    event: str = ""
    """The event of a story at this step ("Tom finds 5 more"); empty outside stories."""
    given: tuple[bool, bool] = (True, True)
    """True for the left and the right number if it is in the question, not the result of an earlier step."""

    @property
    def value(self) -> int:
        return apply(self.operator, self.left, self.right)


@dataclass(frozen=True)
class ArithmeticProblem:
    kind: str
    question: str
    answer: str
    """The content of the box: a number, a letter or a simplified expression."""
    steps: tuple[Calculation, ...]
    """In the order of evaluation."""
    states: tuple[str, ...]
    """The remaining expression before the first step and after each one; the last is the result."""
    result: str
    """The computed result. It differs from the answer only where the answer is the letter of an option."""
    core: str
    """The arithmetic without its wording, which separates benchmarks from training questions."""
    opening: str = ""
    """The beginning of a story ("Tom has 12 coins"); empty outside stories."""

    @property
    def level(self) -> int:
        return len(self.steps)


def seeded(*parts: int | str) -> Random:
    """A random generator that depends only on `parts`, not on the process or PYTHONHASHSEED."""
    return Random("/".join(map(str, parts)))


def apply(operator: str, left: int, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right}[operator]


def reserved(problem: ArithmeticProblem) -> bool:
    """True if the problem belongs to the benchmarks, and so never to a pool or to the pretraining corpus."""
    return hashlib.blake2b(problem.core.encode(), digest_size=8).digest()[0] % BUCKETS == 0


def draw(kind: str, level: int, rng: Random, *, benchmark: bool = False) -> ArithmeticProblem:
    """A random problem from the benchmarks' side of the split, or (the default) from the other side."""
    while True:
        problem = _DRAW[kind](level, rng)
        if problem is not None and reserved(problem) == benchmark:
            return problem


def _expression(level: int, rng: Random) -> ArithmeticProblem | None:
    operators = [rng.choice("++--*") for _ in range(level)]
    numbers = []
    for i in range(level + 1):
        neighbours = operators[max(0, i - 1) : i + 1]
        # Factors are small, so that products stay below 100.
        numbers.append(rng.randint(2, 9) if "*" in neighbours else rng.randint(1, 20))
    worked = _evaluate(numbers, operators)
    if worked is None:
        return None
    steps, states = worked
    ask = rng.choice(["Compute {}.", "Evaluate {}.", "What is {}?", "Find the value of {}."])
    return ArithmeticProblem(
        "expression", ask.format(states[0]), states[-1], steps, states, states[-1], states[0].replace(" ", "")
    )


def _evaluate(
    numbers: list[int], operators: list[str]
) -> tuple[tuple[Calculation, ...], tuple[str, ...]] | None:
    """Products first, then from left to right. None if an intermediate result is outside 0..99."""
    numbers = list(numbers)
    operators = list(operators)
    given = [True] * len(numbers)
    steps = []
    states = [_write(numbers, operators)]
    while operators:
        at = operators.index("*") if "*" in operators else 0
        operator = operators.pop(at)
        right = numbers.pop(at + 1)
        right_given = given.pop(at + 1)
        step = Calculation(numbers[at], operator, right, given=(given[at], right_given))
        if not 0 <= step.value <= LARGEST_NUMBER:
            return None
        numbers[at] = step.value
        given[at] = False
        steps.append(step)
        states.append(_write(numbers, operators))
    return tuple(steps), tuple(states)


def _write(numbers: list[int], operators: list[str]) -> str:
    text = str(numbers[0])
    for operator, number in zip(operators, numbers[1:], strict=True):
        text += f" {operator} {number}"
    return text


PEOPLE = (
    ("Tom", "He"), ("Ana", "She"), ("Ben", "He"), ("Mia", "She"), ("Sam", "He"), ("Eva", "She"),
    ("Leo", "He"),
)  # fmt: skip
THINGS = ("coins", "apples", "cards", "books", "pens", "shells")
EVENTS = {
    "+": ("finds {} more", "buys {} more", "gets {} more", "is given {} more"),
    "-": ("loses {}", "sells {}", "gives away {}", "drops {}"),
    "*": ("ends up with {} times as many", "trades them for {} times as many"),
}


def _word(level: int, rng: Random) -> ArithmeticProblem | None:
    name, pronoun = rng.choice(PEOPLE)
    thing = rng.choice(THINGS)
    start = rng.randint(2, 30)
    held = start
    steps: list[Calculation] = []
    for _ in range(level):
        operator = rng.choice("++--*")
        right = rng.randint(2, 4) if operator == "*" else rng.randint(1, 20)
        event = rng.choice(EVENTS[operator]).format(right)
        steps.append(Calculation(held, operator, right, event=f"{name} {event}", given=(not steps, True)))
        held = steps[-1].value
        if not 0 < held <= LARGEST_NUMBER:
            return None
    states = (*(_chain(steps[i].left, steps[i:]) for i in range(level)), str(held))
    sentences: list[str] = []
    for step in steps:
        has_link = bool(sentences) and rng.choice([False, True])
        subject = f"Then {pronoun.lower()}" if has_link else pronoun
        sentences.append(f"{subject}{step.event.removeprefix(name)}.")
    ask = rng.choice(["How many {0} does {1} have now?", "How many {0} does {1} have in the end?"])
    opening = f"{name} has {start} {thing}"
    question = f"{opening}. {' '.join(sentences)} {ask.format(thing, name)}"
    return ArithmeticProblem(
        "word", question, str(held), tuple(steps), states, str(held), states[0].replace(" ", ""), opening
    )


def _chain(start: int, steps: list[Calculation]) -> str:
    """The operations from left to right as one expression, with brackets where a product follows a sum."""
    text = str(start)
    is_sum = False
    for step in steps:
        if step.operator == "*" and is_sum:
            text = f"({text})"
            is_sum = False
        text = f"{text} {step.operator} {step.right}"
        is_sum = is_sum or step.operator != "*"
    return text


def _choice(level: int, rng: Random) -> ArithmeticProblem | None:
    inner = rng.choice([_expression, _word])(level, rng)
    if inner is None:
        return None
    options = " ".join(f"{letter}) {words}" for letter, (words, _) in OPTIONS.items())
    question = f"{inner.question}\n{options}"
    return replace(inner, kind="choice", question=question, answer=option(int(inner.result)))


def option(value: int) -> str:
    """The letter of the option that a value falls under."""
    return next(letter for letter, (_, values) in OPTIONS.items() if value in values)


def _algebra(level: int, rng: Random) -> ArithmeticProblem | None:
    variable = rng.choice("xyn")
    units = [variable, "", *(rng.choice([variable, ""]) for _ in range(level))]
    rng.shuffle(units)
    sums: dict[str, int] = {}
    steps: list[Calculation] = []
    terms: list[tuple[str, int, str]] = []
    for unit in units:
        size = rng.randint(2, 15) if unit else rng.randint(1, 20)
        operator = rng.choice("+-") if unit in sums else "+"
        if unit in sums:
            first = not any(step.unit == unit for step in steps)
            steps.append(Calculation(sums[unit], operator, size, unit, given=(first, True)))
        sums[unit] = apply(operator, sums.get(unit, 0), size)
        terms.append((operator, size, unit))
        # No coefficient or constant is ever 0 (or 1, for a coefficient), so that no term vanishes or changes
        # its form.
        smallest = 2 if unit else 1
        if not smallest <= sums[unit] <= LARGEST_NUMBER:
            return None
    steps.sort(key=lambda step: step.unit == "")
    states = (_polynomial(terms), *_collect(terms, variable))
    ask = rng.choice(["Simplify {}.", "Collect like terms: {}.", "Write {} in simplest form."])
    result = states[-1].replace(" ", "")
    core = states[0].replace(" ", "").replace(variable, "x")
    return ArithmeticProblem("algebra", ask.format(states[0]), result, tuple(steps), states, result, core)


def _polynomial(terms: list[tuple[str, int, str]]) -> str:
    text = "".join(f" {operator} {size}{unit}" for operator, size, unit in terms)
    return text.removeprefix(" + ")


def _collect(terms: list[tuple[str, int, str]], variable: str) -> list[str]:
    """The polynomial after each step: the variable's terms are merged first, then the constants."""
    remaining = sorted(terms, key=lambda term: term[2] == "")
    states = []
    for unit in (variable, ""):
        units = [term[2] for term in remaining]
        at = units.index(unit)
        for _ in range(units.count(unit) - 1):
            operator, size, _ = remaining.pop(at + 1)
            remaining[at] = ("+", apply(operator, remaining[at][1], size), unit)
            states.append(_polynomial(remaining))
    return states


_DRAW: dict[str, Callable[[int, Random], ArithmeticProblem | None]] = {
    "expression": _expression,
    "word": _word,
    "choice": _choice,
    "algebra": _algebra,
}
