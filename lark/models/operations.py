"""The operation that converts a packaged student into a Hugging Face folder."""

from lark.config import Config
from lark.errors import LarkError
from lark.runtime.machine import Machine, pinned
from lark.runtime.operation import Operation


def _check(config: Config, machine: Machine) -> None:
    if machine.lacks("gguf"):
        raise LarkError(
            f"student={config.student.name} is a GGUF file, which needs the package gguf: pip install {pinned('gguf')}."
        )


CONVERT = Operation("student", "", "lark.models.gguf:convert", processes="one", check=_check)

OPERATIONS = (CONVERT,)
