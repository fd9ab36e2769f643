"""Trajectories of mixed lengths: those of a real pool, or random tokens in its lengths."""

import json
import logging
from collections import defaultdict
from math import exp
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch

from lark.models.chat import ChatFormat, Encoded

log = logging.getLogger("bench.mixed_lengths")
LONGEST = 2048
MEDIAN = 294.5
SIGMA = 0.36
PROMPT = 120
"""Of the real pool's lengths in tokens: median, standard deviation of the logarithm, mean prompt."""
QUESTIONS = 50
CANDIDATES = 18
"""Per question."""
SPREAD = "all lengths"
TOGETHER = "two questions"
Pool = dict[str, list[Encoded]]
"""The candidates of each question."""


def pool_at(path: Path, chat: ChatFormat, vocabulary: int) -> Pool:
    """The pool at `path`, or else a random one."""
    if path.is_file():
        log.info("Trajectories: %s", path)
        return real_pool(path, chat)
    log.warning(
        "%s does not exist: using random tokens in the lengths of a real pool. Set --pool to use your own.",
        path,
    )
    return random_pool(vocabulary)


def real_pool(path: Path, chat: ChatFormat) -> Pool:
    rows: list[dict[str, Any]] = []
    questions: list[str] = []
    with path.open(encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            question, response = (message["content"] for message in line["messages"])
            rows.append({"question": question, "system": None, "response": response})
            questions.append(str(line["problem_id"]))
    pool: Pool = defaultdict(list)
    for question, encoded in zip(questions, chat.encode_many(rows, LONGEST), strict=True):
        pool[question].append(encoded)
    return pool


def random_pool(vocabulary: int) -> Pool:
    """Random tokens. Lengths are quantiles of a log-normal distribution and the longest one, dealt to the
    questions.
    """
    generator = torch.Generator().manual_seed(0)
    count = QUESTIONS * CANDIDATES
    lengths = [LONGEST] * count
    for place in range(count - 1):
        quantile = NormalDist().inv_cdf((place + 0.5) / count)
        lengths[place] = int(MEDIAN * exp(SIGMA * quantile))

    def tokens(number: int) -> list[int]:
        return torch.randint(vocabulary, (number,), generator=generator).tolist()

    pool: Pool = {}
    for number in range(QUESTIONS):
        prompt = tokens(PROMPT)
        responses = [tokens(max(1, total - PROMPT)) for total in lengths[number::QUESTIONS]]
        pool[str(number)] = [Encoded(prompt + response, PROMPT, truncated=False) for response in responses]
    return pool


def all_of(pool: Pool) -> list[Encoded]:
    return [encoded for candidates in pool.values() for encoded in candidates]


def length(encoded: Encoded) -> int:
    return len(encoded.ids)


def comparisons(pool: Pool, count: int) -> dict[str, list[Encoded]]:
    """The trajectories of both comparisons, in the pool's order: `count` at equal steps of rank, and all
    candidates of the two questions with the longest ones.
    """
    trajectories = all_of(pool)
    ranked = sorted(range(len(trajectories)), key=lambda index: length(trajectories[index]))
    step = (len(ranked) - 1) / (count - 1)
    spread = sorted({ranked[round(number * step)] for number in range(count)})
    longest = sorted(pool.values(), key=lambda candidates: max(map(length, candidates)))
    return {SPREAD: [trajectories[index] for index in spread], TOGETHER: longest[-2] + longest[-1]}
