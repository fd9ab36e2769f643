"""A student for a script or a notebook: loaded from a path as runs load it, or the caller's own model, which
is left as it was.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from lark.config import Student, precision
from lark.models.attention import attention
from lark.models.chat import ChatFormat
from lark.models.cpu_linear import packed_for_now
from lark.models.load import chat_of, load_chat
from lark.models.student_checks import check_context_length
from lark.models.students import location
from lark.scoring import checks
from lark.scoring.forward import LoadedStudent

LONGEST = 32768
"""Tokens of a prompt and a response together, if the model's context is not shorter (paper, App. C.3)."""


@contextlib.contextmanager
def loaded_student(
    model: PreTrainedModel | str | Path, tokenizer: PreTrainedTokenizerBase | None, typed: Mapping[str, Any]
) -> Iterator[tuple[LoadedStudent, ChatFormat, Student]]:
    """The student with its chat format and its settings."""
    if isinstance(model, str | Path):
        checks.refuse_tokenizer(tokenizer)
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
        dtype = precision.resolved(typed.get("dtype", precision.AUTO), device.partition(":")[0])
        path = location(_student(str(model), typed))
        config = AutoConfig.from_pretrained(path, revision=typed.get("revision"), trust_remote_code=False)
        student = _student(path, {"max_length": _context(config), **typed, "dtype": dtype})
        loaded = LoadedStudent.load(path, student, device, fused=True)
        yield loaded, load_chat(path, student), student
        return
    checks.require_tokenizer(tokenizer)
    assert tokenizer is not None
    dtype = str(model.dtype).removeprefix("torch.")
    name = model.name_or_path or "model"
    student = _student(name, {"max_length": _context(model.config), **typed, "dtype": dtype})
    check_context_length(student, getattr(model.config.get_text_config(), "max_position_embeddings", None))
    with _borrowed(model, student) as loaded:
        yield loaded, chat_of(tokenizer, model, student), student


def _student(path: str, typed: Mapping[str, Any]) -> Student:
    return Student(**{"name": "student", "path": path, **typed})


def _context(config: PreTrainedConfig) -> int:
    """The tokens of a prompt and a response together, unless max_length is given."""
    return min(LONGEST, getattr(config.get_text_config(), "max_position_embeddings", None) or LONGEST)


@contextlib.contextmanager
def _borrowed(model: PreTrainedModel, student: Student) -> Iterator[LoadedStudent]:
    """The caller's model, prepared as runs prepare theirs; afterwards it is as it was."""
    config = model.config
    before = {
        name: getattr(config, name) for name in ("use_cache", "output_hidden_states", "output_attentions")
    }
    implementation = config._attn_implementation
    training = model.training
    on_cpu = model.device.type == "cpu"
    try:
        for name in before:
            setattr(config, name, False)
        model.eval()
        model.set_attn_implementation(attention(student, str(model.device), config))
        with packed_for_now(model.base_model) if on_cpu else contextlib.nullcontext():
            yield LoadedStudent.of(model)
    finally:
        for name, value in before.items():
            setattr(config, name, value)
        model.set_attn_implementation(implementation)
        model.train(training)
