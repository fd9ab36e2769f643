"""Tokens per second of tokenising a pool, for 1, 2, 4, … threads, compared with transformers' own call.

Run as: python -m experiments.bench.tokenising [--quick] [--questions 150] [--tokenizer <folder>]
Time: about 2 minutes on 2 idle cores, half a minute with --quick.
Expect: at least 1.7 times the rate of one thread with 2 threads.
Writes outputs/bench/tokenising.csv.

The texts are a demo pool with every response 50 times in a row (thousands of tokens, as in a real pool),
encoded as the operation `lengths` encodes them. The number of threads is fixed when a process first
tokenises, so each one is measured in its own process. There are two rates: by the time that passes, and by
the processor time of the critical path (that of the main thread and of the busiest of the others), which
other jobs disturb less.
"""

import argparse
import csv
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from transformers import AutoTokenizer

from lark.demo.pool import trajectories
from lark.models.chat import ChatFormat
from lark.models.students import DEMO
from lark.printing import log_to, text_table
from lark.work.entry import run_main
from lark.work.machine import usable_cores

log = logging.getLogger("bench.tokenising")
FOLDER = Path("outputs/bench")
QUESTIONS, COPIES, LONGEST = 20, 50, 32_768
OURS, CALL = "ours", "transformers"


def thread_seconds() -> dict[str, float]:
    """Processor time of each thread of this process, by thread id."""
    tasks = Path("/proc/self/task")
    return {task.name: int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks.iterdir()}


def rates(tokenizer: Path, variant: str, questions: int) -> tuple[float, float]:
    """Response tokens per second of this process: by the clock, and by its critical path. Threads and
    caches exist before.
    """
    chat = ChatFormat(AutoTokenizer.from_pretrained(tokenizer))
    rows = [{**row, "response": f"{row['response']}\n" * COPIES} for row in trajectories(questions, seed=0)]

    def tokens(some: list[dict[str, object]]) -> int:
        if variant == OURS:
            return sum(encoded.n_response for encoded in chat.encode_many(some, LONGEST))
        return sum(
            map(
                len,
                chat.tokenizer([str(row["response"]) for row in some], add_special_tokens=False)["input_ids"],
            )
        )

    tokens(rows[:100])
    before, started = thread_seconds(), time.perf_counter()
    total = tokens(rows)
    passed = time.perf_counter() - started
    spent = {thread: seconds - before.get(thread, 0.0) for thread, seconds in thread_seconds().items()}
    return total / passed, total / (spent.pop(str(os.getpid())) + max(spent.values(), default=0.0))


def measured(tokenizer: Path, questions: int, variant: str, threads: int) -> tuple[float, ...]:
    """`rates` in a process with this number of threads."""
    env = {**os.environ, "TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": str(threads)}
    program = [sys.executable, "-m", "experiments.bench.tokenising"]
    arguments = [*program, "--tokenizer", str(tokenizer), "--questions", str(questions), "--measure", variant]
    return tuple(
        map(
            float,
            subprocess.run(arguments, env=env, capture_output=True, text=True, check=True).stdout.split(),
        )
    )


def main() -> None:
    log_to()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tokenizer", type=Path, default=DEMO, help="a folder with a tokenizer and a chat template"
    )
    parser.add_argument(
        "--questions",
        type=int,
        default=QUESTIONS,
        help="questions of the demo pool, with 33 trajectories each",
    )
    parser.add_argument("--quick", action="store_true", help="one round instead of three")
    parser.add_argument("--measure", choices=(OURS, CALL), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        sys.stdout.write("{} {}".format(*rates(arguments.tokenizer, arguments.measure, arguments.questions)))
        return
    cores = usable_cores()
    threads = sorted({cores, *(2**i for i in range(cores.bit_length()))})
    kinds = [(variant, count) for variant in (OURS, CALL) for count in threads]
    best: dict[tuple[str, int], tuple[float, ...]] = dict.fromkeys(kinds, (0.0, 0.0))
    for _ in range(1 if arguments.quick else 3):
        for kind in kinds:
            best[kind] = tuple(
                map(max, best[kind], measured(arguments.tokenizer, arguments.questions, *kind))
            )
    rows = []
    for name, count in kinds:
        clock, path = (
            f"{ours / one:.2f}" for ours, one in zip(best[name, count], best[name, 1], strict=True)
        )
        rows.append([name, str(count), f"{best[name, count][0]:.0f}", clock, path])
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "tokenising.csv").open("w", newline="", encoding="utf-8") as handle:
        csv.writer(handle).writerows(
            [
                ["variant", "threads", "tokens_per_second", "ratio_to_one_thread", "ratio_by_processor_time"],
                *rows,
            ]
        )
    log.info(
        "%s",
        text_table(["tokenising", "threads", "tokens/s", "ratio to one thread", "by processor time"], rows),
    )


if __name__ == "__main__":
    run_main(main)
