"""Translate what users type into Hydra's syntax, and refuse what a run must not contain."""

import re
from collections.abc import Callable
from pathlib import Path

from lark.config.checks import user_path
from lark.config.teacher import is_variable, key_refused
from lark.errors import LarkError
from lark.printing import visible
from lark.secrets import find, secret_refused

CONF = Path(__file__).parents[2] / "conf"
VALUED = frozenset(
    "--cfg -c --package -p --config-path -cp --config-name -cn --config-dir -cd --info -i".split()  # noqa: SIM905
)
"""Hydra flags that take the next argument as their value."""
LISTS = ("force", "stages", "teacher")
ADDED = ("pool.fields", "pool.mix", "method.options", "student.template_options")
"""Settings that have no keys until they are added."""
OF_A_TEACHER = re.compile(r"teacher\.[^.]+\.(template_options|extra)\.")
"""Settings of a teacher that have no keys until they are added."""
PLACES = (
    "hydra.run.dir",
    "hydra.sweep.dir",
    "hydra.output_subdir",
    "hydra.runtime.",
    "hydra.job_logging",
    "hydra.hydra_logging",
    "hydra/job_logging",
    "hydra/hydra_logging",
    "hydra/output",
)
"""Settings of Hydra that name files or folders."""
NO_NAME = re.compile(r"null|true|false|[+-]?(inf|nan|[\d_.]+(e[+-]?\d+)?)|[\[{].*", re.IGNORECASE | re.DOTALL)
"""Values that Hydra does not read as the name of an option."""


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


def options_of(group: str) -> list[str]:
    """The options of a config group: the files in its folder."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def outputs_typed(arguments: list[str]) -> Path:
    """The outputs folder as typed: errors of the command line are reported there too."""
    values = [argument.partition("=")[2] for argument in arguments if argument.startswith("outputs=")]
    last = values[-1].strip("'\"") if values else ""
    return Path(last or "outputs")


def no_credentials(argument: str) -> None:
    secret = find(argument)
    if secret is not None:
        raise LarkError(secret_refused(_key(argument), secret))


def no_keys(argument: str) -> None:
    """Refuse a key where the name of its variable belongs. Hydra would save it."""
    setting, _, value = argument.partition("=")
    name = value.strip("'\"")
    is_key = re.fullmatch(r"\+{0,2}teacher\.[^.]+\.key", setting) is not None
    if is_key and name != "null" and not all(map(is_variable, name.split(","))):
        raise LarkError(key_refused(_key(argument)))


def below_outputs(argument: str) -> None:
    """Refuse settings of Hydra that would write a run elsewhere."""
    key, _, value = argument.partition("=")
    name = key.lstrip("+")
    leaves_outputs = name == "hydra.sweep.subdir" and re.search(r"\.\.|^['\"]?/", value)
    if name.startswith(PLACES) or leaves_outputs:
        raise LarkError(
            f"{_key(argument)}: a run is saved below `outputs`. Choose the folder with outputs=<folder>."
        )


def no_pickles(argument: str) -> None:
    flag = argument.partition("=")[0]
    if len(flag) > len("--e") and "--experimental-rerun".startswith(flag):  # argparse accepts its beginning
        raise LarkError(
            f"{flag}: it would load a pickle, which can execute code."
            " Run the command that made the run again."
        )


def named_option(argument: str) -> None:
    """Refuse a number, a list or null as the option of a group. A number is a budget; a run has several
    teachers.
    """
    key, _, value = argument.partition("=")
    group = key.lstrip("+~")
    if group == "teacher" and value.startswith("["):
        return
    if key != "budget" and NO_NAME.fullmatch(value) and group and (CONF / group).is_dir():
        raise LarkError(f"{argument}: leave it out, or choose one of {', '.join(options_of(group))}.")


def outputs_folder(argument: str) -> None:
    key, _, value = argument.partition("=")
    if key == "outputs" and not value.strip("'\" "):
        raise LarkError("outputs= has no value: give a folder, e.g. outputs=outputs.")


RULES: tuple[Callable[[str], None], ...] = (
    no_credentials, no_keys, below_outputs, no_pickles, named_option, outputs_folder
)  # fmt: skip
"""What every argument must satisfy, in this order: an error must not print a credential."""


def _key(argument: str) -> str:
    """The key of an argument, for messages."""
    return visible(argument.partition("=")[0][:60], lines=False)
