"""Weighted SFT on the Hugging Face Trainer. What is ours: which trajectories meet in a step, and the normalisation.

One batch of our data loader is one *global* batch; `training_step` runs this process's share of it in micro-batches and
sums their gradients. So the Trainer never accumulates and never rescales: the loss of a step is Σ w_i l_i / |batch| on any
number of processes, with or without packing or DeepSpeed.
"""

import contextlib
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lark.chat import Encoded
from lark.config import Config
from lark.errors import LarkError
from lark.training.loss import LogitRule, logit_rule, weighted_loss
from lark.training.packing import MicroBatch, Step, collate_packed, collate_padded

log = logging.getLogger(__name__)

COMPLETE = "complete"
"""Marks a checkpoint that was written to its end; one without it is never resumed from."""
MOST_SKIPPED = 5
"""Steps with non-finite gradients that are skipped before the run is stopped."""


@dataclass(frozen=True)
class Example:
    """A selected trajectory, ready to train on."""

    name: str
    """question/candidate, for messages."""
    encoded: Encoded
    weight: float
    """w = B_n q."""


@dataclass(frozen=True)
class GlobalBatch:
    """One optimisation step, as one process sees it."""

    micro: list[MicroBatch]
    names: list[str]
    """Of all its trajectories, over all processes."""
    tokens: int

    @property
    def size(self) -> int:
        """|batch|."""
        return len(self.names)


class GlobalBatches(Dataset[GlobalBatch]):
    """The steps of all epochs, in order; a process sees its own share of each."""

    def __init__(self, examples: Sequence[Example], steps: Sequence[Step], rank: int, packed: bool) -> None:
        self.examples, self.steps, self.rank = examples, steps, rank
        self.collate = collate_packed if packed else collate_padded

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: int) -> GlobalBatch:
        step = self.steps[index]
        groups = [[self.examples[i] for i in group] for group in step.micro[self.rank]]
        return GlobalBatch(
            micro=[self.collate([e.encoded for e in group], [e.weight for e in group]) for group in groups],
            names=[self.examples[i].name for i in step.trajectories],
            tokens=sum(len(self.examples[i].encoded.ids) for i in step.trajectories),
        )


def return_weighted_loss(model: PreTrainedModel) -> None:
    """Replace the model's forward by (micro-batch, |batch|) -> loss.

    Wrappers (DDP, DeepSpeed) call the model as they always do, and the head's weight is used inside the head's own
    forward, where ZeRO-3 has gathered it.
    """
    head, backbone, rule = model.get_output_embeddings(), model.base_model, logit_rule(model)
    head.forward = _HeadLoss(head, rule)

    def forward(micro: MicroBatch, batch_trajectories: int) -> Tensor:
        output = backbone(input_ids=micro.input_ids, position_ids=micro.position_ids, use_cache=False)
        loss: Tensor = head(output.last_hidden_state, micro, batch_trajectories)
        return loss

    model.forward = forward


@dataclass
class _HeadLoss:
    head: nn.Module
    rule: LogitRule

    def __call__(self, hidden: Tensor, micro: MicroBatch, batch_trajectories: int) -> Tensor:
        loss, _ = weighted_loss(
            hidden.flatten(0, 1), cast(Tensor, self.head.weight), micro.targets.flatten(), micro.segment.flatten(), micro.weights,
            micro.lengths, batch_trajectories, head_bias=getattr(self.head, "bias", None), rule=self.rule,
        )  # fmt: skip
        return loss


class WeightedTrainer(Trainer):
    """The Hugging Face Trainer with our batches, our normalisation, and checkpoints that are complete or not there."""

    def __init__(self, batches: GlobalBatches, **kwargs: Any) -> None:
        super().__init__(train_dataset=batches, **kwargs)
        self.batches = batches
        self.skipped: list[list[str]] = []
        self._names: list[str] = []

    def get_train_dataloader(self) -> DataLoader[GlobalBatch]:
        # Not prepared by accelerate: it would deal whole steps to processes, and each must see its share of every step.
        return DataLoader(self.batches, batch_size=1, shuffle=False, collate_fn=_only)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        batch: GlobalBatch = inputs
        self._names = batch.names
        model.train()
        total = torch.zeros((), device=self.args.device)
        world = self.accelerator.num_processes
        deepspeed = self.accelerator.distributed_type == DistributedType.DEEPSPEED
        for number, micro in enumerate(batch.micro):
            last = number == len(batch.micro) - 1
            self.accelerator.gradient_state._set_sync_gradients(last)
            quiet = last or deepspeed or world == 1
            with contextlib.nullcontext() if quiet else self.accelerator.no_sync(model):
                with self.compute_loss_context_manager():
                    loss = model(micro.to(self.args.device), batch.size)
                # Wrappers average gradients over processes; the objective is their sum.
                self.accelerator.backward(loss * world, **({"scale_wrt_gas": False} if deepspeed else {}))
            total += loss.detach() * world
        return total

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clip, and skip a step whose gradients are not finite: nothing is repaired, the step is counted and named."""
        norm = super()._clip_grad_norm(model)
        if norm is not None and not math.isfinite(float(norm)):
            self.skip_step()
            model.zero_grad(set_to_none=True)
        return norm

    def skip_step(self) -> None:
        self.skipped.append(self._names)
        named = ", ".join(self._names[:8]) + ("…" if len(self._names) > 8 else "")
        log.warning("step %d skipped: its gradients are not finite. Trajectories: %s", self.state.global_step + 1, named)
        if len(self.skipped) > MOST_SKIPPED:
            raise LarkError(
                f"Training stopped: the gradients of {len(self.skipped)} steps were not finite, the last at step "
                f"{self.state.global_step + 1} with the trajectories {named}. Lower training.learning_rate, or look at these."
            )

    # What the Trainer wants to know of its own kind of batch, and nothing here uses.

    def floating_point_ops(self, inputs: Any) -> int:
        return 0

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> None:
        return None

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            (Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}" / COMPLETE).touch()


def _only(batch: list[GlobalBatch]) -> GlobalBatch:
    return batch[0]


class Curves(TrainerCallback):
    """Every step's loss, gradient norm, learning rate and speed: `metrics.jsonl` and a progress bar."""

    def __init__(self, path: Path, batches: GlobalBatches, show: bool) -> None:
        self.path, self.batches, self.show = path, batches, show

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.show:
            keep_steps(self.path, state.global_step)
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, desc="training", unit="step")
        self.last = time.time()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any) -> None:
        if not self.show or "loss" not in logs:
            return
        now = time.time()
        rate = self.batches[state.global_step - 1].tokens / max(now - self.last, 1e-9)
        self.last = now
        values = {key: logs[key] for key in ("loss", "grad_norm", "learning_rate") if key in logs}
        with self.path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps({"step": state.global_step, **values, "tokens_per_second": round(rate)}) + "\n")
        self.bar.set_postfix_str(f"loss {logs['loss']:.4f}, {rate:,.0f} tok/s")
        self.bar.update(state.global_step - self.bar.n)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.show:
            self.bar.close()


def keep_steps(path: Path, last: int) -> None:
    """Forget what was logged after the checkpoint that training goes on from."""
    if path.exists():
        lines = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
        path.write_text("".join(line for line in lines if json.loads(line)["step"] <= last), encoding="utf-8")


def newest_checkpoint(folder: Path) -> Path | None:
    """The last complete checkpoint; incomplete ones are removed."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    for path in found:
        if not (path / COMPLETE).exists():
            log.warning("%s was not written to its end: ignored", path.name)
            shutil.rmtree(path)
    return next((path for path in reversed(found) if path.exists()), None)


def arguments(config: Config, folder: Path, steps: int, device: str) -> TrainingArguments:
    """The recipe in the Trainer's words. One of our batches is a whole global batch: nothing is left to accumulate."""
    training = config.training
    os.environ.setdefault("ACCELERATE_LOG_LEVEL", "warning")
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=1,
        num_train_epochs=1,
        learning_rate=training.learning_rate,
        lr_scheduler_type=training.schedule,
        warmup_steps=training.warmup,
        optim="adamw_torch",
        adam_beta1=training.betas[0],
        adam_beta2=training.betas[1],
        adam_epsilon=training.epsilon,
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        bf16=training.bf16,
        gradient_checkpointing=training.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=max(1, steps // training.checkpoints),
        save_total_limit=2,
        seed=training.seed,
        use_cpu=device == "cpu",
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )
