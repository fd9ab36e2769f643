"""How busy the endpoint engine keeps a vLLM server on this machine, compared with vLLM's own client.

Run as: python -m experiments.bench.endpoint [--quick]
Time: 8 minutes on 2 cores, 4 with --quick (128 prompts instead of 512).
Expect: at least 90% of the tokens per second that `vllm bench serve` gets from the same server with the same
prompts, lengths and number of requests in flight, in the same run. Writes outputs/bench/endpoint.csv.

The server runs the demo's student and is not restarted. Both clients take turns, and every answer has exactly
TOKENS tokens.
"""

import json
import logging
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from experiments.bench._output import command_line, table, verdict, write_csv
from lark.config.teacher import Teacher
from lark.demo.problems import draw, seeded
from lark.demo.vllm_server import run, serving
from lark.errors import LarkError
from lark.generation.conversation import Ask, AskSampling
from lark.generation.endpoint import EndpointTeacher
from lark.models.shapes import DEMO
from lark.printing import log_to
from lark.work.entry import run_main

log = logging.getLogger("bench.endpoint")
TOKENS = 256
"""Few for a rollout, and most of what the student's context leaves."""
IN_FLIGHT = 32
ROUNDS = 3
"""The median counts: on shared cores, single rounds differ by half."""
LEAST = 0.9
"""The least share of the throughput of vLLM's own client."""


@dataclass(frozen=True)
class Round:
    """One row of the table."""

    number: int
    requests: int
    ours: float
    """Generated tokens per second with lark/generation/endpoint.py."""
    theirs: float
    """The same with `vllm bench serve`."""

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


COLUMNS = {
    "round": "{r.number}",
    "requests": "{r.requests:,}",
    "endpoint_tokens_per_s": "{r.ours:,.0f}",
    "vllm_bench_tokens_per_s": "{r.theirs:,.0f}",
    "ratio": "{r.ratio:.2f}",
}


def ours(address: str, prompts: Sequence[str]) -> float:
    """Tokens per second of our engine."""
    settings = Teacher(
        endpoint=address, model="demo", concurrency=IN_FLIGHT, max_new_tokens=TOKENS, thinking="none",
        extra={"ignore_eos": True}, temperature=1.0, top_p=1.0,
    )  # fmt: skip
    asks = [Ask(({"role": "user", "content": prompt},), seed) for seed, prompt in enumerate(prompts)]
    teacher = EndpointTeacher("bench", settings)
    start = time.perf_counter()
    tokens = 0
    for _, samples in teacher.ask(asks, AskSampling.of(settings)):
        assert isinstance(samples, list)
        tokens += sum(sample.n_tokens for sample in samples)
    seconds = time.perf_counter() - start
    teacher.close()
    require_tokens(tokens, len(prompts))
    return tokens / seconds


def theirs(address: str, prompts: Sequence[str], folder: Path) -> float:
    """Tokens per second of vLLM's client."""
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    result = folder / "result.json"
    run(
        [
            "bench", "serve", "--backend", "openai-chat", "--base-url", address.removesuffix("/v1"),
            "--endpoint", "/v1/chat/completions", "--model", "demo", "--tokenizer", str(DEMO),
            "--dataset-name", "custom", "--dataset-path", str(file), "--custom-output-len", str(TOKENS),
            "--num-prompts", str(len(prompts)), "--max-concurrency", str(IN_FLIGHT), "--ignore-eos",
            "--skip-chat-template", "--temperature", "1.0", "--disable-tqdm", "--disable-shuffle",
            "--save-result", "--result-dir", str(folder), "--result-filename", result.name,
        ],
        folder / "bench.log",
    )  # fmt: skip
    values = json.loads(result.read_text())
    require_tokens(values["total_output_tokens"], len(prompts))
    return float(values["output_throughput"])


def require_tokens(tokens: int, requests: int) -> None:
    """Refuse a comparison of different work."""
    if tokens != requests * TOKENS:
        raise LarkError(f"The server generated {tokens:,} tokens instead of {requests * TOKENS:,}.")


def main() -> None:
    parser = command_line(__doc__, "128 prompts")
    is_quick = parser.parse_args().quick
    log_to()
    count = 128 if is_quick else 512
    rng = seeded("bench", "endpoint")
    prompts = [draw("word", 1, rng).question for _ in range(count)]
    results = []
    with (
        tempfile.TemporaryDirectory() as name,
        serving(DEMO, Path(name) / "log") as address,
    ):
        ours(address, prompts[:IN_FLIGHT])  # not measured: the first requests of a server are slow
        for number in range(ROUNDS):
            results.append(
                Round(number + 1, count, ours(address, prompts), theirs(address, prompts, Path(name)))
            )
    ratio = median(result.ratio for result in results)
    log.info("%s", table(results, COLUMNS, right=0))
    log.info(
        "\n%.2f of the throughput of vLLM's own client on %d cores, at least %.2f: %s",
        ratio, os.cpu_count() or 1, LEAST, verdict(ratio >= LEAST),
    )  # fmt: skip
    write_csv(results, "endpoint.csv")


if __name__ == "__main__":
    run_main(main)
