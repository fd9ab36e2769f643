"""Solutions in changing manners: the phrases of all teachers and many others, composed at random.

A teacher always writes in one manner. Here every line draws its own, and words give way to others, so that
the student knows all words and manners, and is not certain which one comes next.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from lark.demo.phrasing import (
    announcement,
    boxed,
    command,
    equation,
    inverse,
    leap,
    operation,
    option_sentence,
    pieces,
    slip,
    spoken,
    term,
    value,
)
from lark.demo.problems import ArithmeticProblem, Calculation


@dataclass(frozen=True)
class Breadth:
    """How varied the solutions of a corpus are, and what it leaves out. The default: the narrow student's."""

    mannered: float = 0.0
    """Share of the worked solutions whose manner changes with every line."""
    without: frozenset[str] = frozenset()
    """Arithmetic (`ArithmeticProblem.core`) that no problem of the corpus has."""


NARROW = Breadth()
OPENINGS = (
    "Let us solve it.", "We compute step by step.", "Let me think.", "Let us begin.", "To start:", "Work:",
    "We look at the question.", "We go from left to right.", "Perhaps this is easy.", "Okay.", "Directly,",
    "Quickly,", "We simplify:", "Rewrite it step by step:", "Work it out:", "Let us look at the question.",
    "Hmm, let me think.", "I am not sure, but let me try.", "This might be easy, perhaps.", "Let me see.",
    "Okay, start.", "Let me work on it.", "We are asked to work out {state}.", "{opening}.", "Now do it:",
    "Carry it out:", "First", "So", "We have", "Plan:", "Hmm,", "Now",
)  # fmt: skip
PLANS = (
    "Plan: {}", "My plan is to {}", "We will {}", "At the end we {}", "The last thing to do is to {}",
    "We finish when we {}", "Before that we {}", "For this we first {}", "That needs us to {}", "then {}",
    "First {}", "In the end we {}", "We {}", "To do: {}", "and {}", "Next {}", "We first {}", "Let us {}",
)  # fmt: skip
LEADS = (
    "First,", "Then,", "Next,", "After that,", "Finally,", "To start,", "Step {i}:", "{i}.", "({i})", "{i})",
    "We have", "Since", "Perhaps", "I think that", "I think:", "I guess", "Maybe", "We might {command}, and",
    "We {command}:", "Perhaps we {command}:", "{event}:", "{event}, and", "{operation}:", "For {operation},",
    "Take {operation}.", "Check:", "To check,", "Let me verify:", "We verify that", "so", "and", "then",
    "Now", "Therefore", "Hence", "That is", "Directly,", "It seems", "perhaps", "->", "Wait,", "Okay,",
)  # fmt: skip
LINKS = ("gives", "makes", "is equal to", "is", "and get", "that makes", "that is")
TAILS = (
    "we go on.", "it seems.", "that is {value}.", "we have {value}.", "Now we have {state}.", "Good.",
    "Check: {inverse}.", "To check, {inverse}.", "Let me verify: {inverse}.", "We verify that {inverse}.",
    "so {value}.", "{pieces}.", "The check holds.", "Everything is verified.", "= {state}", "-> {value}",
)  # fmt: skip
MISTAKES = (
    "Wait, that is wrong.", "Wait, I made a mistake:", "No, that is off:", "That is wrong:",
    "Hold on, that is the wrong way round:", "Wait, I took the wrong operation:",
)  # fmt: skip
OPTIONS = (
    "This is option {1}.", "{0} is option {1}.", "Option {1}.", "Looking at the options: {1}.", "{1}",
    "Looking at the options, {0} is option {1}.", "which is option {1}", "option {1},", "option {1}:",
    "Check the options: {0} is in {1}.", "Among the options this is {1}.", "This seems to be option {1}.",
    "So option {1}.", "{0} -> {1}",
)  # fmt: skip
ENDINGS = (
    "", "", "The answer is", "So the answer is", "Answer:", "Therefore", "We get", "Hence the result is",
    "Hence", "Final answer:", "so", "->", "The result is", "Result:", "Therefore the answer is", "giving",
    "and we have", "Therefore we arrive at", "And that is our answer:", "Done:", "The plan gives",
    "So we get", "In total:", "All checks pass:", "Everything is verified, so", "The check holds. Answer:",
    "We end with", "So finally", "The last value is the answer:", "It might well be", "I believe it is",
    "So perhaps the answer is", "Now it is right:", "After fixing that, the answer is",
)  # fmt: skip
SEPARATORS = (" ", " ", "\n", "\n", ", ", "; ", ". ")
WORD = re.compile(r"(?<![{\w\\])[A-Za-z]{2,}(?![}\w])")
"""A word of a template: neither the name of a field nor a variable or an option."""
WORDS = sorted(set(WORD.findall(" ".join((*OPENINGS, *PLANS, *LEADS, *LINKS, *TAILS, *OPTIONS, *ENDINGS)))))
BLUR = 0.08
"""Share of words that give way to another word, to none or to two."""


def blurred(template: str, rng: Random) -> str:
    def other(match: re.Match[str]) -> str:
        if rng.random() >= BLUR:
            return match.group()
        return rng.choice(["", rng.choice(WORDS), rng.choice(WORDS), f"{match.group()} {rng.choice(WORDS)}"])

    return WORD.sub(other, template)


_CORES: tuple[Callable[[Calculation, Random], str], ...] = (
    lambda step, rng: equation(step),
    lambda step, rng: equation(step),
    lambda step, rng: equation(step),
    lambda step, rng: equation(step, times="×"),
    lambda step, rng: f"{spoken(step)} {blurred(rng.choice(LINKS), rng)} {value(step)}",
    lambda step, rng: f"{operation(step)} {blurred(rng.choice(LINKS), rng)} {value(step)}",
    lambda step, rng: rng.choice([", ", " and ", ", then "]).join(map(equation, pieces(step))),
    lambda step, rng: f"{command(step)} {blurred(rng.choice(LINKS), rng)} {value(step)}",
)


def mannered(problem: ArithmeticProblem, rng: Random) -> str:
    """Every step of the problem, each in a manner of its own."""
    usual = rng.choice(SEPARATORS)
    lines = _opening(problem, rng) + _steps(problem, rng) + _closing(problem, rng)
    text = lines[0]
    for line in lines[1:]:
        separator = usual if rng.random() < 0.7 else rng.choice(SEPARATORS)
        # No second full stop after a sentence.
        text += (separator[-1] if text[-1] in ".,:;" else separator) + line
    return text + rng.choice(["", "."])


def _opening(problem: ArithmeticProblem, rng: Random) -> list[str]:
    lines = []
    if rng.random() < 0.6:
        story = problem.opening or f"We are asked to work out {problem.states[0]}"
        lines.append(blurred(rng.choice(OPENINGS), rng).format(state=problem.states[0], opening=story))
    if rng.random() < 0.25:
        plan = [announcement(step) for step in problem.steps]
        if rng.random() < 0.5:
            plan.reverse()
        lines += [blurred(rng.choice(PLANS), rng).format(line) for line in plan]
    return [line for line in lines if line]


def _steps(problem: ArithmeticProblem, rng: Random) -> list[str]:
    if rng.random() < 0.12:
        return [rng.choice([" = ", "\n= ", ", then ", " -> "]).join(problem.states)]
    # How much is said around the equations.
    wordiness = rng.random()
    lines = []
    steps = list(enumerate(problem.steps))
    while steps:
        i, step = steps.pop(0)
        both = leap(step, steps[0][1]) if steps and rng.random() < 0.12 else None
        if both:
            i, step = steps.pop(0)
        lines.append(_line(i, step, problem, both or rng.choice(_CORES)(step, rng), wordiness, rng))
    return lines


def _line(
    i: int, step: Calculation, problem: ArithmeticProblem, core: str, wordiness: float, rng: Random
) -> str:
    fields = {
        "i": i + 1, "command": command(step), "event": step.event or "Then", "operation": operation(step),
        "value": value(step), "inverse": inverse(step), "state": problem.states[i + 1],
        "pieces": ", ".join(map(equation, pieces(step))),
    }  # fmt: skip
    parts = [core]
    if rng.random() < wordiness:
        parts.insert(0, blurred(rng.choice(LEADS), rng).format(**fields))
    if rng.random() < 0.05:
        parts.insert(0, f"{operation(step)} = {term(slip(step, rng), step.unit)}. {rng.choice(MISTAKES)}")
    if rng.random() < 0.5 * wordiness:
        parts[-1] += rng.choice([",", "."])
        parts.append(blurred(rng.choice(TAILS), rng).format(**fields))
    return " ".join(filter(None, parts))


def _closing(problem: ArithmeticProblem, rng: Random) -> list[str]:
    option = option_sentence(problem, blurred(rng.choice(OPTIONS), rng)) if rng.random() < 0.9 else ""
    ending = blurred(rng.choice(ENDINGS), rng)
    last = f"{ending} {boxed(problem)}" if ending else boxed(problem)
    return [line for line in (option, last) if line]
