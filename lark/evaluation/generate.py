"""Generate answers to benchmarks. Grading is separate (`lark.evaluation.grade`), so that fixing a grader is
cheap.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import NamedTuple

import torch

from lark.evaluation import checks, shards
from lark.evaluation.benchmarks import Problem, load, system_prompt
from lark.evaluation.shards import WantedSamples
from lark.generation import engine as engines
from lark.generation.engine import Engine, Request, Sampling
from lark.generation.journal import Journal
from lark.models.chat import ChatFormat
from lark.models.load import load_chat
from lark.store.store import write_text
from lark.work.operation import Job
from lark.work.sharding import Do, Progress, Shard, Work, in_shards


class Draw(NamedTuple):
    """A problem of a benchmark and the decoding seed with which its answers are sampled."""

    benchmark: str
    problem: Problem
    seed: int


@in_shards
def generate(job: Job) -> Work:
    """Sample answers to every benchmark in `job.outputs` with one engine. A shard is a problem and a decoding
    seed.

    Each process appends its answers to its own journal. Those that are in any journal are not generated
    again.
    """
    decoding = job.config.benchmark.decoding
    workloads: dict[str, WantedSamples] = {}
    draws: dict[str, Draw] = {}
    """The draw of each shard, by its name."""
    for name, folder in job.outputs.items():
        problems = load(name, job.config.benchmark.tasks[name])
        if job.is_main:
            write_text(folder / shards.PROBLEMS_FILE, shards.json_lines(map(asdict, problems)))
        ids = tuple(problem.id for problem in problems)
        workloads[name] = WantedSamples(ids, tuple(decoding.seeds), decoding.samples)
        for problem in problems:
            for seed in decoding.seeds:
                draws[json.dumps([name, problem.id, seed])] = Draw(name, problem, seed)

    def missing(candidates: Sequence[Shard]) -> list[Shard]:
        done = _done(job, workloads)
        remaining: list[Shard] = []
        for shard in candidates:
            draw = draws[shard.name]
            if (draw.problem.id, draw.seed) not in done[draw.benchmark]:
                remaining.append(shard)
        return remaining

    @contextlib.contextmanager
    def load_engine() -> Iterator[Do]:
        torch.set_num_threads(job.machine.threads)
        config = job.config
        chat = load_chat(job.weights, config.student)
        started = engines.start(config.engine, config.student, job.weights, chat.tokenizer, job.device)
        with engines.running(started) as engine:

            def do(batch: Sequence[Shard], progress: Progress) -> None:
                _run(job, engine, chat, [draws[shard.name] for shard in batch], progress)

            yield do

    def describe(shard: Shard) -> str:
        draw = draws[shard.name]
        return f"benchmark {draw.benchmark}, problem {draw.problem.id}, seed {draw.seed}"

    counts = {name: {"problems": len(workload.problems)} for name, workload in workloads.items()}
    return Work(
        [Shard(name) for name in draws],
        missing,
        load_engine,
        lambda done: counts,
        describe,
        "generating",
        "prompt",
        many=True,
    )


def _done(job: Job, workloads: dict[str, WantedSamples]) -> dict[str, set[tuple[str, int]]]:
    """Problems and seeds of each benchmark that have been answered. Only the main process reports damage."""
    done: dict[str, set[tuple[str, int]]] = {}
    for name, workload in workloads.items():
        folder = job.outputs[name]
        if shards.merged(folder, report=job.is_main):
            done[name] = set(workload.keys)
        else:
            done[name] = set(shards.stored(folder, workload, report=job.is_main))
    return done


def _run(job: Job, engine: Engine, chat: ChatFormat, draws: Sequence[Draw], progress: Progress) -> None:
    decoding = job.config.benchmark.decoding
    sampling = Sampling(
        decoding.temperature,
        decoding.top_p,
        decoding.top_k,
        decoding.repetition_penalty,
        decoding.samples,
        tuple(chat.stop_ids),
    )
    requests = [_request(job, chat, draw) for draw in draws]
    tokens = 0
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        journals: dict[str, Journal] = {}
        for name, folder in job.outputs.items():
            journal = Journal(folder / shards.shard(job.writer), folder.name)
            journals[name] = stack.enter_context(journal)
        # Answers come in the order in which they end, not in that of the requests.
        for index, samples in engines.generate(engine, requests, sampling):
            draw = draws[index]
            stored = [asdict(sample) for sample in samples]
            journals[draw.benchmark].append(
                {"problem": draw.problem.id, "seed": draw.seed, "samples": stored}
            )
            tokens += sum(sample.n_tokens for sample in samples)
            progress.note(f"{tokens / max(time.monotonic() - started, 1e-9):,.0f} tok/s")
            progress.update(1)


def _request(job: Job, chat: ChatFormat, draw: Draw) -> Request:
    task = job.config.benchmark.tasks[draw.benchmark]
    prompt = tuple(chat.prompt(draw.problem.question, system_prompt(draw.problem, task)))
    max_length = job.config.student.max_length
    checks.room_for_answer(draw.benchmark, draw.problem, len(prompt), max_length)
    limit = min(job.config.benchmark.decoding.max_new_tokens, max_length - len(prompt))
    return Request(prompt, request_seed(draw.problem, draw.seed), limit)


def request_seed(problem: Problem, seed: int) -> int:
    """One seed per problem and decoding seed. Engines count up from it for further samples, so it is a
    hash: the decoding seeds 0, 1, 2 themselves would share most of their samples.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{problem.id}".encode()).digest()[:4], "big") >> 1
