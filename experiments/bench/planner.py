"""The planner's rates against measurements on CPU: predicted over measured seconds of scoring and training.

Run as: python -m experiments.bench.planner                                       the demo's student
        python -m experiments.bench.planner outputs/student/smollm2-<fingerprint>  a student's folder

Both sides are processor time of one thread, so that a busy machine does not matter. The rate of a matrix
product is measured just before and just after, as `dry_run=true` measures it; the work in between is the
real scoring pass and the real loss.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from experiments.bench._measuring import timed
from experiments.bench._output import command_line
from lark.config import Student as StudentConfig
from lark.models.chat import Encoded
from lark.models.shapes import Shape
from lark.models.students import DEMO
from lark.planner import costs
from lark.planner.throughput import efficiency
from lark.printing import log_to
from lark.scoring.forward import LoadedStudent, response_statistics
from lark.training.loss import weighted_loss
from lark.work.entry import run_main

log = logging.getLogger(__name__)
PROMPT = 80
REPEATS = 3


def matrix_rate(seconds: float = 2.0) -> float:
    """Operations per second of processor time, as `throughput.core_tflops` measures them in wall-clock time
    on an idle machine.
    """
    a = np.random.default_rng(0).random((1024, 1024), dtype=np.float32)
    best = np.inf
    started = time.process_time()
    while time.process_time() - started < seconds:
        best = min(best, timed(lambda: a @ a)[0])
    return 2 * 1024**3 / best


def train(model: PreTrainedModel, tokens: torch.Tensor) -> None:
    """Forward and backward pass of the loss."""
    count, length = tokens.shape
    targets = torch.cat([tokens[:, 1:], torch.full((count, 1), -100)], dim=1)
    targets[:, : PROMPT - 1] = -100
    hidden = model.train().base_model(input_ids=tokens, use_cache=False).last_hidden_state
    loss, *_ = weighted_loss(
        hidden.flatten(0, 1),
        model.get_output_embeddings().weight,
        targets.flatten(),
        torch.arange(count).repeat_interleave(length),
        torch.ones(count),
        torch.full((count,), length - PROMPT),
        count,
    )
    loss.backward()
    model.zero_grad()


def main() -> None:
    log_to()
    parser = command_line(__doc__, "measure once instead of three times")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=DEMO, help="a student's folder (default: the demo's)"
    )
    arguments = parser.parse_args()
    if not (arguments.folder / "config.json").is_file():
        parser.error(f"{arguments.folder}: not a student's folder (it has no config.json)")
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(arguments.folder, dtype=torch.float32)
    shape = Shape.of(model.config.to_dict())
    length = min(320, shape.context)
    count = 4 if shape.parameters > 1e7 else 64
    ids = torch.randint(0, shape.vocabulary, (count, length))
    batch = [Encoded(row, PROMPT, False) for row in ids.tolist()]
    config = StudentConfig(name="student", path=str(arguments.folder), dtype="float32", max_length=length)
    scorer = LoadedStudent.load(str(arguments.folder), config, "cpu")
    repeats = 1 if arguments.quick else REPEATS

    def report(name: str, kind: str, work: Callable[[], object], operations: float) -> None:
        work()
        rate = matrix_rate()
        seconds = min(timed(work)[0] for _ in range(repeats))
        rate = max(rate, matrix_rate())
        predicted = operations / (rate * efficiency("cpu", kind, shape, rate / 1e12))
        log.info(
            "%-6s predicted %.2f s, took %.2f s (%.0f tokens/s): ratio %.2f; matrix product %.1f GFLOP/s",
            name, predicted, seconds, count * length / seconds, predicted / seconds, rate / 1e9,
        )  # fmt: skip

    flops = costs.forward_flops(shape, np.full(count, length), np.full(count, length - PROMPT))
    report("score", "forward", lambda: list(response_statistics(scorer, batch)), flops.forward)
    report("train", "training", lambda: train(model, ids), flops.training(recompute=False, frozen=False))


if __name__ == "__main__":
    run_main(main)
