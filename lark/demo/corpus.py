"""The pretraining corpus of the demo's student: an endless stream of generated documents.

| document   | share | what it teaches                                                                       |
|------------|-------|---------------------------------------------------------------------------------------|
| `facts`    | 20%   | single operations in every notation that is used: the basic skills                    |
| `options`  | 2%    | which of the four options a value falls under                                         |
| `textbook` | 44%   | problems with worked solutions, not as chats, in generic and changing styles          |
| `direct`   | 28%   | chats that are answered directly, without steps                                       |
| `worked`   | 6%    | chats that are answered step by step                                                  |

This makes the student similar to a real base model: it has seen reasoning, but in a chat it nearly always
answers directly, so that fine-tuning on trajectories has something to elicit. No teacher of `teachers.py`
is imitated: styles are drawn at random from the same words and notations, all of which occur, and how
similar a teacher is to them is left to chance. A share of the solutions changes its manner with every line
(manners.py).

No question of a benchmark occurs (`problems.draw`), and none with the arithmetic of a question in
`Breadth.without`. Single operations do, because every solution consists of them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from lark.demo.manners import NARROW, Breadth, mannered
from lark.demo.phrasing import (
    announcement,
    boxed,
    command,
    conclusion,
    equation,
    inverse,
    leap,
    operation,
    pieces,
    slip,
    spoken,
    term,
    value,
)
from lark.demo.problems import (
    KINDS,
    LARGEST_NUMBER,
    LEVELS,
    ArithmeticProblem,
    Calculation,
    apply,
    draw,
    option,
)
from lark.models import prompts
from lark.models.chat import ChatFormat

SHARES = {"facts": 0.20, "options": 0.02, "textbook": 0.44, "direct": 0.28, "worked": 0.06}
LINES_PER_DOCUMENT = 12
SYSTEM_SHARE = 0.25
"""Share of chats that start with the system prompt of their kind of problem. Evaluation sends one; a pool
need not have one.
"""

SYSTEM = {
    "expression": prompts.NUMERIC,
    "word": prompts.NUMERIC,
    "choice": prompts.CHOICE,
    "algebra": prompts.FREE_FORM,
}


@dataclass(frozen=True)
class Document:
    """Pieces of text, each with whether the student learns to produce it. The rest is context that cannot
    be predicted.
    """

    kind: str
    pieces: tuple[tuple[str, bool], ...]

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)


def documents(rng: Random, chat: ChatFormat, breadth: Breadth = NARROW) -> Iterator[Document]:
    """An endless corpus. `chat` renders the prompts exactly as scoring, training and evaluation do."""
    while True:
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        if kind == "facts":
            yield facts(rng, breadth)
        elif kind == "options":
            yield options(rng)
        else:
            problem = _new_problem(KINDS, LEVELS, rng, breadth)
            yield _about(problem, kind, rng, chat, breadth)


def _new_problem(
    kinds: Sequence[str], levels: Sequence[int], rng: Random, breadth: Breadth
) -> ArithmeticProblem:
    while True:
        problem = draw(rng.choice(kinds), rng.choice(levels), rng)
        if problem.core not in breadth.without:
            return problem


def _about(
    problem: ArithmeticProblem, kind: str, rng: Random, chat: ChatFormat, breadth: Breadth
) -> Document:
    if kind == "direct":
        return prompted(kind, problem, direct(problem, rng), rng, chat)
    if kind == "textbook":
        return textbook(problem, rng, chat, breadth)
    return prompted(kind, problem, worked(problem, rng, breadth), rng, chat)


def prompted(kind: str, problem: ArithmeticProblem, answer: str, rng: Random, chat: ChatFormat) -> Document:
    """A chat of one question and its answer, with or without the system prompt of its kind."""
    system = SYSTEM[problem.kind] if rng.random() < SYSTEM_SHARE else None
    prompt = chat.prompt_text(problem.question, system)
    return Document(kind, ((prompt, False), (_closed(answer, chat), True)))


def textbook(problem: ArithmeticProblem, rng: Random, chat: ChatFormat, breadth: Breadth) -> Document:
    headings = [("Problem: ", "\nSolution: "), ("Question: ", "\nWork: "), ("Exercise. ", "\n")]
    before, after = rng.choice(headings)
    question = before + problem.question + after
    return Document("textbook", ((question, False), (_closed(worked(problem, rng, breadth), chat), True)))


def _closed(answer: str, chat: ChatFormat) -> str:
    return answer + str(chat.tokenizer.convert_ids_to_tokens(chat.end_of_turn))


def facts(rng: Random, breadth: Breadth = NARROW) -> Document:
    """Unrelated operations with their results, one per line, all in one notation."""
    if rng.random() < 0.25:
        return _lines("facts", lambda: _reduction(rng, breadth))
    write = rng.choice(_FACT)
    unit = rng.choice("xyn") if rng.random() < 0.25 else ""
    return _lines("facts", lambda: write(_random_step(rng, unit)))


def options(rng: Random) -> Document:
    """Values and the options they fall under."""
    before, _, after = rng.choice([*_OPTIONS, "{0} -> {1}"]).partition("{1}")

    def line() -> str:
        number = rng.randint(0, LARGEST_NUMBER)
        # The space is after the bar, because it belongs to the letter's token.
        return f"{number}. {before.format(number).rstrip()}| {option(number)}{after}"

    return _lines("options", line)


def _lines(kind: str, write: Callable[[], str]) -> Document:
    """A document of short exercises; in each, the text after the bar is learned."""
    lines: list[tuple[str, bool]] = []
    for _ in range(LINES_PER_DOCUMENT):
        exercise, bar, answer = write().partition("|")
        assert bar
        lines += [(exercise, False), (answer.rstrip() + "\n", True)]
    return Document(kind, tuple(lines))


def _reduction(rng: Random, breadth: Breadth) -> str:
    """An expression or polynomial, and what remains of it after the next step."""
    problem = _new_problem(("expression", "algebra"), LEVELS[1:], rng, breadth)
    at = rng.randrange(problem.level)
    return f"{problem.states[at]} = |{problem.states[at + 1]}"


_FACT: tuple[Callable[[Calculation], str], ...] = (
    lambda step: f"{operation(step)} = |{value(step)}",
    lambda step: f"{operation(step)} = |{value(step)}",
    lambda step: f"{operation(step, times='×')} = |{value(step)}",
    lambda step: f"{spoken(step)} is |{value(step)}",
    lambda step: f"{command(step)}: |{equation(step)}",
    lambda step: f"{operation(step)}: |{', '.join(map(equation, pieces(step)))}",
    lambda step: f"{equation(step)}, check: |{inverse(step)}",
)


def _random_step(rng: Random, unit: str) -> Calculation:
    while True:
        operator = rng.choice("++--") if unit else rng.choice("++--*")
        left = rng.randint(1, LARGEST_NUMBER)
        right = rng.randint(1, 20)
        if operator == "*":
            left = rng.randint(2, 33)
            right = rng.randint(2, 9)
        if 0 <= apply(operator, left, right) <= LARGEST_NUMBER:
            return Calculation(left, operator, right, unit)


def direct(problem: ArithmeticProblem, rng: Random) -> str:
    return rng.choice(["{}", "{}", "{}", "The answer is {}", "Answer: {}"]).format(boxed(problem))


def worked(problem: ArithmeticProblem, rng: Random, breadth: Breadth = NARROW) -> str:
    """Every step of the problem, in a style that is composed at random for this text."""
    if breadth.mannered and rng.random() < breadth.mannered:
        return mannered(problem, rng)
    opening = _plan(problem, rng) if rng.random() < 0.15 else rng.choice(_OPENINGS)
    work = rng.choices((_step_by_step, _rewritten, _merged), (0.7, 0.15, 0.15))[0]
    separator = rng.choice([" ", "\n"])
    closing = conclusion(problem, rng.choice(_OPTIONS), rng.choice(_CLOSINGS))
    return separator.join(filter(None, [opening, *work(problem, rng), closing]))


def _step_by_step(problem: ArithmeticProblem, rng: Random) -> list[str]:
    habits = rng.sample(_STEPS, k=rng.randint(1, 2))
    remark = rng.choice(_REMARKS) if rng.random() < 0.35 else None
    lines = []
    for i, step in enumerate(problem.steps):
        line = rng.choice(habits)(i, step)
        if remark is not None:
            line = remark(line, step, problem.states[i + 1], rng)
        lines.append(line)
    return lines


def _rewritten(problem: ArithmeticProblem, rng: Random) -> list[str]:
    """The remaining expression after each step, up to the result."""
    link = rng.choice([" = ", "\n= ", ", then ", " -> "])
    return [link.join(problem.states) + rng.choice([".", ""])]


def _merged(problem: ArithmeticProblem, rng: Random) -> list[str]:
    """Equations, some of which combine two operations."""
    lines = []
    steps = list(problem.steps)
    while steps:
        merges = len(steps) > 1 and rng.random() < 0.7
        both = leap(steps[0], steps[1]) if merges else None
        lines.append((both or equation(steps[0])) + ".")
        steps = steps[2:] if both else steps[1:]
    return lines


def _plan(problem: ArithmeticProblem, rng: Random) -> str:
    """All steps announced before anything is computed, in order or from the end."""
    *before, last = [announcement(step) for step in problem.steps]
    if rng.random() < 0.3:
        return f"In the end we {last}." + "".join(f" Before that we {step}." for step in reversed(before))
    sentence = rng.choice(["We {}.", "To do: {}.", "First {}."])
    return sentence.format(rng.choice([", then ", ", and ", "; "]).join([*before, last]))


_OPENINGS = (
    "", "", "", "Let us solve it.", "We compute step by step.", "Let me think.", "Let us begin.", "To start:",
    "Work:", "We look at the question.", "We go from left to right.", "Perhaps this is easy.", "Okay.",
)  # fmt: skip
_OPTIONS = ("This is option {1}. ", "{0} is option {1}. ", "Option {1}. ", "Looking at the options: {1}. ")
_CLOSINGS = (
    "{}", "The answer is {}", "So the answer is {}.", "Answer: {}", "Therefore {}", "We get {}.",
    "Hence the result is {}.", "Final answer: {}",
)  # fmt: skip


def _ordinal(i: int) -> str:
    return ("First", "Then", "Next", "After that", "Finally")[min(i, 4)]


def _event(step: Calculation) -> str:
    return f"{step.event}: " if step.event else ""


_STEPS: tuple[Callable[[int, Calculation], str], ...] = (
    lambda i, step: f"{equation(step)}.",
    lambda i, step: f"{equation(step)},",
    lambda i, step: f"{_ordinal(i)}, {equation(step)}.",
    lambda i, step: f"We have {equation(step, times='×')}.",
    lambda i, step: f"{i + 1}) {equation(step, times='×')}",
    lambda i, step: f"{spoken(step)} is {value(step)}.",
    lambda i, step: f"{_ordinal(i)} {spoken(step)} gives {value(step)}.",
    lambda i, step: f"We {command(step)}: {equation(step)}.",
    lambda i, step: f"{_ordinal(i)} we {command(step)} and get {value(step)}.",
    lambda i, step: f"{_event(step)}{equation(step)}.",
    lambda i, step: f"Since {equation(step)}, we have {value(step)}.",
    lambda i, step: f"{operation(step)}: that makes {value(step)}.",
    lambda i, step: f"Perhaps {equation(step)}.",
    lambda i, step: f"I think that {equation(step)}.",
)


def _mistake(line: str, step: Calculation, state: str, rng: Random) -> str:
    if rng.random() < 0.7:
        return line
    return f"{operation(step)} = {term(slip(step, rng), step.unit)}. Wait, that is wrong. {line}"


Remark = Callable[[str, Calculation, str, Random], str]
"""Maps the line of a step, the step, and the remaining expression to the line with a remark."""
_REMARKS: tuple[Remark, ...] = (
    lambda line, step, state, rng: f"{line} Now we have {state}.",
    lambda line, step, state, rng: f"{line} Check: {inverse(step)}.",
    lambda line, step, state, rng: f"{', '.join(map(equation, pieces(step)))}. {line}",
    _mistake,
)
