"""Dataset and model cards, made from what an artifact has on disk: its config.yaml, its manifest, and those
of its inputs.

Cards are not part of an artifact: they are in no fingerprint and no checksum, so they can be edited. An
artifact without one (from an older version) gets it from `python -m lark.publish`.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from lark.output.markdown import fenced, front_matter, table
from lark.output.teach_card import taught
from lark.store.manifest import Manifest, readable_manifest

LICENCE_HINT = (
    "fill in, e.g. apache-2.0: an identifier of https://huggingface.co/docs/hub/repositories-licenses"
)
SIZES = [
    (10**3, "n<1K"),
    (10**4, "1K<n<10K"),
    (10**5, "10K<n<100K"),
    (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"),
]
BUDGET_UNITS = {
    "total": "trajectories in total",
    "tokens": "response tokens in total",
    "size": "at most per question",
}
TEACHERS_SHOWN = 50
DATASET_ID = re.compile(r"\w[\w.-]*/[\w.-]+")
FIELDS = [
    ("messages", "the conversation in chat format; the last message is the selected response"),
    ("weight", "the weight of the trajectory's mean loss in training; the mean over the file is 1"),
    ("question_id, candidate_id", "identify the trajectory in the pool"),
]
RIGHTS = (
    "The questions come from the pool and the responses from the teachers named here. Their licences and"
    " terms of use apply to this {what}. Fill in `license` in the metadata above before you publish it."
)


@dataclass(frozen=True)
class Facts:
    """An artifact as its folder describes it. Files that are missing or cannot be read count as empty."""

    folder: Path
    config: Mapping[str, Any]
    manifest: Manifest
    counts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, counts: Mapping[str, Any] | None = None) -> "Facts":
        manifest = readable_manifest(folder) or Manifest()
        return cls(folder, _read(folder / "config.yaml"), manifest, counts or manifest.counts)

    @property
    def depends(self) -> Mapping[str, Any]:
        return _mapping(self.config.get("depends"))

    @property
    def fingerprint(self) -> str:
        return self.folder.name.rpartition("-")[2]

    @property
    def name(self) -> str:
        return self.folder.name.rpartition("-")[0]

    def input(self, name: str) -> "Facts":
        folder = self.manifest.inputs.get(name)
        if folder:
            return Facts.of(self.folder.parent.parent / folder)
        return Facts(Path("unknown-unknown"), {}, Manifest())


def dataset_card(folder: Path, counts: Mapping[str, Any] | None = None) -> str:
    """The card of a selection. `counts`: of its manifest, if that is not finished yet."""
    facts = Facts.of(folder, counts)
    rows = int(facts.counts.get("trajectories", 0))
    head = {
        "pretty_name": f"{facts.name} ({facts.fingerprint})",
        "task_categories": ["text-generation"],
        "tags": ["lark", "distillation", "reasoning", "trajectory-selection"],
        "size_categories": [next((name for limit, name in SIZES if rows < limit), "n>10M")],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "train.jsonl"}]}],
    }
    parts = [
        front_matter(head, {"license": LICENCE_HINT, "language": "fill in, e.g. [en]"}),
        "# A weighted training set for distillation",
        (
            "Teacher trajectories that were selected for a student model, with a weight for each. Made with"
            " an implementation of LARK (Learnability-Grounded Trajectory Selection for Efficient Reasoning"
            " Distillation) and the methods it is compared with."
        ),
        "## Selection",
        _selection_table(facts),
        "## Contents",
        _counts_table(facts),
        *_teachers(facts.folder),
        *taught(facts.input("pool").folder),
        "## Fields of train.jsonl",
        table(["field", "meaning"], FIELDS),
        "`selection.parquet` has the rank, score, weight and threshold of each trajectory.",
        *_provenance(facts, [*_settings(facts), "stages=[select]"]),
        "## Licence",
        RIGHTS.format(what="dataset"),
    ]
    return "\n\n".join(parts) + "\n"


def model_card(folder: Path, counts: Mapping[str, Any] | None = None) -> str:
    """The card of a trained student."""
    facts = Facts.of(folder, counts)
    selection = facts.input("selection")
    weights = _mapping(facts.depends.get("student")).get("weights")
    base = weights.rpartition("@")[0] if isinstance(weights, str) else None
    head: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["lark", "distillation", "reasoning"],
    }
    missing = {"license": LICENCE_HINT}
    datasets = _datasets(selection.input("pool"))
    if datasets:
        head["datasets"] = datasets
    else:
        missing["datasets"] = "fill in the hub id of the selection or of its pool, as a list"
    if base:
        head["base_model"] = base
    else:
        missing["base_model"] = "fill in the hub id of the student before training"
    training = _mapping(facts.depends.get("training"))
    parts = [
        front_matter(head, missing),
        "# A student fine-tuned on selected trajectories",
        (
            "A language model that was fine-tuned on a weighted selection of teacher trajectories. Add its"
            " evaluation results here."
        ),
        "## Training data",
        _selection_table(selection),
        *_teachers(selection.folder),
        "## Training",
        table(["setting", "value"], [(key, _shown(value)) for key, value in training.items()]),
        _counts_table(facts),
        *_provenance(facts, [*_settings(selection), *_typed("training", training), "stages=[train]"]),
        "## Licence",
        RIGHTS.format(what="model") + " The licence of the base model applies too.",
    ]
    return "\n\n".join(parts) + "\n"


def _datasets(pool: Facts) -> list[str]:
    """The datasets of the hub that a pool was read from, each once."""
    mixed = _mapping(pool.depends.get("mix"))
    ids = []
    for source in map(_mapping, mixed.values() or [pool.depends]):
        path = str(source.get("path"))  # of files, their checksums instead
        if source.get("format") in ("hub", "rsr") and DATASET_ID.fullmatch(path):
            ids.append(path)
    return list(dict.fromkeys(ids))


def _counts_table(facts: Facts) -> str:
    rows = [(name.replace("_", " "), _shown(value)) for name, value in facts.counts.items()]
    return table(["count", ""], rows)


def _selection_table(facts: Facts) -> str:
    depends = facts.depends
    pool = facts.input("pool")
    options = {key: value for key, value in depends.items() if key not in ("method", "weighting", "budget")}
    rows = [
        ("method", depends.get("method", "unknown")),
        ("weighting", depends.get("weighting", "unknown")),
        ("budget", _budget(depends.get("budget"))),
        *((key, _shown(value)) for key, value in options.items()),
        ("student", _student(facts, pool)),
        ("student's context", f"{facts.input('lengths').depends.get('max_length', 'unknown')} tokens"),
        ("pool", pool.depends.get("name", "unknown")),
        ("fingerprint", facts.fingerprint),
    ]
    return table(["", ""], rows)


def _budget(budget: Any) -> str:
    if isinstance(budget, int):
        return f"{budget} per question"
    limits = [f"{value:,} {BUDGET_UNITS[key]}" for key, value in _mapping(budget).items()]
    return ", ".join(limits) or "unknown"


def _student(facts: Facts, pool: Facts) -> str:
    return facts.input("lengths").name.removesuffix(f"-{pool.depends.get('name', '')}")


def _settings(facts: Facts) -> list[str]:
    """Settings of run.py that make the selection again, given its pool and its student."""
    depends = facts.depends
    pool = facts.input("pool")
    budget = depends.get("budget")
    sizes = {"size": budget} if isinstance(budget, int) else _mapping(budget)
    named = {"method", "weighting", "budget", "scores", "code"}
    if "function" in depends:  # a user's method may have any name
        depends = {**depends, "method": "own", "name": depends["method"]}
    else:
        named.add("higher_is_better")
    options = {key: value for key, value in depends.items() if key not in named}
    layout = str(pool.depends.get("format", "rows"))
    group = layout if layout in ("demo", "rsr", "hub") else "files"
    left_out = {"name", "path", "verdicts"}
    if group == layout:  # pool=demo sets pool.format
        left_out.add("format")
    pool_settings = {key: value for key, value in pool.depends.items() if key not in left_out}
    return [
        f"student={_student(facts, pool)}",
        *_typed("student", {"max_length": facts.input("lengths").depends.get("max_length")}),
        f"pool={group}",
        *_typed("pool", pool_settings),
        f"method={depends.get('method')}",
        f"weighting={depends.get('weighting')}",
        *(f"budget.{key}={value}" for key, value in sizes.items()),
        *(f"{_key(name)}={_value(value)}" for name, value in options.items()),
    ]


OF_METHOD = ("teacher", "reverse", "function", "needs", "higher_is_better", "name")
"""Settings of a method that are not options of its function."""


def _key(name: str) -> str:
    """The setting behind a part of a selection's fingerprint."""
    if name in ("share_weights", "whole_weights"):
        return name
    return f"method.{name}" if name in OF_METHOD else f"method.options.{name}"


def _value(value: Any) -> str:
    """A value as it is typed on the command line."""
    return json.dumps(value) if isinstance(value, list | bool) else str(value)


def _typed(group: str, values: Mapping[str, Any]) -> list[str]:
    """Plain values as settings of run.py: `training.bf16=false`. Nested ones are left out."""
    settings = []
    for key, value in values.items():
        if value is None or value == [] or isinstance(value, Mapping):
            continue
        settings.append(f"{group}.{key}={_value(value)}".replace(", ", ","))
    return settings


def _provenance(facts: Facts, settings: Sequence[str]) -> list[str]:
    selection = facts if "pool" in facts.manifest.inputs else facts.input("selection")
    pool = selection.input("pool")
    made = {
        "fingerprint": facts.fingerprint,
        "inputs": dict(_mapping(facts.config.get("inputs"))),
        "code": facts.manifest.git,
        "packages": dict(facts.manifest.versions),
        "pool": dict(pool.depends),
    }
    return [
        "## Reproduce",
        (
            "This command makes it again, with `pool.path` and `student.path` added if they are your own"
            " files. It gives the same fingerprint if the files and all settings are the same."
        ),
        fenced("python run.py " + " ".join(shlex.quote(setting) for setting in settings), "bash"),
        "Versions, and the settings and checksums of the pool:",
        fenced(yaml.safe_dump(made, sort_keys=False, allow_unicode=True), "yaml"),
    ]


def _teachers(selection: Path) -> list[str]:
    try:
        teachers = pd.read_parquet(selection / "selection.parquet", columns=["teacher"])["teacher"]
    except (OSError, ValueError):
        return []
    counted = sorted(teachers.value_counts().items(), key=lambda item: (-item[1], str(item[0])))
    parts = [table(["teacher", "trajectories"], counted[:TEACHERS_SHOWN])]
    if len(counted) > TEACHERS_SHOWN:
        parts.append(f"And {len(counted) - TEACHERS_SHOWN} more teachers.")
    return parts


def _shown(value: Any) -> str:
    if isinstance(value, list | Mapping):
        return json.dumps(value, ensure_ascii=False, default=str)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_number else str(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return _mapping(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
