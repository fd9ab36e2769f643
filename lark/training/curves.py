"""The record of a training run: every step's numbers in `metrics.jsonl`, the held-out loss, snapshots."""

import json
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lark.errors import LarkError
from lark.reading.untrusted import parse_object
from lark.store.store import write_text
from lark.training.batches import GlobalBatch
from lark.training.checkpoints import HELD_OUT_LOSSES, LOSSES
from lark.training.measures import Measures, Recorder, finite, weighted_mean

if TYPE_CHECKING:
    from lark.training.trainer import WeightedTrainer

log = logging.getLogger(__name__)


class Curves(TrainerCallback):
    """One line of `metrics.jsonl` per step: loss, token accuracy, gradient norm, learning rate, speed, and
    held-out measures if due; and one of `losses.jsonl`: loss and token accuracy of each trajectory.

    The pipeline mirrors the file to W&B. All processes take part (the held-out loss is shared work); only
    the main one writes.
    """

    def __init__(
        self, trainer: "WeightedTrainer", path: Path, epochs: int, held_out: "HeldOutLoss | None" = None
    ) -> None:
        self.trainer = trainer
        self.path = path
        self.losses = path.with_name(LOSSES)
        self.epochs = epochs
        self.held_out = held_out
        self.writes = trainer.is_world_process_zero()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.writes:
            for path in (self.path, self.losses):
                keep_steps(path, state.global_step or -1)  # a run from the start measures step 0 again
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, desc="training", unit="step")
        if self.held_out is not None and state.global_step == 0:
            self._append(self.path, {"step": 0, "epoch": 0.0, **self.held_out()})

    # The clock runs from here to the end of the step. Snapshots (a callback after this one), the held-out
    # loss and checkpoints happen between two steps; the clock restarts after each of them.

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.begun = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if args.device.type == "cuda":
            torch.cuda.synchronize(args.device)
        self.seconds = max(time.perf_counter() - self.begun, 1e-9)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.begun = time.perf_counter()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Any = None,
        **_: Any,
    ) -> None:
        if "loss" not in logs:
            return
        step = state.global_step
        last = step == state.max_steps
        rate = self.trainer.batches.tokens(step - 1) / self.seconds
        skipped = self.trainer.skipped.get(step)
        measures = self.trainer.measures()
        line: dict[str, Any] = {
            "step": step,
            "epoch": round(self.epochs * step / state.max_steps, 4),
            "loss": logs["loss"],
            "token_accuracy": measures.token_accuracy,
            "grad_norm": logs["grad_norm"],
            "learning_rate": logs["learning_rate"],
            "tokens_per_second": round(rate),
        }
        if skipped:
            # The Trainer's running loss has 0 for a skipped step (`training_step`), not a measurement.
            line |= {"loss": None, "token_accuracy": None, "grad_norm": None, "skipped": skipped}
        if self.held_out is not None and (last or step % self.held_out.every == 0):
            line |= self.held_out()
            if last and self.writes:
                self.held_out.write(self.path.with_name(HELD_OUT_LOSSES))
        # Rounded up: an epoch's steps are 1 to `per_epoch`, not 0 to `per_epoch` - 1.
        epoch = -(-step * self.epochs // state.max_steps)
        self._append(self.losses, {"step": step, "epoch": epoch, "trajectories": measures.rows()})
        self._append(self.path, line)
        if self.writes:
            loss = "–" if skipped else f"{logs['loss']:.4f}"
            self.bar.set_postfix_str(f"loss {loss}, {rate:,.0f} tok/s")
            self.bar.update(step - self.bar.n)
        self.begun = time.perf_counter()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.writes:
            self.bar.close()

    def _append(self, path: Path, line: dict[str, Any]) -> None:
        if not self.writes:
            return
        for key, value in line.items():
            if isinstance(value, float):
                line[key] = finite(value)  # JSON has no NaN
        with path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(line) + "\n")


class HeldOutLoss:
    """1/N Σ_i w_i ℓ_i over N fixed trajectories with the current weights: the objective on other data; and
    their token accuracy.

    ℓ is the mean surprisal of a response under any training.objective.
    """

    def __init__(self, trainer: "WeightedTrainer", batch: GlobalBatch, every: int) -> None:
        """`batch` is this process's share."""
        self.trainer = trainer
        self.batch = batch
        self.every = every
        self.measures: Measures
        """Of each trajectory of the batch, when it was last measured."""

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        trainer = self.trainer
        model = trainer.model_wrapped
        model.eval()
        recorder = Recorder()
        for micro in self.batch.micro:
            with trainer.compute_loss_context_manager():
                _, losses, accuracies = model(micro.to(trainer.args.device), self.batch.size)
            recorder.add(losses, accuracies)
        model.train()
        self.measures = recorder.gather(self.batch)
        return {
            "held_out_loss": weighted_mean(self.measures),
            "held_out_token_accuracy": self.measures.token_accuracy,
        }

    def write(self, path: Path) -> None:
        """Write the loss and accuracy of each trajectory, as last measured, one JSON object per line."""
        write_text(path, "".join(json.dumps(row) + "\n" for row in self.measures.rows()))


class Snapshots(TrainerCallback):
    """Saves the student at given steps, which may include step 0."""

    def __init__(self, steps: Sequence[int], save: Callable[[int], None]) -> None:
        self.steps = frozenset(steps)
        self.save = save

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.global_step in self.steps:
            self.save(state.global_step)

    on_step_end = on_train_begin


def snapshot_steps(count: int, steps: int, early: int = 0) -> list[int]:
    """`count` evenly spaced steps from 0 to `steps`, and `early` more in the first tenth."""
    first_tenth = math.ceil(steps / 10)
    return sorted({*_evenly_spaced(count, steps), *_evenly_spaced(early, first_tenth)})


def _evenly_spaced(count: int, last: int) -> list[int]:
    """`count` steps from 0 to `last`, both included."""
    if count > last:
        return list(range(last + 1))
    return [round(k * last / (count - 1)) for k in range(count)]


def keep_steps(path: Path, last: int) -> None:
    """Remove lines of steps after the checkpoint that training resumes from, and unreadable lines."""
    if not os.path.lexists(path):
        return
    lines = [json.dumps(line) + "\n" for line in read_curve(path, report=True) if line["step"] <= last]
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    write_text(path, "".join(lines))


def read_curve(path: Path, report: bool = False) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`, without an incomplete last line, damaged lines and repeated steps.

    `report`: log damaged lines. They are only a record: the run does not depend on them.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        if report:
            log.warning("%s cannot be read (%s): it starts over.", path, error.strerror)
        return []
    by_step: dict[int, dict[str, Any]] = {}
    complete = [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
    for number, line in enumerate(complete, start=1):
        values = _parsed(line, f"{path}, line {number}")
        if values is None or values["step"] in by_step:
            if report:
                log.warning("%s, line %d is damaged: it is left out of the curve.", path, number)
        else:
            by_step[values["step"]] = values
    return list(by_step.values())


def flow_times(path: Path, steps: Sequence[int]) -> list[float]:
    """The time s = Σ η of gradient flow (paper, Sec. 3.2) after each of these steps: the sum of learning
    rates in the `metrics.jsonl` at `path`. NaN for a step that the file does not reach.
    """
    times = {0: 0.0}
    for line in read_curve(path):
        rate = line.get("learning_rate")
        previous = times.get(line["step"] - 1)
        if rate is None or previous is None:
            continue
        if line.get("skipped"):
            rate = 0.0  # the step has moved nothing
        times[line["step"]] = previous + rate
    return [times.get(step, math.nan) for step in steps]


def _parsed(line: bytes, where: str) -> dict[str, Any] | None:
    """The values of a step; None if the line is damaged."""
    try:
        values = parse_object(line, where)
    except LarkError:
        return None
    step = values.get("step")
    skipped = values.get("skipped", [])
    is_step = isinstance(step, int) and not isinstance(step, bool)
    names_trajectories = isinstance(skipped, list) and all(isinstance(name, str) for name in skipped)
    return values if is_step and names_trajectories else None
