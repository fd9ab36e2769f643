"""Completion in the shell, by Hydra: `eval "$(python run.py -sc install=bash)"`."""

from collections.abc import Collection
from typing import Any

from hydra.plugins.completion_plugin import CompletionPlugin

matches_of_hydra = CompletionPlugin._get_matches


def is_asked_for(arguments: list[str]) -> bool:
    return any(flag in arguments for flag in ("-sc", "--shell-completion"))


def offer(key: str, values: Collection[str]) -> None:
    """Complete a setting to its values. Hydra knows the options of groups, and of other settings only the
    value that they have.
    """

    def matches(config: Any, word: str) -> list[str]:
        if not word.startswith(f"{key}="):
            return matches_of_hydra(config, word)
        return [f"{key}={value}" for value in values if f"{key}={value}".startswith(word)]

    CompletionPlugin._get_matches = staticmethod(matches)  # type: ignore[method-assign]
