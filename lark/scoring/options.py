"""Options of a method: keyword-only arguments of its function. Their annotations say what users may type.

A value is converted to its annotation before it is used and before it becomes part of a fingerprint, so
that `2` and `2.0` are the same value of a `float`.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lark.errors import LarkError

SUPPORTED = (
    "int, float, str, bool, list[...], tuple[...], dict[str, ...], Literal[...], and unions of these and None"
)


class MisfitError(Exception):
    """A value that its annotation does not allow."""


def converted(options: Mapping[str, Any], function: Callable[..., Any], method: str) -> dict[str, Any]:
    """The options in the types that the function declares. Refuses unknown, missing and wrong ones."""
    known = {
        name: p for name, p in signature(function).parameters.items() if p.kind is Parameter.KEYWORD_ONLY
    }
    kinds = get_type_hints(function)
    for name, value in options.items():
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise LarkError(
                f"method.options.{name}={_typed(value)}: method={method} has no such option; {takes}."
            )
    for name, parameter in known.items():
        if name not in options and parameter.default is Parameter.empty:
            raise LarkError(
                f"method.options.{name} has no value, and method={method} needs it: add"
                f" method.options.{name}=<value>."
            )
    try:
        return {name: fit(value, kinds.get(name, Any)) for name, value in options.items()}
    except MisfitError:
        name = next(name for name, value in options.items() if not fits(value, kinds.get(name, Any)))
        said = f"method.options.{name}={_typed(options[name])}"
        raise LarkError(f"{said}: method={method} takes a value of type {_named(kinds[name])}.") from None


def fits(value: Any, kind: Any) -> bool:
    """Whether an annotation allows a value."""
    try:
        fit(value, kind)
    except MisfitError:
        return False
    return True


def fit(value: Any, kind: Any) -> Any:
    """The value in the type `kind`. Only whole numbers (to float) and lists (to tuple) are converted; other
    types are refused.
    """
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return _member(value, arguments)
    if origin in (list, tuple, Sequence) and isinstance(value, list | tuple):
        return _items(value, origin, arguments)
    if origin is dict and isinstance(value, dict):
        key, item = arguments or (Any, Any)
        return {fit(k, key): fit(v, item) for k, v in value.items()}
    if origin is float and type(value) is int:
        return _float(value)
    if not _is(value, origin, arguments):
        raise MisfitError
    return value


def _is(value: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether a type allows a value as it is."""
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if origin in (None, NoneType):
        return value is None
    if origin not in (Any, int, float, str, bool, list, tuple, Sequence, dict):
        raise LarkError(
            f"An option of a method has the type {_named(origin)}, which is not supported: use {SUPPORTED}."
        )
    return origin is Any or type(value) is origin


def _member(value: Any, kinds: tuple[Any, ...]) -> Any:
    """The value in one of several types: unchanged if one of them allows it."""
    found = [fit(value, kind) for kind in kinds if fits(value, kind)]
    if not found:
        raise MisfitError
    return next((one for one in found if type(one) is type(value)), found[0])


def _items(value: Sequence[Any], origin: Any, arguments: tuple[Any, ...]) -> list[Any] | tuple[Any, ...]:
    """A list or a tuple, with every item in its own type."""
    if origin is not tuple:
        return [fit(item, arguments[0] if arguments else Any) for item in value]
    if not arguments:
        return tuple(value)
    kinds = (arguments[0],) * len(value) if arguments[-1] is Ellipsis else arguments
    if len(kinds) != len(value):
        raise MisfitError
    return tuple(fit(item, kind) for item, kind in zip(value, kinds, strict=True))


def _float(value: int) -> float:
    try:
        number = float(value)
    except OverflowError:
        raise MisfitError from None
    if number != value:  # more digits than a float has
        raise MisfitError
    return number


def _named(kind: Any) -> str:
    return (
        kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")
    )


def _typed(value: Any) -> str:
    """A value as the command line has it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
