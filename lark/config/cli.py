"""Translate what users type into Hydra's syntax."""

import re
from pathlib import Path

from lark.config.argument_checks import RULES, options_of
from lark.config.checks import user_path

VALUED = frozenset(
    "--cfg -c --package -p --config-path -cp --config-name -cn --config-dir -cd --info -i".split()  # noqa: SIM905
)
"""Hydra flags that take the next argument as their value."""
LISTS = ("force", "stages", "teacher")
ADDED = ("pool.fields", "pool.mix", "pool.thresholds", "method.options", "student.template_options")
"""Settings that have no keys until they are added."""
OF_A_TEACHER = re.compile(r"teacher\.[^.]+\.(template_options|extra)\.")
"""Settings of a teacher that have no keys until they are added."""


def as_hydra_reads(arguments: list[str]) -> list[str]:
    """Translate what users type into Hydra's syntax.

    `budget=3` is short for `budget.size=3`: Hydra reads no number as the name of an option, and any number
    is a budget. `force=grade` and `stages=select,train` are lists, which Hydra expects in brackets.
    `pool.fields` and `pool.mix` have no keys until they are added; options of a method are added too, so
    that the method itself reports those that it does not take. Paths may contain spaces and non-ASCII
    letters, which Hydra expects in quotes. Flags such as -m may be anywhere; Hydra does not accept settings
    on both sides of them.
    """
    for argument in arguments:
        for rule in RULES:
            rule(argument)
    flags = []
    settings = []
    before = ""
    for argument in arguments:
        if argument.startswith("-") or before in VALUED:
            flags.append(argument)
        else:
            settings.append(_translated(argument))
        before = argument
    return [*flags, *settings]


def _translated(argument: str) -> str:
    key, _, value = argument.partition("=")
    if key == "weighting.name":
        return f"weighting={value}"
    if key == "budget" and (value.isdigit() or value not in options_of(key)):
        return "budget.size=" + value.replace("'", "")
    if key in LISTS and re.fullmatch(r"\w+(,\w+)*", value) and value != "null":
        return f"{key}=[{value}]"
    if ".".join(key.split(".")[:2]) in ADDED or OF_A_TEACHER.match(key):
        return f"++{argument}"
    if key == "outputs" and value.lstrip("'\"").startswith("~"):
        value = str(user_path(key, value.strip("'\"")))  # Hydra would create a folder called ~ for the run
    if key.split(".")[-1] in ("path", "outputs") and _needs_quotes(value):
        # Hydra reads \' as a quote, and \\ before a quote as a backslash.
        value = "'" + re.sub(r"(\\*)'", r"\1\1\\'", value) + "'"
    return f"{key}={value}" if "=" in argument else argument


def _needs_quotes(path: str) -> bool:
    """True if Hydra would not read a path as it is. A list, an interpolation, quoted text and the values of
    a sweep are left.
    """
    if re.fullmatch(r"(['\"]).*\1|\[.*\]|.*\$\{.*", path, re.DOTALL) or path.endswith("\\"):
        return False
    if "," in path:
        return Path(path).exists()
    return re.search(r"[^\x21-\x7e]|['\"\\$;()<>&#~^`!{}\[\]]", path) is not None


def outputs_typed(arguments: list[str]) -> Path:
    """The outputs folder as typed: errors of the command line are reported there too."""
    values = [argument.partition("=")[2] for argument in arguments if argument.startswith("outputs=")]
    last = values[-1].strip("'\"") if values else ""
    return Path(last or "outputs")
