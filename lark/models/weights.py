"""Weights are loaded completely or not at all.

Transformers fills a tensor that a checkpoint lacks with random numbers, different ones in every process, and only warns. Here
missing, unexpected, duplicated and ill-fitting tensors are errors, and so are weights in pickles, which can execute code.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from lark.errors import LarkError, first_line
from lark.reading.untrusted import read_object

INDEX = "model.safetensors.index.json"
STRICT: dict[str, Any] = {
    "use_safetensors": True,
    "trust_remote_code": False,
    "ignore_mismatched_sizes": True,  # reported by `require_complete`, with the names
    "output_loading_info": True,
}
"""Arguments of `from_pretrained` that make it return what `require_complete` checks."""
SHOWN = 3


def check_files(path: str, what: str) -> None:
    """Refuse a local folder whose weights are not safetensors, are listed outside of it, or contain a tensor twice."""
    folder = Path(path)
    if not folder.is_dir():
        return
    index, files = folder / INDEX, sorted(folder.glob("*.safetensors"))
    if index.is_file():
        named = read_object(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
            raise LarkError(f"{what}: {INDEX} has no `weight_map` of file names. Download the model again.")
        outside = [name for name in set(named.values()) if Path(name).name != name or not (folder / name).is_file()]
        if outside:
            raise LarkError(
                f"{what}: {INDEX} names {outside[0]!r}, which is not a file in the folder. Download the model again."
            )
        files = sorted({folder / name for name in named.values()})
    if not files:
        pickled = next((p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in sorted(folder.glob(pattern))), None)
        found = f" ({pickled} is a pickle, which can execute code)" if pickled else ""
        raise LarkError(f"{what}: the folder has no safetensors weights{found}. Convert the model to safetensors.")
    seen: dict[str, str] = {}
    for file in files:
        for name in _tensors(file, what):
            if name in seen:
                raise LarkError(f"{what}: the tensor {name} is in {seen[name]} and in {file.name}. Remove one of them.")
            seen[name] = file.name


def _tensors(file: Path, what: str) -> list[str]:
    try:
        with safe_open(file, framework="pt") as opened:
            return list(opened.keys())
    except (SafetensorError, OSError) as error:
        raise LarkError(f"{what}: {file.name} cannot be read ({first_line(error)}). Download the model again.") from error


def require_complete(info: Mapping[str, Any], what: str) -> None:
    """Raise unless every tensor of the model came from the checkpoint, and every tensor of the checkpoint has a place."""
    problems = {
        "lacks": info.get("missing_keys"), "has the wrong shape for": (key[0] for key in info.get("mismatched_keys") or ()),
        "has unexpected": info.get("unexpected_keys"),
    }  # fmt: skip
    for verb, keys in problems.items():
        names = sorted(keys or ())
        if names:
            raise LarkError(
                f"{what}: its checkpoint {verb} {_listed(names)}. The weights and config.json do not belong together, or the "
                "download is incomplete."
            )


def check_complete(path: str, revision: str | None, what: str) -> None:
    """`require_complete` without loading the weights, for engines that load them on their own."""
    check_files(path, what)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(path, revision=revision, device_map="meta", **STRICT)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise LarkError(f"{what}: the model cannot be loaded ({first_line(error)}).") from error
    require_complete(loaded[1], what)


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ("the tensor " if len(every) == 1 else f"{len(every)} tensors: ") + ", ".join(every[:SHOWN]) + more
