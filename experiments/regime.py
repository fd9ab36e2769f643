"""`make regime`: how the ranking of methods changes with the student's strength, the epochs and the
learning rate.

The sweep's trials are the recipe itself. The other settings change one thing at a time: the student is the
narrow one that the demo's student continues, an earlier checkpoint of it, or another student of the sweep;
or the recipe has other epochs or another learning rate.
"""

import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.harness import accuracy, lanes
from experiments.harness.carrying import carry_out
from experiments.harness.planning import describe as describe_sweep
from experiments.harness.report import Report, Table, number
from experiments.harness.sweep import ROOT, Sweep, Trial
from experiments.harness.verdict import kendall
from lark.config import Config
from lark.errors import LarkError
from lark.models.shapes import DEMO
from lark.models.students import weights_identity
from lark.output.style import BLACK, panels, plain_label, share_limits, styled
from lark.output.tables import Cell
from lark.pipeline.plan import make_plan
from lark.store.store import Artifact, Checksums, Kind
from lark.work.launch import die_with_parent

log = logging.getLogger(__name__)
TITLE = "Regime: the ranking of methods by strength, epochs and learning rate"
NARROW = DEMO.with_name("narrow_student")
PRETRAINED = Kind("pretrained", 1)
"""Earlier checkpoints of the narrow student."""
SINGLE = "pass@1: the share of samples that are correct."
NUMBERS = dict.fromkeys(("accuracy", "base", "pass_at_1", "base_pass_at_1"), float)
AXES = {"strength": "strength of the student", "epochs": "epochs", "rate": "learning rate"}


@dataclass(frozen=True)
class Setting:
    """One thing that differs from the recipe, or nothing."""

    axis: str
    label: str
    order: float


def settings_of(sweep: Sweep) -> Mapping[str, Any]:
    return sweep.trials[0].config.experiment.scales[sweep.scale]


def pretrained(sweep: Sweep) -> Artifact:
    """The earlier checkpoints that the scale names. The narrow student's weights stand for its recipe."""
    student = replace(sweep.trials[0].config.student, path=str(NARROW))
    identity = weights_identity(student, Checksums(sweep.store.root))
    steps = sorted(settings_of(sweep)["pretraining"])
    return Artifact(PRETRAINED, "demo", {"student": identity, "steps": steps})


def expanded(sweep: Sweep) -> list[tuple[Setting, Trial]]:
    """All trials with their settings; those of checkpoints only if these exist."""
    trials: list[tuple[Setting, Trial]] = []
    students = list(dict.fromkeys(trial.config.student.name for trial in sweep.trials))
    for trial in sweep.trials:
        student = trial.config.student.name
        trials.append((Setting("strength", _strength(trial.config), 10_000 + students.index(student)), trial))
        if student == students[-1]:  # the others only show strength
            trials += _weaker_students(sweep, trial)
            if settings_of(sweep)["pretraining"]:
                trials.append(_narrow_student(trial))
            trials += _other_recipes(sweep, trial)
    return trials


def _weaker_students(sweep: Sweep, trial: Trial) -> Iterator[tuple[Setting, Trial]]:
    for steps, folder in _checkpoints(sweep).items():
        setting = Setting("strength", f"{steps:,} steps", steps)
        yield setting, _with_student(trial, f"demo-step-{steps}", folder)


def _narrow_student(trial: Trial) -> tuple[Setting, Trial]:
    """The student that the demo's student continues: it has seen few manners of writing."""
    return Setting("strength", "2,800 steps", 2_800), _with_student(trial, "demo-narrow", NARROW)


def _with_student(trial: Trial, name: str, folder: Path) -> Trial:
    config = trial.config
    student = replace(config.student, name=name, path=str(folder))
    changed = replace(config, student=student, training=replace(config.training, name="regime"))
    return _trial(changed, f"student.path={folder}", trial)


def _other_recipes(sweep: Sweep, trial: Trial) -> Iterator[tuple[Setting, Trial]]:
    scale = settings_of(sweep)
    training = trial.config.training
    for epochs in sorted({*scale["epochs"], training.epochs}):
        changed = replace(trial.config, training=replace(training, epochs=epochs))
        setting = Setting("epochs", str(epochs), epochs)
        yield setting, _trial(changed, f"training.epochs={epochs}", trial)
    for rate in sorted({*map(float, scale["rates"]), training.learning_rate}):
        changed = replace(trial.config, training=replace(training, learning_rate=rate))
        setting = Setting("rate", f"{rate:g}", rate)
        yield setting, _trial(changed, f"training.learning_rate={rate:g}", trial)


def _strength(config: Config) -> str:
    return "and 120 on the broad corpus" if config.student.is_bundled else config.student.name


def _checkpoints(sweep: Sweep) -> dict[int, Path]:
    """Folders of the earlier checkpoints that exist, by step."""
    if not settings_of(sweep)["pretraining"]:
        return {}
    artifact = pretrained(sweep)
    if sweep.store.state(artifact) != "finished":
        return {}
    return {steps: sweep.store.path(artifact) / f"step-{steps}" for steps in artifact.depends["steps"]}


def _trial(config: Config, change: str, trial: Trial) -> Trial:
    plan = make_plan(config, Checksums(config.outputs_path), elsewhere=True)
    return Trial((*trial.overrides, change), config, tuple(plan))


def conduct(sweep: Sweep) -> list[str]:
    """Pretrain earlier checkpoints, unless that is done, and run all trials. Return the errors of those
    that failed.
    """
    if settings_of(sweep)["pretraining"]:
        sweep.store.ensure(
            (pretrained(sweep),), lambda folders: [_pretrain(sweep, folder) for folder in folders]
        )
    trials = expanded(sweep)
    # By their last step, because several settings can be the recipe itself.
    pending: dict[tuple[str, ...], tuple[Setting, Trial]] = {}
    for setting, trial in trials:
        if _average(sweep, trial)["mean"] is None:
            pending[trial.steps[-1].key] = (setting, trial)
    finished = len(trials) - len(pending)
    log.info("%d trials, %d of them finished or the same as others", len(trials), finished)
    number = lanes.lanes(trial.config for _, trial in pending.values())
    if number > 1:
        lanes.fork([partial(_perform, sweep, *run) for run in pending.values()], number)
    errors = []
    for setting, trial in pending.values():
        # A lane has made most of them. One that was stopped is made here.
        if number > 1 and _average(sweep, trial)["mean"] is not None:
            continue
        error = _perform(sweep, setting, trial)
        if error is not None:
            errors.append(f"{sweep.title}: {_named(setting, trial)}: {error}")
    return errors


def _perform(sweep: Sweep, setting: Setting, trial: Trial) -> str | None:
    """Run a trial. Return its error."""
    try:
        carry_out(trial, f"regime/{trial.config.method.key}-{setting.axis}-{setting.label}")
    except LarkError as error:
        return str(error)
    log.info("%s: %s", _named(setting, trial), _shown(sweep, trial))
    return None


def _named(setting: Setting, trial: Trial) -> str:
    return f"{trial.config.method.title}, {AXES[setting.axis]} {setting.label}"


def describe(sweep: Sweep) -> str:
    """The plan of all trials; those of earlier checkpoints are in it once these exist."""
    plan = describe_sweep(replace(sweep, trials=tuple(trial for _, trial in expanded(sweep))))
    steps = settings_of(sweep)["pretraining"]
    if not steps or _checkpoints(sweep):
        return plan
    return (
        f"{plan}\n\nNot in this plan: pretraining up to step {steps[-1]}, and the trials of {len(steps)}"
        " checkpoints."
    )


def _pretrain(sweep: Sweep, folder: Path) -> dict[str, Any]:
    steps = [str(step) for step in pretrained(sweep).depends["steps"]]
    log.info("Pretraining the demo's student up to step %s", steps[-1])
    command = [sys.executable, "-m", "lark.demo.pretrain", "--narrow"]
    command += ["--folder", str(folder), "--snapshots", *steps]
    code = subprocess.run(command, cwd=ROOT, check=False, preexec_fn=die_with_parent).returncode
    if code:
        raise LarkError(
            f"Pretraining the demo's student failed (exit code {code}); the messages above say why."
        )
    return {"steps": len(steps)}


def _shown(sweep: Sweep, trial: Trial) -> str:
    average = _average(sweep, trial)
    mean = average["mean"]
    return "not evaluated" if mean is None else f"Avg {mean:.1f}%, pass@1 {average['pass_at_1']:.1f}%"


def _average(sweep: Sweep, trial: Trial, trained: bool = True) -> dict[str, Any]:
    return accuracy.rows(sweep, trial, trained)[-1]


def render(sweep: Sweep) -> Report:
    data = _collect(sweep)
    config = sweep.trials[0].config
    samples = config.benchmark.decoding.samples
    measured = bool(data["accuracy"].notna().any())
    return Report(
        title=TITLE,
        caption=(
            f"Acc@{samples} (percent, average of the benchmarks) at B={config.budget.per_question}; one thing"
            " changes at a time, the rest is the recipe. One training run and one decoding seed per point, so"
            " differences of a few points between methods are within the spread of training seeds (make"
            " seeds). Strength: checkpoints of the student's pretraining, or other students."
        ),
        data=data,
        tables=[_table(data, "accuracy", "base"), _table(data, "pass_at_1", "base_pass_at_1", SINGLE)],
        figure=_figure(data, samples) if measured else None,
        notes=_notes(data) if measured else [],
        measured=measured,
    )


def _collect(sweep: Sweep) -> pd.DataFrame:
    """One row per setting and method."""
    rows = []
    for setting, trial in sorted(expanded(sweep), key=lambda run: _place(run[0])):
        row = {"axis": setting.axis, "setting": setting.label, "order": setting.order}
        row |= {"method": trial.config.method.key, "label": trial.config.method.title}
        after = _average(sweep, trial)
        before = _average(sweep, trial, trained=False)
        row |= {"accuracy": after["mean"], "base": before["mean"]}
        row |= {"pass_at_1": after["pass_at_1"], "base_pass_at_1": before["pass_at_1"]}
        rows.append(row)
    return pd.DataFrame(rows).astype(NUMBERS)


def _place(setting: Setting) -> tuple[int, float]:
    return list(AXES).index(setting.axis), setting.order


def _table(data: pd.DataFrame, column: str, base: str, caption: str = "") -> Table:
    labels = list(data["label"].unique())
    rows = []
    for (axis, _), part in data.groupby(["axis", "order"], sort=False):
        values = dict(zip(part["label"], part[column], strict=True))
        row = [Cell(AXES[str(axis)]), Cell(str(part["setting"].iloc[0]))]
        row.append(number(part[base].iloc[0], "{:.1f}"))
        for label in labels:
            cell = number(values.get(label), "{:.1f}")
            row.append(replace(cell, best=values.get(label) == part[column].max()))
        rows.append(row)
    return Table(["Changed", "Setting", "Base model", *labels], rows, caption, labels=2)


def rank_agreement(data: pd.DataFrame) -> dict[str, float]:
    """Kendall's τ between the methods' order at the two ends of each axis."""
    agreement = {}
    for axis, part in data.groupby("axis", sort=False):
        wide = part.pivot_table(index="order", columns="method", values="accuracy").sort_index()
        if len(wide) > 1 and wide.iloc[[0, -1]].notna().all(axis=None):
            first = wide.iloc[0].to_numpy(dtype=float)
            last = wide.iloc[-1].to_numpy(dtype=float)
            agreement[str(axis)] = kendall(first, last)
    return agreement


def _notes(data: pd.DataFrame) -> list[str]:
    firsts = []
    for (axis, _), part in data.dropna(subset=["accuracy"]).groupby(["axis", "order"], sort=False):
        ranked = part.sort_values("accuracy", ascending=False, kind="stable")
        first = f"{AXES[str(axis)]} {part['setting'].iloc[0]}: {ranked['label'].iloc[0]}"
        if len(ranked) > 1:
            first += f" (+{ranked['accuracy'].iloc[0] - ranked['accuracy'].iloc[1]:.1f})"
        firsts.append(first)
    notes = [f"First in each setting, with its lead in points over the next: {'; '.join(firsts)}."]
    taus = [f"{AXES[axis]} {tau:.2f}" for axis, tau in rank_agreement(data).items() if not isnan(tau)]
    if taus:
        notes.append(
            f"Agreement of the rankings at the two ends of each axis (Kendall's τ): {', '.join(taus)}."
        )
    return notes


@styled
def _figure(data: pd.DataFrame, samples: int) -> Figure:
    drawn = [axis for axis in AXES if axis in set(data["axis"])]
    figure, axes = panels(len(drawn), width=3.4, height=3.3)
    for panel, axis in zip(axes, drawn, strict=True):
        part = data[data["axis"] == axis]
        part = part.assign(place=part["order"].rank(method="dense") - 1)  # settings at equal distances
        accuracy.draw_methods(panel, part, "place")
        settings = part.drop_duplicates("order")
        base = settings.dropna(subset=["base"])
        panel.plot(base["place"], base["base"], color=BLACK, linestyle=":", linewidth=1, label="Base model")
        panel.set_xticks(settings["place"], list(map(plain_label, settings["setting"])))
        panel.set_xlabel(AXES[axis])
        panel.margins(x=0.12)
    share_limits(axes)
    axes[0].set_ylabel(f"Acc@{samples} (%)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure
