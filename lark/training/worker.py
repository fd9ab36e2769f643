"""The training stage's processes: a weighted training set and a student become a fine-tuned checkpoint."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from transformers import PreTrainedModel

from lark.chat import ChatFormat
from lark.config import Config
from lark.errors import LarkError
from lark.models import load_chat, load_model
from lark.training.attention import separate_segments, supports_packing
from lark.training.packing import Step, plan_batches
from lark.training.trainer import (
    Curves,
    Example,
    GlobalBatches,
    WeightedTrainer,
    arguments,
    newest_checkpoint,
    return_weighted_loss,
)
from lark.worker import Job

log = logging.getLogger(__name__)


def train(job: Job) -> dict[str, Any]:
    """Fine-tune the student on `train.jsonl`, resuming from the newest complete checkpoint, and export it."""
    torch.set_num_threads(job.machine.threads)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # paper, App. C.3
    transformers.logging.set_verbosity_error()
    transformers.set_seed(job.config.training.seed)
    source = str(job.inputs["student"])
    chat = load_chat(source, job.config.student)
    examples = read_examples(job.inputs["selection"] / "train.jsonl", chat, job.config.student.max_length)
    device = f"cuda:{job.rank % torch.cuda.device_count()}" if job.machine.device == "cuda" else "cpu"
    model = load_model(source, job.config.student, device, dtype=torch.float32)
    separate_segments(model)
    packed = job.config.training.packing and supports_packing(model)
    steps = plan(job.config, examples, job.world, packed)
    return_weighted_loss(model)
    batches = GlobalBatches(examples, steps, job.rank, packed)
    checkpoints = job.folder / "checkpoints"
    trainer = WeightedTrainer(
        batches,
        model=model,
        args=arguments(job.config, checkpoints, len(steps), job.machine.device),
        callbacks=[Curves(job.folder / "metrics.jsonl", batches, show=job.is_main)],
        processing_class=chat.tokenizer,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    resume = newest_checkpoint(checkpoints)
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    export(trainer, chat, job.folder)
    tokens = sum(len(example.encoded.ids) for example in examples)
    return {"trajectories": len(examples), "tokens": tokens, "steps": len(steps), "skipped_steps": len(trainer.skipped)}


def read_examples(path: Path, chat: ChatFormat, max_length: int) -> list[Example]:
    """The training set, in an order that does not depend on the pool's."""
    with path.open(encoding="utf-8") as handle:
        rows = sorted(map(json.loads, handle), key=lambda row: (row["question_id"], row["candidate_id"]))
    examples = []
    for row in rows:
        turns = {message["role"]: message["content"] for message in row["messages"]}
        encoded = chat.encode(turns["user"], turns["assistant"], max_length, turns.get("system"))
        examples.append(Example(f"{row['question_id']}/{row['candidate_id']}", encoded, row["weight"]))
    if not examples:
        raise LarkError(f"{path} is empty: nothing was selected.")
    return examples


def plan(config: Config, examples: list[Example], world: int, packed: bool) -> list[Step]:
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


def export(trainer: WeightedTrainer, chat: ChatFormat, folder: Path) -> None:
    """A plain Hugging Face folder that transformers and vLLM load; checkpoints to resume from are no longer needed."""
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        draft = folder / "checkpoints" / "export"
        model = cast(PreTrainedModel, trainer.model)
        model.config.use_cache = True
        model.save_pretrained(draft)
        chat.tokenizer.save_pretrained(draft)
        for file in sorted(draft.iterdir()):
            file.replace(folder / file.name)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
