"""Limits for chat templates, which come with a model and can contain anything.

Transformers renders them in Jinja's sandbox, which keeps them from reading files and calling code, but not
from computing forever. Here a template also has limits on its size, time and memory. Arithmetic on huge
integers runs in C and cannot be interrupted, so it is refused.
"""

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lark.limits import memory_limit, time_limit

SECONDS = 20.0
"""Time limit for rendering one conversation."""
BYTES = 4 << 30
"""Limit for the memory that rendering one conversation may take."""
BITS = 4096
"""Largest integer in a template's arithmetic."""


class Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox of transformers, with a limit on integers and without chance: a prompt is the same in
    every process.
    """

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        del self.filters["random"], self.globals["lipsum"]

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length()
            if operator == "**":
                bits = left.bit_length() * max(1, right)
            if bits > BITS:
                raise TemplateError("an integer is too large")
        return super().call_binop(context, operator, left, right)


@cache
def _install() -> None:
    """Let transformers compile templates in this sandbox. Nothing else about them changes."""
    # Planning a run imports this module, but no model code.
    from transformers.utils import chat_template_utils  # noqa: PLC0415

    chat_template_utils.ImmutableSandboxedEnvironment = Sandbox  # type: ignore[misc]
    chat_template_utils._compile_jinja_template.cache_clear()


@contextlib.contextmanager
def limited(label: str) -> Iterator[None]:
    """Time and memory limits for rendering one conversation. `label` names the template in the error
    message.
    """
    _install()
    sentence = f"{label} does not finish within {SECONDS:g} seconds: check it for loops."
    with time_limit(SECONDS, sentence), memory_limit(BYTES):
        yield
