"""The planner's rates against measurements on CPU: predicted over measured seconds of scoring and training.

Run as: python -m experiments.bench.planner                                       the demo's student
        python -m experiments.bench.planner outputs/student/smollm2-<fingerprint>  a student's folder

Both sides are processor time of one thread, so that a busy machine does not matter. The rate of a matrix
product is measured just before and just after, as `dry_run=true` measures it; the work in between is the
real scoring pass and the real loss.
"""

import argparse
import logging
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from lark.config import Student as StudentConfig
from lark.models.chat import Encoded
from lark.models.shapes import Shape
from lark.models.students import DEMO
from lark.planner import costs
from lark.planner import throughput as figures
from lark.printing import log_to
from lark.scoring.forward import LoadedStudent, response_statistics
from lark.training.loss import weighted_loss
from lark.work.entry import run_main

log = logging.getLogger(__name__)
PROMPT = 80
REPEATS = 3


def matrix_rate(seconds: float = 2.0) -> float:
    """Operations per second of processor time, as `figures.core_tflops` measures them in wall-clock time on
    an idle machine.
    """
    a = np.random.default_rng(0).random((1024, 1024), dtype=np.float32)
    best, started = np.inf, time.process_time()
    while time.process_time() - started < seconds:
        before = time.process_time()
        a @ a
        best = min(best, time.process_time() - before)
    return 2 * 1024**3 / best


def main() -> None:
    log_to()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, default=DEMO, help="a student's folder (default: the demo's)"
    )
    parser.add_argument("--quick", action="store_true", help="measure once instead of three times")
    arguments = parser.parse_args()
    if not (arguments.folder / "config.json").is_file():
        parser.error(f"{arguments.folder}: not a student's folder (it has no config.json)")
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(arguments.folder, dtype=torch.float32)
    shape = Shape.of(model.config.to_dict())
    length = min(320, shape.context)
    count = 4 if shape.parameters > 1e7 else 64
    ids = torch.randint(0, shape.vocabulary, (count, length)).tolist()
    batch = [Encoded(row, PROMPT, False) for row in ids]
    flops = costs.forward_flops(shape, np.full(count, length), np.full(count, length - PROMPT))

    config = StudentConfig(name="student", path=str(arguments.folder), dtype="float32", max_length=length)
    scorer = LoadedStudent.load(str(arguments.folder), config, "cpu")

    def score() -> None:
        list(response_statistics(scorer, batch))

    def train() -> None:
        tokens = torch.tensor(ids)
        targets = torch.cat([tokens[:, 1:], torch.full((count, 1), -100)], dim=1)
        targets[:, : PROMPT - 1] = -100
        hidden = model.train().base_model(input_ids=tokens, use_cache=False).last_hidden_state
        segment = torch.arange(count).repeat_interleave(length)
        lengths = torch.full((count,), length - PROMPT)
        loss, _ = weighted_loss(
            hidden.flatten(0, 1),
            model.get_output_embeddings().weight,
            targets.flatten(),
            segment,
            torch.ones(count),
            lengths,
            count,
        )
        loss.backward()
        model.zero_grad()

    work = {
        "score": ("forward", score, flops.forward),
        "train": ("training", train, flops.training(recompute=False, frozen=False)),
    }
    for name, (kind, function, operations) in work.items():
        function()
        rates, taken = [matrix_rate()], []
        for _ in range(1 if arguments.quick else REPEATS):
            before = time.process_time()
            function()
            taken.append(time.process_time() - before)
        rates.append(matrix_rate())
        predicted = operations / (max(rates) * figures.efficiency("cpu", kind, shape, max(rates) / 1e12))
        log.info(
            "%-6s predicted %.2f s, took %.2f s (%.0f tokens/s): ratio %.2f; matrix product %.1f GFLOP/s",
            name, predicted, min(taken), count * length / min(taken), predicted / min(taken), max(rates) / 1e9,
        )  # fmt: skip


if __name__ == "__main__":
    run_main(main)
