"""Evaluate a student that was trained here as it is: `stages=[evaluate] student=own
student.path=outputs/checkpoint/<name>`.

The folder of a trained student records how it was prompted and its precision. An evaluation of the folder
uses the same, trains nothing, and has the student's own name in tables and folders.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lark.config.checks import LONGEST_NAME, user_path
from lark.names import override_key
from lark.reading.untrusted import readable_object

CHECKPOINTS = "checkpoint"
"""The kind of artifact that is a trained student (lark/training/checkpoints.py)."""
EVALUATES = re.compile(r"stages=\[?evaluate(, ?report)?\]?")
"""The stages of a run that only evaluates, as they are typed."""
RECORDED = ("max_length", "dtype", "instruction", "thinking", "template_options")
"""Settings of a student that its folder records, if they are not the default."""


def trained_name(path: str) -> str | None:
    """The name of the student in this folder if it is the artifact of a training; None for other students."""
    # Unlike `resolve`, `realpath` accepts links in a circle.
    folder = Path(os.path.realpath(user_path("student.path", path)))
    manifest = readable_object(folder / "manifest.json")
    if manifest is None or manifest.get("kind") != CHECKPOINTS:
        return None
    name = folder.name.rpartition("-")[0] or folder.name
    return re.sub(r"[^\w.+-]", "_", name)[:LONGEST_NAME]


def with_trained_student(arguments: Sequence[str]) -> list[str]:
    """The command line, with the recorded settings of the trained student that it evaluates, and without a
    training. What the user typed is kept.
    """
    typed = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    path = typed.get("student.path", "").strip("'\"")
    name = trained_name(path) if path else None
    evaluates = any(map(EVALUATES.fullmatch, arguments)) and typed.get("method", "base") == "base"
    if name is None or not evaluates:
        return list(arguments)
    added = {"method": "base", "student.name": name, **_recorded(user_path("student.path", path))}
    keys = {override_key(argument) for argument in arguments}
    return [*arguments, *(f"{key}={_quoted(value)}" for key, value in added.items() if key not in keys)]


def _recorded(folder: Path) -> dict[str, Any]:
    """The settings with which the student was trained."""
    try:
        described = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        student = described["depends"]["student"]
        return {f"student.{key}": student[key] for key in RECORDED if key in student}
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return {}


def _quoted(value: Any) -> str:
    """A value as Hydra reads it. It reads \\' as a quote, and \\\\ before a quote as a backslash."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_quoted(item)}" for key, item in value.items()) + "}"
    if not isinstance(value, str):
        return json.dumps(value)
    if re.fullmatch(r"[\w.+-]+", value):
        return value
    return "'" + re.sub(r"(\\*)('|$)", _escaped, value) + "'"


def _escaped(match: re.Match[str]) -> str:
    quote = "\\'" if match[2] else ""
    return match[1] * 2 + quote
