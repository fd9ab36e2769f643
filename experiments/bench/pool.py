"""Reading, checking and normalising a pool of many files: one process against several, time and memory.

Run as: python -m experiments.bench.pool [--files 16] [--megabytes 256] [--processes N] [--quick]

Each measurement is a process of its own, and the two are interleaved. Memory is the peak of the process
that reads (one process) or of the largest one and its children together. The trajectories are synthetic:
responses of 20,000 characters.
"""

import json
import logging
import multiprocessing
import random
import resource
import tempfile
import time
from pathlib import Path
from statistics import median

from experiments.bench._output import command_line
from lark import config as conf
from lark.pool import partition
from lark.pool import trajectories as pools
from lark.pool.cleaning import Tally
from lark.pool.read import read
from lark.printing import log_to
from lark.work.entry import run_main
from lark.work.machine import usable_cores

log = logging.getLogger(__name__)
CHARACTERS = 20_000
Measured = tuple[float, float]
"""Seconds and GiB."""


def write_files(folder: Path, files: int, megabytes: float) -> int:
    """Synthetic files; returns the number of trajectories."""
    draw = random.Random(0)
    words = [f"{draw.choice('abcdefgh')}{draw.randrange(3000)}" for _ in range(4000)]
    rows_per_file = max(1, int(megabytes * 1e6 / files / (CHARACTERS + 200)))
    for file in range(files):
        with (folder / f"{file:04d}.jsonl").open("w", encoding="utf-8") as handle:
            for number in range(rows_per_file):
                question = number // 8 * files + file
                candidate = number % 8
                text = " ".join(draw.choices(words, k=CHARACTERS // 6))
                row = {
                    "question_id": f"q{question}",
                    "candidate_id": str(candidate),
                    "rollout": candidate,
                    "question": f"What is {question}?",
                    "response": f"{text} \\boxed{{{question}}}",
                    "answer": str(question),
                    "teacher": f"t{candidate}",
                }
                handle.write(json.dumps(row) + "\n")
    return rows_per_file * files


def _read(folder: str, processes: int, results: "multiprocessing.SimpleQueue[Measured]") -> None:
    pool = conf.Pool(name="bench", format="rows", path=folder)
    with tempfile.TemporaryDirectory() as out:
        started = time.perf_counter()
        if processes == 1:
            tally = Tally()
            pools.write(read(pool, tally), Path(out) / pools.FILE, pool, tally)
        else:
            partition.write_parts(pool, partition.groups(pool), Path(out), processes)
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if processes > 1:
        peak += processes * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    results.put((seconds, peak / 2**20))


def measure(folder: Path, processes: int) -> Measured:
    """Measure a process that reads the pool."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=_read, args=(str(folder), processes, results))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the process that reads has ended with code {process.exitcode}")
    return results.get()


def main() -> None:
    log_to()
    parser = command_line(__doc__, "a pool of 16 MB, once")
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--megabytes", type=float, default=256.0)
    parser.add_argument("--processes", type=int, default=usable_cores())
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.megabytes = 16.0
        arguments.repeats = 1
    partition.PART_BYTES = min(partition.PART_BYTES, int(arguments.megabytes * 1e6 / arguments.files))
    runs: dict[int, list[Measured]] = {1: [], arguments.processes: []}
    with tempfile.TemporaryDirectory() as folder:
        count = write_files(Path(folder), arguments.files, arguments.megabytes)
        log.info("%d trajectories of %d characters in %d files", count, CHARACTERS, arguments.files)
        for _ in range(arguments.repeats):
            for processes, measured in runs.items():
                measured.append(measure(Path(folder), processes))
    middles = {}
    for processes, measured in runs.items():
        seconds, memory = zip(*measured, strict=True)
        middles[processes] = median(seconds)
        log.info(
            "%d processes: %.1f s (%.2f ms per trajectory), %.2f GiB",
            processes, middles[processes], 1000 * middles[processes] / count, max(memory),
        )  # fmt: skip
    speed = middles[1] / middles[arguments.processes]
    log.info("one process takes %.2f times as long as %d", speed, arguments.processes)


if __name__ == "__main__":
    run_main(main)
