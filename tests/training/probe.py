"""What the optimizer is really given: one step of plain SGD with a large rate turns the gradient into the change of weights.

Run as: torchrun --nproc_per_node=2 -m tests.training.probe <student> <selection> <folder> <cases.json>
Each case is a name and the settings to run with; the results are written to <folder>/results.json.
"""

import json
import os
import sys
from pathlib import Path

import torch
from accelerate.state import AcceleratorState
from torch import Tensor
from transformers import AutoModelForCausalLM

from lark.training.worker import Run, prepare
from tests.training.tiny import direct_gradient, make_job, relative_error

RATE = 1024.0
"""A power of two, so large that the weights before the step are no more than rounding beside it."""
PLAIN = [f"training.learning_rate={RATE}", "training.schedule=constant", "training.warmup=0", "training.max_grad_norm=1e9"]


def prepared(student: Path, selection: Path, folder: Path, *overrides: str) -> Run:
    AcceleratorState._reset_state(reset_partial_state=True)  # one process tries several ways to train
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    return prepare(make_job(student, selection, folder, *overrides, rank=rank, world=world))


def gradient(student: Path, selection: Path, folder: Path, *overrides: str) -> tuple[dict[str, Tensor], Run]:
    """Of one step over the whole training set, as the optimizer of these settings got it; on the main process."""
    run = prepared(student, selection, folder, *PLAIN, *overrides)
    run.trainer.args.optim = "sgd"
    run.trainer.train()
    before = AutoModelForCausalLM.from_pretrained(student).state_dict()
    after = run.exporter._state(needed=True)
    return {name: (before[name] - value) / RATE for name, value in after.items()}, run


def main() -> None:
    student, selection, folder, cases = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    exact = direct_gradient(student, selection)
    results = {}
    for name, overrides in json.loads(cases.read_text()).items():
        ours, run = gradient(student, selection, folder / name, *overrides)
        micro_steps = len(run.trainer.batches.steps[0].micro[0])
        results[name] = {"error": relative_error(ours, exact) if ours else 0.0, "micro_steps": micro_steps}
    if os.environ.get("RANK", "0") == "0":
        (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
