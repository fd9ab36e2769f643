"""float32 and bfloat16 on this CPU: scoring, training and generation of SmolLM2, and the agreement of ĝ.

Run as: python -m experiments.bench.precision [--quick] [--rounds 3] [--only scoring] [--threads 1]
            [--pool <jsonl>] [--student <folder>]
Time: about 12 minutes on 2 idle cores, 3 minutes with --quick (fewer trajectories, one round). On a busy
machine use --threads 1: it then measures processor time.
Expect on a CPU with AVX-512 BF16 or AMX: the ratios of `GOALS`. On other CPUs bfloat16 is slower than
float32, which is why `student.dtype=auto` is float32 there.
Writes outputs/bench/precision.csv.

Every way gets the same tokens of a real pool (--pool; random tokens without one), in rounds whose order
rotates. Ratios are within a round; their median is reported. `PyTorch, float32` is what LARK did before
lark/models/cpu_linear.py multiplied in training and generation: products of MKL, and AdamW in several passes.

    agreement   ĝ of all candidates of 20 questions: Spearman within questions, and Recall@3.
    scoring     all statistics of the response tokens; `vLLM`: `prompt_logprobs=0` in bfloat16.
    training    one step of 8 trajectories: forward, backward, clipping, AdamW. `TRL`: its SFTTrainer on the
                same tokens, which pads them.
    generation  answers of 48 tokens with engine=hf.

Workers run with the environment of lark/work/process.py, and so does this program: it starts itself again.
"""

import argparse
import contextlib
import importlib.util
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

import numpy as np
import torch
from scipy.stats import spearmanr

from experiments.bench._measuring import in_turns, ratios, timed, with_threads
from experiments.bench._mixed_pool import LONGEST, Pool, all_of, length, pool_at
from experiments.bench._output import FOLDER, command_line, table, verdict, write_csv
from experiments.bench._training_steps import BATCH, StepPlace, our_step, trl_step
from experiments.bench.mixed_lengths import POOL, opened_engine, packed, student_folder, with_vllm
from lark.config import EngineSettings, Student
from lark.generation.engine import Request, Sampling, answers
from lark.generation.hf import HFEngine
from lark.models.load import load_chat
from lark.printing import log_to
from lark.processors import cpu_multiplies_bfloat16
from lark.scoring.forward import LoadedStudent, response_statistics
from lark.scoring.learnability import learnability_score
from lark.work.entry import run_main
from lark.work.machine import Machine
from lark.work.process import environment

log = logging.getLogger("bench.precision")
FLOAT = "float32"
HALF = "bfloat16"
PLAIN = "PyTorch, float32"
VLLM = "vLLM, bfloat16"
TRL_FLOAT = "TRL, float32"
TRL_HALF = "TRL, bfloat16"
GOALS = {
    ("scoring", FLOAT): 1.8, ("scoring", VLLM): 1.2,
    ("training", FLOAT): 1.6, ("training", TRL_FLOAT): 2.0,
    ("generation", FLOAT): 1.3,
}  # fmt: skip
"""How many times as fast as these ways bfloat16 should be."""
SPEARMAN, RECALL = 0.99, 0.95
TOP = 3
NEW_TOKENS = 48
Work = Callable[[], object]


@dataclass(frozen=True)
class PrecisionResult:
    """One row of the table. `ratio`: this way's time over that of bfloat16, so more than 1 is slower."""

    part: str
    way: str
    seconds: float
    tokens_per_second: float
    ratio: float
    lowest: float
    highest: float


COLUMNS = {
    "part": "{r.part}",
    "way": "{r.way}",
    "seconds": "{r.seconds:.2f}",
    "tokens/s": "{r.tokens_per_second:,.0f}",
    "bf16 is faster by": "{r.ratio:.2f}",
    "lowest-highest": "{r.lowest:.2f}-{r.highest:.2f}",
}


@contextlib.contextmanager
def plain_products() -> Iterator[None]:
    """Nothing is large enough for oneDNN or for a fused AdamW."""
    limits = ("lark.models.cpu_linear.LARGE", "lark.generation.hf.LARGE", "lark.training.trainer.FUSED_FROM")
    with contextlib.ExitStack() as stack:
        for limit in limits:
            stack.enter_context(patch(limit, sys.maxsize))
        yield


def in_plain(work: Work) -> object:
    with plain_products():
        return work()


@dataclass(frozen=True)
class Bench:
    """What all parts share."""

    folder: str
    pool: Pool
    rounds: int
    threads: int
    quick: bool

    def student(self, dtype: str) -> Student:
        # vLLM needs room for the one token that it generates.
        return Student(name="smollm2", path=self.folder, dtype=dtype, max_length=LONGEST + 1)

    def loaded(self, dtype: str) -> LoadedStudent:
        return LoadedStudent.load(self.folder, self.student(dtype), "cpu")

    def measured(self, part: str, ways: Mapping[str, Work], tokens: int) -> list[PrecisionResult]:
        """Measure every way in every round, after one run that is not measured."""
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(-1, self.rounds):
            for way in in_turns(ways, turn):
                torch.set_num_threads(self.threads)  # an engine may have changed it
                spent, _ = timed(ways[way])
                if turn >= 0:
                    seconds[way].append(spent)
            log.info("%s: round %d of %d", part, turn + 1, self.rounds)
        results = []
        for way, spents in seconds.items():
            middle = median(spents)
            speed = ratios(spents, seconds[HALF])
            results.append(PrecisionResult(part, way, middle, tokens / middle, *speed))
        return results


def agreement(bench: Bench) -> list[PrecisionResult]:
    """Compare ĝ in both precisions. It has no times."""
    questions = dict(list(bench.pool.items())[: 6 if bench.quick else 20])
    labels = np.repeat(list(questions), [len(candidates) for candidates in questions.values()])
    scores = {}
    for dtype in (FLOAT, HALF):
        student = bench.loaded(dtype)
        rows = []
        for candidates in questions.values():
            for s in response_statistics(student, candidates):
                rows.append((float(s.surprisal.mean()), float(s.residual.sum() / s.surprisal.sum())))
        losses, rhos = zip(*rows, strict=True)
        scores[dtype] = learnability_score(losses, rhos, labels)
    correlations = []
    recalls = []
    for question in questions:
        exact, rounded = (scores[dtype][labels == question] for dtype in (FLOAT, HALF))
        correlations.append(float(spearmanr(exact, rounded).statistic))
        both = set(np.argsort(-exact)[:TOP]) & set(np.argsort(-rounded)[:TOP])
        recalls.append(len(both) / TOP)
    reached = verdict(bool(np.mean(correlations) >= SPEARMAN and np.mean(recalls) >= RECALL))
    log.info(
        "agreement on %d questions, %d candidates: Spearman %.4f (lowest %.4f), Recall@%d %.3f: %s",
        len(questions), len(labels), np.mean(correlations), min(correlations), TOP, np.mean(recalls), reached,
    )  # fmt: skip
    return []


def scoring(bench: Bench) -> list[PrecisionResult]:
    """All statistics, beside vLLM's surprisals in bfloat16."""
    trajectories = all_of(bench.pool)[: 18 if bench.quick else 72]
    ways: dict[str, Work] = {}
    for dtype in (FLOAT, HALF):
        ways[dtype] = partial(packed(bench.loaded(dtype)), trajectories)
    with plain_products():
        head_by_mkl = bench.loaded(FLOAT)
    ways[PLAIN] = partial(packed(head_by_mkl), trajectories)
    config = bench.student(HALF)
    engine = opened_engine(config, load_chat(bench.folder, config))
    if engine is not None:
        ways[VLLM] = partial(with_vllm(engine.llm), trajectories)
    results = bench.measured("scoring", ways, sum(map(length, trajectories)))
    if engine is not None:
        engine.close()
    return results


def training(bench: Bench) -> list[PrecisionResult]:
    """One optimisation step, beside TRL's."""
    trajectories = all_of(bench.pool)[:: len(bench.pool)][:BATCH]
    with tempfile.TemporaryDirectory() as scratch:
        place = StepPlace(bench.folder, bench.threads, Path(scratch))
        ours = partial(our_step, place, trajectories)
        with plain_products():
            plain = partial(in_plain, ours(FLOAT))
        ways: dict[str, Work] = {FLOAT: ours(FLOAT), HALF: ours(HALF), PLAIN: plain}
        if importlib.util.find_spec("trl") is not None:
            ways[TRL_FLOAT] = trl_step(place, trajectories, FLOAT)
            ways[TRL_HALF] = trl_step(place, trajectories, HALF)
        return bench.measured("training", ways, sum(map(length, trajectories)))


def generation(bench: Bench) -> list[PrecisionResult]:
    """Answers of equal length: no token ends them."""
    prompts = [encoded.ids[: encoded.prompt_length] for encoded in all_of(bench.pool)[::9]]
    requests = [Request(tuple(ids), seed, NEW_TOKENS) for seed, ids in enumerate(prompts)]
    requests = requests[: 16 if bench.quick else 64]
    sampling = Sampling(0.6, 0.95, -1, 1.1, samples=2, stop_ids=())

    def way(dtype: str) -> Work:
        student = bench.student(dtype)
        tokenizer = load_chat(bench.folder, student).tokenizer
        engine = HFEngine(EngineSettings(name="hf"), student, bench.folder, tokenizer, "cpu")
        return partial(answers, engine, requests, sampling)

    with plain_products():
        plain = way(FLOAT)
    ways = {FLOAT: way(FLOAT), HALF: way(HALF), PLAIN: plain}
    return bench.measured("generation", ways, len(requests) * sampling.samples * NEW_TOKENS)


PARTS: dict[str, Callable[[Bench], list[PrecisionResult]]] = {
    "agreement": agreement,
    "training": training,
    "generation": generation,
    "scoring": scoring,
}
"""vLLM last: it changes the settings of its process."""


def report(results: Sequence[PrecisionResult]) -> None:
    log.info("\n%s\n", table(results, COLUMNS, right=2))
    for r in results:
        goal = GOALS.get((r.part, r.way))
        if goal is not None:
            reached = verdict(r.ratio >= goal)
            log.info("%s: %.2f times as fast as %s (goal %.1f): %s", r.part, r.ratio, r.way, goal, reached)


def restart_as_worker(threads: int) -> None:
    """Run this program in the environment of a worker, which libraries read when they are loaded."""
    env = environment(Machine("cpu", 1, 1, threads))
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        os.execve(sys.executable, [sys.executable, "-m", "experiments.bench.precision", *sys.argv[1:]], env)


def settings() -> argparse.Namespace:
    parser = with_threads(command_line(__doc__, "fewer trajectories, one round"))
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each comparison (default: 3)")
    parser.add_argument("--only", choices=list(PARTS), help="one of the parts (default: all)")
    parser.add_argument(
        "--pool", type=Path, default=POOL, help=f"real trajectories (default: {POOL}, if it exists)"
    )
    parser.add_argument("--student", type=Path, help="a student's folder (default: SmolLM2)")
    return parser.parse_args()


def main() -> None:
    log_to()
    arguments = settings()
    restart_as_worker(arguments.threads)
    if not cpu_multiplies_bfloat16():
        log.warning("This CPU has no instructions for bfloat16: student.dtype=auto is float32 here.")
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = str((arguments.student or student_folder()).resolve())
    torch.set_num_threads(arguments.threads)
    config = Student(name="smollm2", path=folder, max_length=LONGEST)
    chat = load_chat(folder, config)
    pool = pool_at(arguments.pool, chat, len(chat.tokenizer))
    rounds = 1 if arguments.quick else arguments.rounds
    bench = Bench(folder, pool, rounds, arguments.threads, arguments.quick)
    results: list[PrecisionResult] = []
    for name, part in PARTS.items():
        if arguments.only in (None, name):
            results += part(bench)
            if results:
                write_csv(results, "precision.csv")
    report(results)


if __name__ == "__main__":
    run_main(main)
