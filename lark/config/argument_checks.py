"""What a run must not contain, as users type it: rules for single arguments, and their sentences."""

import re
from collections.abc import Callable
from pathlib import Path

from lark.config.teacher import is_variable, key_refused
from lark.errors import LarkError
from lark.printing import visible
from lark.secrets import find, secret_refused

CONF = Path(__file__).parents[2] / "conf"
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


def options_of(group: str) -> list[str]:
    """The options of a config group: the files in its folder."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


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
