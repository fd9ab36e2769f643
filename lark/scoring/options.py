"""Options of a method: keyword-only arguments of its function. Their annotations say what users may type.

A value is converted to its annotation before it is used and before it becomes part of a fingerprint, so
that `2` and `2.0` are the same value of a `float`.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from lark.errors import LarkError


def converted(options: Mapping[str, Any], function: Callable[..., Any], method: str) -> dict[str, Any]:
    """The options in the types that the function declares. Refuses unknown, missing and wrong ones."""
    parameters = signature(function).parameters.values()
    accepted = [parameter for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY]
    _check_names(options, [parameter.name for parameter in accepted], method)
    _check_complete(options, accepted, method)
    annotations = get_type_hints(function)
    values = {}
    for name, value in options.items():
        annotation = annotations.get(name, Any)
        try:
            values[name] = fit(value, annotation)
        except ValidationError:
            setting = f"method.options.{name}={_typed(value)}"
            raise LarkError(
                f"{setting}: method={method} takes a value of type {_named(annotation)}."
            ) from None
    return values


def fit(value: Any, annotation: Any) -> Any:
    """The value in the type of an annotation. Raises `pydantic.ValidationError`.

    By pydantic's strict rules for JSON, because users type what JSON can hold: a whole number becomes a float
    and a list a tuple where the annotation says so, and nothing else is converted.
    """
    return TypeAdapter(annotation).validate_json(json.dumps(value), strict=True)


def _check_names(options: Mapping[str, Any], accepted: list[str], method: str) -> None:
    """Refuse an option that the method does not have."""
    for name, value in options.items():
        if name not in accepted:
            names = ", ".join(accepted) or "none"
            raise LarkError(
                f"method.options.{name}={_typed(value)}: method={method} has no such option;"
                f" it takes {names}."
            )


def _check_complete(options: Mapping[str, Any], accepted: Iterable[Parameter], method: str) -> None:
    """Refuse options without one that has no default."""
    for parameter in accepted:
        if parameter.name not in options and parameter.default is Parameter.empty:
            setting = f"method.options.{parameter.name}"
            raise LarkError(f"{setting} has no value, and method={method} needs it: add {setting}=<value>.")


def _named(annotation: Any) -> str:
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def _typed(value: Any) -> str:
    """A value as the command line has it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
