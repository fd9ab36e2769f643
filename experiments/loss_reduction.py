"""Figure 3b: how far the training loss falls below its initial value, for each method."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.candidates import candidates, selection
from experiments.report import Report, Table
from experiments.sweep import Job, Sweep
from lark.pool import KEY
from lark.report.figures import METHOD_COLOURS, panels
from lark.report.tables import MISSING, Cell

WINDOW = 0.05
"""Of all steps: over so many the loss of single batches is averaged."""
POINTS = (0.1, 0.25, 0.5, 1.0)
"""Shares of training at which the table gives the reduction."""


def render(sweep: Sweep) -> Report:
    losses = _initial_losses(sweep)
    curves = [curve(sweep, job, losses) for job in sweep.jobs]
    data = pd.concat(curves, ignore_index=True)
    rows = [_row(job, part) for job, part in zip(sweep.jobs, curves, strict=True)]
    return Report(
        title="Figure 3b. SFT loss reduction",
        caption=(
            "ΔL_t = L_t − L_0 in nats a token during SFT at B=3, each method on its own selection, with its own weights. L_0 is "
            "the exact loss of the whole selection under the untrained student; L_t is the mean loss of the batches of the "
            f"last {WINDOW:.0%} of the steps (of the whole selection, where training.held_out.path=selection measured it). "
            "The paper finds that LARK's loss falls the most throughout, early on already."
        ),
        data=data,
        tables=[Table(["Method", "L_0", *(f"ΔL at {share:.0%}" for share in POINTS)], rows)],
        figure=_figure(sweep, curves),
        notes=["A method that selects what the student finds hard starts higher and has further to fall; compare L_0 too."],
    )


def _initial_losses(sweep: Sweep) -> pd.DataFrame | None:
    """l_k of every candidate, from the one scoring pass that the student-side methods share."""
    for job in sweep.jobs:
        table = candidates(sweep, job)
        if table is not None:
            return table[[*KEY, "loss"]]
    return None


def initial_loss(chosen: pd.DataFrame, losses: pd.DataFrame) -> float:
    """L_0 = 1/N sum_n sum_k q_nk l_k, Eq. 1 averaged over questions."""
    joined = chosen.merge(losses, on=KEY, validate="1:1")
    return float((joined["weight"] * joined["loss"]).sum() / joined["question_id"].nunique())


def curve(sweep: Sweep, job: Job, losses: pd.DataFrame | None) -> pd.DataFrame:
    """Steps, losses and reductions of one job; empty while it is not trained."""
    folder, chosen = sweep.folder(job, "checkpoint"), selection(sweep, job)
    columns = ["method", "step", "share", "loss", "initial_loss", "reduction"]
    if folder is None or chosen is None or losses is None:
        return pd.DataFrame(columns=columns)
    start = initial_loss(chosen, losses)
    table = read_curve(folder / "metrics.jsonl")
    table = table.assign(method=job.config.method.name, share=table["step"] / table["step"].max(), initial_loss=start)
    return table.assign(reduction=table["loss"] - start)[columns]


def read_curve(path: Path) -> pd.DataFrame:
    """Step and loss: of the fixed set if it was followed, else the batches' own, averaged over WINDOW of the steps."""
    lines = pd.DataFrame([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()])
    if "held_out_loss" in lines and lines["held_out_loss"].notna().any():
        fixed = lines.dropna(subset=["held_out_loss"])
        return pd.DataFrame({"step": fixed["step"], "loss": fixed["held_out_loss"]})
    lines = lines.dropna(subset=["loss"])
    window = max(1, round(WINDOW * len(lines)))
    return pd.DataFrame({"step": lines["step"], "loss": lines["loss"].rolling(window, min_periods=1).mean()})


def _row(job: Job, part: pd.DataFrame) -> list[Cell]:
    if part.empty:
        return [Cell(job.config.method.label), *[MISSING] * (1 + len(POINTS))]
    at = np.searchsorted(part["share"].to_numpy(dtype=float), POINTS).clip(max=len(part) - 1)
    reductions = part["reduction"].to_numpy(dtype=float)[at]
    return [
        Cell(job.config.method.label),
        Cell(f"{part['initial_loss'].iloc[0]:.3f}"),
        *(Cell(f"{value:+.3f}".replace("-", "−")) for value in reductions),
    ]


def _figure(sweep: Sweep, curves: list[pd.DataFrame]) -> Figure:
    figure, (axes,) = panels(width=6.8, height=3.8)
    for job, part in zip(sweep.jobs, curves, strict=True):
        if not part.empty:
            name = job.config.method.name
            colour, ours = METHOD_COLOURS.get(name, "#000000"), name == "lark"
            style = "-" if ours else ("--", "-.", ":")[list(METHOD_COLOURS).index(name) % 3] if name in METHOD_COLOURS else "-"
            axes.plot(
                part["step"], part["reduction"], color=colour, linestyle=style, linewidth=2.2 if ours else 1.3,
                label=job.config.method.label,
            )  # fmt: skip
    axes.axhline(0, color="#000000", linewidth=0.6)
    axes.set_xlabel("Optimisation step t")
    axes.set_ylabel(r"$\Delta L_t = L_t - L_0$ (nats a token)")
    if any(not part.empty for part in curves):
        figure.legend(loc="outside right center")
    return figure
