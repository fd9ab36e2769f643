"""The operation that converts a packaged student or judge into a Hugging Face folder."""

from lark.config import Config
from lark.errors import LarkError
from lark.models.students import PACKAGED
from lark.work.machine import Machine, pinned
from lark.work.operation import Operation


def _check(config: Config, machine: Machine) -> None:
    if machine.lacks("gguf"):
        models = (config.student, config.method.judge.model)
        named = next(f"{model.setting}.path={model.path}" for model in models if model.path in PACKAGED)
        raise LarkError(
            f"{named} is a GGUF file, which needs the package gguf: pip install {pinned('gguf')}."
        )


CONVERT = Operation("student", "", "lark.models.gguf:convert", processes="one", on_cpu=True, check=_check)

OPERATIONS = (CONVERT,)
