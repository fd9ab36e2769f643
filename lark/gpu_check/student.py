"""Students of real widths with random weights, for checks of memory and speed: neither depends on what a
student has learned.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lark.gpu_check.arithmetic import VOCABULARY
from lark.gpu_check.check import STUDENTS, CheckPlace
from lark.gpu_check.settings import dtype
from lark.models.shapes import ARCHITECTURES, DEMO, Shape
from lark.reading.untrusted import read_object
from lark.work.machine import memory_gib

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
LARGE_GIB = 60.0
"""Memory of a GPU that holds a 7B student, and its cache."""
TINY: Mapping[str, Any] = {
    "model_type": "qwen2", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 4096,
    "max_position_embeddings": 32768, "tie_word_embeddings": True,
}  # fmt: skip
"""On CPU."""
SMALL: Mapping[str, Any] = {**TINY, "hidden_size": 384, "intermediate_size": 1024, "vocab_size": 16_384}
"""On CPU, with enough parameters for its memory to be measured."""
ON_CPU = {"tiny": TINY, "small": SMALL}


@dataclass(frozen=True)
class Sample:
    """A student without its knowledge: an architecture, cut to its first layers."""

    architecture: str
    """A file of lark/models/architectures, or a key of ON_CPU."""
    layers: int

    @property
    def name(self) -> str:
        return f"{self.architecture}-{self.layers}-layers"

    @property
    def config(self) -> dict[str, Any]:
        """Its `config.json`, with the tokens of the demo's tokenizer."""
        if self.architecture in ON_CPU:
            values = dict(ON_CPU[self.architecture])
        else:
            values = read_object(ARCHITECTURES / f"{self.architecture}.json") | {"vocab_size": VOCABULARY}
        tokens = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
        return values | tokens | {"num_hidden_layers": self.layers}

    @property
    def shape(self) -> Shape:
        return Shape.of(self.config)


def whole(place: CheckPlace) -> Sample:
    """For scoring and generation: a complete student of the paper, the larger one where it fits."""
    if not place.cuda:
        return Sample("tiny", 4)
    return Sample("qwen7b" if memory_gib("cuda") >= LARGE_GIB else "qwen1.5b", 28)


def wide(place: CheckPlace) -> Sample:
    """For the memory of training on one device: some layers, because the optimizer of all would not fit."""
    if not place.cuda:
        return Sample("small", 4)
    return Sample("qwen7b", 4) if memory_gib("cuda") >= LARGE_GIB else Sample("qwen1.5b", 2)


def narrow(place: CheckPlace) -> Sample:
    """For code paths of training, on any GPU."""
    return Sample("qwen1.5b", 2) if place.cuda else Sample("tiny", 2)


def written(place: CheckPlace, sample: Sample) -> Path:
    """The folder of a student, which an earlier check may have written."""
    folder = place.folder.parent / STUDENTS / sample.name
    finished = folder / TOKENIZER[-1]
    if not finished.exists():
        torch.manual_seed(0)
        _random(sample, place).save_pretrained(folder)
        torch.cuda.empty_cache()  # for the processes of the check, and for vLLM; does nothing on CPU
        for name in TOKENIZER:  # the last file marks a complete folder
            shutil.copyfile(DEMO / name, folder / name)
    return folder


def _random(sample: Sample, place: CheckPlace) -> PreTrainedModel:
    values = dict(sample.config)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("cuda:0" if place.cuda else "cpu"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, dtype(place)), trust_remote_code=False
        )
    return model


def write_trajectories(path: Path, lengths: list[int], weights: list[float]) -> None:
    """A training set of trajectories of about these numbers of tokens, with the demo's tokenizer."""
    with path.open("w", encoding="utf-8") as handle:
        for number, (length, weight) in enumerate(zip(lengths, weights, strict=True)):
            messages = [
                {"role": "user", "content": f"What is {number} + {number}?"},
                {"role": "assistant", "content": "7" * length},  # a digit is a token
            ]
            row = {"question_id": f"q{number:02d}", "candidate_id": "c", "messages": messages}
            handle.write(json.dumps(row | {"weight": weight}) + "\n")
