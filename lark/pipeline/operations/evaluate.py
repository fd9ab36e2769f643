"""The operations that evaluate a student. Generating and grading are separate, so that fixing a grader or a
gold answer costs no GPU time.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

import numpy as np

from lark.config import Config, Task
from lark.errors import LarkError
from lark.evaluation import benchmarks, grade
from lark.generation.engine import check_engine
from lark.planner import costs, remedies
from lark.planner.decoding import Decoder
from lark.planner.estimates import Estimate, Planner, precision_bytes
from lark.work.machine import GIB, Machine, pinned
from lark.work.operation import Operation, Settings, Step

ANSWER_TOKENS = 8000
"""Assumed length of an answer if the limit is higher: long reasoning, as in the paper."""
ANSWER_LENGTHS = 2
"""Assumed mean length of a trained student's answers, relative to the pool's responses, at most: the answers
that never end count with their limit.
"""
PROMPT_TOKENS = 150
"""Assumed length of a problem with its template."""
PAPER_BENCHMARK_MINUTES = 15
"""Per student and benchmark, on 8 A100 (App. C.3)."""


def _gpus(config: Config) -> int:
    return config.engine.tensor_parallel


def fetch_benchmarks(config: Config) -> bool:
    return benchmarks.fetch(config.benchmark)


def check_benchmarks(config: Config, machine: Machine) -> None:
    benchmarks.check(config.benchmark)


def _check_generate(config: Config, machine: Machine) -> None:
    check_engine(config.engine, machine, {"engine.tensor_parallel": _gpus(config)})
    check_benchmarks(config, machine)


def _check_grade(config: Config, machine: Machine) -> None:
    if machine.lacks("math_verify"):
        raise LarkError(
            f"Grading also uses math-verify, which is not installed: pip install {pinned('math-verify')}."
        )


def _cost(planner: Planner, step: Step) -> Estimate:
    """Cost of generation for all benchmarks. Grading takes seconds."""
    config = planner.config
    engine = config.engine
    decoding = config.benchmark.decoding
    problems = sum(problem_count(name, task) for name, task in config.benchmark.tasks.items())
    answers = problems * decoding.samples * len(decoding.seeds)
    # Students rarely use a long limit up, and trained ones write about as much as what they were trained on.
    limit = min(decoding.max_new_tokens, config.student.max_length, ANSWER_TOKENS)
    length = limit
    if step.model == "trained":
        length = min(limit, ceil(ANSWER_LENGTHS * float(planner.lengths.response.mean())))
    tokens = answers * length
    element = precision_bytes(config.student.dtype)
    gpus = engine.tensor_parallel
    decoder = Decoder(engine, gpus, planner.shape, element, planner.hardware, config.student.max_length)
    flops = costs.forward_flops(planner.shape, np.array([1.0]), np.array([1.0])).forward * tokens
    seconds = decoder.seconds(answers, PROMPT_TOKENS, length, flops)
    paper = ""
    if planner.is_papers and step.model == "trained":
        paper = f"~{PAPER_BENCHMARK_MINUTES * len(config.benchmark.tasks)} min"
    together = decoder.together(answers, PROMPT_TOKENS, length)
    most = f"up to {answers * limit:,} tokens"
    work = f"{step.model}: {answers:,} answers, {together:,.0f} at once per engine, {most}"
    memory = decoder.needed_bytes / GIB
    made = planner.made(step, work, flops, seconds, memory, decoder.weights / GIB, paper)
    return replace(made, shards=problems * len(decoding.seeds))


def problem_count(name: str, task: Task) -> int:
    """Problems of a benchmark: those it has, where it can be read here, or those it should have."""
    problems = benchmarks.load_if_here(name, task)
    if problems is not None:
        return len(problems)
    count = task.count or 100
    return count if task.limit is None else min(count, task.limit)


def _remedies(config: Config, machine: Machine, longest: int) -> Iterator[Settings]:
    shared = remedies.shared_model(config, machine, config.student, "engine.tensor_parallel", _gpus(config))
    half = remedies.half("student.dtype", config.student.dtype)
    shorter = remedies.shorter(config.student.max_length)
    return remedies.combined([{}, *shorter], half, shared)


GENERATE = Operation(
    "generate", "evaluate", "lark.evaluation.generate:generate", processes="sharing", gpus=_gpus,
    collect=grade.collect, fetch=fetch_benchmarks, check=_check_generate, cost=_cost, remedies=_remedies,
)  # fmt: skip
GRADE = Operation(
    "grade", "evaluate", "lark.evaluation.grade:grade_all", processes="one", on_cpu=True,
    collect=grade.collect_grades, check=_check_grade,
)  # fmt: skip

OPERATIONS = (GENERATE, GRADE)
