"""`make noise`: accuracy after training on a selection from a damaged pool, and how much of the damage each method selects."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.harness import accuracy
from experiments.harness.candidates import selection
from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, Trial
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.report.style import MARKERS, METHOD_COLOURS, panels, plain_label, styled
from lark.report.tables import MISSING, Cell

TITLE = "Noise: which methods survive a damaged pool"
WORDS = {
    "wrong": "wrong final answers", "truncated": "truncated responses", "shuffled": "shuffled steps",
    "duplicated": "duplicates of a candidate",
}  # fmt: skip


def render(sweep: Sweep) -> Report:
    data = collect(sweep)
    samples, budget = sweep.trials[0].config.benchmark.decoding.samples, sweep.trials[0].config.budget.per_question
    found = bool(data["accuracy"].notna().any())
    return Report(
        title=TITLE,
        caption=(
            f"Acc@{samples} (percent, average of the benchmarks) of students trained at B={budget} on selections from pools with a "
            "share of damaged candidates. Wrong answers: a digit or letter of the boxed answer is changed, the reasoning is not. "
            "The paper's pool has only correct candidates, which it names as a limitation. One training run and one decoding seed "
            "per point: differences of a few points are within the spread of training seeds (make seeds). None of these methods "
            "looks at answers; pool.correct_only=true would remove wrong and truncated responses before any method sees them."
        ),
        data=data,
        tables=[_accuracies(data), _chosen(data)],
        figure=_figure(data, samples) if found else None,
        notes=_notes(data) if found else [],
        found=found,
    )


def collect(sweep: Sweep) -> pd.DataFrame:
    """One row per kind of damage, share and method."""
    rows = []
    clean = _clean_texts(sweep)
    for trial in sweep.trials:
        config = trial.config
        averages = [row["mean"] for row in accuracy.rows(trial, sweep.metrics(trial)) if row["benchmark"] == accuracy.AVERAGE]
        rows.append(
            {"noise": config.pool.noise, "share": config.pool.noise_share, "method": config.method.key,
             "label": config.method.title, "accuracy": averages[0], "selected": _damaged_share(sweep, trial, clean)}
        )  # fmt: skip
    return pd.DataFrame(rows).astype({"accuracy": float, "selected": float})


def _clean_texts(sweep: Sweep) -> pd.DataFrame | None:
    """The responses of the pool without damage. None if it is not read yet."""
    whole = [trial for trial in sweep.trials if not trial.config.pool.noise_share]
    folder = sweep.folder(whole[0], pools.POOL) if whole else None
    return None if folder is None else pools.frame(folder / pools.FILE, [*KEY, "response"])


def _damaged_share(sweep: Sweep, trial: Trial, clean: pd.DataFrame | None) -> float | None:
    """Share of the selection's weight that is on damaged trajectories."""
    folder, chosen = sweep.folder(trial, pools.POOL), selection(sweep, trial)
    if folder is None or chosen is None or clean is None:
        return None
    texts = pools.frame(folder / pools.FILE, [*KEY, "response"]).merge(clean, on=KEY, suffixes=("", "_clean"))
    texts["damaged"] = texts["response"] != texts["response_clean"]
    joined = chosen.merge(texts, on=KEY, validate="1:1")
    return float((joined["weight"] * joined["damaged"]).sum() / joined["weight"].sum())


def _header(data: pd.DataFrame) -> list[str]:
    shares = sorted(data["share"].unique())
    return ["Damage", "Method", *(f"{100 * share:.0f}%" for share in shares)]


def _rows(data: pd.DataFrame, column: str, form: str) -> list[list[Cell]]:
    rows = []
    for kind in data["noise"].unique():
        for method in data["method"].unique():
            part = data[(data["noise"] == kind) & (data["method"] == method)].sort_values("share")
            cells = [MISSING if pd.isna(value) else Cell(form.format(value)) for value in part[column]]
            rows.append([Cell(WORDS[kind]), Cell(str(part["label"].iloc[0])), *cells])
    return rows


def _accuracies(data: pd.DataFrame) -> Table:
    return Table(_header(data), _rows(data, "accuracy", "{:.1f}"), "Accuracy by share of damaged candidates.", labels=2)


def _chosen(data: pd.DataFrame) -> Table:
    percent = data.assign(selected=100 * data["selected"])
    caption = "Damaged share of the selection's weight (percent). Less than the pool's share: the method avoids the damage."
    return Table(_header(data), _rows(percent, "selected", "{:.0f}"), caption, labels=2)


def lost(data: pd.DataFrame) -> pd.DataFrame:
    """Points that each method loses from the clean pool to the most damaged one, by kind of damage."""
    most = data["share"].max()
    wide = data.pivot_table(index=["noise", "label"], columns="share", values="accuracy", sort=False)
    return (wide[most] - wide[0.0]).unstack() if {0.0, most} <= set(wide.columns) and most else pd.DataFrame()


def _notes(data: pd.DataFrame) -> list[str]:
    table = lost(data)
    notes = []
    for kind, row in table.iterrows():
        known = row.dropna().sort_values(ascending=False)
        if len(known) > 1:
            said = ", ".join(f"{label} {value:+.1f}" for label, value in known.items()).replace("-", "−")
            notes.append(f"From 0 to {100 * data['share'].max():.0f}% {WORDS[str(kind)]}, in points: {said}.")
    return notes


@styled
def _figure(data: pd.DataFrame, samples: int) -> Figure:
    kinds = list(data["noise"].unique())
    figure, axes = panels(len(kinds), width=3.0, height=3.2)
    for axis, kind in zip(axes, kinds, strict=True):
        for number, method in enumerate(data["method"].unique()):
            part = data[(data["noise"] == kind) & (data["method"] == method)].dropna(subset=["accuracy"]).sort_values("share")
            colour = METHOD_COLOURS.get(method, "#000000")
            axis.plot(
                100 * part["share"], part["accuracy"], color=colour, marker=MARKERS[number % len(MARKERS)], markersize=4,
                label=plain_label(str(data.loc[data["method"] == method, "label"].iloc[0])),
            )  # fmt: skip
        axis.set_title(WORDS[kind])
        axis.set_xlabel("damaged candidates (%)")
        axis.set_xticks([100 * share for share in sorted(data["share"].unique())])
    low, high = min(axis.get_ylim()[0] for axis in axes), max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.set_ylim(low, high)
    axes[0].set_ylabel(f"Acc@{samples} (%)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=data["method"].nunique())
    return figure
