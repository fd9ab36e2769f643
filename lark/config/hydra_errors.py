"""Errors of Hydra and OmegaConf as one sentence that says what to do."""

import difflib
import re
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_args

from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from lark.config.argument_checks import options_of
from lark.config.schema import Config
from lark.config.teacher import Teacher
from lark.errors import LarkError

LIBRARIES = ("hydra", "hydra_plugins", "omegaconf", "antlr4", "submitit")
LONGEST_SHOWN = 300
"""Characters of a value in a message."""


def is_of_hydra(error: Exception) -> bool:
    """True for errors of Hydra and its libraries, which check some values with Python's own errors."""
    if isinstance(error, HydraException | OmegaConfBaseException):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    module = trace.tb_frame.f_globals.get("__name__", "")
    return module.partition(".")[0] in LIBRARIES


def sentence(error: Exception) -> str:
    """An error as one sentence, even if its message has several lines. Long values are cut."""
    text = _sentence(error) or "Hydra cannot use the value of a setting that starts with hydra."
    return re.sub(rf"\S{{{LONGEST_SHOWN},}}", lambda match: f"{match[0][:60]}…", text)


def _sentence(error: Exception) -> str:
    text = str(error).removeprefix("LarkError raised while resolving interpolation: ")
    if isinstance(error, LarkError):
        return text
    if isinstance(error, OverrideParseException):
        return _not_parsed(error.override)
    if "Error merging override" in text and error.__cause__ is not None:
        override = text.removeprefix("Error merging override ").strip()
        return f"{_as_typed(override)}: {_reason(str(error.__cause__))}."
    for pattern, explanation in EXPLANATIONS:
        match = re.search(pattern, text, re.DOTALL)
        if match is not None:
            return explanation(match)
    return _first(text)


def _not_parsed(override: str) -> str:
    if len(override) > LONGEST_SHOWN:
        return f"{override[:60]}…: Hydra cannot parse it; write key=value."
    advice = "write key=value, and quote a value with special characters: 'key=\"value\"'"
    return f"{_as_typed(override)}: Hydra cannot parse it; {advice}."


def _as_typed(override: str) -> str:
    """An override as users type it."""
    return re.sub(r"^budget\.size=", "budget=", override.lstrip("+"))


def _reason(text: str) -> str:
    """Why OmegaConf refuses a value."""
    return next((reason for pattern, reason in REASONS.items() if pattern in text), _first(text))


REASONS = {
    "could not be converted to Integer": "must be a whole number",
    "could not be converted to Float": "must be a number",
    "is not a valid bool": "must be true or false",
    "incompatible with type hint 'Union[bool, int]'": "must be true, false or a whole number",
    "is not Optional": "cannot be null; give a value, or leave it out",
    "is not a ListConfig, list or tuple": "must be a list in brackets, such as [a,b]",
    "is not a subclass of": "is a group of settings; set its keys one by one (`--cfg job` lists them)",
    "does not support deletion": "cannot be removed; set another value",
}
"""Parts of OmegaConf's messages, and the sentences that replace them."""


def _first(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    details = ("full_key", "object_type", "reference_type")
    return " ".join(line for line in lines if line and not line.startswith(details)).rstrip(".")


def _no_such_option(match: re.Match[str]) -> str:
    group, option, options = match.groups()
    if option.startswith("submitit_"):
        return (
            f"{group}={option} needs Hydra's launcher for clusters: pip install"
            " hydra-submitit-launcher==1.2.0."
        )
    return f"{group}={option}: there is no such option; choose one of {', '.join(sorted(options.split()))}."


def _no_such_file(match: re.Match[str]) -> str:
    """A list names a file of a group that does not exist. Only teachers are chosen as a list."""
    group, option = match.groups()
    options = ", ".join(options_of(group))
    return (
        f"{group}={option}: there is no such option; choose one of {options}, or give the folder of your own"
        f" {group}/{option}.yaml with --config-dir."
    )


def _no_package(match: re.Match[str]) -> str:
    file = match[1]
    name = file.rpartition("/")[2]
    return (
        f"{file}.yaml: its settings are not those of a teacher, or have no name. Its first line must be"
        f" `# @package teacher.{name}`."
    )


def _no_such_key(match: re.Match[str]) -> str:
    key = match[1]
    teacher = re.fullmatch(r"\+*(teacher\.([^.]+))\.(\w+)(\.\w+)?", key)
    if teacher is not None and teacher[3] in keys_of(Teacher):
        return f"{key}: this run has no {teacher[1]}; add it, as in teacher=[{teacher[2]}]."
    task = re.match(r"\+?benchmark\.tasks\.(\w+)", key)
    if task is not None:
        # Hydra applies the settings of a sweep before the swept student brings its benchmark.
        return (
            f"{key}: there is no such key: the benchmark does not have {task[1]}, or not this setting of it."
            " Name the benchmark that has it, such as benchmark=paper."
        )
    return f"{key}: there is no such key{_nearest(key)}"


def _nearest(key: str) -> str:
    """Suggest a key of another group with the same name, or one with a similar spelling, if there is one."""
    keys = keys_of(Config)
    same = [other for other in keys if other.split(".")[-1] == key.rpartition(".")[2]]
    close = same if len(same) == 1 else difflib.get_close_matches(key, keys, n=1)
    return f"; did you mean {close[0]}?" if close else "; `python run.py --cfg job` lists all keys."


def keys_of(schema: Any, prefix: str = "") -> dict[str, Any]:
    """All keys of the configuration, with their types."""
    keys: dict[str, Any] = {}
    for field in fields(schema):
        keys[prefix + field.name] = field.type
        if is_dataclass(field.type):
            keys |= keys_of(field.type, f"{prefix}{field.name}.")
    return keys


def _several_values(match: re.Match[str]) -> str:
    """A value with commas: a sweep without -m, unless it is a text that contains commas."""
    typed = _as_typed(match[1])
    key, _, value = typed.partition("=")
    kind = keys_of(Config).get(key)
    is_text = kind is str or str in get_args(kind)
    quoted = f"; if this is one value, quote it: {key}=\"'{value}'\"" if is_text else ""
    return f"{typed}: these are several values; to run each of them, add -m{quoted}."


def _refers_to_itself(_: re.Match[str]) -> str:
    typed = ", ".join(argument for argument in sys.argv[1:] if "${" in argument)
    return (
        f"{typed or 'A setting'}: the value refers to itself (${{…}} is the value of another key). Write the"
        " value."
    )


EXPLANATIONS: list[tuple[str, Callable[[re.Match[str]], str]]] = [
    (
        r"Could not find '(hydra/launcher|\S+?)/(\S*)'\s+Available options in '\S+':\s+(.*?)\s+Config search",
        _no_such_option,
    ),
    (r"Could not load '(teacher)/(\S+?)'", _no_such_file),
    (r"In '(teacher/\S+?)': (?:Validation|ConfigKey|ConfigComposition)", _no_package),
    (r"Could not override '(\S+?)'", _no_such_key),
    (r"Ambiguous value for argument '(.*?)'\n", _several_values),
    (
        r"Interpolation key 'experiment\.scales\.([^.']+)",
        lambda match: (
            f"scale={match[1]}: this experiment has no such scale; its file in conf/experiment lists its"
            " scales."
        ),
    ),
    (
        r"Config group override (?:deletion value )?must be a string.*?(?:key_or_group='(\S+?)'|$)",
        lambda match: (
            f"{match[1] or 'a group of settings'}: the value must be the name of one of its options."
        ),
    ),
    (r"Recursive interpolation detected", _refers_to_itself),
    (r"Missing mandatory value: (\S+)", lambda match: f"{match[1]} has no value: add {match[1]}=<value>."),
    (
        r'Could not detect "srun"',
        lambda _: (
            "hardware=slurm with -m submits jobs, but there is no srun here: run it on the cluster's login"
            " node."
        ),
    ),
]
"""Patterns in the messages of Hydra and its libraries, and the sentences that replace them."""
