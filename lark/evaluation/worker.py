"""The evaluation stage's processes: `generate` samples answers, `grade` marks them. Apart, so that a grader's fix is cheap."""

import hashlib
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from lark.artifacts import write_text
from lark.config import Task
from lark.errors import LarkError
from lark.evaluation import engines, grading
from lark.evaluation.benchmarks import SYSTEM_PROMPTS, Problem, load
from lark.evaluation.engines import Engine, Request, Sampling
from lark.models import load_chat
from lark.worker import Job

log = logging.getLogger(__name__)

SHARD_REQUESTS = 64
"""Problems x seeds in one shard of generations: what a killed run loses at most."""


def generate(job: Job) -> dict[str, Any]:
    """Sample answers to every benchmark in `job.extra["tasks"]` (name -> folder) with one engine."""
    torch.set_num_threads(job.machine.threads)
    folders = {name: Path(folder) for name, folder in job.extra["tasks"].items()}
    tasks = {name: job.config.benchmark.tasks[name] for name in folders}
    problems = {name: load(name, task) for name, task in tasks.items()}
    if job.is_main:
        for name, folder in folders.items():
            write_text(folder / "problems.jsonl", _lines(asdict(problem) for problem in problems[name]))
    model = str(job.inputs.get("checkpoint", job.inputs["student"]))
    chat = load_chat(model, job.config.student)
    todo = [
        (name, shard)
        for name in folders
        for shard in _shards(job, problems[name])
        if not _path(folders[name], shard[0]).exists()
    ]
    if todo:
        device = f"cuda:{job.rank % torch.cuda.device_count()}" if job.machine.device == "cuda" else "cpu"
        engine = engines.start(job.config, model, chat, device)
        try:
            _run(job, engine, chat, todo, tasks, folders)
        finally:
            engine.close()
    return {str(folder): {"problems": len(problems[name])} for name, folder in folders.items()}


Shard = tuple[int, list[tuple[Problem, int]]]
"""A number, and problems with the decoding seed each is sampled with."""


def _shards(job: Job, problems: list[Problem]) -> list[Shard]:
    """This process's shards. They do not depend on the number of processes, so a run can go on with another."""
    pairs = [(problem, seed) for seed in job.config.benchmark.decoding.seeds for problem in problems]
    shards = [pairs[i : i + SHARD_REQUESTS] for i in range(0, len(pairs), SHARD_REQUESTS)]
    return [(number, shard) for number, shard in enumerate(shards) if number % job.world == job.rank]


def _run(
    job: Job, engine: Engine, chat: Any, todo: list[tuple[str, Shard]], tasks: dict[str, Task], folders: dict[str, Path]
) -> None:
    decoding = job.config.benchmark.decoding
    sampling = Sampling(
        decoding.temperature, decoding.top_p, decoding.top_k, decoding.repetition_penalty,
        decoding.samples, tuple(chat.stop_ids),
    )  # fmt: skip
    total = sum(len(pairs) for _, (_, pairs) in todo) * decoding.samples
    tokens = 0
    with tqdm(total=total, desc="generating", unit="answer", disable=not job.is_main) as bar:
        for name, (number, pairs) in todo:
            system = SYSTEM_PROMPTS[tasks[name].answer_format]
            requests = [_request(job, tuple(chat.prompt(p.question, system)), request_seed(p, seed)) for p, seed in pairs]
            answers = engine.generate(requests, sampling)
            lines = [
                {"problem": p.id, "seed": seed, "sample": i, **asdict(generation)}
                for (p, seed), samples in zip(pairs, answers, strict=True)
                for i, generation in enumerate(samples)
            ]
            write_text(_path(folders[name], number), _lines(lines))
            tokens += sum(line["n_tokens"] for line in lines)
            bar.update(len(lines))
            bar.set_postfix_str(f"{tokens / max(bar.format_dict['elapsed'], 1e-9):,.0f} tok/s")


def _request(job: Job, prompt: tuple[int, ...], seed: int) -> Request:
    room = job.config.student.max_length - len(prompt)
    if room < 1:
        raise LarkError(
            f"A prompt of {len(prompt)} tokens leaves no room in student.max_length={job.config.student.max_length}."
        )
    return Request(prompt, seed, min(job.config.benchmark.decoding.max_new_tokens, room))


def request_seed(problem: Problem, seed: int) -> int:
    """A seed of its own for each problem and decoding seed. Engines count up from it for further samples, so it is a hash:
    seeds 0, 1, 2 themselves would share most of their samples."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{problem.id}".encode()).digest()[:4], "big") >> 1


def _path(folder: Path, shard: int) -> Path:
    return folder / f"shard-{shard:05d}.jsonl"


def _lines(rows: Any) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def grade(job: Job) -> dict[str, Any]:
    """Mark the generations of every benchmark in `job.extra["tasks"]` (name -> folder)."""
    tasks = job.config.benchmark.tasks
    return {
        folder: grading.grade(job.inputs[f"generations:{name}"], tasks[name].answer_format, Path(folder))
        for name, folder in job.extra["tasks"].items()
    }
