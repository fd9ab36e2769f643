"""Weights are loaded completely or not at all.

Transformers fills a tensor that a checkpoint lacks with random numbers, different ones in every process,
and only warns. Here missing, unexpected, duplicated and ill-fitting tensors are errors, and so are weights
in pickles, which can execute code.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod, sqrt
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from lark.errors import LarkError, first_line, is_out_of_memory
from lark.models import checks
from lark.models.checks import SINGLE_FILE, WEIGHT_INDEX
from lark.reading.untrusted import read_object, readable_object

STRICT: dict[str, Any] = {
    "use_safetensors": True,
    "trust_remote_code": False,
    "ignore_mismatched_sizes": True,  # reported by `require_complete`, with the names
    "output_loading_info": True,
}
"""Arguments of `from_pretrained` that make it return what `require_complete` checks."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint, as the header of its file describes it."""

    file: str
    dtype: str
    """Such as BF16 or I64."""
    elements: int


@dataclass(frozen=True)
class Checkpoint:
    """A model's weights in a local folder or on the hub. The hub's files are unknown before loading."""

    path: str
    revision: str | None
    label: str
    """Names the model in errors, such as `student.path=<folder>`."""

    @cached_property
    def folder(self) -> Path:
        return Path(self.path)

    @cached_property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.safetensors"))

    @cached_property
    def config(self) -> dict[str, Any]:
        """Keys of config.json. A file that cannot be read is reported by transformers."""
        return readable_object(self.folder / "config.json") or {}

    @cached_property
    def index(self) -> dict[str, str]:
        """The file of each tensor, if there is an index."""
        if not (self.folder / WEIGHT_INDEX).exists():
            return {}
        weight_map: Any = read_object(self.folder / WEIGHT_INDEX).get("weight_map")
        checks.require_weight_map(weight_map, self.label)
        return dict(weight_map)

    @property
    def file_names(self) -> set[str]:
        return {file.name for file in self.files}

    @property
    def expected_files(self) -> set[str]:
        """Names of the files that transformers loads."""
        return set(self.index.values()) or {SINGLE_FILE}

    @cached_property
    def headers(self) -> dict[str, dict[str, StoredTensor]]:
        """The tensors of each file."""
        return {file.name: self._header(file) for file in self.files}

    def _header(self, file: Path) -> dict[str, StoredTensor]:
        tensors = {}
        with self._opened(file) as opened:
            for name in opened.keys():  # noqa: SIM118  # not a dict
                part = opened.get_slice(name)
                tensors[name] = StoredTensor(file.name, part.get_dtype(), prod(part.get_shape()))
        return tensors

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        tensors: dict[str, StoredTensor] = {}
        for header in self.headers.values():
            tensors |= header
        return tensors

    def tensor(self, name: str) -> Tensor:
        with self._opened(self.folder / self.tensors[name].file) as opened:
            values: Tensor = opened.get_tensor(name)
        return values

    @contextlib.contextmanager
    def _opened(self, file: Path) -> Iterator[Any]:
        try:
            with safe_open(file, framework="pt") as opened:
                yield opened
        except (SafetensorError, OSError) as error:
            raise LarkError(
                f"{self.label}: {file.name} cannot be read ({first_line(error)}). Download the model again."
            ) from error

    def check(self) -> None:
        """Refuse a local folder that is not one complete set of weights in safetensors."""
        if self.folder.is_dir():
            for check in checks.STORED:
                check(self)

    def check_size(self, config: PreTrainedConfig) -> None:
        """Refuse a config of a much larger model than the checkpoint's, before memory is reserved for it."""
        if not self.folder.is_dir():
            return
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        checks.require_size(self, sum(parameter.numel() for parameter in model.parameters()))

    def load(self, **options: Any) -> "Loaded":
        """The model, with what transformers reports about it. `options`: arguments of `from_pretrained`."""
        result: Any = AutoModelForCausalLM.from_pretrained(
            self.path, revision=self.revision, **options, **STRICT
        )
        model, report = result
        return Loaded(model, report, self)


@dataclass(frozen=True)
class Loaded:
    """A model, and where its weights came from."""

    model: PreTrainedModel
    report: dict[str, Any]
    """Keys that transformers did not find, or found a wrong shape for."""
    checkpoint: Checkpoint

    @property
    def label(self) -> str:
        return self.checkpoint.label


@contextlib.contextmanager
def loading(label: str) -> Iterator[None]:
    """Report any error of transformers while it loads a model as one of the model: its files can contain
    anything.
    """
    # A bar per model would fill the logs of workers.
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # what it would warn about is an error here
    try:
        yield
    except (LarkError, ImportError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = first_line(error)
        if isinstance(error, KeyError):  # a lookup in one of transformers' tables
            reason = f"transformers does not know {error}, which config.json names"
        raise LarkError(f"{label}: the model cannot be loaded ({reason}).") from error


def check_complete(path: str, revision: str | None, label: str) -> None:
    """Check a model without loading its weights, for engines that load them on their own."""
    checkpoint = Checkpoint(path, revision, label)
    checkpoint.check()
    with loading(label):
        loaded = checkpoint.load(device_map="meta")
    checks.require_complete(loaded)
    checks.require_floating(loaded)


@dataclass(frozen=True)
class Displacement:
    """How far a student's weights are from those of another."""

    distance: float
    """||θ − θ_0||."""
    start_norm: float
    """||θ_0||."""


def displacement(folder: Path, start: Path) -> Displacement:
    """The distance between two students saved in the same layout, with one tensor of each in memory."""
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
