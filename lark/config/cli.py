"""Translate the command line for Hydra, and report its errors in one sentence that says what to do."""

import difflib
import re
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, get_args

from hydra.errors import OverrideParseException
from omegaconf import OmegaConf

from lark.config import Config
from lark.config.checks import user_path
from lark.errors import LarkError
from lark.printing import visible
from lark.secrets import find, secret_refused

CONF = Path(__file__).parents[2] / "conf"
VALUED = frozenset(
    {
        "--cfg",
        "-c",
        "--package",
        "-p",
        "--config-path",
        "-cp",
        "--config-name",
        "-cn",
        "--config-dir",
        "-cd",
        "--experimental-rerun",
        "--info",
        "-i",
    }
)
"""Hydra flags that take the next argument as their value."""
FLAGS = VALUED | {"--help", "-h", "--hydra-help", "--version", "--resolve", "--run", "-r", "--multirun", "-m",
                  "--shell-completion", "-sc"}  # fmt: skip
"""All flags of Hydra."""


def as_hydra_reads(arguments: list[str]) -> list[str]:
    """Translate what users type into Hydra's syntax.

    `budget=3` is short for `budget.size=3`: Hydra reads no number as the name of an option, and any number
    is a budget. `force=grade` and `stages=select,train` are lists, which Hydra expects in brackets.
    `pool.fields` and `pool.mix` have no keys until they are added; options of a method are added too, so
    that the method itself reports those that it does not take. Paths may contain spaces and non-ASCII
    letters, which Hydra expects in quotes. Flags such as -m may be anywhere; Hydra does not accept settings
    on both sides of them.
    """
    flags, settings = [], []
    rest = iter(arguments)
    for argument in arguments:
        _refuse_unreadable(argument)
    for place, argument in enumerate(arguments):
        _refuse_dashes(argument, *arguments[place + 1 : place + 2])
    for argument in rest:
        if not argument.startswith("-"):
            settings.append(_as_hydra_reads(argument))
            continue
        flags.append(argument)
        if argument in VALUED:
            flags.extend(islice(rest, 1))
    return [*flags, *settings, *_benchmark_of_a_sweep(settings)]


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
REMOVED = frozenset({"hardware.nodes", "hardware.node", "hardware.rendezvous"})
SEVERAL_NODES = (
    "several nodes work together through Ray. Use hardware=ray with hardware.address=<host:port>, or"
    " hardware=slurm in a SLURM job; hardware.workers=<number> plans for a number of processes on all nodes"
    " (docs/cluster.md)."
)
LONGEST_ARGUMENT, DEEPEST = 100_000, 40
"""Characters of an argument, and brackets within brackets. Hydra's parser fails beyond that."""


def _refuse_unreadable(argument: str) -> None:
    """Refuse what Hydra's parser cannot read, what would be written outside of `outputs`, and credentials."""
    key, _, value = argument.partition("=")
    said = visible(key[:60], lines=False)
    if (what := find(argument)) is not None:
        raise LarkError(secret_refused(said, what))
    if len(argument) > LONGEST_ARGUMENT or re.search(r"\d{1000}", value):
        raise LarkError(
            f"{said}: the value has {len(value):,} characters, more than Hydra can parse. Use a smaller"
            " value."
        )
    depths = accumulate((c in "[{(") - (c in ")}]") for c in value)
    if max(depths, default=0) > DEEPEST:
        raise LarkError(f"{said}: brackets are nested more than {DEEPEST} deep. Use a simpler value.")
    if key.lstrip("+~") in REMOVED:
        raise LarkError(f"{said} has been removed: {SEVERAL_NODES}")
    if (count := re.fullmatch(r"range\((-?\d{1,15}),(-?\d{1,15})\)", value)) and int(count[1]) >= int(
        count[2]
    ):
        raise LarkError(
            f"{said}={value}: it has no values, because the second number is excluded. Use a higher one."
        )
    if any(c != "\n" and not c.isprintable() for c in key) or "\0" in value:
        raise LarkError(f"{said}: contains characters that cannot be typed. Check the command.")
    leaves = key.lstrip("+") == "hydra.sweep.subdir" and re.search(r"\.\.|^['\"]?/", value)
    if key.lstrip("+").startswith(PLACES) or leaves:
        raise LarkError(f"{said}: a run is saved below `outputs`. Choose the folder with outputs=<folder>.")
    if len(key) > len("--e") and "--experimental-rerun".startswith(key):
        raise LarkError(
            f"{said}: it would load a pickle, which can execute code. Run the command that made the run"
            " again."
        )


def outputs_typed(arguments: list[str]) -> Path:
    """The outputs folder as typed, before the command line is parsed."""
    typed = [
        argument.partition("=")[2].strip("'\"") for argument in arguments if argument.startswith("outputs=")
    ]
    return Path(typed[-1] if typed and typed[-1] and "\0" not in typed[-1] else "outputs")


def _benchmark_of_a_sweep(settings: list[str]) -> list[str]:
    """Return `benchmark=paper` if `benchmark.tasks.aime24.path=...` needs it.

    Hydra first applies the settings of a sweep to its own configuration, which contains none of the swept
    students and therefore not the benchmark that their config files select.
    """
    typed = dict(setting.split("=", 1) for setting in settings if "=" in setting)
    if "benchmark" in typed or not any(
        setting.lstrip("+~").startswith("benchmark.tasks.") for setting in settings
    ):
        return []
    students, file = typed.get("student", ""), CONF / "experiment" / f"{typed.get('experiment')}.yaml"
    if file.is_file():
        scale = OmegaConf.load(file).experiment.scales.get(typed.get("scale", "demo"), {})
        if "benchmark" in scale:
            return [f"benchmark={scale.benchmark}"]
        students = students or scale.get("student", "")
    elif "," not in students:
        return []  # Hydra sees the student itself
    files = [CONF / "student" / f"{student}.yaml" for student in students.replace("'", "").split(",")]
    found = {_brought(file) for file in files if file.is_file()}
    return [f"benchmark={found.pop()}"] if len(found) == 1 else []


def _brought(student: Path) -> str:
    """The benchmark in a student's defaults list."""
    defaults = OmegaConf.select(OmegaConf.load(student), "defaults", default=[])
    return next(
        (str(item["override /benchmark"]) for item in defaults if "override /benchmark" in item), "demo"
    )


NO_NAME = re.compile(r"null|true|false|[+-]?(inf|nan|[\d_.]+(e[+-]?\d+)?)|[\[{].*", re.IGNORECASE | re.DOTALL)
"""Values that Hydra does not read as the name of an option."""


def _as_hydra_reads(argument: str) -> str:
    key, _, value = argument.partition("=")
    if key == "weighting.name":
        return f"weighting={value}"
    if key == "budget" and (value.isdigit() or value not in options_of(key)):
        return "budget.size=" + value.replace("'", "")
    if key in ("force", "stages") and re.fullmatch(r"\w+(,\w+)*", value) and value != "null":
        return f"{key}=[{value}]"
    group = key.lstrip("+~")
    if NO_NAME.fullmatch(value) and group and (CONF / group).is_dir():
        raise LarkError(f"{argument}: leave it out, or choose one of {', '.join(options_of(group))}.")
    if key.split(".")[:2] in (
        ["pool", "fields"],
        ["pool", "mix"],
        ["method", "options"],
        ["student", "template_options"],
    ):
        return f"++{argument}"
    if key == "outputs" and not value.strip("'\" "):
        raise LarkError("outputs= has no value: give a folder, e.g. outputs=outputs.")
    if key == "outputs" and value.lstrip("'\"").startswith(
        "~"
    ):  # Hydra would create a folder called ~ for the run
        value = str(user_path(key, value.strip("'\"")))
        argument = f"{key}={value}"
    if key.split(".")[-1] in ("path", "outputs") and _needs_quotes(value):
        escaped = re.sub(
            r"(\\*)'", r"\1\1\\'", value
        )  # Hydra reads \' as a quote, and \\ before a quote as a backslash
        return f"{key}='{escaped}'"
    return argument


def _needs_quotes(path: str) -> bool:
    """Whether Hydra would not read a path as it is. A list, an interpolation, quoted text and the values of
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


def _refuse_dashes(argument: str, following: str = "") -> None:
    """Refuse a setting that is typed as a flag, such as `--dry-run` or `--budget 3`, and show how to type
    it.
    """
    name, _, value = argument.partition("=")
    typed, keys = name.lstrip("-").replace("-", "_"), _keys(Config)
    if (
        name in FLAGS
        or not name.startswith("-")
        or (name.startswith("--") and any(flag.startswith(name) for flag in FLAGS))
    ):
        return  # argparse accepts the start of a long flag
    if not name.startswith("--") and typed.split(".")[0] not in keys:
        return  # argparse reports it
    ends = [key for key in keys if key.split(".")[-1] == typed]
    near = (
        [typed] if typed in keys else ends if len(ends) == 1 else difflib.get_close_matches(typed, keys, n=1)
    )
    if not near:
        raise LarkError(
            f"{argument}: there is no such flag; settings are typed key=value, and `--cfg job` lists all"
            " keys."
        )
    if not value:
        given = (
            following if following and not following.startswith("-") and "=" not in following else "<value>"
        )
        value = "true" if keys[near[0]] is bool else given
    raise LarkError(f"{argument}: settings are typed without dashes: {near[0]}={value}.")


def raised_by_hydra(error: Exception) -> bool:
    """Whether an error comes from Hydra's own code, which checks some values with Python's errors."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "hydra"


def sentence(error: Exception) -> str:
    """An error as one sentence, even if its message has several lines. Values of hundreds of characters are
    cut.
    """
    return re.sub(r"\S{300,}", lambda match: f"{match[0][:60]}…", _sentence(error))


def _sentence(error: Exception) -> str:
    text = str(error).removeprefix("LarkError raised while resolving interpolation: ")
    if isinstance(error, LarkError):
        return text
    if "Error merging override" in text and error.__cause__ is not None:
        return (
            f"{_as_typed(text.removeprefix('Error merging override ').strip())}:"
            f" {_reason(str(error.__cause__))}."
        )
    if isinstance(error, OverrideParseException):
        if len(error.override) > 300:
            return f"{error.override[:60]}…: Hydra cannot parse it; write key=value."
        advice = "write key=value, and quote a value with special characters: 'key=\"value\"'"
        return f"{_as_typed(error.override)}: Hydra cannot parse it; {advice}."
    for pattern, say in RULES:
        if match := re.search(pattern, text, re.DOTALL):
            return say(match)
    return _first(text)


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


def _no_such_option(match: re.Match[str]) -> str:
    group, option, options = match[1], match[2], match[3].split()
    if option.startswith("submitit_"):
        return (
            f"{group}={option} needs Hydra's launcher for clusters: pip install"
            " hydra-submitit-launcher==1.2.0."
        )
    return f"{group}={option}: there is no such option; choose one of {', '.join(sorted(options))}."


def _several_values(match: re.Match[str]) -> str:
    """A value with commas: a sweep without -m, unless it is a text that contains commas."""
    typed = _as_typed(match[1])
    key, _, value = typed.partition("=")
    kind = _keys(Config).get(key)
    is_text = kind is str or str in get_args(kind)
    quoted = f"; if this is one value, quote it: {key}=\"'{value}'\"" if is_text else ""
    return f"{typed}: these are several values; to run each of them, add -m{quoted}."


def _refers_to_itself() -> str:
    typed = ", ".join(argument for argument in sys.argv[1:] if "${" in argument)
    return (
        f"{typed or 'A setting'}: the value refers to itself (${{…}} is the value of another key). Write the"
        " value."
    )


RULES: list[tuple[str, Callable[[re.Match[str]], str]]] = [
    (
        (
            r"Could not find '(hydra/launcher|\S+?)/(\S*)'\s+Available options in '\S+':\s+(.*?)\s+Config"
            r" search path"
        ),
        _no_such_option,
    ),
    (r"Could not override '(\S+?)'", lambda match: f"{match[1]}: there is no such key{_nearest(match[1])}"),
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
    (r"Recursive interpolation detected", lambda match: _refers_to_itself()),
    (r"Missing mandatory value: (\S+)", lambda match: f"{match[1]} has no value: add {match[1]}=<value>."),
]
"""Patterns in the messages of Hydra and OmegaConf, and the sentences that replace them."""


def _first(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("full_key", "object_type", "reference_type"))]
    return " ".join(kept).rstrip(".")


def _nearest(key: str) -> str:
    """Suggest a key of another group with the same name, or one with a similar spelling, if there is one."""
    keys = _keys(Config)
    same = [known for known in keys if known.split(".")[-1] == key.rpartition(".")[2]]
    close = same if len(same) == 1 else difflib.get_close_matches(key, keys, n=1)
    return f"; did you mean {close[0]}?" if close else "; `python run.py --cfg job` lists all keys."


def _keys(schema: Any, prefix: str = "") -> dict[str, Any]:
    """All keys of the configuration, with their types."""
    keys: dict[str, Any] = {}
    for field in fields(schema):
        keys[prefix + field.name] = field.type
        if is_dataclass(field.type):
            keys |= _keys(field.type, f"{prefix}{field.name}.")
    return keys
