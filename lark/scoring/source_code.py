"""A digest of the code that a function runs: its source, and that of everything it calls outside installed
packages. It is part of what a selection depends on (lark/selection/code_record.py).

Followed are the names that a function's code mentions: functions and classes, and constants such as numbers,
texts, tuples and patterns. Comments, docstrings and empty lines do not count. Modules of installed packages
are not followed, except that of the function itself.
"""

import ast
import dataclasses
import functools
import hashlib
import inspect
import io
import re
import sysconfig
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, get_type_hints

import numpy as np

INSTALLED = tuple(
    {str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
"""Folders of Python's own modules and of installed packages."""
PLAIN = (str, bytes, int, float, complex, bool, type(None))
Part = tuple[str, str]
"""The name of something that the code uses, and its text."""


def digest(function: Callable[..., Any]) -> str:
    """16 hexadecimal digits. The same on every version of Python."""
    package = function.__module__.partition(".")[0]
    parts = sorted(set(_parts(function, package, set())))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _parts(value: Any, package: str, seen: set[int]) -> Iterator[Part]:
    """The code of a function or class, and of what it calls. `package`: the first function's."""
    value = inspect.unwrap(value)
    if isinstance(value, functools.partial):
        yield "partial", _text((value.args, value.keywords))
        value = value.func
    if not isinstance(value, type | FunctionType):
        value = type(value)
    if id(value) in seen or not _is_followed(value, package):
        return
    seen.add(id(value))
    yield f"{value.__module__}.{value.__qualname__}", source(value)
    for function in _functions(value):
        for name, used in _used(function, package):
            if not callable(used):
                yield f"{value.__module__}.{name}", _text(used)
            for called in _callables(used):
                yield from _parts(called, package, seen)


def _is_followed(value: Any, package: str) -> bool:
    """Whether code is not that of an installed package, or is that of the first function's own. Errors
    change no result.
    """
    if isinstance(value, type) and issubclass(value, BaseException):
        return False
    try:
        file = str(Path(inspect.getfile(value)).resolve())
    except (TypeError, OSError):  # built in
        return False
    name: str = value.__name__ if isinstance(value, ModuleType) else value.__module__
    return name.partition(".")[0] == package or not file.startswith(INSTALLED)


def _functions(value: type | FunctionType) -> list[FunctionType]:
    """A function, or the methods and properties of a class."""
    if isinstance(value, FunctionType):
        return [value]
    functions = []
    for member in vars(value).values():
        for name in ("fget", "func", "__func__"):  # of properties, cached properties and class methods
            member = getattr(member, name, member)  # noqa: PLW2901
        # Methods that a decorator such as `dataclass` has written follow from the source of the class.
        if isinstance(member, FunctionType) and member.__code__.co_filename == inspect.getsourcefile(value):
            functions.append(member)
    return functions


def _used(function: FunctionType, package: str) -> Iterator[tuple[str, Any]]:
    """What a function mentions: global names, functions of modules, variables that enclose it, and the types
    of its parameters, whose methods it may call.
    """
    names = _names(function.__code__)
    yield from inspect.getclosurevars(function).nonlocals.items()
    yield from ((name, hint) for name, hint in _hints(function).items() if isinstance(hint, type))
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if not isinstance(value, ModuleType):
            yield name, value
        elif _is_followed(value, package):
            # Some of the names may be attributes of something else: more is followed than necessary.
            yield from (
                (f"{name}.{attribute}", vars(value)[attribute]) for attribute in names & vars(value).keys()
            )


def _hints(function: FunctionType) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError, AttributeError):  # names that exist for type checkers alone
        return {}


def _callables(value: Any) -> Iterator[Any]:
    """A function or class, those in a table of them, or else the class of an object."""
    if callable(value):
        yield value
    elif isinstance(value, dict):
        yield from filter(callable, value.values())
    elif isinstance(value, tuple | list | set | frozenset):
        yield from filter(callable, value)
    else:
        yield type(value)


def _names(code: CodeType) -> set[str]:
    """The names in a function's code, and in that of the functions inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(_names(constant))
    return names


def _text(value: Any) -> str:
    """A constant as text. Other objects, such as loggers, do not count."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    elif isinstance(value, re.Pattern):
        value = (value.pattern, value.flags)
    elif isinstance(value, np.ndarray):
        value = (str(value.dtype), value.tolist())
    if isinstance(value, dict):
        return repr([(_text(key), _text(entry)) for key, entry in value.items()])
    if isinstance(value, tuple | list):
        return repr(list(map(_text, value)))
    if isinstance(value, set | frozenset):
        return repr(sorted(map(_text, value)))
    return repr(value) if isinstance(value, PLAIN) else type(value).__qualname__


def source(value: type | FunctionType) -> str:
    """The source of a function or class without comments, docstrings and empty lines. Code that was not
    read from a file is identified by its instructions.
    """
    try:
        lines = inspect.getsource(value)
    except OSError:
        return repr([function.__code__.co_code for function in _functions(value)])
    text = inspect.cleandoc(f"\n{lines}")
    try:
        ignored = _docstrings(text)
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, tokenize.TokenError):  # a part of a statement, such as a lambda
        return text
    comments = {token.start[0]: token.start[1] for token in tokens if token.type == tokenize.COMMENT}
    kept = []
    for number, line in enumerate(text.splitlines(), start=1):
        code = line[: comments.get(number)].rstrip()
        if code and number not in ignored:
            kept.append(code)
    return "\n".join(kept)


def _docstrings(text: str) -> set[int]:
    """The lines of docstrings."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return lines
