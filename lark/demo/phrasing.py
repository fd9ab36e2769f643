"""Arithmetic in words: building blocks of the demo's teachers and of its pretraining corpus."""

from random import Random

from lark.demo.problems import LARGEST, Calculation, Problem

MENDS = ("Wait", "No,", "Hold on", "That is wrong")
"""How a text continues right after a false equation. Every false equation is followed by one of these."""

_WORDS = {"+": "plus", "-": "minus", "*": "times"}


def term(number: int, unit: str) -> str:
    """`7`, `7x` or `x`."""
    return unit if unit and number == 1 else f"{number}{unit}"


def operation(step: Calculation, times: str = "*") -> str:
    """`3 + 5`, or `3x + 5x`."""
    operator = times if step.operator == "*" else step.operator
    return f"{term(step.left, step.unit)} {operator} {term(step.right, step.unit)}"


def value(step: Calculation) -> str:
    return term(step.value, step.unit)


def equation(step: Calculation, times: str = "*") -> str:
    """`3 + 5 = 8`, or `3x + 5x = 8x`."""
    return f"{operation(step, times)} = {value(step)}"


def spoken(step: Calculation) -> str:
    """`3 plus 5`."""
    return f"{term(step.left, step.unit)} {_WORDS[step.operator]} {term(step.right, step.unit)}"


def command(step: Calculation) -> str:
    """`add 5 to 3`: what to do at this step."""
    left, right = term(step.left, step.unit), term(step.right, step.unit)
    return {
        "+": f"add {right} to {left}",
        "-": f"subtract {right} from {left}",
        "*": f"multiply {left} by {right}",
    }[step.operator]


def announcement(step: Calculation) -> str:
    """`command` before anything is computed: numbers that are not in the question cannot be named yet."""
    left = term(step.left, step.unit)
    right = term(step.right, step.unit) if step.given[1] else "the product"
    if step.operator == "*":
        return f"multiply {left} by {right}" if step.given[0] else f"multiply by {right}"
    verb, preposition = {"+": ("add", "to"), "-": ("subtract", "from")}[step.operator]
    return f"{verb} {right} {preposition} {left}" if step.given[0] else f"{verb} {right}"


def inverse(step: Calculation) -> str:
    """An equation that holds if and only if the step's does: a sum is undone, a product is reversed."""
    total, left, right = (term(number, step.unit) for number in (step.value, step.left, step.right))
    return {
        "+": f"{total} - {right} = {left}",
        "-": f"{total} + {right} = {left}",
        "*": f"{right} * {left} = {total}",
    }[step.operator]


def leap(first: Calculation, second: Calculation) -> str | None:
    """Both steps in one equation (`3 + 5 * 2 = 13`), or None if the second does not build on the first."""
    if first.unit != second.unit:
        return None
    if not second.given[0] and second.left == first.value:
        before = (
            f"({operation(first)})" if second.operator == "*" and first.operator != "*" else operation(first)
        )
        return f"{before} {second.operator} {term(second.right, second.unit)} = {value(second)}"
    if not second.given[1] and second.right == first.value:
        return f"{term(second.left, second.unit)} {second.operator} {operation(first)} = {value(second)}"
    return None


def pieces(step: Calculation) -> list[Calculation]:
    """The step split into easier ones: tens before units, up to the next ten and beyond it, a product by
    one factor less.
    """
    left, operator, right, unit = step.left, step.operator, step.right, step.unit
    if operator == "*":
        if right <= 2:
            return [Calculation(left, "+", left, unit)]
        return [Calculation(left, "*", right - 1, unit), Calculation(left * (right - 1), "+", left, unit)]
    if right > 10 and right % 10:
        first = right - right % 10
    elif operator == "+" and right < 10 and left % 10 and left % 10 + right > 10:
        first = 10 - left % 10
    elif operator == "-" and right < 10 and 0 < left % 10 < right:
        first = left % 10
    else:
        return [step]
    opening = Calculation(left, operator, first, unit)
    return [opening, Calculation(opening.value, operator, right - first, unit)]


def slip(step: Calculation, rng: Random) -> int:
    """A wrong result that someone in a hurry might write: one or ten off."""
    near = [step.value + d for d in (-10, -1, 1, 10)]
    return rng.choice([wrong for wrong in near if 0 < wrong <= LARGEST])


def boxed(problem: Problem) -> str:
    return rf"\boxed{{{problem.answer}}}"


def found(problem: Problem, template: str = "{0} is option {1}. ") -> str:
    """For a question with options, the sentence that names the letter of the result; otherwise empty."""
    return template.format(problem.result, problem.answer) if problem.kind == "choice" else ""
