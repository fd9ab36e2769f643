"""What the settings of a student must satisfy, before anything of it is loaded. Imports no model code."""

import importlib.metadata
from pathlib import Path

from lark.config import Student
from lark.errors import LarkError
from lark.work.machine import Machine, pinned


def check_context_length(student: Student, context: int | None) -> None:
    """Refuse sequences longer than the model's context, if that is known."""
    setting = f"{student.setting}.max_length"
    if context is not None and student.max_length > context:
        raise LarkError(
            f"{setting}={student.max_length} is longer than the model's context of {context}: set"
            f" {setting}={context}."
        )


def require_model_folder(folder: Path, label: str) -> None:
    """Refuse a path that is neither a hub id nor a folder with a model."""
    if not (folder / "config.json").is_file():
        problem = "there is no such folder"
        if folder.is_dir():
            problem = "the folder has no config.json, so it is not a Hugging Face model"
        raise LarkError(f"{label}: {problem}.")


def require_file(path: Path, label: str) -> None:
    """Refuse a file of a model that is something else, such as a broken link in a hub's cache.

    Transformers would treat it as missing: without its generation config, for example, a student has fewer
    stop tokens.
    """
    if not path.is_file():
        raise LarkError(
            f"{label}: {path.name} is not a file, or it is a link to a file that does not exist. Download the"
            " model again."
        )


def check_attention(student: Student, machine: Machine) -> None:
    """Refuse an attention implementation that this machine does not have."""
    setting = f"student.attention={student.attention}"
    if student.half_only:
        _require_gpu(machine, setting)
    if student.hub_kernel:
        _require_kernels(machine, setting)
    if student.attention == "flash_attention_2" and not machine.elsewhere:
        _require_flash_attn(setting)


def _require_gpu(machine: Machine, setting: str) -> None:
    if machine.device == "cpu":
        raise LarkError(f"{setting} needs a GPU: use student.attention=auto.")


def _require_kernels(machine: Machine, setting: str) -> None:
    if machine.lacks("kernels"):
        raise LarkError(
            f"{setting} is a kernel from the Hugging Face hub, but the package kernels is not installed: pip"
            " install kernels, or student.attention=auto."
        )


def _require_flash_attn(setting: str) -> None:
    # The version of the distribution, because flash-attn-4 installs a module of the same name.
    try:
        version = importlib.metadata.version("flash-attn")
    except importlib.metadata.PackageNotFoundError:
        version = None
    if version is None or version.split(".")[0] != "2":
        problem = "is not installed" if version is None else f"{version} is not version 2"
        raise LarkError(
            f"{setting}, but flash-attn {problem}: pip install {pinned('flash-attn')} --no-build-isolation,"
            " or student.attention=auto, which does not need it."
        )
