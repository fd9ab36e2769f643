"""Eleven synthetic teachers. All are always right; they differ in *how* they show their work.

| teacher    | habit                                                                                     |
|------------|-------------------------------------------------------------------------------------------|
| `terse`    | bare equations, nothing else                                                              |
| `leaper`   | coarse: one equation for two operations wherever possible                                 |
| `rewriter` | restates the remaining expression after every step                                        |
| `lister`   | numbered steps, × for the product                                                         |
| `narrator` | restates the question and speaks in whole sentences, with the operations as words         |
| `backward` | names the last operation first and works back, then forward, with "since" and "therefore" |
| `planner`  | announces every operation, then carries the plan out                                      |
| `checker`  | verifies every step by another equation                                                   |
| `splitter` | fine: breaks an operation into easier ones                                                |
| `hedger`   | expresses doubt: "perhaps", "might", "I think"                                            |
| `wanderer` | makes mistakes, notices and corrects them                                                 |

A teacher's three rollouts are three draws of its phrasing. Each ends with the right answer in a box. A false
equation occurs in a trajectory only if the next words take it back (`phrasing.MENDS`).
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

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
from lark.demo.problems import LARGEST_NUMBER, ArithmeticProblem, Calculation, seeded

ROLLOUTS = 3


def rollouts(teacher: str, problem: ArithmeticProblem, seed: int) -> list[str]:
    """The teacher's `ROLLOUTS` trajectories for a problem, all different."""
    rng = seeded("teacher", teacher, seed, problem.question)
    texts: list[str] = []
    while len(texts) < ROLLOUTS:
        text = TEACHERS[teacher](problem, rng)
        if text not in texts:
            texts.append(text)
    return texts


def _terse(problem: ArithmeticProblem, rng: Random) -> str:
    separator = rng.choice([", ", "; ", "\n"])
    work = separator.join(equation(step) for step in problem.steps)
    if problem.kind == "choice":
        return f"{work}{separator}{problem.answer}\n{boxed(problem)}"
    return work + rng.choice(["\n", " so ", " -> "]) + boxed(problem)


def _leaper(problem: ArithmeticProblem, rng: Random) -> str:
    leaps = []
    steps = list(problem.steps)
    while steps:
        both = leap(steps[0], steps[1]) if len(steps) > 1 else None
        leaps.append(both or equation(steps[0]))
        steps = steps[2:] if both else steps[1:]
    link = rng.choice([", so ", ", and ", ", then "])
    opening = rng.choice(["Directly, ", "Quickly, ", ""])
    ending = rng.choice(["The answer is {}", "Answer: {}", "We get {}", "Hence {}"])
    return f"{opening}{link.join(leaps)}.\n{conclusion(problem, 'Option {1}. ', ending)}"


def _rewriter(problem: ArithmeticProblem, rng: Random) -> str:
    opening = rng.choice(["We simplify:\n", "Rewrite it step by step:\n", "Work it out:\n", ""])
    sign = rng.choice(["\n= ", " = "])
    ending = rng.choice(["\n", "\nThe result is ", "\nSo the answer is "])
    return opening + sign.join(problem.states) + ending + conclusion(problem, "option {1}: ", "{}")


def _lister(problem: ArithmeticProblem, rng: Random) -> str:
    label = rng.choice(["Step {}: ", "{}. ", "({}) "])
    lines = [label.format(i) + equation(step, times="×") for i, step in enumerate(problem.steps, start=1)]
    if problem.kind == "choice":
        lines.append(label.format(len(lines) + 1) + f"{problem.result} is option {problem.answer}")
    return "\n".join([*lines, rng.choice(["Answer: ", "Final answer: ", "Result: "]) + boxed(problem)])


def _narrator(problem: ArithmeticProblem, rng: Random) -> str:
    task = problem.opening or f"We are asked to work out {problem.states[0]}"
    sentences = [rng.choice(["{}.", "Let us look at the question. {}.", "{}. Let us begin."]).format(task)]
    for i, step in enumerate(problem.steps):
        link = rng.choice(["Next", "Then", "After that"] if i else ["First", "To start"])
        result = rng.choice(["gives", "makes", "is equal to"])
        event = f"{step.event}, and " if step.event else ""
        sentences.append(f"{link}, {event}{spoken(step)} {result} {value(step)}.")
    endings = ["Therefore the answer is {}.", "Therefore we arrive at {}.", "And that is our answer: {}."]
    option = "Looking at the options, {0} is option {1}. "
    return " ".join([*sentences, conclusion(problem, option, rng.choice(endings))])


def _backward(problem: ArithmeticProblem, rng: Random) -> str:
    last, *before = reversed(problem.steps)
    goal = rng.choice(["At the end we {}.", "The last thing to do is to {}.", "We finish when we {}."])
    need = rng.choice(["Before that we {}.", "For this we first {}.", "That needs us to {}."])
    back = [goal.format(announcement(last))]
    back += [need.format(announcement(step)) for step in before]
    forward = [f"Since {equation(step)}, we go on." for step in problem.steps[:-1]]
    ending = rng.choice([", giving {}.", ", and we have {}.", ". The answer is {}."])
    therefore = f"Therefore {equation(last)}{conclusion(problem, ', which is option {1}', ending)}"
    return " ".join([*back, *forward, therefore])


def _planner(problem: ArithmeticProblem, rng: Random) -> str:
    plan = ", then ".join(map(announcement, problem.steps))
    opening = rng.choice(["Plan: {}.", "My plan is to {}.", "We will {}."]).format(plan)
    turn = rng.choice(["\nNow do it: ", "\nCarry it out: ", "\nWork: "])
    ending = rng.choice(["\nDone: ", "\nThe plan gives ", "\nSo we get "])
    work = rng.choice([", ", ". "]).join(equation(step) for step in problem.steps)
    return f"{opening}{turn}{work}.{ending}{conclusion(problem, 'option {1}, ', '{}')}"


def _checker(problem: ArithmeticProblem, rng: Random) -> str:
    verify = rng.choice(["Check: {}.", "Let me verify: {}.", "To check, {}.", "We verify that {}."])
    lines = [f"{equation(step)}. {verify.format(inverse(step))}" for step in problem.steps]
    ending = rng.choice(
        ["All checks pass: {}", "Everything is verified, so {}", "The check holds. Answer: {}"]
    )
    lines.append(conclusion(problem, "Check the options: {0} is in {1}. ", ending))
    return rng.choice(["\n", " "]).join(lines)


def _splitter(problem: ArithmeticProblem, rng: Random) -> str:
    lead = rng.choice(["{}: ", "For {}, ", "Take {}. "])
    joint = rng.choice([", ", " and ", ", then "])
    lines = []
    for step in problem.steps:
        parts = pieces(step)
        split = joint.join(map(equation, parts))
        if len(parts) > 1:
            split = f"{lead.format(operation(step))}{split}, that is {value(step)}"
        lines.append(f"{split}.")
    ending = rng.choice(["We end with {}", "In total: {}", "The last value is the answer: {}"])
    return "\n".join([*lines, conclusion(problem, "Among the options this is {1}. ", ending)])


def _hedger(problem: ArithmeticProblem, rng: Random) -> str:
    openings = ["Hmm, let me think.", "I am not sure, but let me try.", "This might be easy, perhaps."]
    doubts = [
        "Perhaps we {1}: I think {0}.", "We might {1}, and perhaps {0}.", "Maybe {0}, it seems.",
        "I guess {0}.",
    ]  # fmt: skip
    sentences = [rng.choice(openings)]
    for step in problem.steps:
        sentences.append(rng.choice(doubts).format(equation(step), command(step)))
    ending = rng.choice(["It might well be {}.", "I believe it is {}.", "So perhaps the answer is {}."])
    return " ".join([*sentences, conclusion(problem, "This seems to be option {1}. ", ending)])


def _wanderer(problem: ArithmeticProblem, rng: Random) -> str:
    opening = rng.choice(["Let me see.", "Okay, start.", "Let me work on it."])
    mistakes = rng.sample(range(problem.level), k=2 if problem.level > 3 else 1)
    lines = []
    for i, step in enumerate(problem.steps):
        lines.append(_wrong_turn(step, rng) if i in mistakes else f"{equation(step)}.")
    ending = rng.choice(["Now it is right: {}", "So finally {}", "After fixing that, the answer is {}"])
    return " ".join([opening, *lines, conclusion(problem, "So option {1}. ", ending)])


def _wrong_turn(step: Calculation, rng: Random) -> str:
    """A slip in the result, or the opposite operation; either is taken back at once, and the right equation
    follows.
    """
    opposite = replace(step, operator="-" if step.operator == "+" else "+")
    if step.operator != "*" and 0 < opposite.value <= LARGEST_NUMBER and rng.random() < 0.5:
        mend = rng.choice(["Hold on, that is the wrong way round:", "Wait, I took the wrong operation:"])
        return f"{equation(opposite)}. {mend} {equation(step)}."
    mend = rng.choice(["Wait, I made a mistake:", "No, that is off:", "That is wrong:"])
    return f"{operation(step)} = {term(slip(step, rng), step.unit)}. {mend} {equation(step)}."


TEACHERS: dict[str, Callable[[ArithmeticProblem, Random], str]] = {
    "terse": _terse, "leaper": _leaper, "rewriter": _rewriter, "lister": _lister, "narrator": _narrator,
    "backward": _backward, "planner": _planner, "checker": _checker, "splitter": _splitter,
    "hedger": _hedger, "wanderer": _wanderer,
}  # fmt: skip
