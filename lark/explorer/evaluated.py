"""Evaluations of students on benchmarks, found by following the inputs of `metrics` artifacts."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from lark.errors import LarkError
from lark.evaluation.grade import GENERATIONS, METRICS
from lark.explorer.listing import Entry, Listing, started
from lark.explorer.problems import PageError
from lark.explorer.selections import selected_by
from lark.selection.write import SELECTION
from lark.training.checkpoints import CHECKPOINT

BASE = "-base-"


@dataclass(frozen=True)
class Model:
    """A student that was evaluated: before training, or after training on a selection."""

    checkpoint: Entry | None
    student: str
    label: str
    """The method's label, "Base model", or the own name of a student that was trained earlier."""
    details: dict[str, Any]
    """Ranking, weighting and budget of the selection."""
    weights: str = ""
    """Tells students of the same name apart, if they were trained earlier and evaluated as they are."""

    @property
    def id(self) -> str:
        if self.checkpoint is None:
            identity = self.student + self.weights
            return f"base-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
        return self.checkpoint.fingerprint

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "student": self.student,
            "label": self.label,
            "base": self.checkpoint is None,
            "checkpoint": self.checkpoint and self.checkpoint.fingerprint,
            **self.details,
        }


@dataclass(frozen=True)
class Evaluation:
    """The graded answers of a model to a benchmark."""

    model: Model
    task: str
    """The benchmark's name, as in benchmark.tasks."""
    group: str
    """Evaluations of one group have the same problems, decoding and gold answers, and can be compared."""
    metrics: Entry
    generations: Entry


def evaluations(listing: Listing) -> list[Evaluation]:
    """All evaluations whose grades are finished; a base model's first, then the newest."""
    return listing.once("evaluations", lambda: _evaluations(listing))


def _evaluations(listing: Listing) -> list[Evaluation]:
    finished = []
    for metrics in listing.of(METRICS.name):
        generations = listing.input(metrics, GENERATIONS.name)
        if metrics.finished and generations is not None:
            try:
                finished.append(_evaluation(listing, metrics, generations))
            except LarkError:
                continue  # its configuration cannot be read; the artifact's own page says why
    return sorted(finished, key=lambda e: (e.task, e.group, e.model.checkpoint is not None))


def _evaluation(listing: Listing, metrics: Entry, generations: Entry) -> Evaluation:
    model = _model(listing, generations)
    if model.checkpoint is None:
        task = generations.name.split(BASE, 1)[-1]
    else:
        task = generations.name.removeprefix(f"{model.checkpoint.name}-")
    depends = listing.config(generations)["depends"]
    asked = {key: depends[key] for key in ("task", "decoding", "engine") if key in depends}
    # Students differ within a group. These settings must not, or their accuracies could not be compared.
    same = [asked, listing.config(metrics)["depends"]]
    group = hashlib.sha256(json.dumps(same, sort_keys=True, default=str).encode()).hexdigest()[:12]
    return Evaluation(model, task, group, metrics, generations)


def _model(listing: Listing, generations: Entry) -> Model:
    if CHECKPOINT.name not in generations.inputs:
        student = generations.name.split(BASE, 1)[0]
        if student not in listing.once("trained", lambda: _trained(listing)):
            return Model(None, student, "Base model", {})
        weights = json.dumps(listing.config(generations)["depends"].get("student"), sort_keys=True)
        return Model(None, student, student, {}, weights)
    checkpoint = listing.input(generations, CHECKPOINT.name)
    if checkpoint is None:
        raise PageError(f"The checkpoint of {generations.folder.name} is not in this store (any more).")
    selection = listing.input(checkpoint, SELECTION.name)
    if selection is None:
        return Model(checkpoint, checkpoint.name, checkpoint.name, {})
    details = selected_by(selection, listing)
    method = str(listing.config(selection)["depends"].get("method"))
    student = checkpoint.name.split(f"-{method}", 1)[0]
    kept = {key: details[key] for key in ("ranking", "weighting", "budget", "amount")}
    return Model(checkpoint, student, details["label"], kept)


def _trained(listing: Listing) -> frozenset[str]:
    """The names of students that were trained in this store."""
    return frozenset(checkpoint.name for checkpoint in listing.of(CHECKPOINT.name))


def models_of(evaluations: list[Evaluation]) -> list[Model]:
    """The distinct models, base models first, then by method and budget."""
    distinct = {evaluation.model.id: evaluation.model for evaluation in evaluations}
    return sorted(distinct.values(), key=_place)


def _place(model: Model) -> tuple[Any, ...]:
    when = "" if model.checkpoint is None else started(model.checkpoint)
    budget = model.details.get("budget") or 0
    return model.student, model.checkpoint is not None, model.label, budget, when
