"""App. D.3: one question, from its candidates' scores to the weights of the selection, and the tokens of
the first choice.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from experiments.harness.candidates import candidates, selection
from experiments.harness.printed_scores import difference_summary, prompts_table, scores_by_prompt
from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, Trial, published_values
from lark.output.markdown import fenced
from lark.output.style import LARK_COLOUR, OKABE_ITO, panels, plain_label
from lark.output.tables import markdown
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.scoring.sources import TOKENS
from lark.scoring.tokens import read_pieces, read_trajectory

SHOWN_TOKENS = 60
"""More tokens cannot be labelled. Of a longer response, the consecutive tokens with the largest sum of
residuals are shown.
"""
HARDEST = [
    ("position", "position", "{}"),
    ("token", "text", '"{}"'),
    ("p(y)", "p_gold", "{:.3f}"),
    ("residual", "residual", "{:.3f}"),
    ("surprisal", "surprisal", "{:.3f}"),
]
PAPER_BUDGET = 3
"""Number of trajectories that the paper's example selects."""


def render(sweep: Sweep) -> Report:
    trial = sweep.trials[0]  # with our prompt
    table = candidates(sweep, trial)
    chosen = selection(sweep, trial)
    title = "Appendix D.3. One question, from scores to weights"
    caption = (
        "(a) ĝ of every candidate of one question, grouped by teacher; selected candidates are outlined; the"
        " dashed line is the threshold, the score of rank B+1. (b) The first choice token by token: its"
        " residual ‖π − e_y‖² and its surprisal −log p(y) under the untrained student (for a long response,"
        f" the {SHOWN_TOKENS} consecutive tokens with the largest sum of residuals). In the paper's question"
        " 839, two rollouts of one teacher are selected while its third ranks 25th: LARK selects"
        " trajectories, not teachers. The weights there are 0.478, 0.387 and 0.136."
    )
    if table is None or chosen is None:
        empty = pd.DataFrame(columns=[*KEY, "teacher", "g_hat", "weight"])
        return Report(title, caption, empty, measured=False)
    table = table.merge(chosen[[*KEY, "rank", "weight", "threshold", "tau"]], on=KEY, how="left")
    tokens = first_choice_tokens(sweep, trial, chosen)
    scores = scores_by_prompt(sweep)
    ranked = chosen.sort_values("rank")
    tables = [_weights(sweep, table, ranked), prompts_table(scores, list(ranked["candidate_id"]))]
    if tokens is not None:
        tables.append(_hardest(tokens))
    return Report(
        title=title,
        caption=caption,
        data=table.sort_values("g_hat", ascending=False),
        tables=tables,
        figure=_figure(table, chosen, tokens),
        notes=_notes(sweep, trial, table, chosen),
        summary=difference_summary(scores),
    )


def first_choice_tokens(sweep: Sweep, trial: Trial, chosen: pd.DataFrame) -> pd.DataFrame | None:
    """The statistics of each token of the trajectory of rank 1, with its text; None if they do not exist
    yet.
    """
    folder = sweep.folder(trial, TOKENS)
    if folder is None:
        return None
    question, candidate = chosen[chosen["rank"] == 1][KEY].astype(str).iloc[0]
    tokens = read_trajectory(folder, question, candidate)
    if tokens is None:
        return None
    pieces = read_pieces(folder)
    text = [pieces.text([token]).replace("\n", "⏎") or "·" for token in tokens.token]
    return pd.DataFrame(
        {
            "position": np.arange(len(tokens)),
            "token": tokens.token,
            "surprisal": tokens.surprisal,
            "residual": tokens.residual,
            "p_gold": tokens.p,
            "text": text,
        }
    )


def _weights(sweep: Sweep, table: pd.DataFrame, ranked: pd.DataFrame) -> Table:
    statistics = table.set_index("candidate_id")[["n_tokens", "loss", "rho"]]
    shown = ranked.join(statistics, on="candidate_id")
    shown["margin"] = shown["score"] - shown["threshold"]
    shown["uniform"] = 1 / len(shown)
    printed = published_values("case_study")
    for column, letter in (("score", "g"), ("weight", "q")):
        # By rank, for the trajectories of the paper's own question.
        of_paper = {rank: printed[f"{letter}_{rank}"] for rank in range(1, PAPER_BUDGET + 1)}
        shown[f"paper_{column}"] = shown["rank"].map(of_paper)
        shown[f"{column}_difference"] = shown[column] - shown[f"paper_{column}"]
    columns = [
        ("rank", "rank", "{}"),
        ("candidate", "candidate_id", "{}"),
        ("tokens", "n_tokens", "{}"),
        ("loss", "loss", "{:.3f}"),
        ("ρ̂", "rho", "{:.3f}"),
        ("ĝ", "score", "{:.5f}"),
        ("margin", "margin", "{:.5f}"),
        ("weight", "weight", "{:.3f}"),
        ("uniform", "uniform", "{:.3f}"),
        ("the paper's ĝ (pid 839)", "paper_score", "{:.5f}"),
        ("the paper's weight", "paper_weight", "{:.3f}"),
    ]
    if sweep.like_the_paper:
        columns.append(("ĝ, difference", "score_difference", "{:+.5f}"))
        columns.append(("weight, difference", "weight_difference", "{:+.3f}"))
    return Table.of(shown, columns, "The selected trajectories and their weights (Lemma 3).")


def _hardest(tokens: pd.DataFrame) -> Table:
    top = tokens.nlargest(8, "residual")
    share = top["residual"].sum() / tokens["residual"].sum()
    drawn = int(top["position"].isin(window(tokens)["position"]).sum())
    where = "" if len(tokens) <= SHOWN_TOKENS else f"; (b) shows {drawn} of them"
    hardest = f"The eight tokens with the largest residuals account for {share:.0%}"
    caption = f"{hardest} of the first choice's sum{where}."
    return Table.of(top, HARDEST, caption)


def _notes(sweep: Sweep, trial: Trial, table: pd.DataFrame, chosen: pd.DataFrame) -> list[str]:
    pool = sweep.folder(trial, pools.POOL_TABLE)
    assert pool is not None
    rows = pools.frame(pool / pools.FILE, [*KEY, "question", "response", "answer"])
    first = chosen[chosen["rank"] == 1].iloc[0]
    text = rows[rows["candidate_id"].astype(str) == str(first["candidate_id"])].iloc[0]
    printed = published_values("case_study")
    threshold = printed[f"g_{PAPER_BUDGET + 1}"]
    tau = printed["tau"]
    differences = ""
    if sweep.like_the_paper:
        differences = (
            f"; ours minus these: {first['threshold'] - threshold:+.5f} and {first['tau'] - tau:+.3g}"
        )
    loss_rank = int(table["loss"].rank().iloc[table["g_hat"].argmax()])
    return [
        f"Question {markdown(str(text['question_id']))} (answer {markdown(str(text['answer']))}):\n\n"
        + fenced(text["question"]),
        f"The first choice, {markdown(first['candidate_id'])}:\n\n" + fenced(text["response"]),
        (
            f"{len(table)} candidates of {table['teacher'].nunique()} teachers; the threshold is ĝ ="
            f" {first['threshold']:.5f} and τ*(B) = {first['tau']:.3g} (the paper's question: {threshold:.5f}"
            f" and {tau:.3g}{differences}). The first choice's loss is the {ordinal(loss_rank)} lowest of"
            f" {len(table)}."
        ),
    ]


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, ... 11th, ... 21st."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}th" if number % 100 in (11, 12, 13) else f"{number}{ending}"


def _figure(table: pd.DataFrame, chosen: pd.DataFrame, tokens: pd.DataFrame | None) -> Figure:
    figure, (left, right) = panels(2, width=6.4, height=3.9)
    table = table.sort_values(["teacher", "rollout"], ignore_index=True)
    teachers = list(table["teacher"].unique())
    shades = [OKABE_ITO[teachers.index(teacher) % 2 * 4] for teacher in table["teacher"]]
    taken = table["rank"].notna()
    outline: dict[str, Any] = {"linewidth": np.where(taken, 2.0, 0.0), "edgecolor": LARK_COLOUR}
    left.bar(table.index, table["g_hat"], color=shades, width=0.8, **outline)
    threshold = float(chosen["threshold"].iloc[0])
    label = r"threshold, $\hat g$ of rank $B+1$"
    left.axhline(threshold, linestyle="--", color="#000000", linewidth=0.9, label=label)
    for at, row in table[taken].iterrows():
        weight = f" q = {row['weight']:.2f}"
        left.annotate(weight, (at, row["g_hat"]), ha="center", va="bottom", fontsize=7, rotation=90)
    middle = table.index.to_series().groupby(table["teacher"], sort=False).mean()
    left.set_xticks(middle, list(map(plain_label, teachers)), rotation=45, ha="right")
    left.set_xlabel("Teacher (one bar per rollout)")
    left.set_ylabel(r"LARK's score $\hat g$")
    left.set_title("(a) candidates; outlined: selected, with weight q")
    left.margins(y=0.28)
    handles = [*left.get_legend_handles_labels()[0], *_token_panel(right, tokens)]
    figure.legend(handles=handles, loc="outside upper center", ncols=3)
    return figure


def window(tokens: pd.DataFrame) -> pd.DataFrame:
    """The SHOWN_TOKENS consecutive tokens with the largest sum of residuals."""
    sums = tokens["residual"].rolling(min(SHOWN_TOKENS, len(tokens))).sum()
    last = int(sums.fillna(-1.0).to_numpy().argmax())
    return tokens.iloc[max(0, last + 1 - SHOWN_TOKENS) : last + 1]


def _token_panel(axes: Axes, tokens: pd.DataFrame | None) -> list[Artist | BarContainer]:
    """Draw the panel; return the handles for the legend."""
    axes.set_title("(b) the first choice, token by token")
    axes.set_xlabel("Token of the response")
    axes.set_ylabel(r"Residual $\|\pi_t - e_{y_t}\|^2$")
    if tokens is None:
        axes.text(0.5, 0.5, "no token statistics yet", ha="center", transform=axes.transAxes)
        return []
    shown = window(tokens)
    if len(shown) < len(tokens):
        places = f"tokens {shown['position'].min() + 1} to {shown['position'].max() + 1} of {len(tokens)}"
        axes.set_title(f"(b) the first choice: {places}, where residuals are largest")
    bars = axes.bar(shown["position"], shown["residual"], color=OKABE_ITO[0], label="residual (left axis)")
    other = axes.twinx()
    (line,) = other.plot(shown["position"], shown["surprisal"], marker="o", markersize=2, linewidth=0.9)
    line.set(color=LARK_COLOUR, label="surprisal (right axis)")
    other.set_ylabel(r"Surprisal $-\log p(y_t)$ (nats)")
    other.grid(visible=False)
    other.set_ylim(bottom=0)
    axes.set_ylim(bottom=0)
    axes.grid(axis="x", visible=False)
    axes.set_xticks(shown["position"], list(map(plain_label, shown["text"])), rotation=90, fontsize=6)
    return [bars, line]
