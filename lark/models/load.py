"""Load a student: its tokenizer with the chat format, and its weights with an available attention implementation."""

import importlib.util
import logging

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from lark.config import Student
from lark.errors import LarkError, first_line
from lark.models.chat import ChatFormat, ChatOptions

log = logging.getLogger(__name__)


def load_chat(path: str, student: Student, last_only: bool = False) -> ChatFormat:
    """The tokenizer at `path` (the student's, or a checkpoint's) with the student's chat template (`last_only`: see there)."""
    tokenizer = load_tokenizer(path, student.revision, f"student.path={path}")
    stops = generation_stops(path, student.revision)
    return ChatFormat(tokenizer, student.chat_template, stops, ChatOptions.of(student), last_only)


PROBE = "How many is 3 + 4?\n\nLet x  =  7.\tÄ 数 🙂"
"""Text on which a tokenizer is compared with its own tokenizer.json."""


def load_tokenizer(path: str, revision: str | None, what: str) -> PreTrainedTokenizerBase:
    """The tokenizer at `path`, exactly as its tokenizer.json defines it. `what` names the model in errors.

    Transformers 5 chooses the class by its name in tokenizer_config.json, and some classes replace parts of tokenizer.json: with
    `LlamaTokenizerFast`, DeepSeek's tokenizer loses all white space. So the result is compared with the file.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, revision=revision)
        file = cached_file(path, "tokenizer.json", revision=revision, _raise_exceptions_for_missing_entries=False)
        if file is None or not tokenizer.is_fast:
            return tokenizer
        expected = Tokenizer.from_file(file).encode(PROBE, add_special_tokens=False).ids
        if tokenizer(PROBE, add_special_tokens=False)["input_ids"] != expected:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(path, revision=revision or "main")
        if tokenizer(PROBE, add_special_tokens=False)["input_ids"] == expected:
            return tokenizer
    except Exception as error:  # the tokenizers library raises plain exceptions for damaged files
        raise LarkError(f"{what}: its tokenizer cannot be loaded ({first_line(error)}).") from error
    raise LarkError(f"{what}: transformers reads its tokenizer differently from tokenizer.json, so its tokens would be wrong.")


def generation_stops(path: str, revision: str | None) -> set[int]:
    """The tokens that end an answer according to the model's generation config. Empty if it has no such file."""
    try:
        stops = GenerationConfig.from_pretrained(path, revision=revision or "main").eos_token_id
    except OSError:
        return set()
    return set(stops) if isinstance(stops, list) else {stops} - {None}


def load_model(path: str, student: Student, device: str, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """The weights at `path`, in evaluation mode, without a KV cache."""
    transformers_logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path,
            revision=student.revision,
            dtype=dtype or getattr(torch, student.dtype),
            attn_implementation=attention(student, device),
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise LarkError(f"student.path={path}: the model cannot be loaded ({first_line(error)}).") from error
    context = getattr(model.config, "max_position_embeddings", None)
    if context is not None and student.max_length > context:
        raise LarkError(
            f"student.max_length={student.max_length} is longer than the model's context of {context}: "
            f"set student.max_length={context}."
        )
    model.config.use_cache = False
    moved: PreTrainedModel = model.to(torch.device(device))  # type: ignore[arg-type]
    return moved.eval()


def attention(student: Student, device: str) -> str:
    """The effective attention implementation. `auto` prefers FlashAttention-2 and logs a warning if it is not available."""
    if student.attention != "auto":
        return student.attention
    if device == "cpu":
        return "sdpa"
    if importlib.util.find_spec("flash_attn") is None:
        log.warning("flash-attn is not installed: using PyTorch's own attention (sdpa), which is slower on long sequences")
        return "sdpa"
    if student.dtype == "float32":
        log.warning("flash-attn does not support float32: using PyTorch's own attention (sdpa)")
        return "sdpa"
    return "flash_attention_2"
