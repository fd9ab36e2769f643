"""The training stage's processes: fine-tune a student on a weighted training set."""

import json
import logging
import shutil
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from lark.config import Config, Student
from lark.errors import LarkError
from lark.models.attention import attention, automatic, separate_segments, supports_packing
from lark.models.chat import ChatFormat, Encoded
from lark.models.head import LogitRule, logit_rule
from lark.models.load import load_chat, load_model
from lark.reading.untrusted import readable_object
from lark.selection.write import TRAINING_SET
from lark.store.store import write_text
from lark.training.batches import Example, GlobalBatches
from lark.training.checkpoints import CURVE, Layout, changed, newest_checkpoint, remove_unusable
from lark.training.curves import Curves, HeldOutLoss, Snapshots, read_curve, snapshot_steps
from lark.training.export import Exporter
from lark.training.kernels import apply_liger
from lark.training.lora import add_adapters, keep_exact, quantization
from lark.training.packing import TrainingStep, plan_batches
from lark.training.sequence import SequenceParallel
from lark.training.trainer import WeightedTrainer, arguments, return_weighted_loss, trains_nothing
from lark.training.training_set import Key, read_rows, read_token_weights
from lark.training.zero import connect, half_weights, zero_stage
from lark.work.devices import start_torch
from lark.work.operation import Job
from lark.work.sharding import together

log = logging.getLogger(__name__)

TEXTS_AT_ONCE = 512
DONE = "training.json"
"""Counts, written when the export is complete. A run that is killed after that has nothing left to do."""
IDLE = (
    "Training will have no effect: %d trajectories make a single step (training.global_batch=%d), and with"
    " warm-up its learning rate is 0. Set training.warmup=0, a smaller training.global_batch or more"
    " training.epochs."
)


@together
def train(job: Job) -> dict[str, Any]:
    """Fine-tune the student on `train.jsonl`, resuming from the newest intact checkpoint, and export it."""
    checkpoints = job.folder / "checkpoints"
    if (done := finished(job.folder, report=job.is_main)) is not None:
        if job.is_main:
            shutil.rmtree(checkpoints, ignore_errors=True)  # left by a run that was killed in between
        return done
    run = prepare(job)
    if job.is_main:
        remove_unusable(checkpoints)
    run.trainer.accelerator.wait_for_everyone()
    resume = newest_checkpoint(checkpoints, run.trainer.layout)
    if resume is not None:
        last = int(resume.name.split("-")[1])
        curve = read_curve(job.folder / CURVE)
        lost = max((line["step"] for line in curve), default=last) - last
        log.info(
            "resuming from %s%s",
            resume.name,
            f"; steps that were lost and are done again: {lost}" if lost > 0 else "",
        )
        run.trainer.skipped = {
            line["step"]: line["skipped"] for line in curve if "skipped" in line and line["step"] <= last
        }
        run.trainer.accelerator.wait_for_everyone()  # before the main process shortens the file
    run.trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    run.trainer.require_usable()
    files = run.exporter.export()
    counts = {**run.counts, "skipped_steps": len(run.trainer.skipped)}
    if job.is_main:
        write_text(job.folder / DONE, json.dumps({**counts, "files": files}) + "\n")
        shutil.rmtree(checkpoints, ignore_errors=True)
    return counts


def finished(folder: Path, report: bool = False) -> dict[str, int] | None:
    """Counts of a run that has exported its student; None if it has not. `report`: log it if the record is
    damaged.

    Training then continues from its checkpoints, if they are still there.
    """
    if not (folder / DONE).exists():
        return None
    counts = readable_object(folder / DONE)
    if counts is None:
        harm: str | None = f"{DONE} cannot be read"
    else:
        files = counts.pop("files", None)  # a run of an older version has no list
        harm = None if files is None else changed(folder, files)
        harm = harm or (
            None if all(isinstance(value, int) for value in counts.values()) else f"{DONE} has changed"
        )
    if harm is None:
        return counts
    if report:
        log.warning("%s: the exported student is damaged (%s). It is exported again.", folder, harm)
    return None


@dataclass(frozen=True)
class Run:
    """A training run, ready to go."""

    trainer: WeightedTrainer
    exporter: Exporter
    counts: dict[str, int]


def prepare(job: Job) -> Run:
    """Set up everything that a run needs, without training."""
    device = start_torch(job)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # paper, App. C.3
    transformers_logging.set_verbosity_error()
    logging.getLogger("accelerate").setLevel(logging.WARNING)
    config, training = job.config, job.config.training
    transformers.set_seed(training.seed)
    source = job.weights
    chat = load_chat(source, config.student)
    examples = read_examples(job.inputs["selection"] / TRAINING_SET, chat, config.student.max_length)
    if training.token_weights is not None:
        examples = with_token_weights(examples, Path(training.token_weights).expanduser())
    zero = zero_stage(config, job.machine.device, job.world)
    if config.hardware.zero and not zero:
        log.info("one process has nothing to shard: training without DeepSpeed")

    student = _student(config, device)
    # ZeRO-3 shards a model while it is loaded, if the arguments exist before. A sharded model cannot be run
    # to find `facts`.
    small = _twin(source, student, device) if zero == 3 else None
    twin = None if small is None else facts(small, config)
    steps = training.epochs * ceil(len(examples) / training.global_batch)
    if trains_nothing(training.warmup, steps):
        log.warning(IDLE, len(examples), training.global_batch)
    parts = config.hardware.sequence_parallel
    if job.world > 1 or zero:
        connect(job.machine.device, deepspeed=zero > 0 or parts > 1)
    sequence = SequenceParallel(parts) if parts > 1 else None
    args = arguments(config, job.folder / "checkpoints", steps, job.machine.device, zero)
    dtype = _weights_dtype(config, zero)
    quantized = quantization(training.lora, torch.bfloat16 if training.bf16 else torch.float32)
    model = load_model(source, student, device, dtype, quantized)
    keep_exact(model)
    if training.liger:
        apply_liger(model, device)
    separate_segments(model)
    rule, packed = twin or facts(model, config)
    if sequence is not None:
        if small is None:
            sequence.attach_checked(model, packed)
        else:
            sequence.attach_checked(small, packed)
            sequence.attach(model)

    batches = _batches(job, config, examples, packed)
    return_weighted_loss(model, rule, sequence, training.objective)
    transformers.set_seed(training.seed)  # again: adapters start the same regardless of what ran before
    trainer = WeightedTrainer(
        batches,
        Layout(zero, job.world),
        model=add_adapters(model, training.lora) if training.lora.rank else model,
        args=args,
        processing_class=chat.tokenizer,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    exporter = Exporter(trainer, model, chat, config, zero, job.folder, source)
    trainer.add_callback(
        Curves(trainer, job.folder / CURVE, training.epochs, _held_out(job, trainer, chat, packed))
    )
    if training.snapshots:
        trainer.add_callback(
            Snapshots(snapshot_steps(training.snapshots, steps, training.early_snapshots), exporter.snapshot)
        )
    tokens = sum(len(example.encoded.ids) for example in examples)
    return Run(trainer, exporter, {"trajectories": len(examples), "tokens": tokens, "steps": steps})


def facts(model: PreTrainedModel, config: Config) -> tuple[LogitRule, bool]:
    """Properties found by running the model: how it computes logits, and whether trajectories can be
    packed.
    """
    separate_segments(model)
    return logit_rule(model), config.training.packing and supports_packing(model, config.training.bf16)


def _twin(source: str, student: Student, device: str) -> PreTrainedModel:
    """The student's architecture with two layers and random weights: enough for `facts`."""
    config = AutoConfig.from_pretrained(source, revision=student.revision, trust_remote_code=False)
    config.num_hidden_layers = min(2, config.num_hidden_layers)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: config.num_hidden_layers]
    implementation = attention(student, device, config)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=implementation, trust_remote_code=False
    )
    moved: PreTrainedModel = model.to(torch.device(device)).eval()
    return moved


def _student(config: Config, device: str) -> Student:
    """The student as configured, except that `auto` chooses attention for the precision of training."""
    student = config.student
    return (
        replace(student, attention=automatic(device, config.training.bf16))
        if student.attention == "auto"
        else student
    )


def _weights_dtype(config: Config, zero: int) -> torch.dtype:
    return torch.bfloat16 if half_weights(config, zero) else torch.float32


def _held_out(job: Job, trainer: WeightedTrainer, chat: ChatFormat, packed: bool) -> HeldOutLoss | None:
    held_out = job.config.training.held_out
    if held_out.path is None:
        return None
    path = (
        job.inputs["selection"] / TRAINING_SET
        if held_out.path == "selection"
        else Path(held_out.path).expanduser()
    )
    examples = read_examples(path, chat, job.config.student.max_length)
    one = replace(job.config, training=replace(job.config.training, epochs=1, global_batch=len(examples)))
    return HeldOutLoss(trainer, _batches(job, one, examples, packed)[0], held_out.every)


def _batches(job: Job, config: Config, examples: list[Example], packed: bool) -> GlobalBatches:
    """The steps as this process sees them. Processes that share micro-batches count as one."""
    parts = config.hardware.sequence_parallel
    return GlobalBatches(
        examples, plan(config, examples, job.world // parts, packed), job.rank, packed, parts
    )


def read_examples(path: Path, chat: ChatFormat, max_length: int) -> list[Example]:
    """The training set, in an order that does not depend on the pool's. Texts are freed once they are
    tokenised.
    """
    found: dict[Key, Example] = {}
    rows = read_rows(path)
    while some := list(islice(rows, TEXTS_AT_ONCE)):
        for row, encoded in zip(
            some, chat.encode_dialogues([row.dialogue for row in some], max_length), strict=True
        ):
            if encoded.n_response < 1:
                raise LarkError(
                    f"{path}: the response of {row.name} is cut off completely at"
                    f" student.max_length={max_length}. Raise it, or remove this trajectory."
                )
            tokens = (
                None if row.token_weights is None else _fitting(row.token_weights, encoded, row.name, path)
            )
            found[row.key] = Example(row.key, encoded, row.weight, tokens)
    return [found[key] for key in sorted(found)]


def with_token_weights(examples: list[Example], path: Path) -> list[Example]:
    """The examples with the weights of their tokens in a file. Those that are not in it keep theirs."""
    given = read_token_weights(path)
    weighted = sum(example.key in given for example in examples)
    if not weighted:
        raise LarkError(
            f"training.token_weights={path}: none of its {len(given)} trajectories is in the selection, such"
            f" as {examples[0].name}. Use the question_id and candidate_id of the selection's train.jsonl."
        )
    log.info("weights of tokens: %d of %d trajectories (training.token_weights)", weighted, len(examples))
    return [
        (
            replace(example, token_weights=_fitting(given[example.key], example.encoded, example.name, path))
            if example.key in given
            else example
        )
        for example in examples
    ]


def _fitting(weights: tuple[float, ...], encoded: Encoded, name: str, path: Path) -> tuple[float, ...]:
    """One weight per response token. Those of tokens that student.max_length cuts off are dropped."""
    expected = encoded.n_response
    if len(weights) != expected and not (encoded.truncated and len(weights) > expected):
        raise LarkError(
            f"{path}: token_weights of {name} has {len(weights)} numbers, but its response has {expected}"
            " tokens with this student, including the end of the turn. `scoring.tokens=true` writes the"
            " tokens (docs/tokens.md)."
        )
    return weights[:expected]


def plan(config: Config, examples: list[Example], world: int, packed: bool) -> list[TrainingStep]:
    """The steps of all epochs."""
    lengths = [len(example.encoded.ids) for example in examples]
    return [
        step
        for epoch in range(config.training.epochs)
        for step in plan_batches(
            lengths,
            global_batch=config.training.global_batch,
            processes=world,
            capacity=max(config.hardware.train_tokens, config.student.max_length),
            seed=config.training.seed,
            epoch=epoch,
            packed=packed,
            micro_batch=config.hardware.micro_batch,
        )
    ]
