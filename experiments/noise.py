"""`make noise`: accuracy after training on a selection from a damaged pool, and how much of the damage each
method selects.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.harness import accuracy
from experiments.harness.candidates import selection
from experiments.harness.report import Report, Table, number
from experiments.harness.sweep import Sweep, Trial
from lark.output.style import panels, share_limits, styled
from lark.output.tables import Cell
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY

TITLE = "Noise: which methods survive a damaged pool"
WORDS = {
    "wrong": "wrong final answers",
    "truncated": "truncated responses",
    "shuffled": "shuffled steps",
    "duplicated": "duplicates of a candidate",
}
CHOSEN = (
    "Damaged share of the selection's weight (percent). Less than the pool's share: the method avoids the"
    " damage."
)


def render(sweep: Sweep) -> Report:
    data = collect(sweep)
    config = sweep.trials[0].config
    samples = config.benchmark.decoding.samples
    measured = bool(data["accuracy"].notna().any())
    return Report(
        title=TITLE,
        caption=(
            f"Acc@{samples} (percent, average of the benchmarks) of students trained at"
            f" B={config.budget.per_question} on selections from pools with damaged candidates. Damaged: the"
            " share of the pool's candidates whose text differs from the pool without damage. Wrong answers:"
            " a digit of the final answer or the letter of a choice is changed, or a digit is appended; the"
            " reasoning is not changed. The paper's pool has only correct candidates, which it names as a"
            " limitation. One training run and one decoding seed per point: differences of a few points are"
            " within the spread of training seeds (make seeds). None of these methods looks at answers."
            " pool.correct_only=true drops wrong answers that a pool comes with; this damage is done"
            " afterwards."
        ),
        data=data,
        tables=[
            _table(data, "accuracy", "{:.1f}", "Accuracy by share of damaged candidates."),
            _table(data, "pass_at_1", "{:.1f}", "pass@1, the share of samples that are correct."),
            _table(data.assign(selected=100 * data["selected"]), "selected", "{:.0f}", CHOSEN),
        ],
        figure=_figure(data, samples) if measured else None,
        notes=_notes(data) if measured else [],
        measured=measured,
    )


NUMBERS = ("accuracy", "pass_at_1", "damaged", "selected")


def collect(sweep: Sweep) -> pd.DataFrame:
    """One row per kind of damage, share and method. `share`: as requested; `damaged`: of the pool's
    candidates, as measured.
    """
    rows = []
    clean = _clean_texts(sweep)
    for trial in sweep.trials:
        config = trial.config
        row: dict[str, object] = {"noise": config.pool.noise, "share": config.pool.noise_share}
        row |= {"method": config.method.key, "label": config.method.title}
        average = accuracy.rows(sweep, trial)[-1]
        row |= {"accuracy": average["mean"], "pass_at_1": average["pass_at_1"]}
        row |= _damage(clean, _texts(sweep, trial), selection(sweep, trial))
        rows.append(row)
    return pd.DataFrame(rows).astype(
        {"accuracy": float, "pass_at_1": float, "damaged": float, "selected": float}
    )


def _clean_texts(sweep: Sweep) -> pd.DataFrame | None:
    """The responses of the pool without damage. None if it is not read yet."""
    for trial in sweep.trials:
        if not trial.config.pool.noise_share:
            return _texts(sweep, trial)
    return None


def _texts(sweep: Sweep, trial: Trial) -> pd.DataFrame | None:
    """The responses of a trial's pool. None if it is not read yet."""
    folder = sweep.folder(trial, pools.POOL_TABLE)
    return None if folder is None else pools.frame(folder / pools.FILE, [*KEY, "response"])


def _damage(
    clean: pd.DataFrame | None, texts: pd.DataFrame | None, chosen: pd.DataFrame | None
) -> dict[str, float | None]:
    """Damaged shares of the trajectories, and of the selection's weight."""
    shares: dict[str, float | None] = {"damaged": None, "selected": None}
    if clean is None or texts is None:
        return shares
    joined = texts.merge(clean, on=KEY, suffixes=("", "_clean"))
    joined["damaged"] = joined["response"] != joined["response_clean"]
    shares["damaged"] = float(joined["damaged"].mean())
    if chosen is not None:
        joined = chosen.merge(joined[[*KEY, "damaged"]], on=KEY, validate="1:1")
        shares["selected"] = float((joined["weight"] * joined["damaged"]).sum() / joined["weight"].sum())
    return shares


def _table(data: pd.DataFrame, column: str, form: str, caption: str) -> Table:
    """One row per kind of damage and share, one column per method."""
    methods = data.drop_duplicates("method")
    rows = []
    for kind in data["noise"].unique():
        for _, part in data[data["noise"] == kind].groupby("share"):
            values = part.set_index("method")[column]
            row = [Cell(WORDS[kind]), _percent(part)]
            for method in methods["method"]:
                row.append(number(values.get(method), form))
            rows.append(row)
    return Table(["Damage", "Damaged", *methods["label"]], rows, caption, labels=2)


def _percent(part: pd.DataFrame) -> Cell:
    """The damaged share of a pool; with the requested one if it was not reached."""
    damaged = part["damaged"].iloc[0]
    share = part["share"].iloc[0]
    form = "{:.0f}%"
    if damaged < share - 0.005:
        form += f" (not {100 * share:.0f}%)"
    return number(100 * damaged, form)


def lost(data: pd.DataFrame) -> pd.DataFrame:
    """Points that each method loses from the clean pool to the most damaged one, by kind of damage."""
    most = data["share"].max()
    wide = data.pivot_table(index=["noise", "label"], columns="share", values="accuracy", sort=False)
    if not most or not {0.0, most} <= set(wide.columns):
        return pd.DataFrame()
    return (wide[most] - wide[0.0]).unstack()


def _notes(data: pd.DataFrame) -> list[str]:
    table = lost(data)
    notes = []
    for kind, row in table.iterrows():
        changes = row.dropna().sort_values(ascending=False)
        if len(changes) > 1:
            points = ", ".join(f"{label} {value:+.1f}" for label, value in changes.items()).replace("-", "−")
            most = data.loc[(data["noise"] == kind) & (data["share"] == data["share"].max()), "damaged"].max()
            notes.append(f"From 0 to {100 * most:.0f}% {WORDS[str(kind)]}, in points: {points}.")
    return notes


@styled
def _figure(data: pd.DataFrame, samples: int) -> Figure:
    kinds = list(data["noise"].unique())
    figure, axes = panels(len(kinds), width=3.0, height=3.2)
    percent = data.assign(percent=100 * data["damaged"]).sort_values("share", kind="stable")
    for axis, kind in zip(axes, kinds, strict=True):
        accuracy.draw_methods(axis, percent[percent["noise"] == kind], "percent")
        axis.set_title(WORDS[kind])
        axis.set_xlabel("damaged candidates (%)")
        axis.set_xticks(100 * np.unique(data["share"]))
    share_limits(axes)
    axes[0].set_ylabel(f"Acc@{samples} (%)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure
