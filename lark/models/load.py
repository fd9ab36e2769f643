"""Load a student: its tokenizer with the chat format, and its weights with an available attention
implementation.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from lark.config import Student
from lark.errors import LarkError, first_line
from lark.models.attention import attention
from lark.models.chat import ChatFormat, ChatOptions
from lark.models.weights import (
    STRICT,
    check_files,
    check_size,
    loading,
    not_finite,
    require_complete,
    require_floating,
)
from lark.reading.untrusted import quoted, read_object


def load_chat(path: str, student: Student, last_only: bool = False) -> ChatFormat:
    """The tokenizer at `path` (the student's, or a checkpoint's) with the student's chat template
    (`last_only`: see there).
    """
    tokenizer = load_tokenizer(path, student.revision, f"{student.setting}.path={path}")
    stops = generation_stops(path, student.revision, f"{student.setting}.path={path}", len(tokenizer))
    chat = ChatFormat(tokenizer, student.chat_template, stops, ChatOptions.of(student), last_only)
    what = f"{student.setting}.path={path}"
    _check_ids(chat.renderer.written_ids, tokenizer, _config(path, student.revision, what), what)
    return chat


STOPS = "generation_config.json"
PROBE = "How many is 3 + 4?\n\nLet x  =  7.\tÄ 数 🙂"
"""Text on which a tokenizer is compared with its own tokenizer.json."""
DIFFERENT = ("3", "4", "12 3", "123", "a", "b")
"""Texts that no usable tokenizer confuses."""


def load_tokenizer(path: str, revision: str | None, what: str) -> PreTrainedTokenizerBase:
    """The tokenizer at `path`, exactly as its tokenizer.json defines it. `what` names the model in errors.

    Transformers 5 chooses the class by its name in tokenizer_config.json, and some classes replace parts of
    tokenizer.json: with `LlamaTokenizerFast`, DeepSeek's tokenizer loses all white space. So the result is
    compared with the file.
    """
    tokenizer = _read_tokenizer(path, revision, what)
    _check_special(tokenizer, what)
    _check_text(tokenizer, what)
    if (config := _config(path, revision, what)) is not None:
        unwritten = {
            id for id, token in tokenizer.added_tokens_decoder.items() if token.special
        }  # text cannot become them
        _check_ids(set(tokenizer.get_vocab().values()) - unwritten, tokenizer, config, what)
    return tokenizer


def _read_tokenizer(path: str, revision: str | None, what: str) -> PreTrainedTokenizerBase:
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=False)
        file = cached_file(
            path, "tokenizer.json", revision=revision, _raise_exceptions_for_missing_entries=False
        )
        if file is None:
            return tokenizer
        defined = Tokenizer.from_file(file)
        defined.no_truncation()
        defined.no_padding()
        expected = defined.encode(PROBE, add_special_tokens=False).ids
        if tokenizer(PROBE, add_special_tokens=False)["input_ids"] != expected:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(path, revision=revision or "main")
        if tokenizer(PROBE, add_special_tokens=False)["input_ids"] == expected:
            return tokenizer
    except Exception as error:  # the tokenizers library raises plain exceptions for damaged files
        _config(path, revision, what)
        _require_objects(path, revision, what)
        raise LarkError(f"{what}: its tokenizer cannot be loaded ({first_line(error)}).") from error
    raise LarkError(
        f"{what}: transformers reads its tokenizer differently from tokenizer.json, so its tokens would be"
        " wrong."
    )


def _check_special(tokenizer: PreTrainedTokenizerBase, what: str) -> None:
    """Refuse special tokens that the tokenizer does not know as tokens, such as an empty text."""
    for name, token in tokenizer.special_tokens_map.items():
        if not isinstance(token, list) and tokenizer.convert_tokens_to_ids(str(token)) is None:
            raise LarkError(
                f"{what}: its tokenizer has the {name} {str(token)!r}, which is not a token. Correct it in "
                "tokenizer_config.json, or download the model again."
            )


def _check_text(tokenizer: PreTrainedTokenizerBase, what: str) -> None:
    """Refuse a tokenizer that loses text: digits, letters or the space between words."""
    seen = dict[tuple[int, ...], str]()
    for text in DIFFERENT:
        ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
        if not ids or ids in seen:
            same = f"the same tokens for {seen[ids]!r} and {text!r}" if ids else f"no tokens for {text!r}"
            raise LarkError(
                f"{what}: its tokenizer gives {same}, so it loses text. Use the tokenizer that belongs to the"
                " model, or download it again."
            )
        seen[ids] = text


def _check_ids(
    ids: Iterable[int], tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig | None, what: str
) -> None:
    """Refuse tokens for which the model has no embedding. It may have more embeddings than the tokenizer
    has tokens.
    """
    rows = None if config is None else getattr(config.get_text_config(), "vocab_size", None)
    beyond = sorted(id for id in ids if isinstance(rows, int) and id >= rows)
    if beyond:
        raise LarkError(
            f"{what}: its tokenizer has the token {tokenizer.convert_ids_to_tokens(beyond[0])!r} with the id"
            f" {beyond[0]}, but the model has only {rows} embeddings (`vocab_size` in config.json). Use the"
            " tokenizer that belongs to the model."
        )


def _require_objects(path: str, revision: str | None, what: str) -> None:
    """Refuse files of the tokenizer that are not JSON objects, by their names."""
    for name in ("tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "added_tokens.json"):
        with contextlib.suppress(OSError):
            file = cached_file(path, name, revision=revision, _raise_exceptions_for_missing_entries=False)
            if file is not None:
                try:
                    read_object(Path(file))
                except LarkError as error:
                    raise LarkError(f"{what}: its tokenizer cannot be loaded. {error}") from error


def _config(path: str, revision: str | None, what: str) -> PreTrainedConfig | None:
    """The model's config; None if it has none. Transformers reads it to find the class of a tokenizer, too."""
    try:
        file = cached_file(
            path, "config.json", revision=revision, _raise_exceptions_for_missing_entries=False
        )
    except OSError:  # no such folder, or the hub cannot be reached
        return None
    if file is None:
        return None
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            path, revision=revision, trust_remote_code=False
        )
        return config
    except Exception as error:  # a value of the wrong type can raise anything
        raise LarkError(f"{what}: its config.json cannot be loaded ({first_line(error)}).") from error


def generation_stops(path: str, revision: str | None, what: str, tokens: int) -> set[int]:
    """The tokens that end an answer according to the model's generation config. Empty if it has no such
    file. `tokens`: the number of tokens of the tokenizer.

    A file that cannot be read is an error: without its stop tokens, answers would continue after their end.
    """
    try:
        file = cached_file(path, STOPS, revision=revision, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError) as error:
        raise LarkError(f"{what}: its {STOPS} cannot be loaded ({first_line(error)}).") from error
    if file is None:
        return set()
    stops = read_object(Path(file)).get("eos_token_id")
    ids = stops if isinstance(stops, list) else [] if stops is None else [stops]
    wrong = [token for token in ids if not isinstance(token, int) or isinstance(token, bool) or token < 0]
    if wrong:
        raise LarkError(
            f"{file}: `eos_token_id` must be a token's number or a list of them, not {quoted(wrong[0])}."
            " Download the model again."
        )
    if ids and max(ids) >= tokens:
        raise LarkError(
            f"{file}: `eos_token_id` has {max(ids)}, but the tokenizer has only {tokens} tokens. Download the"
            " model again."
        )
    return set(ids)


def load_model(
    path: str, student: Student, device: str, dtype: torch.dtype | None = None, quantization: Any = None
) -> PreTrainedModel:
    """The weights at `path`, in evaluation mode, without a KV cache. `quantization`: a quantization config
    of transformers.

    Weights are read straight to the device, without a copy of the model in host memory. ZeRO-3 places them
    itself.
    """
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # what it would warn about is an error here
    what = f"{student.setting}.path={path}"
    check_files(path, what)
    try:
        with loading(what):
            config = AutoConfig.from_pretrained(path, revision=student.revision, trust_remote_code=False)
            if getattr(config, "quantization_config", None) is not None:
                raise LarkError(
                    f"{what}: its config.json has a quantization_config, and quantised weights can be neither"
                    " scored exactly nor trained. Use the original model; training=lora training.lora.bits=4"
                    " quantises it by itself."
                )
            if not is_deepspeed_zero3_enabled():
                check_size(path, config, what)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                path,
                revision=student.revision,
                dtype=dtype or getattr(torch, student.dtype),
                attn_implementation=attention(student, device, config),
                device_map=None if is_deepspeed_zero3_enabled() else {"": torch.device(device)},
                **({} if quantization is None else {"quantization_config": quantization}),
                **STRICT,
            )
    except (
        ImportError
    ) as error:  # a kernel that is not installed, or was built for another version of PyTorch
        raise LarkError(
            f"{student.setting}.attention={student.attention} cannot be loaded ({first_line(error)}). Set it"
            " to auto, which needs no package other than PyTorch."
        ) from error
    model: PreTrainedModel = loaded[0]
    require_complete(loaded[1], what)
    if name := not_finite(model):
        raise LarkError(
            f"{what}: the tensor {name} has values that are not finite (NaN or infinite). Use an intact copy"
            " of the model."
        )
    require_floating(path, model, what)
    embedding = model.get_input_embeddings().weight
    if (
        isinstance(embedding, Tensor)
        and embedding.numel()
        and not hasattr(embedding, "ds_tensor")
        and not bool(embedding.any())
    ):
        raise LarkError(f"{what}: all of its embeddings are zero. Use an intact copy of the model.")
    context = getattr(model.config, "max_position_embeddings", None)
    if context is not None and student.max_length > context:
        raise LarkError(
            f"{student.setting}.max_length={student.max_length} is longer than the model's context of"
            f" {context}: set {student.setting}.max_length={context}."
        )
    model.config.use_cache = model.config.output_hidden_states = model.config.output_attentions = False
    model.config.return_dict = True  # config.json may say otherwise
    moved: PreTrainedModel = model.to(torch.device(device))  # type: ignore[arg-type]
    return moved.eval()
