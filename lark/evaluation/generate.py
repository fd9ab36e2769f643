"""Generate answers to benchmarks. Grading is separate (`lark.evaluation.grade`), so that fixing a grader is cheap."""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from lark.errors import LarkError
from lark.evaluation import shards
from lark.evaluation.benchmarks import SYSTEM_PROMPTS, Problem, load
from lark.evaluation.shards import Plan
from lark.generation import engine as engines
from lark.generation.engine import Engine, Request, Sampling
from lark.generation.journal import Journal
from lark.models.chat import ChatFormat
from lark.models.load import load_chat
from lark.runtime.operation import Job
from lark.runtime.store import write_text

Work = tuple[str, Problem, int]
"""A benchmark, one of its problems, and the decoding seed it is sampled with."""


def generate(job: Job) -> dict[str, Any]:
    """Sample answers to every benchmark in `job.outputs` with one engine.

    Each process appends its answers to its own shard, one problem and seed at a time, and skips those that are in any shard.
    Problems are assigned only by their number, so a run can resume with another number of processes.
    """
    torch.set_num_threads(job.machine.threads)
    folders = job.outputs
    problems = {name: load(name, job.config.benchmark.tasks[name]) for name in folders}
    if job.is_main:
        for name, folder in folders.items():
            write_text(folder / shards.PROBLEMS, _lines(asdict(problem) for problem in problems[name]))
    decoding = job.config.benchmark.decoding
    plans = {
        name: Plan(tuple(problem.id for problem in problems[name]), tuple(decoding.seeds), decoding.samples) for name in folders
    }
    unmerged = [name for name, folder in folders.items() if not shards.merged(folder, plans[name], report=job.is_main)]
    mine = [
        (name, problem, seed)
        for name in unmerged
        for problem in problems[name][job.rank :: job.world]
        for seed in decoding.seeds
    ]
    done = {(name, *key) for name in unmerged for key in shards.stored(folders[name], plans[name], report=job.is_main)}
    todo = [work for work in mine if (work[0], work[1].id, work[2]) not in done]
    counts = {name: {"problems": len(problems[name])} for name in folders}
    if todo:
        chat = load_chat(job.weights, job.config.student)
        requests = [_request(job, chat, *work) for work in todo]
        with engines.running(
            engines.start(job.config.engine, job.config.student, job.weights, chat.tokenizer, job.device)
        ) as engine:
            _run(job, engine, chat, todo, requests, folders, already=len(mine) - len(todo))
    return counts


def _run(
    job: Job,
    engine: Engine,
    chat: ChatFormat,
    todo: list[Work],
    requests: list[Request],
    folders: Mapping[str, Path],
    already: int,
) -> None:
    decoding = job.config.benchmark.decoding
    sampling = Sampling(
        decoding.temperature, decoding.top_p, decoding.top_k, decoding.repetition_penalty,
        decoding.samples, tuple(chat.stop_ids),
    )  # fmt: skip
    label = "generating" if job.world == 1 else f"generating (process 1 of {job.world})"
    tokens = 0
    with contextlib.ExitStack() as stack:
        journals = {
            name: stack.enter_context(Journal(folder / shards.shard(job.rank), folder.name)) for name, folder in folders.items()
        }
        bar = stack.enter_context(
            tqdm(total=already + len(todo), initial=already, desc=label, unit="prompt", disable=not job.is_main)
        )
        for index, samples in engines.generate(engine, requests, sampling):
            name, problem, seed = todo[index]
            journals[name].append({"problem": problem.id, "seed": seed, "samples": [asdict(sample) for sample in samples]})
            tokens += sum(sample.n_tokens for sample in samples)
            bar.set_postfix_str(f"{tokens / max(bar.format_dict['elapsed'], 1e-9):,.0f} tok/s", refresh=False)
            bar.update()


def _request(job: Job, chat: ChatFormat, name: str, problem: Problem, seed: int) -> Request:
    prompt = tuple(chat.prompt(problem.question, SYSTEM_PROMPTS[job.config.benchmark.tasks[name].answer_format]))
    room = job.config.student.max_length - len(prompt)
    if room < 1:
        raise LarkError(
            f"benchmark {name}, problem {problem.id}: a prompt of {len(prompt)} tokens leaves no room for an "
            f"answer in student.max_length={job.config.student.max_length}; raise it."
        )
    return Request(prompt, request_seed(problem, seed), min(job.config.benchmark.decoding.max_new_tokens, room))


def request_seed(problem: Problem, seed: int) -> int:
    """One seed per problem and decoding seed. Engines count up from it for further samples, so it is a hash: the decoding
    seeds 0, 1, 2 themselves would share most of their samples."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{problem.id}".encode()).digest()[:4], "big") >> 1


def _lines(rows: Iterable[Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
