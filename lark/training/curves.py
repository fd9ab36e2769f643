"""What is recorded during training: every step's numbers in `metrics.jsonl`, the held-out loss, snapshots
of the weights.
"""

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
from torch import distributed
from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lark.errors import LarkError
from lark.reading.untrusted import parse_object
from lark.store.store import write_text
from lark.training.batches import GlobalBatch
from lark.training.checkpoints import HELD_OUT
from lark.training.training_set import shown

if TYPE_CHECKING:
    from lark.training.trainer import WeightedTrainer

log = logging.getLogger(__name__)


class Curves(TrainerCallback):
    """One line of `metrics.jsonl` per step: loss, gradient norm, learning rate, speed, and the held-out
    loss when it is due.

    The pipeline mirrors the file to W&B. All processes take part (the held-out loss is shared work); only
    the main one writes.
    """

    def __init__(
        self, trainer: "WeightedTrainer", path: Path, epochs: int, held_out: "HeldOutLoss | None" = None
    ) -> None:
        self.trainer, self.path, self.epochs, self.held_out = trainer, path, epochs, held_out
        self.writes = trainer.is_world_process_zero()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.writes:
            keep_steps(self.path, state.global_step or -1)  # a run from the start measures step 0 again
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, desc="training", unit="step")
        if self.held_out is not None and state.global_step == 0:
            self._write({"step": 0, "epoch": 0.0, "held_out_loss": self.held_out()})

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
        rate = self.trainer.batches.tokens(step - 1) / self.seconds
        skipped = self.trainer.skipped.get(step)
        line = {
            "step": step,
            "epoch": round(self.epochs * step / state.max_steps, 4),
            "loss": None if skipped else logs["loss"],
            "grad_norm": None if skipped else logs["grad_norm"],
            "learning_rate": logs["learning_rate"],
            "tokens_per_second": round(rate),
        }
        if skipped:
            line["skipped"] = skipped
        if self.held_out is not None and (step % self.held_out.every == 0 or step == state.max_steps):
            line["held_out_loss"] = self.held_out()
            if self.writes and step == state.max_steps:
                self.held_out.write(self.path.with_name(HELD_OUT))
        self._write(line)
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

    def _write(self, line: dict[str, Any]) -> None:
        if self.writes:
            finite = {
                key: None if isinstance(value, float) and not math.isfinite(value) else value
                for key, value in line.items()
            }
            with self.path.open("a", encoding="utf-8") as handle:
                handle.write(json.dumps(finite) + "\n")


class HeldOutLoss:
    """1/N Σ_i w_i ℓ_i over N fixed trajectories with the current weights: the paper's objective on another
    set.

    ℓ is the mean surprisal of a response, whatever training.objective is.
    """

    def __init__(self, trainer: "WeightedTrainer", batch: GlobalBatch, every: int) -> None:
        """`batch` is this process's share."""
        self.trainer, self.batch, self.every = trainer, batch, every
        self.place = {key: place for place, key in enumerate(batch.keys)}
        self.losses: list[float] = []
        """ℓ of each trajectory of the batch, when it was last measured."""

    @torch.no_grad()
    def __call__(self) -> float:
        trainer, model = self.trainer, self.trainer.model_wrapped
        model.eval()
        found = torch.zeros(2, self.batch.size, dtype=torch.float64, device=trainer.args.device)  # ℓ and w ℓ
        for micro, keys in zip(self.batch.micro, self.batch.own, strict=True):
            with trainer.compute_loss_context_manager():
                losses = model(micro.to(trainer.args.device), self.batch.size)[1].double()
            places = [self.place[key] for key in keys]
            found[:, places] += torch.stack([losses, micro.weights.to(losses) * losses])
        model.train()
        if distributed.is_initialized():
            distributed.all_reduce(found)  # processes that share a trajectory have a part of its tokens each
        self.losses = found[0].tolist()
        return float(found[1].mean())

    def write(self, path: Path) -> None:
        """Write the loss of each trajectory, as last measured, one JSON object per line."""
        lines = []
        for key, place in self.place.items():
            question_id, candidate_id = key
            ids = {"trajectory": shown(key), "question_id": question_id, "candidate_id": candidate_id}
            lines.append(json.dumps({**ids, "loss": self.losses[place]}) + "\n")
        write_text(path, "".join(lines))


class Snapshots(TrainerCallback):
    """Saves the student at given steps, which may include step 0."""

    def __init__(self, steps: Sequence[int], save: Callable[[int], None]) -> None:
        self.steps, self.save = frozenset(steps), save

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.global_step in self.steps:
            self.save(state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.global_step in self.steps:
            self.save(state.global_step)


def snapshot_steps(count: int, steps: int, early: int = 0) -> list[int]:
    """`count` evenly spaced steps from 0 to `steps`, and `early` more of the first tenth; all of them if
    there are not enough.
    """
    first_tenth = math.ceil(steps / 10)
    return sorted({*_evenly_spaced(count, steps), *_evenly_spaced(early, first_tenth)})


def _evenly_spaced(count: int, last: int) -> list[int]:
    """`count` steps from 0 to `last`, both included."""
    if count > last:
        return list(range(last + 1))
    return [round(k * last / (count - 1)) for k in range(count)] if count else []


def keep_steps(path: Path, last: int) -> None:
    """Remove what was logged after the checkpoint that training resumes from, and lines that cannot be
    read.
    """
    if os.path.lexists(path):
        kept = [line for line in read_curve(path, report=True) if line["step"] <= last]
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))


def read_curve(path: Path, report: bool = False) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`, without an incomplete last line, damaged lines and repeated steps.

    `report`: log how many lines were damaged. They are only a record of the run, which does not depend on
    them.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        if report:
            log.warning("%s cannot be read (%s): it starts over.", path, error.strerror)
        return []
    found: dict[int, dict[str, Any]] = {}
    complete = [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
    for number, line in enumerate(complete, start=1):
        values = _parsed(line, f"{path}, line {number}")
        if values is None or values["step"] in found:
            if report:
                log.warning("%s, line %d is damaged: it is left out of the curve.", path, number)
        else:
            found[values["step"]] = values
    return list(found.values())


def flow_times(path: Path, steps: Sequence[int]) -> list[float]:
    """The time s = Σ η of gradient flow (paper, Sec. 3.2) that training had covered after each of these
    steps: the sum of its learning rates. NaN for a step that the `metrics.jsonl` at `path` does not reach.
    A skipped step has moved nothing.
    """
    times = {0: 0.0}
    for line in read_curve(path):
        rate = line.get("learning_rate")
        previous = times.get(line["step"] - 1)
        if rate is not None and previous is not None:
            times[line["step"]] = previous if line.get("skipped") else previous + rate
    return [times.get(step, math.nan) for step in steps]


def _parsed(line: bytes, where: str) -> dict[str, Any] | None:
    """The values of a step; None if the line is damaged."""
    try:
        values = parse_object(line, where)
    except LarkError:
        return None
    step, skipped = values.get("step"), values.get("skipped", [])
    names = isinstance(skipped, list) and all(isinstance(name, str) for name in skipped)
    return values if isinstance(step, int) and not isinstance(step, bool) and names else None
