"""Generate answers to benchmarks. Grading is separate (`lark.evaluation.grade`), so that fixing a grader is
cheap.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from lark.errors import LarkError
from lark.evaluation import shards
from lark.evaluation.benchmarks import SYSTEM_PROMPTS, Problem, load
from lark.evaluation.shards import Plan
from lark.generation import engine as engines
from lark.generation.engine import Engine, Request, Sampling
from lark.generation.journal import Journal
from lark.models.chat import ChatFormat
from lark.models.load import load_chat
from lark.store.store import write_text
from lark.work.operation import Job
from lark.work.sharding import Do, Progress, Shard, Work, in_shards

Task = tuple[str, Problem, int]
"""A benchmark, one of its problems, and the decoding seed it is sampled with."""


@in_shards
def generate(job: Job) -> Work:
    """Sample answers to every benchmark in `job.outputs` with one engine. A shard is a problem and a
    decoding seed.

    Each process appends its answers to its own journal. Those that are in any journal are not generated
    again.
    """
    folders, decoding = job.outputs, job.config.benchmark.decoding
    problems = {name: load(name, job.config.benchmark.tasks[name]) for name in folders}
    if job.is_main:
        for name, folder in folders.items():
            write_text(folder / shards.PROBLEMS, _lines(asdict(problem) for problem in problems[name]))
    plans = {
        name: Plan(tuple(problem.id for problem in problems[name]), tuple(decoding.seeds), decoding.samples)
        for name in folders
    }
    every: dict[str, Task] = {
        json.dumps([name, problem.id, seed]): (name, problem, seed)
        for name in folders
        for problem in problems[name]
        for seed in decoding.seeds
    }

    def missing(some: Sequence[Shard]) -> list[Shard]:
        unmerged = [
            name
            for name, folder in folders.items()
            if not shards.merged(folder, plans[name], report=job.is_main)
        ]
        done = {
            (name, *key)
            for name in unmerged
            for key in shards.stored(folders[name], plans[name], report=job.is_main)
        }
        todo = ((shard, *every[shard.name]) for shard in some)
        return [
            shard
            for shard, name, problem, seed in todo
            if name in unmerged and (name, problem.id, seed) not in done
        ]

    @contextlib.contextmanager
    def load_engine() -> Iterator[Do]:
        torch.set_num_threads(job.machine.threads)
        chat = load_chat(job.weights, job.config.student)
        started = engines.start(
            job.config.engine, job.config.student, job.weights, chat.tokenizer, job.device
        )
        with engines.running(started) as engine:
            yield lambda some, progress: _run(
                job, engine, chat, [every[shard.name] for shard in some], progress
            )

    def describe(shard: Shard) -> str:
        name, problem, seed = every[shard.name]
        return f"benchmark {name}, problem {problem.id}, seed {seed}"

    counts = {name: {"problems": len(problems[name])} for name in folders}
    return Work(
        [Shard(name) for name in every],
        missing,
        load_engine,
        lambda done: counts,
        describe,
        "generating",
        "prompt",
        many=True,
    )


def _run(job: Job, engine: Engine, chat: ChatFormat, todo: Sequence[Task], progress: Progress) -> None:
    decoding = job.config.benchmark.decoding
    sampling = Sampling(
        decoding.temperature, decoding.top_p, decoding.top_k, decoding.repetition_penalty,
        decoding.samples, tuple(chat.stop_ids),
    )  # fmt: skip
    requests = [_request(job, chat, *work) for work in todo]
    tokens, started = 0, time.monotonic()
    with contextlib.ExitStack() as stack:
        journals = {
            name: stack.enter_context(Journal(folder / shards.shard(job.writer), folder.name))
            for name, folder in job.outputs.items()
        }
        for index, samples in engines.generate(engine, requests, sampling):
            name, problem, seed = todo[index]
            journals[name].append(
                {"problem": problem.id, "seed": seed, "samples": [asdict(sample) for sample in samples]}
            )
            tokens += sum(sample.n_tokens for sample in samples)
            progress.note(f"{tokens / max(time.monotonic() - started, 1e-9):,.0f} tok/s")
            progress.update(1)


def _request(job: Job, chat: ChatFormat, name: str, problem: Problem, seed: int) -> Request:
    prompt = tuple(
        chat.prompt(problem.question, SYSTEM_PROMPTS[job.config.benchmark.tasks[name].answer_format])
    )
    room = job.config.student.max_length - len(prompt)
    if room < 1:
        raise LarkError(
            f"benchmark {name}, problem {problem.id}: a prompt of {len(prompt)} tokens leaves no room for an "
            f"answer in student.max_length={job.config.student.max_length}; raise it."
        )
    return Request(
        prompt, request_seed(problem, seed), min(job.config.benchmark.decoding.max_new_tokens, room)
    )


def request_seed(problem: Problem, seed: int) -> int:
    """One seed per problem and decoding seed. Engines count up from it for further samples, so it is a
    hash: the decoding seeds 0, 1, 2 themselves would share most of their samples.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{problem.id}".encode()).digest()[:4], "big") >> 1


def _lines(rows: Iterable[Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
