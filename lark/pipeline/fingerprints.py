"""The parts of the configuration that enter fingerprints: everything that can change a result, and nothing
else.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lark.config import Config, Task, Training
from lark.evaluation import benchmarks
from lark.scoring.external_scores import scores_file
from lark.scoring.own_method import is_own, method_of
from lark.selection.code_record import changed_code
from lark.store.store import Checksums

NOT_IN_FINGERPRINT = ("label", "count", "public")
"""Settings of a task that cannot change an answer."""
LATER_SETTINGS = ("answer_from", "options_field")
"""Settings of a task that count only if they are used, so that older artifacts stay valid."""
USUAL_OPTIONS = 4
"""Options of a multiple-choice problem under the paper's system prompt."""
SPEED_ONLY = ("name", "questions", "packing", "gradient_checkpointing", "liger", "checkpoints")
"""Training settings that cannot change the trained weights."""


def questions_part(name: str, task: Task) -> dict[str, Any]:
    """Everything in a task that can change a student's answers: the problems and the system prompt."""
    problems = benchmarks.load_if_here(name, task)
    if problems is None:
        source = {key: value for key, value in asdict(task).items() if key not in NOT_IN_FINGERPRINT}
        for key in LATER_SETTINGS:
            if source[key] is None:
                del source[key]
        return source | {"name": name}
    part = {"questions": _digest((p.id, p.question) for p in problems), "answer_format": task.answer_format}
    options = {len(problem.options) for problem in problems if problem.options} - {USUAL_OPTIONS}
    if options:  # the system prompt names their letters
        part["options"] = "all letters"
    return part


def answers_part(name: str, task: Task) -> dict[str, Any]:
    """Everything else in a task that can change their grades."""
    problems = benchmarks.load_if_here(name, task)
    if problems is None:
        return {}
    return {"answers": _digest((p.id, p.answer, p.level) for p in problems)}


def _digest(rows: Iterable[Sequence[Any]]) -> str:
    return hashlib.sha256(json.dumps(list(rows)).encode()).hexdigest()[:16]


def sketch_part(config: Config, size: str) -> dict[str, Any]:
    """The settings of a sketch that can change its result. `size`: gram or exact."""
    sketch = config.sketch
    return {
        "size": getattr(sketch, size),
        "words": sketch.words,
        "states": sketch.states,
        "seed": sketch.seed,
    }


def local_steps_part(config: Config) -> dict[str, str]:
    """Part of a fingerprint only if it is not at its default: earlier artifacts have no such setting."""
    split = config.scoring.local_steps
    return {} if split == "sentences" else {"local_steps": split}


def training_part(training: Training, checksums: Checksums) -> dict[str, Any]:
    """Settings that can change the weights, and, only if requested, the curves and snapshots that must then
    exist.
    """
    part = {key: value for key, value in asdict(training).items() if key not in SPEED_ONLY}
    held_out = training.held_out.path
    if training.lora.bits is None:
        del part["lora"]["bits"]
    if held_out not in (None, "selection"):
        part["held_out"]["path"] = checksums(Path(str(held_out)).expanduser())
    if training.token_weights is not None:
        part["token_weights"] = checksums(Path(training.token_weights).expanduser())
    # Settings that later versions added count only if they are used, so that older checkpoints stay valid.
    is_used = {
        "lora": training.lora.rank > 0,
        "snapshots": training.snapshots > 0,
        "early_snapshots": training.early_snapshots > 0,
        "held_out": held_out is not None,
        "objective": training.objective != "nll",
        "order": training.order != "shuffled",
        "token_weights": training.token_weights is not None,
        "thinking_weight": training.thinking_weight != 1,
        "answer_weight": training.answer_weight != 1,
    }
    return {key: value for key, value in part.items() if is_used.get(key, True)}


def method_part(config: Config, checksums: Checksums) -> dict[str, Any]:
    """Settings that can change a method's scores, or their order; also its code, if it is not the recorded
    one.
    """
    method = config.method
    rules = method_of(method)
    part: dict[str, Any] = {"method": method.name, **rules.check(method.options)}
    if method.reverse:
        part["reverse"] = True
    if "external" in rules.needs:
        part["scores"] = checksums(scores_file(method))
        part["higher_is_better"] = method.higher_is_better
    if is_own(method):
        part["function"] = method.function
        part["needs"] = sorted(method.needs)
        part["higher_is_better"] = method.higher_is_better
    code = changed_code(rules)
    if code:
        part["code"] = code
    return part


def selection_part(config: Config, checksums: Checksums) -> dict[str, Any]:
    """Settings that can change which trajectories are selected, and their weights."""
    method = config.method
    weighting = config.weighting_name
    part = method_part(config, checksums)
    part |= {"weighting": weighting, "budget": config.budget.identity}
    if config.share_weights:
        part["share_weights"] = True
    if config.whole_weights != "uniform" and weighting != "uniform":
        part["whole_weights"] = config.whole_weights
    if method.teacher is not None:
        part["teacher"] = method.teacher
    code = changed_code(method_of(method), weighting)
    if code:
        part["code"] = code
    return part
