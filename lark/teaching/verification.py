"""The means of `teach.verify`: graders, another model, or a program of the user's."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence

from lark.config import Config
from lark.generation.conversation import Ask, AskSampling, Failure, Reply, RunningTeacher
from lark.grading.answers import AnswerFormat, extract_boxed_list
from lark.grading.final_answers import READERS, equal_answers, gold_answer
from lark.grading.verify import Pair, Verifier
from lark.teaching.command import Program
from lark.teaching.rollouts import started
from lark.teaching.verdicts import Check, Rollout, Verdict
from lark.work.operation import Job

JUDGE = """Question:
{question}

{reference}Response:
{response}

Is the final answer of the response correct? Check it step by step. End with one line: "Verdict: correct" or \
"Verdict: wrong"."""
REFERENCE = """The correct final answer is:
{answer}

"""
DECISION = re.compile(r"verdict\W{0,5}(correct|right|wrong|incorrect)\b", re.IGNORECASE)


@contextlib.contextmanager
def checker(job: Job) -> Iterator[Check]:
    """What verifies rollouts, for the time of the block."""
    config = job.config
    if config.teach.verify == "command":
        with Program(config.teach.command) as program:
            yield program.verdicts
    elif config.teach.verify == "judge":
        assert config.teach.judge is not None
        with started(config.teach.judge, job) as judge:
            yield lambda rows: judged(rows, judge, config)
    else:
        with Verifier(processes=min(2, os.cpu_count() or 1)) as verifier:
            yield lambda rows: compared(rows, verifier, config)


def compared(rows: Sequence[Rollout], verifier: Verifier, config: Config) -> list[Verdict]:
    """Verdicts by the gold answer. Both graders compare it; `teach.grader` decides. Without a gold answer,
    nothing is known; without an answer in the response, it is wrong.
    """
    pool = config.pool
    form = AnswerFormat(pool.answer_format)
    golds = [gold_answer(row["answer"], pool.answer_from) for row in rows]
    answers = [_answer(row["response"], pool.answer_from) for row in rows]
    pairs: list[Pair] = []
    for row, gold, (answer, place) in zip(rows, golds, answers, strict=True):
        read = extract_boxed_list(row["response"]) if place == "box" else answer
        pairs.append((read, gold or "", form))
    verified = verifier.grade_many(pairs)
    made: list[Verdict] = []
    for gold, (answer, place), is_equal in zip(golds, answers, verified, strict=True):
        if gold is None:
            made.append({"correct": None, "reason": "no gold answer"})
            continue
        paper = answer is not None and equal_answers(answer, gold, place, form)
        correct = paper if config.teach.grader == "paper" else is_equal
        made.append({"correct": correct, "paper": paper, "verify": is_equal, "read": answer})
    return made


def _answer(response: str, places: Sequence[str]) -> tuple[str | None, str]:
    """The answer in the first place of a response that has one, and the place."""
    for place in places:
        answer = READERS[place](response)
        if answer is not None:
            return answer, place
    return None, places[-1]


def judged(rows: Sequence[Rollout], judge: RunningTeacher, config: Config) -> list[Verdict]:
    """Verdicts by another model."""
    assert config.teach.judge is not None
    sampling = AskSampling.of(config.teacher[config.teach.judge])
    asks = []
    for row in rows:
        reference = REFERENCE.format(answer=row["answer"]) if row["answer"] else ""
        text = JUDGE.format(question=row["question"], reference=reference, response=row["response"])
        asks.append(Ask(({"role": "user", "content": text},), config.teach.seed))
    decided: dict[int, Verdict] = {}
    for index, outcome in judge.ask(asks, sampling):
        decided[index] = _decision(outcome)
    return [decided[index] for index in range(len(rows))]


def _decision(outcome: list[Reply] | Failure) -> Verdict:
    """The judge's verdict. None if it gives none."""
    if isinstance(outcome, Failure):
        return {"correct": None, "reason": outcome.reason}
    decisions = DECISION.findall(outcome[0].text)
    if not decisions:
        return {"correct": None, "reason": "the judge gave no verdict"}
    return {"correct": decisions[-1].lower() in ("correct", "right"), "judge": outcome[0].model}
