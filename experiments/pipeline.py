"""Figure 1: the pipeline, drawn from one question of a real run: candidates, scores, ranking, weights,
training, evaluation.
"""

import pandas as pd

from experiments.harness.candidates import candidates, selection
from experiments.harness.overview import Overview, overview_figure
from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, Trial
from lark.errors import LarkError
from lark.output.tables import MISSING, Cell, markdown
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.reading.rows import jsonl_rows
from lark.store.integrity import verify
from lark.training.checkpoints import CHECKPOINT, CURVE

TITLE = "Figure 1. The pipeline, for one question"
COLUMNS = [*KEY, "teacher", "rollout", "n_tokens", "loss", "rho", "g_hat", "rank", "weight"]
SELECTED = [
    ("rank", "rank", "{:.0f}"),
    ("candidate", "candidate_id", "{}"),
    ("ĝ", "g_hat", "{:.5f}"),
    ("weight", "weight", "{:.3f}"),
]


def render(sweep: Sweep) -> Report:
    (trial,) = sweep.trials
    question = str(trial.config.experiment.scales[sweep.scale]["question"])
    caption = (
        "For each question, several teachers' trajectories form a pool of candidates. The student scores"
        " each of them with one forward pass (ĝ), they are ranked, the top B are selected, and their weights"
        " q follow from how far their scores are above that of rank B + 1. The student is then trained on"
        " the weighted trajectories of all questions and evaluated. Every number is of this run; the"
        f" question is {markdown(question)}. Indices count after sorting."
    )
    overview = overview_of(sweep, trial, question)
    if overview is None:
        return Report(TITLE, caption, pd.DataFrame(columns=COLUMNS), measured=False)
    selected = Table.of(overview.selected, SELECTED)
    data = overview.candidates.sort_values("g_hat", ascending=False)[COLUMNS]
    tables = [selected, _results(sweep, overview)]
    return Report(TITLE, caption, data, tables, overview_figure(overview), _notes(overview))


def _results(sweep: Sweep, overview: Overview) -> Table:
    rows = []
    for benchmark, before, after in overview.accuracies:
        rows.append([Cell(benchmark), Cell("Acc@k"), Cell(f"{before:.2f}"), Cell(f"{after:.2f}")])
    trial = sweep.trials[0]
    first = sweep.samples(trial, trained=False)
    second = sweep.samples(trial)
    for task, settings in trial.config.benchmark.tasks.items():
        if task in first and task in second:
            texts = [settings.label, "pass@1", str(first[task].single), str(second[task].single)]
            rows.append([*map(Cell, texts)])
    header = ["benchmark", "metric", "base model", "trained student"]
    caption = "Acc@k (%), and pass@1 (%) with its 95% interval over problems."
    return Table(header, rows or [[MISSING] * 4], caption, labels=2)


def _notes(overview: Overview) -> list[str]:
    losses = overview.losses
    if not losses:
        return []
    return [
        f"The loss of a batch is {losses[0]:.3f} at the first of {len(losses)} training steps and"
        f" {losses[-1]:.3f} at the last."
    ]


def overview_of(sweep: Sweep, trial: Trial, question: str) -> Overview | None:
    """The numbers of the figure; None if the selection does not exist yet."""
    scored = candidates(sweep, trial)
    chosen = selection(sweep, trial)
    pool = sweep.folder(trial, pools.POOL_TABLE)
    if scored is None or chosen is None or pool is None:
        return None
    questions = chosen["question_id"].nunique()
    scored = scored[scored["question_id"] == question]
    chosen = chosen[chosen["question_id"] == question]
    _require_question(sweep, question, chosen)
    texts = pools.frame(pool / pools.FILE, ["question_id", "question"]).set_index("question_id")["question"]
    return Overview(
        student=trial.config.student.name,
        question_id=question,
        question=texts[[question]].iloc[0],
        candidates=scored.merge(chosen[[*KEY, "rank", "weight"]], on=KEY, how="left"),
        threshold=float(chosen["threshold"].iloc[0]),
        questions=questions,
        losses=_losses(sweep, trial),
        accuracies=_accuracies(sweep, trial),
    )


def _losses(sweep: Sweep, trial: Trial) -> list[float]:
    folder = sweep.folder(trial, CHECKPOINT)
    if folder is None:
        return []
    verify(folder, CURVE)
    losses = [row.values.get("loss") for row in jsonl_rows(folder / CURVE)]
    return [float(loss) for loss in losses if loss is not None]


def _accuracies(sweep: Sweep, trial: Trial) -> list[tuple[str, float, float]]:
    """Acc@k of each benchmark that both the base model and the trained student have been evaluated on."""
    before = sweep.metrics(trial, trained=False)
    after = sweep.metrics(trial)
    rows = []
    for task, settings in trial.config.benchmark.tasks.items():
        if task in before and task in after:
            rows.append((settings.label, before[task].accuracy_at_k.mean, after[task].accuracy_at_k.mean))
    return rows


def _require_question(sweep: Sweep, question: str, chosen: pd.DataFrame) -> None:
    if chosen.empty:
        raise LarkError(
            f"experiment.scales.{sweep.scale}.question={question}: no trajectory of this question is"
            " selected. Give the id of a question of the pool."
        )
