"""Arithmetic in words: building blocks of the demo's teachers and of its pretraining corpus."""

from random import Random

from lark.demo.problems import LARGEST_NUMBER, ArithmeticProblem, Calculation

MENDS = ("Wait", "No,", "Hold on", "That is wrong")
"""Words that follow a false equation: every false equation is followed by one of them."""

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
    left = term(step.left, step.unit)
    right = term(step.right, step.unit)
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
    total = value(step)
    left = term(step.left, step.unit)
    right = term(step.right, step.unit)
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
        needs_brackets = second.operator == "*" and first.operator != "*"
        before = f"({operation(first)})" if needs_brackets else operation(first)
        return f"{before} {second.operator} {term(second.right, second.unit)} = {value(second)}"
    if not second.given[1] and second.right == first.value:
        return f"{term(second.left, second.unit)} {second.operator} {operation(first)} = {value(second)}"
    return None


def pieces(step: Calculation) -> list[Calculation]:
    """The step split into easier ones: tens before units, up to the next ten and beyond it, a product by
    one factor less.
    """
    if step.operator == "*":
        return _product_pieces(step)
    left_units = step.left % 10
    right = step.right
    if right > 10 and right % 10:
        first = right - right % 10
    elif step.operator == "+" and right < 10 and left_units and left_units + right > 10:
        first = 10 - left_units
    elif step.operator == "-" and right < 10 and 0 < left_units < right:
        first = left_units
    else:
        return [step]
    opening = Calculation(step.left, step.operator, first, step.unit)
    return [opening, Calculation(opening.value, step.operator, right - first, step.unit)]


def _product_pieces(step: Calculation) -> list[Calculation]:
    if step.right <= 2:
        return [Calculation(step.left, "+", step.left, step.unit)]
    smaller = Calculation(step.left, "*", step.right - 1, step.unit)
    return [smaller, Calculation(smaller.value, "+", step.left, step.unit)]


def slip(step: Calculation, rng: Random) -> int:
    """A wrong result that someone in a hurry might write: one or ten off."""
    near = [step.value + difference for difference in (-10, -1, 1, 10)]
    return rng.choice([number for number in near if 0 < number <= LARGEST_NUMBER])


def boxed(problem: ArithmeticProblem) -> str:
    return rf"\boxed{{{problem.answer}}}"


def option_sentence(problem: ArithmeticProblem, template: str) -> str:
    """For a question with options, the sentence that names the letter of the result; otherwise empty."""
    return template.format(problem.result, problem.answer) if problem.kind == "choice" else ""


def conclusion(problem: ArithmeticProblem, option: str, ending: str) -> str:
    """The end of a solution: the option of the result, if the question has options, and the box."""
    return option_sentence(problem, option) + ending.format(boxed(problem))
