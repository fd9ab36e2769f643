"""`make noise`: accuracy after training on a selection from a damaged pool, and how much of the damage each
method selects.
"""

import pandas as pd
from matplotlib.figure import Figure

from experiments.harness import accuracy
from experiments.harness.candidates import selection
from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, Trial
from lark.output.style import MARKERS, METHOD_COLOURS, panels, plain_label, share_limits, styled
from lark.output.tables import MISSING, Cell
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY

TITLE = "Noise: which methods survive a damaged pool"
WORDS = {
    "wrong": "wrong final answers",
    "truncated": "truncated responses",
    "shuffled": "shuffled steps",
    "duplicated": "duplicates of a candidate",
}


def render(sweep: Sweep) -> Report:
    data = collect(sweep)
    config = sweep.trials[0].config
    samples = config.benchmark.decoding.samples
    found = bool(data["accuracy"].notna().any())
    return Report(
        title=TITLE,
        caption=(
            f"Acc@{samples} (percent, average of the benchmarks) of students trained at B={config.budget.per_question} on"
            " selections from pools with damaged candidates. Damaged: the share of the pool's candidates"
            " whose text differs from the pool without damage. Wrong answers: a digit of the final answer or"
            " the letter of a choice is changed, or a digit is appended; the reasoning is not changed. The"
            " paper's pool has only correct candidates, which it names as a limitation. One training run and"
            " one decoding seed per point: differences of a few points are within the spread of training"
            " seeds (make seeds). None of these methods looks at answers. pool.correct_only=true drops wrong"
            " answers that a pool comes with; this damage is done afterwards."
        ),
        data=data,
        tables=[_accuracies(data), _chosen(data)],
        figure=_figure(data, samples) if found else None,
        notes=_notes(data) if found else [],
        found=found,
    )


def collect(sweep: Sweep) -> pd.DataFrame:
    """One row per kind of damage, share and method. `share`: as requested; `damaged`: of the pool's
    candidates, as measured.
    """
    rows = []
    clean = _clean_texts(sweep)
    for trial in sweep.trials:
        config = trial.config
        texts = _texts(sweep, trial, clean)
        average = accuracy.rows(trial, sweep.metrics(trial))[-1]
        rows.append(
            {
                "noise": config.pool.noise,
                "share": config.pool.noise_share,
                "method": config.method.key,
                "label": config.method.title,
                "accuracy": average["mean"],
                "damaged": None if texts is None else float(texts["damaged"].mean()),
                "selected": _damaged_share(selection(sweep, trial), texts),
            }
        )
    return pd.DataFrame(rows).astype({"accuracy": float, "damaged": float, "selected": float})


def _clean_texts(sweep: Sweep) -> pd.DataFrame | None:
    """The responses of the pool without damage. None if it is not read yet."""
    whole = [trial for trial in sweep.trials if not trial.config.pool.noise_share]
    folder = sweep.folder(whole[0], pools.POOL_TABLE) if whole else None
    return None if folder is None else pools.frame(folder / pools.FILE, [*KEY, "response"])


def _texts(sweep: Sweep, trial: Trial, clean: pd.DataFrame | None) -> pd.DataFrame | None:
    """The trajectories of a trial's pool, and whether each is damaged. None if a pool is not read yet."""
    folder = sweep.folder(trial, pools.POOL_TABLE)
    if folder is None or clean is None:
        return None
    texts = pools.frame(folder / pools.FILE, [*KEY, "response"]).merge(clean, on=KEY, suffixes=("", "_clean"))
    return texts[KEY].assign(damaged=texts["response"] != texts["response_clean"])


def _damaged_share(chosen: pd.DataFrame | None, texts: pd.DataFrame | None) -> float | None:
    """Share of the selection's weight that is on damaged trajectories."""
    if chosen is None or texts is None:
        return None
    joined = chosen.merge(texts, on=KEY, validate="1:1")
    return float((joined["weight"] * joined["damaged"]).sum() / joined["weight"].sum())


def _header(data: pd.DataFrame) -> list[str]:
    return ["Damage", "Damaged", *data.drop_duplicates("method")["label"]]


def _rows(data: pd.DataFrame, column: str, form: str) -> list[list[Cell]]:
    """One row per kind of damage and share, one column per method."""
    rows = []
    for kind in data["noise"].unique():
        for _, part in data[data["noise"] == kind].groupby("share"):
            values = part.set_index("method")[column]
            cells = [_cell(values.get(method), form) for method in data["method"].unique()]
            rows.append([Cell(WORDS[kind]), _percent(part), *cells])
    return rows


def _cell(value: float | None, form: str) -> Cell:
    return MISSING if value is None or pd.isna(value) else Cell(form.format(value))


def _percent(part: pd.DataFrame) -> Cell:
    """The damaged share of a pool; with the requested one if it was not reached."""
    damaged, share = part["damaged"].iloc[0], part["share"].iloc[0]
    if pd.isna(damaged):
        return MISSING
    short = f" (not {100 * share:.0f}%)" if damaged < share - 0.005 else ""
    return Cell(f"{100 * damaged:.0f}%{short}")


def _accuracies(data: pd.DataFrame) -> Table:
    return Table(
        _header(data), _rows(data, "accuracy", "{:.1f}"), "Accuracy by share of damaged candidates.", labels=2
    )


def _chosen(data: pd.DataFrame) -> Table:
    percent = data.assign(selected=100 * data["selected"])
    caption = (
        "Damaged share of the selection's weight (percent). Less than the pool's share: the method avoids the"
        " damage."
    )
    return Table(_header(data), _rows(percent, "selected", "{:.0f}"), caption, labels=2)


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
    for axis, kind in zip(axes, kinds, strict=True):
        for number, method in enumerate(data["method"].unique()):
            part = data[(data["noise"] == kind) & (data["method"] == method)].dropna(
                subset=["accuracy", "damaged"]
            )
            part = part.sort_values("share")
            colour = METHOD_COLOURS.get(method, "#000000")
            axis.plot(
                100 * part["damaged"],
                part["accuracy"],
                color=colour,
                marker=MARKERS[number % len(MARKERS)],
                markersize=4,
                label=plain_label(str(data.loc[data["method"] == method, "label"].iloc[0])),
            )
        axis.set_title(WORDS[kind])
        axis.set_xlabel("damaged candidates (%)")
        axis.set_xticks([100 * share for share in sorted(data["share"].unique())])
    share_limits(axes)
    axes[0].set_ylabel(f"Acc@{samples} (%)")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=data["method"].nunique()
    )
    return figure
