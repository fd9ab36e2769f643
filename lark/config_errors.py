"""What Hydra and OmegaConf say about a bad command line, in one sentence with a way out."""

import difflib
import re
from dataclasses import fields, is_dataclass
from typing import Any

from lark.config import Config


def as_hydra_reads(arguments: list[str]) -> list[str]:
    """What people type, as Hydra takes it.

    `budget=3` names the option conf/budget/3.yaml, but Hydra reads a bare number as a number and refuses it as a name.
    `force=grade` and `stages=select,train` are lists, which Hydra wants in brackets.
    """
    return [_as_hydra_reads(argument) for argument in arguments]


def _as_hydra_reads(argument: str) -> str:
    key, _, value = argument.partition("=")
    if key == "budget" and re.fullmatch(r"\d+(,\d+)*", value):
        return "budget=" + ",".join(f"'{number}'" for number in value.split(","))
    if key in ("force", "stages") and re.fullmatch(r"\w+(,\w+)*", value) and value != "null":
        return f"{key}=[{value}]"
    return argument


def sentence(error: Exception) -> str:
    """One sentence, whatever the number of lines."""
    text = str(error)
    if match := re.search(
        r"Could not find '(\S+)/(\S+)'\s+Available options in '\S+':\s+(.*?)\s+Config search path", text, re.S
    ):
        group, option, options = match[1], match[2], match[3].split()
        launcher = f"{group}={option} needs Hydra's launcher for clusters: pip install hydra-submitit-launcher==1.2.0."
        free = f", or any other with budget.size={option}" if group == "budget" else ""
        other = f"{group}={option}: there is no such option; choose one of {', '.join(options)}{free}."
        return launcher if option.startswith("submitit_") else other
    if match := re.search(r"Could not override '(\S+?)'", text):
        return f"{match[1]}: there is no such key{_nearest(match[1])}"
    if "Error merging override" in text and error.__cause__ is not None:
        return f"{text.removeprefix('Error merging override ').strip()}: {_first(str(error.__cause__))}."
    if match := re.search(r"Interpolation key 'experiment\.scales\.([^.']+)", text):
        return f"scale={match[1]}: this experiment has no such scale; its file in conf/experiment says which it has."
    if match := re.search(r"Missing mandatory value: (\S+)", text):
        return f"{match[1]} has no value: add {match[1]}=<value>."
    return _first(text)


def _first(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("full_key", "object_type", "reference_type"))]
    return " ".join(kept).rstrip(".")


def _nearest(key: str) -> str:
    """A suggestion, if a real key is close."""
    close = difflib.get_close_matches(key, _keys(Config), n=1)
    return f"; did you mean {close[0]}?" if close else "; `python run.py --cfg job` shows all of them."


def _keys(schema: Any, prefix: str = "") -> list[str]:
    keys = []
    for field in fields(schema):
        keys.append(prefix + field.name)
        if is_dataclass(field.type):
            keys += _keys(field.type, f"{prefix}{field.name}.")
    return keys
