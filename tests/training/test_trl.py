"""WeightedSFTTrainer optimises our objective with the real TRL: the loss and the gradient of a step are those
of our trainer's formula, with weights of trajectories, turns and thinking.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig

from lark.errors import LarkError
from lark.models.chat import ChatFormat, Factors
from lark.training.encoded_set import Example, read_examples
from lark.training.loss import response_targets, weighted_loss
from lark.training.packing import collate_padded
from lark.training.trl import WeightedSFTTrainer, weighted_dataset
from tests.conftest import ROOT
from tests.training.test_turn_weights import SETTINGS, direct_gradient, rows
from tests.training.tiny import relative_error, write_student

RATE = 1024.0
"""As in tests/training/probe.py: so large that the weights before the step are only rounding."""


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_student(tmp_path_factory.mktemp("trl") / "student")


@pytest.fixture(scope="module")
def train_jsonl(student: Path) -> Path:
    path = student.parent / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()), encoding="utf-8")
    return path


def one_step(student: Path, data: Dataset, **options: Any) -> WeightedSFTTrainer:
    """A trainer after one step of plain gradient descent."""
    settings = {
        "optim": "sgd",
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "max_steps": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": [],
        "disable_tqdm": True,
    }
    config = SFTConfig(output_dir=str(student.parent / "out"), **{**settings, **options})
    trainer = WeightedSFTTrainer(str(student), config, train_dataset=data)
    trainer.train()
    return trainer


def gradient(student: Path, trainer: WeightedSFTTrainer) -> dict[str, Tensor]:
    before = load_file(student / "model.safetensors")
    after = dict(trainer.model.named_parameters())
    return {name: (value - after[name].detach()) / RATE for name, value in before.items()}


def our_loss(student: Path, examples: list[Example]) -> float:
    """The loss of a step of our own trainer, in float32."""
    model = AutoModelForCausalLM.from_pretrained(student)
    weights = [example.weight for example in examples]
    token_weights = [example.token_weights for example in examples]
    batch = collate_padded([example.encoded for example in examples], weights, token_weights=token_weights)
    with torch.no_grad():
        hidden = model.base_model(
            input_ids=batch.input_ids, position_ids=batch.position_ids
        ).last_hidden_state
        loss, *_ = weighted_loss(
            hidden.flatten(0, 1),
            model.get_output_embeddings().weight,
            batch.targets.flatten(),
            batch.segment.flatten(),
            batch.weights,
            batch.lengths,
            len(examples),
            token_weights=None if batch.token_weights is None else batch.token_weights.flatten(),
        )
    return float(loss)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_loss_and_the_gradient_of_a_step_are_ours(setting: str, student: Path, train_jsonl: Path) -> None:
    factors = Factors(*SETTINGS[setting])
    data = weighted_dataset(train_jsonl, str(student), 200, factors)
    trainer = one_step(student, data, per_device_train_batch_size=1, gradient_accumulation_steps=len(data))
    examples = read_examples(train_jsonl, ChatFormat(AutoTokenizer.from_pretrained(student)), 200, factors)
    assert len(examples) == len(data)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(our_loss(student, examples), rel=1e-4)
    assert relative_error(gradient(student, trainer), direct_gradient(student, *SETTINGS[setting])) < 1e-5


def test_micro_batches_of_different_sizes_are_one_mean(student: Path, train_jsonl: Path) -> None:
    """16 trajectories in micro-batches of 5, 5, 5 and 1."""
    data = weighted_dataset(train_jsonl, str(student), 200)
    trainer = one_step(student, data, per_device_train_batch_size=5, gradient_accumulation_steps=4)
    assert relative_error(gradient(student, trainer), direct_gradient(student, 1.0, 1.0)) < 1e-5


def test_two_processes_take_the_step_of_one(student: Path, train_jsonl: Path) -> None:
    """Of 16 trajectories, in micro-batches of 4."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    subprocess.run([*torchrun, "-m", __name__, str(student)], cwd=ROOT, env=env, check=True)
    ours = load_file(student.parent / "two.safetensors")
    assert relative_error(ours, direct_gradient(student, 1.0, 1.0)) < 1e-5


def test_the_rows_have_the_targets_of_our_trainer(student: Path, train_jsonl: Path) -> None:
    data = weighted_dataset(train_jsonl, str(student), 200)
    examples = read_examples(train_jsonl, ChatFormat(AutoTokenizer.from_pretrained(student)), 200)
    for row, example in zip(data, examples, strict=True):
        assert row["input_ids"] == list(example.encoded.ids)
        assert row["labels"][1:] == response_targets(example.encoded)[:-1]


def test_other_rows_and_packing_are_refused(student: Path, train_jsonl: Path) -> None:
    with pytest.raises(
        LarkError, match="has the columns messages, weight instead of input_ids, labels, shares"
    ):
        one_step(student, Dataset.from_list([{"messages": [], "weight": 1.0}]))
    with pytest.raises(LarkError, match="packing=False"):
        one_step(student, weighted_dataset(train_jsonl, str(student), 200), packing=True)


def main() -> None:
    """A step of this process, as one of those that torchrun starts; the first stores its gradient."""
    student = Path(sys.argv[1])
    data = weighted_dataset(student.parent / "train.jsonl", str(student), 200)
    trainer = one_step(student, data, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    assert trainer.args.world_size == 2
    if trainer.is_world_process_zero():
        save_file(gradient(student, trainer), student.parent / "two.safetensors")


if __name__ == "__main__":
    main()
