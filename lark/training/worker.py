"""The training stage's processes: fine-tune a student on a weighted training set."""

import json
import logging
import shutil
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from lark.config import Config, Student
from lark.models.attention import attention, automatic, separate_segments, supports_packing
from lark.models.chat import ChatFormat, Factors
from lark.models.cpu_linear import train_through_onednn
from lark.models.head import LogitRule, logit_rule
from lark.models.liger import apply_liger
from lark.models.load import load_chat, load_model, text_part
from lark.reading.untrusted import readable_object
from lark.selection.write import TRAINING_SET, utilities
from lark.store.store import write_text
from lark.training.batches import GlobalBatches, plan_steps, planned_crossover
from lark.training.checkpoints import CURVE, Sharding, changed, newest_checkpoint, remove_unusable
from lark.training.curves import Curves, HeldOutLoss, Snapshots, read_curve, snapshot_steps
from lark.training.encoded_set import Example, read_examples, with_token_weights, with_utilities
from lark.training.export import Exporter
from lark.training.lora import add_adapters, keep_exact, quantization
from lark.training.recomputation import KeptActivations, Recomputation
from lark.training.sequence import SequenceParallel
from lark.training.trainer import WeightedTrainer, arguments, return_weighted_loss, trains_nothing
from lark.training.zero import connect, half_weights, zero_stage
from lark.work.devices import start_torch
from lark.work.operation import Job
from lark.work.sharding import together

log = logging.getLogger(__name__)

DONE = "training.json"
"""Counts, written when the export is complete. A run that is killed after that has nothing left to do."""
NO_EFFECT = (
    "Training will have no effect: %d trajectories make a single step (training.global_batch=%d), and with"
    " warm-up its learning rate is 0. Set training.warmup=0, a smaller training.global_batch or more"
    " training.epochs."
)


@dataclass(frozen=True)
class Run:
    """A training run, ready to go."""

    trainer: WeightedTrainer
    exporter: Exporter
    counts: dict[str, int]


@together
def train(job: Job) -> dict[str, Any]:
    """Fine-tune the student on `train.jsonl`, resuming from the newest intact checkpoint, and export it."""
    checkpoints = job.folder / "checkpoints"
    counts = finished(job.folder, report=job.is_main)
    if counts is not None:
        if job.is_main:
            shutil.rmtree(checkpoints, ignore_errors=True)  # left by a run that was killed in between
        return counts
    run = prepare(job)
    if job.is_main:
        remove_unusable(checkpoints)
    run.trainer.accelerator.wait_for_everyone()
    resume = newest_checkpoint(checkpoints, run.trainer.sharding)
    if resume is not None:
        _restore_record(run.trainer, resume, job.folder / CURVE)
    run.trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    run.trainer.require_usable()
    files = run.exporter.export()
    counts = {**run.counts, "skipped_steps": len(run.trainer.skipped)}
    if job.is_main:
        write_text(job.folder / DONE, json.dumps({**counts, "files": files}) + "\n")
        shutil.rmtree(checkpoints, ignore_errors=True)
    return counts


def _restore_record(trainer: WeightedTrainer, checkpoint: Path, curve: Path) -> None:
    """Restore the skipped steps before a checkpoint, and log how many steps after it are repeated."""
    last = int(checkpoint.name.split("-")[1])
    lines = read_curve(curve)
    lost = max((line["step"] for line in lines), default=last) - last
    repeated = f"; steps that were lost and are done again: {lost}" if lost > 0 else ""
    log.info("resuming from %s%s", checkpoint.name, repeated)
    for line in lines:
        if "skipped" in line and line["step"] <= last:
            trainer.skipped[line["step"]] = line["skipped"]
    trainer.accelerator.wait_for_everyone()  # before the main process shortens the file


def finished(folder: Path, report: bool = False) -> dict[str, int] | None:
    """Counts of a run that has exported its student; None if it has not. `report`: log a damaged record.

    Training then continues from its checkpoints, if they are still there.
    """
    if not (folder / DONE).exists():
        return None
    counts = readable_object(folder / DONE)
    harm: str | None = f"{DONE} cannot be read"
    if counts is not None:
        files = counts.pop("files", None)  # a run of an older version has no list
        harm = None if files is None else changed(folder, files)
        if harm is None and not all(isinstance(value, int) for value in counts.values()):
            harm = f"{DONE} has changed"
    if harm is None:
        return counts
    if report:
        log.warning("%s: the exported student is damaged (%s). It is exported again.", folder, harm)
    return None


def prepare(job: Job) -> Run:
    """Set up everything that a run needs, without training."""
    device = start_torch(job)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # paper, App. C.3
    transformers_logging.set_verbosity_error()
    logging.getLogger("accelerate").setLevel(logging.WARNING)
    config = job.config
    training = config.training
    transformers.set_seed(training.seed)
    chat = load_chat(job.weights, config.student)
    factors = Factors(training.thinking_weight, training.answer_weight)
    examples = read_examples(job.inputs["selection"] / TRAINING_SET, chat, config.student.max_length, factors)
    if training.token_weights is not None:
        examples = with_token_weights(examples, Path(training.token_weights).expanduser())
    if training.order == "by_score":
        examples = with_utilities(examples, utilities(job.inputs["selection"], config.method))
    zero = zero_stage(config, job.machine.device, job.world)
    if config.hardware.zero and not zero:
        log.info("one process has nothing to shard: training without DeepSpeed")
    if config.hardware.zero not in (None, zero) and zero == 3:
        log.info("hardware.offload=optimizer: training with ZeRO-3, not with %d", config.hardware.zero)
    student = _student(config, device)
    twin = _twin(job.weights, student, device) if zero == 3 else None
    traits = None if twin is None else _traits(twin, config)
    steps = training.epochs * ceil(len(examples) / training.global_batch)
    if trains_nothing(training.warmup, steps):
        log.warning(NO_EFFECT, len(examples), training.global_batch)
    sequence = _connected(job, zero)
    # Before the model is loaded: ZeRO-3 shards a model while it is loaded, if the arguments exist.
    args = arguments(config, job.folder / "checkpoints", steps, job.machine.device, zero)
    model = _model(job, student, device, zero)
    rule, packed = traits or _traits(model, config)
    if sequence is not None:
        sequence.attach_checked(model if twin is None else twin, packed)
    if sequence is not None and twin is not None:
        sequence.attach(model)

    return_weighted_loss(model, rule, sequence, training.objective)
    recomputation = Recomputation.of(job, max(len(example.encoded.ids) for example in examples))
    transformers.set_seed(training.seed)  # again: adapters start the same regardless of what ran before
    trainer = WeightedTrainer(
        _batches(job, config, examples, packed, recomputation.share),
        Sharding(zero, job.world),
        model=add_adapters(model, training.lora) if training.lora.rank else model,
        args=args,
        processing_class=chat.tokenizer,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.add_callback(KeptActivations(model, recomputation.kept))
    held_out = _held_out(job, trainer, chat, packed)
    trainer.add_callback(Curves(trainer, job.folder / CURVE, training.epochs, held_out))
    exporter = Exporter(trainer, model, chat, config, zero, job.folder, job.weights)
    if training.snapshots:
        saved = snapshot_steps(training.snapshots, steps, training.early_snapshots)
        trainer.add_callback(Snapshots(saved, exporter.snapshot))
    tokens = sum(len(example.encoded.ids) for example in examples)
    return Run(trainer, exporter, {"trajectories": len(examples), "tokens": tokens, "steps": steps})


def _connected(job: Job, zero: int) -> SequenceParallel | None:
    """Connect this process with the others, and with those that share its micro-batches."""
    parts = job.config.hardware.sequence_parallel
    if job.world > 1 or zero:
        connect(job.machine.device, deepspeed=zero > 0 or parts > 1)
    return SequenceParallel(parts) if parts > 1 else None


def _model(job: Job, student: Student, device: str, zero: int) -> PreTrainedModel:
    """The student, with the precision, the kernels and the attention of training."""
    training = job.config.training
    compute = torch.bfloat16 if training.bf16 else torch.float32
    quantized = quantization(training.lora, compute)
    model = load_model(job.weights, student, device, _weights_dtype(job.config, zero), quantized)
    keep_exact(model)
    if training.liger:
        apply_liger(model, device)
    separate_segments(model)
    _freeze_unreached(model)
    if device == "cpu" and not zero:  # ZeRO-3 gathers weights around PyTorch's own products
        train_through_onednn(text_part(model))
    return model


def _freeze_unreached(model: PreTrainedModel) -> None:
    """Freeze what the loss does not reach, such as a vision tower: DDP would wait for its gradients."""
    trained = [*text_part(model).parameters(), *model.get_output_embeddings().parameters()]
    reached = {id(parameter) for parameter in trained}
    unreached = [parameter for parameter in model.parameters() if id(parameter) not in reached]
    for parameter in unreached:
        parameter.requires_grad_(False)
    if unreached:
        log.info("%d tensors do not affect text and stay as they are, such as a vision tower", len(unreached))


def _traits(model: PreTrainedModel, config: Config) -> tuple[LogitRule, bool]:
    """How a model computes logits, and whether trajectories can be packed; found by running it."""
    separate_segments(model)
    return logit_rule(model), config.training.packing and supports_packing(model, config.training.mixed)


def _twin(source: str, student: Student, device: str) -> PreTrainedModel:
    """The student's architecture with two layers and random weights: enough for `_traits`, for which a model
    that ZeRO-3 has sharded cannot be run.
    """
    config = AutoConfig.from_pretrained(source, revision=student.revision, trust_remote_code=False)
    text = config.get_text_config()
    text.num_hidden_layers = min(2, text.num_hidden_layers)
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[: text.num_hidden_layers]
    implementation = attention(student, device, config)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=implementation, trust_remote_code=False
    )
    moved: PreTrainedModel = model.to(torch.device(device)).eval()
    return moved


def _student(config: Config, device: str) -> Student:
    """The student as configured, except that `auto` chooses attention for the precision of training."""
    student = config.student
    if student.attention != "auto":
        return student
    return replace(student, attention=automatic(device, config.training.mixed))


def _weights_dtype(config: Config, zero: int) -> torch.dtype:
    return torch.bfloat16 if half_weights(config, zero) else torch.float32


def _held_out(job: Job, trainer: WeightedTrainer, chat: ChatFormat, packed: bool) -> HeldOutLoss | None:
    held_out = job.config.training.held_out
    if held_out.path is None:
        return None
    path = Path(held_out.path).expanduser()
    if held_out.path == "selection":
        path = job.inputs["selection"] / TRAINING_SET
    examples = read_examples(path, chat, job.config.student.max_length)
    # One global batch of all trajectories: their loss is a single step without an update.
    training = replace(job.config.training, epochs=1, global_batch=len(examples), order="shuffled")
    batches = _batches(job, replace(job.config, training=training), examples, packed, recompute=0.0)
    return HeldOutLoss(trainer, batches[0], held_out.every)


def _batches(
    job: Job, config: Config, examples: list[Example], packed: bool, recompute: float
) -> GlobalBatches:
    """The steps as this process sees them. Processes that share micro-batches count as one. `recompute`: see
    `Recomputation.share`.
    """
    parts = config.hardware.sequence_parallel
    replicas = job.world // parts
    crossover = planned_crossover(config, job.weights, job.machine.device, replicas, recompute)
    steps = plan_steps(config, examples, replicas, packed, crossover)
    return GlobalBatches(examples, steps, job.rank, packed, parts)
