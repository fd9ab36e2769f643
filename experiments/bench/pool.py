"""Reading, checking and normalising a pool of many files: one process against several, time and memory.

Run as: python -m experiments.bench.pool [--files 16] [--megabytes 256] [--processes N] [--quick]

Each measurement is a process of its own, and the two are interleaved. Memory is the peak of the process
that reads (one process) or of the largest one and its children together. The trajectories are synthetic:
responses of 20,000 characters.
"""

import argparse
import json
import logging
import multiprocessing
import random
import resource
import statistics
import tempfile
import time
from pathlib import Path

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


def write_files(folder: Path, files: int, megabytes: float) -> int:
    """Synthetic files; returns the number of trajectories."""
    draw = random.Random(0)
    words = [f"{draw.choice('abcdefgh')}{draw.randrange(3000)}" for _ in range(4000)]
    each = max(1, int(megabytes * 1e6 / files / (CHARACTERS + 200)))
    for file in range(files):
        with (folder / f"{file:04d}.jsonl").open("w", encoding="utf-8") as handle:
            for number in range(each):
                question, candidate = number // 8 * files + file, number % 8
                response = " ".join(draw.choices(words, k=CHARACTERS // 6)) + f" \\boxed{{{question}}}"
                row = {"question_id": f"q{question}", "candidate_id": str(candidate), "rollout": candidate}
                row |= {
                    "question": f"What is {question}?",
                    "response": response,
                    "answer": str(question),
                    "teacher": f"t{candidate}",
                }
                handle.write(json.dumps(row) + "\n")
    return each * files


def _measured(folder: str, processes: int, said: "multiprocessing.SimpleQueue[tuple[float, float]]") -> None:
    pool = conf.Pool(name="bench", format="rows", path=folder)
    with tempfile.TemporaryDirectory() as out:
        started = time.perf_counter()
        if processes == 1:
            tally = Tally()
            pools.write(read(pool, tally), Path(out) / pools.FILE, pool, tally)
        else:
            partition.write_parts(pool, partition.groups(pool), Path(out), processes)
        seconds = time.perf_counter() - started
    peaks = [
        resource.getrusage(who).ru_maxrss / 2**20 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    said.put((seconds, peaks[0] + processes * peaks[1] if processes > 1 else peaks[0]))


def measure(folder: Path, processes: int) -> tuple[float, float]:
    """Seconds and GiB of a process that reads the pool."""
    context = multiprocessing.get_context("spawn")
    said = context.SimpleQueue()
    process = context.Process(target=_measured, args=(str(folder), processes, said))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the process that reads has ended with code {process.exitcode}")
    return said.get()


def main() -> None:
    log_to()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--megabytes", type=float, default=256.0)
    parser.add_argument("--processes", type=int, default=usable_cores())
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a pool of 16 MB, once")
    given = parser.parse_args()
    if given.quick:
        given.megabytes, given.repeats = 16.0, 1
    partition.PART_BYTES = min(partition.PART_BYTES, int(given.megabytes * 1e6 / given.files))
    with tempfile.TemporaryDirectory() as folder:
        count = write_files(Path(folder), given.files, given.megabytes)
        log.info("%d trajectories of %d characters in %d files", count, CHARACTERS, given.files)
        found: dict[int, list[tuple[float, float]]] = {1: [], given.processes: []}
        for _ in range(given.repeats):
            for processes, runs in found.items():
                runs.append(measure(Path(folder), processes))
    for processes, runs in found.items():
        seconds, memory = statistics.median(s for s, _ in runs), max(m for _, m in runs)
        log.info(
            "%d processes: %.1f s (%.2f ms per trajectory), %.2f GiB",
            processes,
            seconds,
            1000 * seconds / count,
            memory,
        )
    one, many = (
        (statistics.median(s for s, _ in runs) for runs in found.values()) if len(found) > 1 else (1.0, 1.0)
    )
    log.info("one process takes %.2f times as long as %d", one / many, given.processes)


if __name__ == "__main__":
    run_main(main)
