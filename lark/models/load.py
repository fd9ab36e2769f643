"""Load a student: its tokenizer with the chat format, and its weights with an available attention
implementation.
"""

import contextlib
import copy
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.utils import cached_file

from lark.config import Student
from lark.errors import LarkError, first_line
from lark.models import checks, tokenizer_checks
from lark.models.attention import attention
from lark.models.chat import ChatFormat, ChatOptions
from lark.models.student_checks import check_context_length
from lark.models.weights import Checkpoint, Loaded, loading
from lark.reading.untrusted import read_object

GENERATION_CONFIG = "generation_config.json"
PROCESSOR = ("preprocessor_config.json", "processor_config.json")
"""Settings of a multimodal model's processor, which engines also read for text."""
PROBE = "How many is 3 + 4?\n\nLet x  =  7.\tÄ 数 🙂"
"""Text on which a tokenizer is compared with its own tokenizer.json."""


def load_model(
    path: str, student: Student, device: str, dtype: torch.dtype | None = None, quantization: Any = None
) -> PreTrainedModel:
    """The weights at `path`, in evaluation mode, without a KV cache. `quantization`: a quantization config
    of transformers.
    """
    checkpoint = Checkpoint(path, student.revision, f"{student.setting}.path={path}")
    checkpoint.check()
    loaded = _load(checkpoint, student, device, dtype, quantization)
    for check in checks.LOADED:
        check(loaded)
    text = loaded.model.config.get_text_config()
    check_context_length(student, getattr(text, "max_position_embeddings", None))
    return _prepared(loaded.model, device)


def _load(
    checkpoint: Checkpoint, student: Student, device: str, dtype: torch.dtype | None, quantization: Any
) -> Loaded:
    zero3 = is_deepspeed_zero3_enabled()
    options: dict[str, Any] = {"dtype": dtype or getattr(torch, student.dtype)}
    # Straight to the device, without a copy of the model in host memory. ZeRO-3 places weights itself.
    options["device_map"] = None if zero3 else {"": torch.device(device)}
    if quantization is not None:
        options["quantization_config"] = quantization
    try:
        with loading(checkpoint.label):
            config = AutoConfig.from_pretrained(
                checkpoint.path, revision=student.revision, trust_remote_code=False
            )
            checks.refuse_quantised(config, checkpoint.label)
            if not zero3:
                checkpoint.check_size(config)
            return checkpoint.load(attn_implementation=attention(student, device, config), **options)
    except ImportError as error:  # a kernel that is missing, or was built for another version of PyTorch
        raise LarkError(
            f"{student.setting}.attention={student.attention} cannot be loaded ({first_line(error)}). Set it"
            " to auto, which needs no package other than PyTorch."
        ) from error


def text_part(model: PreTrainedModel) -> nn.Module:
    """The layers that text goes through, with the embeddings: those of the language model, if the model also
    has a vision tower.
    """
    is_multimodal = model.config.get_text_config() is not model.config
    part: nn.Module = model.get_decoder() if is_multimodal else model.base_model
    return part


def copy_processor(path: str, revision: str | None, folder: Path) -> None:
    """Copy the settings of a multimodal model's processor to the folder of another one."""
    for name in PROCESSOR:
        file = _file(path, name, revision)
        if file is not None:
            shutil.copyfile(file, folder / name)


def _prepared(model: PreTrainedModel, device: str) -> PreTrainedModel:
    """The model on its device, with the outputs that this project reads whatever config.json asks for."""
    # With a cache, transformers does not separate the trajectories of a pack (attention.py).
    model.config.use_cache = False
    model.config.output_hidden_states = False
    model.config.output_attentions = False
    model.config.return_dict = True
    moved: PreTrainedModel = model.to(torch.device(device))  # type: ignore[arg-type]
    return moved.eval()


def load_chat(path: str, student: Student, last_only: bool = False) -> ChatFormat:
    """The tokenizer at `path` (the student's, or a checkpoint's) with the student's chat template
    (`last_only`: see there).
    """
    label = f"{student.setting}.path={path}"
    tokenizer = load_tokenizer(path, student.revision, label)
    stops = generation_stops(path, student.revision, label, len(tokenizer))
    return _chat(tokenizer, student, stops, _config(path, student.revision, label), label, last_only)


def _chat(
    tokenizer: PreTrainedTokenizerBase,
    student: Student,
    stops: Iterable[int],
    config: PreTrainedConfig | None,
    label: str,
    last_only: bool = False,
) -> ChatFormat:
    chat = ChatFormat(tokenizer, student.chat_template, stops, ChatOptions.of(student), last_only)
    tokenizer_checks.require_embedded(chat.renderer.template.written_ids, tokenizer, config, label)
    return chat


def chat_of(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, student: Student) -> ChatFormat:
    """The same with a tokenizer and a model that the caller has loaded. The tokenizer is not changed."""
    label = f"the tokenizer of {student.path}"
    own = _checked_tokenizer(copy.deepcopy(tokenizer), model.config, label)
    stops = getattr(model.generation_config, "eos_token_id", None)
    if not isinstance(stops, list):
        stops = [] if stops is None else [stops]
    return _chat(own, student, stops, model.config, label)


def load_tokenizer(path: str, revision: str | None, label: str) -> PreTrainedTokenizerBase:
    """The tokenizer at `path`, exactly as its tokenizer.json defines it. Errors call the model `label`."""
    try:
        result = _read_tokenizer(path, revision)
    except Exception as error:  # the tokenizers library raises plain exceptions for damaged files
        # A broken file of the model, or of the tokenizer by its name, is a better reason than the error.
        _config(path, revision, label)
        _require_objects(path, revision)
        raise LarkError(f"{label}: its tokenizer cannot be loaded ({first_line(error)}).") from error
    tokenizer = tokenizer_checks.require_agreement(result, label)
    return _checked_tokenizer(tokenizer, _config(path, revision, label), label)


def _checked_tokenizer(
    tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig | None, label: str
) -> PreTrainedTokenizerBase:
    tokenizer_checks.require_special_tokens(tokenizer, label)
    tokenizer_checks.refuse_lost_text(tokenizer, label)
    # Text cannot become a special token, so a padding token beyond the embeddings does no harm.
    special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    ids = set(tokenizer.get_vocab().values()) - special
    tokenizer_checks.require_embedded(ids, tokenizer, config, label)
    return tokenizer


def _read_tokenizer(path: str, revision: str | None) -> PreTrainedTokenizerBase | None:
    """The tokenizer; None if transformers reads it differently from tokenizer.json.

    Transformers 5 chooses the class by its name in tokenizer_config.json, and some classes replace parts of
    tokenizer.json: with `LlamaTokenizerFast`, DeepSeek's tokenizer loses all white space. So the result is
    compared with the file.
    """
    tokenizer = AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=False)
    file = _file(path, "tokenizer.json", revision)
    if file is None or _agrees(tokenizer, file):
        return tokenizer
    plain = PreTrainedTokenizerFast.from_pretrained(path, revision=revision or "main")
    return plain if _agrees(plain, file) else None


def _agrees(tokenizer: PreTrainedTokenizerBase, file: Path) -> bool:
    """True if a tokenizer gives the tokens of its tokenizer.json."""
    defined = Tokenizer.from_file(str(file))
    # The file may ask for both; transformers turns them off too.
    defined.no_truncation()
    defined.no_padding()
    expected = defined.encode(PROBE, add_special_tokens=False).ids
    return bool(tokenizer(PROBE, add_special_tokens=False)["input_ids"] == expected)


def _require_objects(path: str, revision: str | None) -> None:
    """Refuse files of the tokenizer that are not JSON objects, by their names."""
    for name in ("tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "added_tokens.json"):
        with contextlib.suppress(
            OSError
        ):  # a folder that does not exist, which is not this function's to report
            file = _file(path, name, revision)
            if file is not None:
                read_object(file)


def _config(path: str, revision: str | None, label: str) -> PreTrainedConfig | None:
    """The model's config, or None if it has none. Transformers also finds a tokenizer's class by it."""
    try:
        file = _file(path, "config.json", revision)
    except OSError:  # no such folder, or the hub cannot be reached
        return None
    if file is None:
        return None
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            path, revision=revision, trust_remote_code=False
        )
    except Exception as error:  # a value of the wrong type can raise anything
        raise LarkError(f"{label}: its config.json cannot be loaded ({first_line(error)}).") from error
    return config


def generation_stops(path: str, revision: str | None, label: str, tokens: int) -> set[int]:
    """The tokens that end an answer according to the model's generation config. Empty if it has no such
    file. `tokens`: the number of tokens of the tokenizer.

    A file that cannot be read is an error: without its stop tokens, answers would continue after their end.
    """
    try:
        file = _file(path, GENERATION_CONFIG, revision)
    except (OSError, ValueError) as error:
        raise LarkError(
            f"{label}: its {GENERATION_CONFIG} cannot be loaded ({first_line(error)})."
        ) from error
    stops = None if file is None else read_object(file).get("eos_token_id")
    if stops is None:
        return set()
    ids = stops if isinstance(stops, list) else [stops]
    tokenizer_checks.require_stop_ids(ids, tokens, str(file))
    return set(ids)


def _file(path: str, name: str, revision: str | None) -> Path | None:
    """A file of the model, from its folder or downloaded from the hub; None if it has no such file."""
    file = cached_file(path, name, revision=revision, _raise_exceptions_for_missing_entries=False)
    return None if file is None else Path(file)
