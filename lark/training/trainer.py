"""Weighted SFT on the Hugging Face Trainer, with our own global batches and normalisation.

One batch of our data loader is one *global* batch; `training_step` runs this process's share of it in
micro-batches and sums their gradients. So the Trainer never accumulates and never rescales: the loss of a
step is Σ w_i l_i / |batch| on any number of processes, with or without packing or DeepSpeed.
"""

import contextlib
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainingArguments

from lark.config import Config
from lark.models.checks import not_finite
from lark.models.head import LogitRule
from lark.models.shapes import shape_of
from lark.printing import some
from lark.training.batches import GlobalBatch, GlobalBatches
from lark.training.checkpoints import Sharding, seal, sync
from lark.training.checks import refuse_diverged, refuse_skips
from lark.training.constants import LOSS_CHUNK
from lark.training.loss import weighted_loss
from lark.training.measures import Measures, Recorder
from lark.training.packing import MicroBatch
from lark.training.sequence import SequenceParallel
from lark.training.training_set import TrajectoryKey, shown
from lark.training.zero import deepspeed_config
from lark.work.sharding import TIMEOUT

log = logging.getLogger(__name__)

MOST_SKIPPED = 5
"""Steps with non-finite gradients that are skipped before the run is stopped."""
FUSED_FROM = 10_000_000
"""Smallest number of parameters for which AdamW is fused on CPU. It rounds differently, and for the demo's
student, whose results should stay what they were, it saves nothing.
"""
MOST_NAMED = 8
"""Trajectories that the message on a skipped step names."""


def return_weighted_loss(
    model: PreTrainedModel, rule: LogitRule, sequence: SequenceParallel | None = None, objective: str = "nll"
) -> None:
    """Replace the model's forward by (micro-batch, |batch|) -> (its part of the loss, ℓ and token accuracy of
    its trajectories). With `sequence`, all cover only the positions of this process.

    Wrappers (DDP, DeepSpeed) call the model as usual, and the head's weight is used inside the head's own
    forward, where ZeRO-3 has gathered it.
    """
    head = model.get_output_embeddings()
    backbone = model.base_model
    head.forward = _HeadLoss(head, rule, objective)

    def forward(micro: MicroBatch, batch_trajectories: int) -> tuple[Tensor, Tensor, Tensor]:
        if sequence is not None:
            micro = sequence.share(micro)
        packed = {} if micro.segments is None else micro.segments.arguments(backbone)
        output = backbone(
            input_ids=micro.input_ids, position_ids=micro.position_ids, use_cache=False, **packed
        )
        losses: tuple[Tensor, Tensor, Tensor] = head(output.last_hidden_state, micro, batch_trajectories)
        return losses

    model.forward = forward


@dataclass
class _HeadLoss:
    head: nn.Module
    rule: LogitRule
    objective: str

    def __call__(
        self, hidden: Tensor, micro: MicroBatch, batch_trajectories: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        return weighted_loss(
            hidden.flatten(0, 1),
            cast(Tensor, self.head.weight),
            micro.targets.flatten(),
            micro.segment.flatten(),
            micro.weights,
            micro.lengths,
            batch_trajectories,
            head_bias=getattr(self.head, "bias", None),
            rule=self.rule,
            chunk=LOSS_CHUNK[hidden.device.type],
            objective=self.objective,
            token_weights=None if micro.token_weights is None else micro.token_weights.flatten(),
        )


class WeightedTrainer(Trainer):
    """The Hugging Face Trainer with our batches and normalisation; it marks checkpoints that are complete."""

    def __init__(self, batches: GlobalBatches, sharding: Sharding, **kwargs: Any) -> None:
        super().__init__(train_dataset=batches, **kwargs)
        ddp = self.accelerator.ddp_handler
        if ddp is not None:
            ddp.gradient_as_bucket_view = True  # or DDP keeps a copy of all gradients
        self.batches = batches
        self.sharding = sharding
        self.skipped: dict[int, list[str]] = {}
        """Step -> the trajectories that may have caused it."""
        self._batch: GlobalBatch
        self._recorder = Recorder()

    def get_train_dataloader(self) -> DataLoader[GlobalBatch]:
        # Not prepared by accelerate, which would deal whole steps: a process needs its share of each step.
        return DataLoader(self.batches, batch_size=1, shuffle=False, collate_fn=_only)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        self._batch = inputs
        self._recorder = Recorder()
        model.train()
        total = torch.zeros((), device=self.args.device)
        world = self.accelerator.num_processes
        options = {"scale_wrt_gas": False} if self.is_deepspeed_enabled else {}
        for number, micro in enumerate(self._batch.micro, start=1):
            last = number == len(self._batch.micro)
            # This tells DeepSpeed's engine where a step ends: it clips, steps, and clears gradients.
            self.accelerator.gradient_state._set_sync_gradients(last)
            # DDP reduces gradients in each backward pass unless it is told to wait for the last.
            waits = not last and world > 1 and not self.is_deepspeed_enabled
            with self.accelerator.no_sync(model) if waits else contextlib.nullcontext():
                with self.compute_loss_context_manager():
                    loss, losses, accuracies = model(micro.to(self.args.device), self._batch.size)
                self._recorder.add(losses, accuracies)
                # Wrappers average gradients over processes; the objective is their sum.
                self.accelerator.backward(loss * world, **options)
            total += loss.detach() * world
        # A step that is not finite is skipped below. Its loss must not stay in the Trainer's running sum.
        return torch.where(total.isfinite(), total, 0.0)

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clip, and skip a step whose gradients are not finite. It is not repaired, but counted and logged.

        The norm is that of all processes' gradients together, so they all skip. DeepSpeed has already
        clipped, and stepped or skipped, when this is called. After a skip the Trainer would omit a step of
        the schedule, so it is taken here: the schedule must end where it would without a skip.
        """
        norm = super()._clip_grad_norm(model)
        if norm is not None and not math.isfinite(float(norm)):
            self._skip_step(self.state.global_step + 1)
            if self.is_deepspeed_enabled and self.lr_scheduler is not None:
                self.lr_scheduler.step()
            else:
                model.zero_grad(set_to_none=True)
        return norm

    def measures(self) -> Measures:
        """The last step's losses and token accuracies, before its update. All processes call it together."""
        return self._recorder.gather(self._batch)

    def require_finite(self, step: int) -> None:
        """Stop a run whose weights are no longer numbers. All processes call it together."""
        names = [name for name in self._gathered(not_finite(cast(nn.Module, self.model))) if name is not None]
        if names:
            harm = f"weights are not finite (NaN or infinite), e.g. {names[0]}"
            refuse_diverged(step, harm, self.args.learning_rate)

    @torch.no_grad()
    def require_usable(self) -> None:
        """Refuse a trained student without a finite loss on its training data: its weights may be too large.

        All processes call it together, after training.
        """
        self.model_wrapped.eval()
        micro = self.batches[len(self.batches) - 1].micro[0].to(self.args.device)
        with self.compute_loss_context_manager():
            losses = self.model_wrapped(micro, 1)[1]
        if not any(self._gathered(bool(losses.isfinite().any()))):
            steps = range(self.state.global_step, -1, -1)
            last = next(step for step in steps if step not in self.skipped)
            refuse_diverged(last, "loss is not finite (NaN or infinite)", self.args.learning_rate)

    def _gathered(self, value: Any) -> list[Any]:
        """The values of all processes."""
        if self.accelerator.num_processes == 1:
            return [value]
        values = [None] * self.accelerator.num_processes
        distributed.all_gather_object(values, value)
        return values

    def _skip_step(self, step: int) -> None:
        self.require_finite(step - 1)  # otherwise all further steps would be skipped
        culprits = self._culprits()
        reason = "their loss is not finite"
        if not culprits:
            culprits = self._batch.keys
            reason = "each loss is finite, so any in the batch may be the cause"
        names = [shown(key) for key in culprits]
        self.skipped[step] = names
        suspects = f"{some(names, MOST_NAMED)} ({reason})"
        log.warning("step %d skipped: its gradients are not finite. Look at %s.", step, suspects)
        # Half of a short run: a student that skips more steps than it takes is closer to the base model than
        # to its recipe.
        steps = len(self.batches)
        if len(self.skipped) > min(MOST_SKIPPED, steps // 2):
            refuse_skips(step, steps, len(self.skipped), suspects, self.args.learning_rate)

    def _culprits(self) -> list[TrajectoryKey]:
        """The step's trajectories whose w_i ℓ_i is not finite, over all processes."""
        culprits: list[TrajectoryKey] = []
        micro_steps = zip(self._batch.micro_keys, self._batch.micro, self._recorder.parts, strict=True)
        for keys, micro, (losses, _) in micro_steps:
            finite = (micro.weights.to(losses) * losses).isfinite().tolist()
            culprits += [key for key, is_finite in zip(keys, finite, strict=True) if not is_finite]
        return sorted(set().union(*self._gathered(culprits)))

    # The Trainer would compute these from its own kind of batch. Nothing here uses them.

    def floating_point_ops(self, inputs: Any) -> int:
        return 0

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> None:
        return None

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the weights into a checkpoint. DeepSpeed writes its own: another copy would never be read."""
        if not self.is_deepspeed_enabled:
            super().save_model(output_dir, _internal_call)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Every process syncs its own files before the barrier: with ZeRO, most of the checkpoint."""
        self.require_finite(self.state.global_step)
        super()._save_checkpoint(model, trial)
        checkpoint = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
        sync(checkpoint)
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            seal(checkpoint, self.sharding)


def _only(batch: list[GlobalBatch]) -> GlobalBatch:
    return batch[0]


def save_steps(steps: int, checkpoints: int) -> int:
    """Steps between checkpoints, of which there are at most `checkpoints`, including the last one."""
    return math.ceil(steps / checkpoints)


def trains_nothing(warmup: float, steps: int) -> bool:
    """True if the learning rate is 0 at every step: warm-up begins at 0, and the run has a single step."""
    return steps == 1 and warmup > 0


def _fuses_optimizer(config: Config, device: str) -> bool:
    """Whether AdamW updates a weight and its moments in one pass over memory: on CPU four times as fast."""
    if config.hardware.offload != "none":
        return True
    shape = shape_of(config.student)
    return device == "cpu" and shape is not None and shape.parameters >= FUSED_FROM


def arguments(config: Config, folder: Path, steps: int, device: str, zero: int) -> TrainingArguments:
    """The recipe as TrainingArguments. Our batch is a global batch: nothing is left to accumulate."""
    training = config.training
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=1,
        num_train_epochs=1,
        learning_rate=training.learning_rate,
        lr_scheduler_type="constant_with_warmup" if training.schedule == "constant" else training.schedule,
        warmup_steps=training.warmup,
        optim="adamw_torch_fused" if _fuses_optimizer(config, device) else "adamw_torch",
        adam_beta1=training.betas[0],
        adam_beta2=training.betas[1],
        adam_epsilon=training.epsilon,
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        bf16=training.mixed,
        gradient_checkpointing=training.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        deepspeed=deepspeed_config(config, zero, device) if zero else None,
        ddp_timeout=int(TIMEOUT.total_seconds()),
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=save_steps(steps, training.checkpoints),
        save_total_limit=2,
        save_only_model=False,  # needed to resume
        seed=training.seed,
        log_level="error",
        log_level_replica="error",
        use_cpu=device == "cpu",
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )
