"""One training step of LARK, and one of TRL on the same tokens (precision.py)."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir

from experiments.bench._mixed_pool import LONGEST
from lark import config as conf
from lark.config import Student
from lark.config.argument_checks import CONF
from lark.models.chat import Encoded
from lark.models.load import load_chat
from lark.selection.write import TRAINING_SET
from lark.training.worker import prepare
from lark.work.machine import Machine
from lark.work.operation import Job

BATCH = 8
Work = Callable[[], object]


@dataclass(frozen=True)
class StepPlace:
    """Where steps run."""

    folder: str
    """The student's."""
    threads: int
    scratch: Path


def our_step(place: StepPlace, trajectories: Sequence[Encoded], dtype: str) -> Work:
    """A training step as `run.py` takes it."""
    chat = load_chat(place.folder, Student("smollm2", place.folder))
    rows = []
    for number, encoded in enumerate(trajectories):
        messages = []
        for role, ids in (("user", encoded.ids[: encoded.prompt_length]), ("assistant", encoded.response)):
            messages.append(
                {"role": role, "content": chat.tokenizer.decode(list(ids), skip_special_tokens=True)}
            )
        name = {"question_id": str(number), "candidate_id": "0"}
        rows.append(json.dumps({"messages": messages, "weight": 1.0, **name}))
    (place.scratch / TRAINING_SET).write_text("\n".join(rows) + "\n", encoding="utf-8")
    conf.register()
    settings = ["student=smollm2", f"student.path='{place.folder}'", f"student.dtype={dtype}"]
    recipe = ["training.epochs=1", "training.warmup=0", f"training.global_batch={BATCH}"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = conf.load(compose("config", overrides=[*settings, *recipe]))
    machine = Machine("cpu", 1, 1, place.threads)
    job = Job("train", place.scratch, {}, {"selection": place.scratch}, place.folder, config, machine)
    trainer = prepare(job).trainer
    return partial(take_step, trainer, ready(trainer), trainer.batches[0])


def trl_step(place: StepPlace, trajectories: Sequence[Encoded], dtype: str) -> Work:
    """A step of TRL's SFTTrainer: the same tokens in a padded batch, the loss on the same responses."""
    from datasets import Dataset  # noqa: PLC0415  # only for this comparison, and slow to import
    from transformers import AutoModelForCausalLM  # noqa: PLC0415
    from trl import SFTConfig, SFTTrainer  # noqa: PLC0415

    rows = []
    for encoded in trajectories:
        mask = [0] * encoded.prompt_length + [1] * (len(encoded.ids) - encoded.prompt_length)
        rows.append({"input_ids": list(encoded.ids), "completion_mask": mask})
    arguments = SFTConfig(
        output_dir=str(place.scratch), per_device_train_batch_size=BATCH, max_length=LONGEST + 1,
        gradient_checkpointing=False, bf16=dtype == "bfloat16", use_cpu=True, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(place.folder, dtype=torch.float32)
    tokenizer = load_chat(place.folder, Student("smollm2", place.folder)).tokenizer
    trainer = SFTTrainer(model, arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    batch = next(iter(trainer.get_train_dataloader()))
    return partial(take_step, trainer, ready(trainer), batch)


def ready(trainer: Any) -> Any:
    """The model of a Trainer, in its precision, with an optimizer."""
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1  # `train` would set it
    model, trainer.optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
    return model


def take_step(trainer: Any, model: Any, batch: Any) -> None:
    """What a Trainer does in one step."""
    trainer.training_step(model, batch)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
