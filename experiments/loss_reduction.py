"""Figure 3b: how far the training loss falls below its initial value, for each method."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.harness.candidates import candidates, selection
from experiments.harness.report import Report, Table, number
from experiments.harness.sweep import Sweep, Trial
from lark.config import Training
from lark.output.style import METHOD_COLOURS, panels, plain_label
from lark.output.tables import MISSING, Cell
from lark.pool.trajectories import KEY
from lark.reading.rows import jsonl_rows
from lark.store.integrity import verify
from lark.training.checkpoints import CHECKPOINT, CURVE, LOSSES

Batches = list[list[tuple[str, str]]]
"""Ids of the trajectories of each training step."""
WINDOW = 0.05
"""Fraction of all steps over which the differences of single batches are averaged."""
POINTS = (0.1, 0.25, 0.5, 1.0)
"""Fractions of training at which the table gives the reduction."""


def render(sweep: Sweep) -> Report:
    losses = _initial_losses(sweep)
    curves = [curve(sweep, trial, losses) for trial in sweep.trials]
    data = pd.concat(curves, ignore_index=True)
    rows = [_row(trial, part) for trial, part in zip(sweep.trials, curves, strict=True)]
    return Report(
        title="Figure 3b. SFT loss reduction",
        caption=(
            "ΔL_t = L_t − L_0 in nats per token during SFT at"
            f" B={sweep.trials[0].config.budget.per_question}, each method on its own selection, with its own"
            " weights. The loss of each step's batch is compared with that of the same trajectories under"
            " the untrained student, and the differences are averaged over the trajectories of the last"
            f" {WINDOW:.0%} of the steps; L_0 in the table is that of the whole selection. (With"
            " training.held_out.path=selection, L_t is also that of the whole selection, and the models are"
            " trained again.) The paper finds that LARK's loss falls the most throughout, from early on."
        ),
        data=data,
        tables=[Table(["Method", "L_0", *(f"ΔL at {share:.0%}" for share in POINTS)], rows)],
        figure=_figure(sweep, curves),
        measured=not data.empty,
        notes=[
            "A method that selects what the student finds hard starts higher and has further to fall; compare"
            " L_0 too."
        ],
    )


def _initial_losses(sweep: Sweep) -> pd.DataFrame | None:
    """l_k of every candidate, from the one scoring pass that the student-side methods share."""
    for trial in sweep.trials:
        table = candidates(sweep, trial)
        if table is not None:
            return table[[*KEY, "loss"]]
    return None


def initial_loss(chosen: pd.DataFrame, losses: pd.DataFrame) -> float:
    """L_0 = 1/N sum_n sum_k q_nk l_k, Eq. 1 averaged over questions."""
    joined = chosen.merge(losses, on=KEY, validate="1:1")
    return float((joined["weight"] * joined["loss"]).sum() / joined["question_id"].nunique())


def curve(sweep: Sweep, trial: Trial, losses: pd.DataFrame | None) -> pd.DataFrame:
    """Steps and reductions of one trial; empty if it is not trained yet."""
    folder = sweep.folder(trial, CHECKPOINT)
    chosen = selection(sweep, trial)
    columns = ["method", "step", "share", "reduction", "initial_loss"]
    if folder is None or chosen is None or losses is None:
        return pd.DataFrame(columns=columns)
    verify(folder, CURVE)
    order = None
    if trial.config.training.order != "shuffled":
        verify(folder, LOSSES)
        order = recorded_batches(folder / LOSSES)
    table = read_curve(folder / CURVE, batches_at_start(chosen, losses, trial.config.training, order))
    table = table.assign(method=trial.config.method.key, initial_loss=initial_loss(chosen, losses))
    return table.assign(share=table["step"] / table["step"].max())[columns]


def recorded_batches(path: Path) -> Batches:
    """The trajectories of each training step."""
    batches = []
    for row in jsonl_rows(path):
        trajectories = row.values["trajectories"]
        batches.append([(values["question_id"], values["candidate_id"]) for values in trajectories])
    return batches


def batches_at_start(
    chosen: pd.DataFrame, losses: pd.DataFrame, training: Training, recorded: Batches | None = None
) -> pd.DataFrame:
    """The loss of each step's batch under the untrained student, sum_i w_i l_i / |batch|, and the size of
    the batch.

    Batches are a seeded shuffle of the selection in the order of its ids, so they need not be recorded.
    `recorded`: the batches of a training with another order.
    """
    from lark.training.packing import global_batches  # noqa: PLC0415  # imports torch

    as_text = dict.fromkeys(KEY, str)  # as in train.jsonl, whose order the shuffle starts from
    rows = chosen.astype(as_text).merge(losses.astype(as_text), on=KEY, validate="1:1")
    rows = rows.sort_values(KEY, ignore_index=True)
    sizes = rows.groupby("question_id")["weight"].transform("size")
    terms = (sizes * rows["weight"] * rows["loss"]).to_numpy(dtype=float)  # w = B_n q, as in train.jsonl
    if recorded is None:
        epochs = [
            global_batches(len(rows), training.global_batch, training.seed, epoch)
            for epoch in range(training.epochs)
        ]
        steps = [list(batch) for batch in chain.from_iterable(epochs)]
    else:
        place = {key: i for i, key in enumerate(zip(rows[KEY[0]], rows[KEY[1]], strict=True))}
        steps = [list(map(place.__getitem__, batch)) for batch in recorded]
    table = pd.DataFrame([{"size": len(batch), "start": terms[batch].mean()} for batch in steps])
    return table.assign(step=table.index + 1)


def read_curve(path: Path, at_start: pd.DataFrame) -> pd.DataFrame:
    """Step and reduction, from 0 at step 0: of the fixed set if it was tracked, else of each batch relative
    to its own start.

    The reductions of batches are averaged over WINDOW of the steps, and each trajectory counts once.
    """
    lines = pd.DataFrame(list(map(json.loads, path.read_text(encoding="utf-8").splitlines())))
    if "held_out_loss" in lines and lines["held_out_loss"].notna().any():
        fixed = lines.dropna(subset=["held_out_loss"]).sort_values("step")
        fallen = fixed["held_out_loss"] - fixed["held_out_loss"].iloc[0]
        return pd.DataFrame({"step": fixed["step"], "reduction": fallen})
    steps = lines.dropna(subset=["loss"]).merge(at_start, on="step", validate="1:1")
    window = max(1, round(WINDOW * len(steps)))
    fallen = ((steps["loss"] - steps["start"]) * steps["size"]).rolling(window, min_periods=1).sum()
    reduction = fallen / steps["size"].rolling(window, min_periods=1).sum()
    start = pd.DataFrame({"step": [0], "reduction": [0.0]})
    return pd.concat([start, steps[["step"]].assign(reduction=reduction)], ignore_index=True)


def _row(trial: Trial, part: pd.DataFrame) -> list[Cell]:
    row = [Cell(trial.config.method.title)]
    if part.empty:
        return [*row, *[MISSING] * (1 + len(POINTS))]
    row.append(number(part["initial_loss"].iloc[0], "{:.3f}"))
    for share in POINTS:
        at = min(int(np.searchsorted(part["share"], share)), len(part) - 1)
        reduction = round(part["reduction"].iloc[at], 3) + 0.0  # no negative zero
        row.append(number(reduction, "{:+.3f}"))
    return row


def _figure(sweep: Sweep, curves: list[pd.DataFrame]) -> Figure:
    figure, (axes,) = panels(width=6.8, height=3.8)
    for trial, part in zip(sweep.trials, curves, strict=True):
        if part.empty:
            continue
        name = trial.config.method.key
        style: dict[str, Any] = {"color": METHOD_COLOURS.get(name, "#000000"), "linewidth": 1.3}
        if name == "lark":
            style["linewidth"] = 2.2
        elif name in METHOD_COLOURS:
            style["linestyle"] = ("--", "-.", ":")[list(METHOD_COLOURS).index(name) % 3]
        axes.plot(part["step"], part["reduction"], label=plain_label(trial.config.method.title), **style)
    axes.axhline(0, color="#000000", linewidth=0.6)
    axes.set_xlabel("Optimisation step t")
    axes.set_ylabel(r"$\Delta L_t = L_t - L_0$ (nats per token)")
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside right center")
    return figure
