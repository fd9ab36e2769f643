"""A tiny student, a training set of unequal lengths and weights, and the gradient that training must have."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from lark import config as schema
from lark.config import Config
from lark.models.chat import ChatFormat
from lark.models.dialogue import opening
from lark.models.load import PROCESSOR
from lark.models.students import DEMO
from lark.training.checkpoints import CHECKPOINT
from lark.training.encoded_set import read_examples
from lark.work.machine import Machine
from lark.work.operation import Job
from tests.conftest import ROOT

WEIGHTS = [0.2, 1.7, 0.9, 3.1, 1.0, 0.4, 2.2, 0.05]


POISON = 3e38
"""A weight that fits into float32, but its product with a loss does not."""
POISONED = 5
"""The trajectory that has this weight in a training set with `poisoned=True`."""


def write_student(
    folder: Path, tied: bool = True, dropout: float = 0.0, hidden: int = 32, intermediate: int = 48
) -> Path:
    """Write a tiny student with the demo's tokenizer, so that it has a real chat template."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        max_position_embeddings=512,
        attention_dropout=dropout,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_multimodal(folder: Path) -> Path:
    """Write a tiny Gemma 3 with a vision tower, and files of its processor."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2}
    text = {
        **sizes, "vocab_size": len(tokenizer) + 3, "hidden_size": 32, "intermediate_size": 48, "head_dim": 32,
        "num_key_value_heads": 1, "max_position_embeddings": 512, "initializer_range": 0.2,
    }  # fmt: skip
    tower = {"hidden_size": 16, "intermediate_size": 24, "image_size": 28, "patch_size": 14}
    vision = {**sizes, **tower, "vision_use_head": False}
    tokens = dict(
        zip(("image_token_index", "boi_token_index", "eoi_token_index"), count(len(tokenizer)), strict=False)
    )
    torch.manual_seed(0)
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, **tokens)
    Gemma3ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for name in PROCESSOR:
        (folder / name).write_text(json.dumps({"written_by": name}), encoding="utf-8")
    return folder


def write_training_set(
    folder: Path,
    count: int = 16,
    weights: list[float] | None = None,
    equal: bool = False,
    poisoned: bool = False,
    tokens: bool = False,
) -> Path:
    """Responses of 1 to 30 words; weights from `WEIGHTS` in turn, or all 1. `poisoned`: one of them is much
    too large. `tokens`: every second trajectory has weights for its tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = weights or [1.0 if equal else WEIGHTS[k % len(WEIGHTS)] for k in range(count)]
    with (folder / "train.jsonl").open("w", encoding="utf-8") as handle:
        for k, weight in enumerate(weights):
            words = " ".join(f"{k} + {j} = {k + j}." for j in range(1 + (7 * k) % 10))
            messages = [*opening(f"What is {k} + {k}?", None), {"role": "assistant", "content": words}]
            row = {"question_id": f"q{k:02d}", "candidate_id": "c", "messages": messages}
            row["weight"] = POISON if poisoned and k == POISONED else weight
            handle.write(json.dumps(row) + "\n")
    if tokens:
        add_token_weights(folder / "train.jsonl")
    return folder


def add_token_weights(path: Path) -> None:
    """Give every second trajectory weights from 0 to 2 for its response tokens."""
    lengths = {
        e.name: e.encoded.n_response
        for e in read_examples(path, ChatFormat(AutoTokenizer.from_pretrained(DEMO)), 200)
    }
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows[::2]:
        row["token_weights"] = [
            (7 * k % 5) / 2 for k in range(lengths[f"{row['question_id']}/{row['candidate_id']}"])
        ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def run_probe(folder: Path, cases: dict[str, Any]) -> None:
    """Run cases on 2 processes (tests/training/probe.py)."""
    (folder / "cases.json").write_text(json.dumps(cases))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, "-m", "tests.training.probe", str(folder)], cwd=ROOT, env=env, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]


def make_job(
    student: Path, selection: Path, folder: Path, *overrides: str, rank: int = 0, world: int = 1
) -> Job:
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(*overrides)
    machine = Machine("cpu", world, 1, 1)
    outputs, inputs = {CHECKPOINT.name: folder}, {"selection": selection}
    return Job(
        "train", folder, outputs, inputs, str(student), config, machine, gpus=0, rank=rank, world=world
    )


@cache
def _composed() -> DictConfig:
    schema.register()
    settings = [
        "hardware=cpu",
        "student.max_length=200",
        "training.global_batch=16",
        "training.epochs=1",
        "tracking=none",
    ]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("config", overrides=settings)


def tiny_config(*overrides: str) -> Config:
    """The configuration with some values (not groups) set. Hydra composes it once: that takes as long as a
    tiny training.
    """
    return schema.load(OmegaConf.merge(_composed(), OmegaConf.from_dotlist(list(overrides))))  # type: ignore[arg-type]


def losses(
    model: PreTrainedModel, selection: Path, tokenizer: Path, objective: str = "nll"
) -> Iterator[Tensor]:
    """w_i ℓ_i / N, one trajectory at a time through the whole model and its full logits; with the factors
    of its tokens.
    """
    examples = read_examples(
        selection / "train.jsonl", ChatFormat(AutoTokenizer.from_pretrained(tokenizer)), 200
    )
    for example in examples:
        ids, start = torch.tensor([list(example.encoded.ids)]), example.encoded.prompt_length
        logits = model(input_ids=ids, use_cache=False).logits[0]
        each = functional.cross_entropy(logits[start - 1 : -1], ids[0, start:], reduction="none")
        factors = torch.tensor(example.token_weights or [1.0] * len(each), dtype=each.dtype)
        yield (
            example.weight
            * (each * factors * _factors(logits[start - 1 : -1], each, objective)).mean()
            / len(examples)
        )


def _factors(logits: Tensor, surprisal: Tensor, objective: str) -> Tensor:
    """What each token's surprisal is multiplied by, as the objectives' papers define it."""
    if objective == "dft":
        return torch.exp(-surprisal).detach()
    if objective == "entropy":
        likely = logits.detach().sort(dim=1, descending=True).values[:, :20].softmax(dim=1)
        return -(likely * likely.log()).sum(1) / math.log(20)
    return torch.ones_like(surprisal)


def direct_gradient(student: Path, selection: Path, objective: str = "nll") -> dict[str, Tensor]:
    """∇ 1/|batch| Σ w_i ℓ_i in fp64."""
    model = AutoModelForCausalLM.from_pretrained(student, dtype=torch.float64)
    for loss in losses(model, selection, student, objective):
        loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@torch.no_grad()
def direct_loss(student: Path, selection: Path) -> float:
    """1/N Σ w_i ℓ_i in fp64."""
    model = AutoModelForCausalLM.from_pretrained(student, dtype=torch.float64)
    return float(sum(losses(model, selection, student)))


def relative_error(ours: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """The largest over parameters of ‖ours - exact‖ / ‖exact‖."""
    return max(float((ours[name].double() - g).norm() / g.norm()) for name, g in exact.items())


class CrashAt(TrainerCallback):
    """Ends a run after a step as an exception does: no checkpoint is written for it."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt
