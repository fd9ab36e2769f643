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
import logging
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer

from experiments.bench._output import command_line, table, write_csv
from lark.demo.pool import trajectories
from lark.models.chat import ChatFormat
from lark.models.students import DEMO
from lark.printing import log_to
from lark.work.entry import run_main
from lark.work.machine import usable_cores

log = logging.getLogger("bench.tokenising")
QUESTIONS = 20
COPIES = 50
LONGEST = 32_768
OURS = "ours"
CALL = "transformers"


@dataclass(frozen=True)
class RateResult:
    """One row of the table, with the precision that the measurement has."""

    variant: str
    threads: int
    tokens_per_second: str
    ratio_to_one_thread: str
    ratio_by_processor_time: str


COLUMNS = {
    "tokenising": "{r.variant}",
    "threads": "{r.threads}",
    "tokens/s": "{r.tokens_per_second}",
    "ratio to one thread": "{r.ratio_to_one_thread}",
    "by processor time": "{r.ratio_by_processor_time}",
}


def thread_seconds() -> dict[str, float]:
    """Processor time of each thread of this process, by thread id."""
    seconds = {}
    for task in Path("/proc/self/task").iterdir():
        nanoseconds = (task / "schedstat").read_text().split()[0]
        seconds[task.name] = int(nanoseconds) / 1e9
    return seconds


def rates(tokenizer: Path, variant: str, questions: int) -> tuple[float, float]:
    """Response tokens per second of this process: by the clock, and by its critical path. Threads and
    caches exist before.
    """
    chat = ChatFormat(AutoTokenizer.from_pretrained(tokenizer))
    rows = [{**row, "response": f"{row['response']}\n" * COPIES} for row in trajectories(questions, seed=0)]

    def count_tokens(some: list[dict[str, object]]) -> int:
        if variant == OURS:
            return sum(encoded.n_response for encoded in chat.encode_many(some, LONGEST))
        responses = [str(row["response"]) for row in some]
        return sum(map(len, chat.tokenizer(responses, add_special_tokens=False)["input_ids"]))

    count_tokens(rows[:100])
    before = thread_seconds()
    started = time.perf_counter()
    total = count_tokens(rows)
    passed = time.perf_counter() - started
    spent = {thread: seconds - before.get(thread, 0.0) for thread, seconds in thread_seconds().items()}
    critical = spent.pop(str(os.getpid())) + max(spent.values(), default=0.0)
    return total / passed, total / critical


def measured(tokenizer: Path, questions: int, variant: str, threads: int) -> tuple[float, float]:
    """`rates` in a process with this number of threads."""
    env = {**os.environ, "TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": str(threads)}
    program = [sys.executable, "-m", "experiments.bench.tokenising", "--measure", variant]
    command = [*program, "--tokenizer", str(tokenizer), "--questions", str(questions)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    clock, path = done.stdout.split()
    return float(clock), float(path)


def main() -> None:
    log_to()
    parser = command_line(__doc__, "one round instead of three")
    parser.add_argument(
        "--tokenizer", type=Path, default=DEMO, help="a folder with a tokenizer and a chat template"
    )
    parser.add_argument(
        "--questions",
        type=int,
        default=QUESTIONS,
        help="questions of the demo pool, with 33 trajectories each",
    )
    parser.add_argument("--measure", choices=(OURS, CALL), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        clock, path = rates(arguments.tokenizer, arguments.measure, arguments.questions)
        sys.stdout.write(f"{clock} {path}")
        return
    cores = usable_cores()
    counts = sorted({cores, *(2**power for power in range(cores.bit_length()))})
    cases = [(variant, threads) for variant in (OURS, CALL) for threads in counts]
    best = dict.fromkeys(cases, (0.0, 0.0))
    for _ in range(1 if arguments.quick else 3):
        for case in cases:
            clock, path = measured(arguments.tokenizer, arguments.questions, *case)
            best[case] = max(best[case][0], clock), max(best[case][1], path)
    results = []
    for variant, threads in cases:
        clock, path = best[variant, threads]
        clock_of_one, path_of_one = best[variant, 1]
        ratios = f"{clock / clock_of_one:.2f}", f"{path / path_of_one:.2f}"
        results.append(RateResult(variant, threads, f"{clock:.0f}", *ratios))
    write_csv(results, "tokenising.csv")
    log.info("%s", table(results, COLUMNS, right=1))


if __name__ == "__main__":
    run_main(main)
