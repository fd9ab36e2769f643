"""The accuracies of a run's models: Acc@k, as in the paper, and always pass@1 beside it.

Acc@k alone can hide a regression: a student that solves more problems at least once may be right less often.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lark.config import GRADERS, Config
from lark.evaluation.grade import METRICS
from lark.evaluation.metrics import BenchmarkMetrics, Spread, average
from lark.evaluation.resampled import Resampled, SingleAccuracy, average_single, resampled
from lark.store.integrity import verify
from lark.store.store import Artifact, Store
from lark.work.operation import Step

BASE_LABEL = "Base model"
AVERAGE = "avg"
"""The name of the average over benchmarks, among those of benchmarks."""


@dataclass(frozen=True)
class AccuracyPair:
    """Acc@k and pass@1 of the same samples, in percent."""

    at_k: Spread
    single: SingleAccuracy


@dataclass(frozen=True)
class Evaluated:
    """A model that was evaluated: the base model or the trained student."""

    model: str
    """base or trained."""
    labels: list[str]
    """Its method and budget, the first cells of its rows."""
    metrics: dict[str, dict[str, BenchmarkMetrics]]
    """By benchmark and grader. A benchmark that is not finished is missing."""
    resampled: dict[str, dict[str, Resampled]]
    """The same samples' pass@1, pass@k and maj@k."""

    @property
    def label(self) -> str:
        """Its name in a sentence."""
        return " B=".join(self.labels).removesuffix(" B=–")

    def under(self, grader: str) -> dict[str, BenchmarkMetrics]:
        """The metrics of each benchmark under one grader."""
        return {name: by_grader[grader] for name, by_grader in self.metrics.items()}

    def pairs(self, config: Config) -> dict[str, AccuracyPair]:
        """Both accuracies of each benchmark under the headline's grader, and their average if no benchmark
        is missing: a mean over some of them would look like one over all.
        """
        grader = config.benchmark.grader
        pairs = {}
        for name, metrics in self.under(grader).items():
            pairs[name] = AccuracyPair(metrics.accuracy_at_k, self.resampled[name][grader].single)
        if len(pairs) == len(config.benchmark.tasks):
            single = average_single([by_grader[grader] for by_grader in self.resampled.values()])
            pairs[AVERAGE] = AccuracyPair(average(list(self.under(grader).values())), single)
        return pairs


def metrics_of(store: Store, artifact: Artifact, grader: str) -> BenchmarkMetrics:
    """The metrics of an artifact under one grader."""
    verify(store.path(artifact))
    values = json.loads((store.path(artifact) / METRICS.file).read_text(encoding="utf-8"))[grader]
    return BenchmarkMetrics.from_dict(values)


def evaluated(config: Config, store: Store, steps: Sequence[Step]) -> list[Evaluated]:
    """The models whose metrics are finished, for at least one benchmark."""
    labels = {
        "base": [config.student.own_name or BASE_LABEL, "–"],
        "trained": [config.method.title, config.budget.name.removeprefix("B")],
    }
    models = []
    for step in steps:
        if not step.makes(METRICS):
            continue
        metrics = {}
        samples = {}
        for name, artifact in zip(step.labels, step.artifacts, strict=True):
            if store.state(artifact) == "finished":
                metrics[name] = {grader: metrics_of(store, artifact, grader) for grader in GRADERS}
                samples[name] = {grader: resampled(store.path(artifact), grader) for grader in GRADERS}
        if metrics:
            models.append(Evaluated(step.model, labels[step.model], metrics, samples))
    return models


def numbers(config: Config, models: Sequence[Evaluated]) -> dict[str, float]:
    """The accuracies as numbers for trackers: `trained/avg/Acc@5`, `base/aime24/pass@1`, …"""
    k = config.benchmark.decoding.samples
    values = {}
    for model in models:
        for task, pair in model.pairs(config).items():
            place = f"{model.model}/{task}"
            low, high = pair.single.interval
            values[f"{place}/Acc@{k}"] = pair.at_k.mean
            values[f"{place}/pass@1"] = pair.single.mean
            values[f"{place}/pass@1_low"] = low
            values[f"{place}/pass@1_high"] = high
    return values


def disagreement(config: Config, models: Sequence[Evaluated]) -> str | None:
    """A sentence if training changes Acc@k and pass@1 in opposite directions."""
    pairs = {model.model: model.pairs(config).get(AVERAGE) for model in models}
    before = pairs.get("base")
    after = pairs.get("trained")
    if before is None or after is None:
        return None
    return _opposite(config, before, after)


def _opposite(config: Config, before: AccuracyPair, after: AccuracyPair) -> str | None:
    k = config.benchmark.decoding.samples
    at_k = after.at_k.mean - before.at_k.mean
    single = after.single.mean - before.single.mean
    if at_k * single >= 0:
        return None
    if at_k > 0:
        return (
            f"Acc@{k} rises by {at_k:.2f} points, but pass@1 falls by {-single:.2f}: the trained student"
            f" solves more problems at least once in {k} samples, but a single sample is correct less often."
        )
    return (
        f"Acc@{k} falls by {-at_k:.2f} points, but pass@1 rises by {single:.2f}: a single sample of the"
        f" trained student is correct more often, but fewer problems are solved at least once in {k} samples."
    )


def spread(value: Any) -> str:
    """mean±std as in the paper's tables."""
    return f"{value.mean:.2f}" if value.std is None else f"{value.mean:.2f}±{value.std:.2f}"


def as_rows(values: Mapping[str, float]) -> list[dict[str, object]]:
    """`numbers` as rows: one per model and benchmark."""
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for name, value in values.items():
        model, task, metric = name.split("/")
        row = rows.setdefault((model, task), {"model": model, "benchmark": task})
        row[metric] = round(value, 4)
    return list(rows.values())
