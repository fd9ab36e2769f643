"""Translate the command line for Hydra, and report its errors in one sentence that says what to do."""

import difflib
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lark.config import Config
from lark.errors import LarkError

CONF = Path(__file__).parents[2] / "conf"
VALUED = frozenset({"--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd",
                    "--experimental-rerun", "--info", "-i"})  # fmt: skip
"""Hydra flags that take the next argument as their value."""


def as_hydra_reads(arguments: list[str]) -> list[str]:
    """Translate what users type into Hydra's syntax.

    `budget=3` is short for `budget.size=3`.
    `force=grade` and `stages=select,train` are lists, which Hydra expects in brackets. `pool.fields` and `pool.mix` have no keys
    until they are added. Paths may contain spaces and non-ASCII letters, which Hydra expects in quotes. Flags such as -m may be
    anywhere; Hydra does not accept settings on both sides of them.
    """
    flags, settings = [], []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            settings.append(_as_hydra_reads(argument))
            continue
        flags.append(argument)
        if argument in VALUED:
            flags.extend(islice(rest, 1))
    return [*flags, *settings, *_benchmark_of_a_sweep(settings)]


def _benchmark_of_a_sweep(settings: list[str]) -> list[str]:
    """Return `benchmark=paper` if `benchmark.tasks.aime24.path=...` needs it.

    Hydra first applies the settings of a sweep to its own configuration, which contains none of the swept students and
    therefore not the benchmark that their config files select.
    """
    typed = dict(setting.split("=", 1) for setting in settings if "=" in setting)
    if "benchmark" in typed or not any(setting.lstrip("+~").startswith("benchmark.tasks.") for setting in settings):
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
    return next((str(item["override /benchmark"]) for item in defaults if "override /benchmark" in item), "demo")


def _as_hydra_reads(argument: str) -> str:
    key, _, value = argument.partition("=")
    if key == "weighting.name":
        return f"weighting={value}"
    if key == "budget":
        return "budget.size=" + value.replace("'", "")
    if key in ("force", "stages") and re.fullmatch(r"\w+(,\w+)*", value) and value != "null":
        return f"{key}=[{value}]"
    if key.split(".")[:2] in (["pool", "fields"], ["pool", "mix"]):
        return f"++{argument}"
    if key == "outputs" and not value:
        raise LarkError("outputs= has no value: give a folder, e.g. outputs=outputs.")
    if key.split(".")[-1] in ("path", "outputs") and re.search(r"[^\x21-\x7e]", value) and not re.search(r"[,'\"\\]", value):
        return f"{key}='{value}'"
    return argument


def sentence(error: Exception) -> str:
    """An error as one sentence, even if its message has several lines."""
    text = str(error)
    if "Error merging override" in text and error.__cause__ is not None:
        return f"{text.removeprefix('Error merging override ').strip()}: {_first(str(error.__cause__))}."
    for pattern, say in RULES:
        if match := re.search(pattern, text, re.DOTALL):
            return say(match)
    return _first(text)


def _no_such_option(match: re.Match[str]) -> str:
    group, option, options = match[1], match[2], match[3].split()
    if option.startswith("submitit_"):
        return f"{group}={option} needs Hydra's launcher for clusters: pip install hydra-submitit-launcher==1.2.0."
    return f"{group}={option}: there is no such option; choose one of {', '.join(sorted(options))}."


def _unreadable(match: re.Match[str]) -> str:
    return f"{match[1]}: Hydra cannot parse it; write key=value, and quote a value with special characters: 'key=\"value\"'."


RULES: list[tuple[str, Callable[[re.Match[str]], str]]] = [
    (
        r"Could not find '(hydra/launcher|\S+?)/(\S*)'\s+Available options in '\S+':\s+(.*?)\s+Config search path",
        _no_such_option,
    ),
    (r"Could not override '(\S+?)'", lambda match: f"{match[1]}: there is no such key{_nearest(match[1])}"),
    (r"LexerNoViableAltException: (.*?)\n", _unreadable),
    (r"Error parsing override '(.*?)'\n", _unreadable),
    (r"^(.*?)\s+See https://hydra", _unreadable),
    (
        r"Interpolation key 'experiment\.scales\.([^.']+)",
        lambda match: f"scale={match[1]}: this experiment has no such scale; its file in conf/experiment lists its scales.",
    ),
    (r"Missing mandatory value: (\S+)", lambda match: f"{match[1]} has no value: add {match[1]}=<value>."),
]
"""Patterns in the messages of Hydra and OmegaConf, and the sentences that replace them."""


def _first(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("full_key", "object_type", "reference_type"))]
    return " ".join(kept).rstrip(".")


def _nearest(key: str) -> str:
    """Suggest a key with a similar spelling, if there is one."""
    close = difflib.get_close_matches(key, _keys(Config), n=1)
    return f"; did you mean {close[0]}?" if close else "; `python run.py --cfg job` lists all keys."


def _keys(schema: Any, prefix: str = "") -> list[str]:
    keys = []
    for field in fields(schema):
        keys.append(prefix + field.name)
        if is_dataclass(field.type):
            keys += _keys(field.type, f"{prefix}{field.name}.")
    return keys
