"""How the pool of a dataset was taught: its teachers, their prompts and dates, for the card."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lark.output.markdown import fenced, table
from lark.store.manifest import Manifest, readable_manifest
from lark.store.siblings import description

TERMS = (
    "The answers of these models are published here. Check that the terms of each model and of each"
    " provider allow it, and name the terms that apply to users."
)
ROLLOUTS = "rollouts:"
"""Begins the names of the inputs of a pool that teachers have written."""
SHOWN = ("temperature", "top_p", "top_k", "max_new_tokens", "system", "instruction", "thinking", "seed")


def taught(pool: Path) -> list[str]:
    """The section of a pool that teachers of a run have written; empty for any other pool."""
    manifest = readable_manifest(pool) or Manifest()
    folders = {}
    for name, folder in manifest.inputs.items():
        if name.startswith(ROLLOUTS):
            folders[name.removeprefix(ROLLOUTS)] = pool.parents[1] / folder
    if not folders:
        return []
    rows = [_row(name, folder) for name, folder in folders.items()]
    prompts = {name: _prompt(folder) for name, folder in folders.items()}
    return [
        "## Teachers",
        table(["teacher", "model", "asked on", "rollouts", "tokens", "cost"], rows),
        "Sampling and prompts:",
        fenced(json.dumps(prompts, indent=2, ensure_ascii=False), "json"),
        TERMS,
    ]


def _row(name: str, folder: Path) -> list[str]:
    manifest = readable_manifest(folder) or Manifest()
    counts = manifest.counts
    models = ", ".join(map(str, counts.get("models", [])))
    day = manifest.started.partition("T")[0]
    numbers = [f"{counts.get(key, 0):,}" for key in ("rollouts", "tokens")]
    return [name, models, day, *numbers, f"{counts.get('cost', 0):,.2f}"]


def _prompt(folder: Path) -> dict[str, Any]:
    depends = description(folder).get("depends", {})
    teacher = depends.get("teacher", {}) if isinstance(depends, Mapping) else {}
    return {key: teacher[key] for key in SHOWN if key in teacher}
