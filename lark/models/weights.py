"""Weights are loaded completely or not at all.

Transformers fills a tensor that a checkpoint lacks with random numbers, different ones in every process,
and only warns. Here missing, unexpected, duplicated and ill-fitting tensors are errors, and so are weights
in pickles, which can execute code.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod, sqrt
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.utils import logging as transformers_logging

from lark.errors import LarkError, first_line, is_out_of_memory
from lark.reading.untrusted import read_object, readable_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Which file each tensor is in, if there are several."""
ADAPTER = "adapter_config.json"
HEAD = "lm_head.weight"
STRICT: dict[str, Any] = {
    "use_safetensors": True,
    "trust_remote_code": False,
    "ignore_mismatched_sizes": True,  # reported by `require_complete`, with the names
    "output_loading_info": True,
}
"""Arguments of `from_pretrained` that make it return what `require_complete` checks."""
SHOWN = 3


def check_files(path: str, what: str) -> None:
    """Refuse a local folder whose weights are not safetensors, are listed outside of it, or contain a
    tensor twice.

    Also a folder from which programs would load different weights: an adapter, which transformers completes
    with a model from elsewhere, or several files without an index, of which transformers reads one and vLLM
    all.
    """
    folder = Path(path)
    if not folder.is_dir():
        return
    if (folder / ADAPTER).exists():
        raise LarkError(
            f"{what}: the folder has an {ADAPTER}, so it is an adapter for another model. Merge the adapter"
            " into its model, and give the merged model's folder."
        )
    files = sorted(folder.glob("*.safetensors"))
    listed = _listed_files(folder, what) if (folder / INDEX).exists() else {}
    if listed:
        others = [file.name for file in files if file.name not in listed.values()]
        if others:
            raise LarkError(
                f"{what}: {others[0]} is in the folder, but {INDEX} does not name it, so programs would load"
                " different weights. Remove the file that does not belong to the model."
            )
    if not files:
        pickled = next(
            (p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in sorted(folder.glob(pattern))), None
        )
        found = f" ({pickled} is a pickle, which can execute code)" if pickled else ""
        raise LarkError(
            f"{what}: the folder has no safetensors weights{found}. Convert the model to safetensors."
        )
    seen: dict[str, str] = {}
    for file in files:
        for name in _tensors(file, what):
            if name in seen:
                raise LarkError(
                    f"{what}: the tensor {name} is in {seen[name]} and in {file.name}. Remove one of them."
                )
            seen[name] = file.name
    _check_config(folder, seen, what)
    if not listed and [file.name for file in files] != [SINGLE]:
        other = next(file.name for file in files if file.name != SINGLE)
        raise LarkError(
            f"{what}: {INDEX} is missing, and {other} is not the usual file {SINGLE}, so it is unclear which"
            " files belong to the model. Download the model again, or remove the files that do not belong"
            " to it."
        )
    for name, file_name in listed.items():
        if seen.get(name) != file_name:
            raise LarkError(
                f"{what}: {INDEX} names {file_name} for the tensor {name}, but it is not in it. Get the model"
                " again."
            )


def _check_config(folder: Path, seen: Mapping[str, str], what: str) -> None:
    """Refuse a config that cannot belong to the tensors. `seen`: the file of each."""
    config = readable_object(folder / "config.json") or {}
    if config.get("tie_word_embeddings") is True:
        _check_tied(folder, seen, what)
    layers = config.get("num_hidden_layers")
    if isinstance(layers, int) and layers > len(
        seen
    ):  # a model with billions of layers would be built for hours
        raise LarkError(
            f"{what}: config.json has {layers} layers, but the checkpoint has only {len(seen)} tensors. The"
            " weights and config.json do not belong together, or the download is incomplete."
        )


def check_size(path: str, config: PretrainedConfig, what: str) -> None:
    """Refuse a config of a much larger model than the checkpoint's, before memory is reserved for it."""
    folder = Path(path)
    if not folder.is_dir():
        return
    stored = sum(_elements(file) for file in folder.glob("*.safetensors"))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    described = sum(parameter.numel() for parameter in model.parameters())
    if described > 2 * stored:
        raise LarkError(
            f"{what}: config.json describes a model with {described:,} parameters, but the checkpoint has"
            f" {stored:,}. The weights and config.json do not belong together, or the download is incomplete."
        )


def _elements(file: Path) -> int:
    with safe_open(file, framework="pt") as opened:
        return sum(prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118  # not a dict


def _check_tied(folder: Path, seen: Mapping[str, str], what: str) -> None:
    """Refuse a head of its own in a checkpoint whose config says that the embeddings are the head:
    transformers would use the head, and vLLM the embeddings.
    """
    embeddings = [name for name in seen if name.endswith("embed_tokens.weight")]
    if HEAD not in seen or len(embeddings) != 1:
        return
    try:
        head, embedding = (_tensor(folder / seen[name], name) for name in (HEAD, embeddings[0]))
    except (SafetensorError, OSError) as error:
        raise LarkError(
            f"{what}: {HEAD} cannot be read ({first_line(error)}). Download the model again."
        ) from error
    if not torch.equal(head, embedding):
        raise LarkError(
            f"{what}: `tie_word_embeddings` in config.json says that {embeddings[0]} is the head too, but the"
            f" checkpoint has another {HEAD}, so programs would load different weights. Set it to false, or"
            f" remove {HEAD}."
        )


def _tensor(file: Path, name: str) -> torch.Tensor:
    with safe_open(file, framework="pt") as opened:
        tensor: torch.Tensor = opened.get_tensor(name)
        return tensor


@dataclass(frozen=True)
class Displacement:
    """How far a student's weights are from those of another."""

    distance: float
    """||θ − θ_0||."""
    start_norm: float
    """||θ_0||."""


def displacement(folder: Path, start: Path) -> Displacement:
    """The distance between two students saved in the same layout, tensor by tensor: neither is in memory as
    a whole.
    """
    changed = 0.0
    original = 0.0
    for file in sorted(start.glob("*.safetensors")):
        with (
            safe_open(file, framework="pt") as before,
            safe_open(folder / file.name, framework="pt") as after,
        ):
            for name in before.keys():  # noqa: SIM118  # not a dict
                first = before.get_tensor(name).double()
                original += float(first.square().sum())
                changed += float((after.get_tensor(name).double() - first).square().sum())
    return Displacement(sqrt(changed), sqrt(original))


def _listed_files(folder: Path, what: str) -> dict[str, str]:
    """The file of each tensor, from the index."""
    listed = read_object(folder / INDEX).get("weight_map")
    if (
        not isinstance(listed, dict)
        or not listed
        or not all(isinstance(name, str) for name in listed.values())
    ):
        raise LarkError(f"{what}: {INDEX} has no `weight_map` of file names. Download the model again.")
    for name in sorted(set(listed.values())):
        if Path(name).name != name or not (folder / name).is_file():
            raise LarkError(
                f"{what}: {INDEX} names {name!r}, which is not a file in the folder. Download the model"
                " again."
            )
    return listed


def _tensors(file: Path, what: str) -> list[str]:
    return list(_types(file, what))


def _types(file: Path, what: str) -> dict[str, str]:
    """The stored type of each tensor of a file, such as BF16 or I64."""
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118  # not a dict
    except (SafetensorError, OSError) as error:
        raise LarkError(
            f"{what}: {file.name} cannot be read ({first_line(error)}). Download the model again."
        ) from error


def require_complete(info: Mapping[str, Any], what: str) -> None:
    """Raise unless every tensor of the model came from the checkpoint, and every tensor of the checkpoint
    has a place.
    """
    problems = {
        "lacks": info.get("missing_keys"),
        "has the wrong shape for": (key[0] for key in info.get("mismatched_keys") or ()),
        "has, without a place in the model,": info.get("unexpected_keys"),
    }
    for verb, keys in problems.items():
        names = sorted(keys or ())
        if names:
            raise LarkError(
                f"{what}: its checkpoint {verb} {_listed(names)}. The weights and config.json do not belong"
                " together, or the download is incomplete."
            )


def require_floating(path: str, model: nn.Module, what: str) -> None:
    """Refuse a local checkpoint that stores integers for a parameter that the model has as floating-point
    numbers.
    """
    folder = Path(path)
    kinds = {
        name: kind for file in sorted(folder.glob("*.safetensors")) for name, kind in _types(file, what).items()
    } if folder.is_dir() else {}  # fmt: skip
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not kinds.get(name, "F32").startswith(("F", "BF")):
            raise LarkError(
                f"{what}: the tensor {name} is stored as {kinds[name]}, but the model's weights are"
                " floating-point numbers. Use the original model: quantised weights can be neither scored"
                " exactly nor trained."
            )


@contextlib.contextmanager
def loading(what: str) -> Iterator[None]:
    """Report any error of transformers while it loads a model as one of the model: its files can contain
    anything.
    """
    try:
        yield
    except (LarkError, ImportError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        why = (
            f"transformers does not know {error}, which config.json names"
            if isinstance(error, KeyError)
            else first_line(error)
        )
        raise LarkError(f"{what}: the model cannot be loaded ({why}).") from error


def check_complete(path: str, revision: str | None, what: str) -> None:
    """`require_complete` without loading the weights, for engines that load them on their own."""
    check_files(path, what)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    with loading(what):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, revision=revision, device_map="meta", **STRICT
        )
    require_complete(loaded[1], what)
    require_floating(path, loaded[0], what)


def not_finite(model: nn.Module) -> str | None:
    """Name of a parameter with a value that is NaN or infinite; None if all are numbers. Of a sharded one,
    only this process's part is checked.
    """
    for name, parameter in model.named_parameters():
        local = getattr(parameter, "ds_tensor", parameter).detach()
        if local.is_floating_point() and local.element_size() > 1 and not bool(local.isfinite().all()):
            return name
    return None


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ("the tensor " if len(every) == 1 else f"{len(every)} tensors: ") + ", ".join(every[:SHOWN]) + more
