"""The functions that a notebook imports: score, select, weight, train and grade, without Hydra and without a
store (docs/python.md).

    from lark.api import score, select, write_training_set

    table = score("my_pool.jsonl", model, tokenizer)      # a model of transformers, or the path of one
    selection = select(table, method="lark", budget=3)
    write_training_set(selection, "train.jsonl")

They are thin: each calls the functions that runs use, and tests/test_api.py compares the results.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lark import api_checks as checks
from lark.config import Pool, Student
from lark.grading.answers import AnswerFormat, boxed_places, extract_boxed, extract_boxed_list, grade_paper
from lark.grading.verify import Verifier
from lark.models.dialogue import dialogue_of
from lark.pool.read import read, read_rows
from lark.pool.trajectories import KEY
from lark.pool.trajectory import Trajectory, verdict
from lark.reading.rows import Row
from lark.scoring.borrowed import loaded_student
from lark.scoring.methods import METHODS
from lark.scoring.pass_sizes import BATCH_TOKENS
from lark.scoring.sources import ENTROPY_TABLE, SCORES_TABLE, TOP50_TABLE
from lark.scoring.text import indicator_table
from lark.scoring.worker import StatisticsPass
from lark.selection import rules
from lark.selection.write import as_table
from lark.store.integrity import verify
from lark.store.manifest import read_manifest
from lark.training.loss import weighted_loss

if TYPE_CHECKING:
    from lark.training.trl import WeightedSFTTrainer, weighted_dataset

__all__ = [
    "WeightedSFTTrainer",
    "chi2_weights",
    "grade",
    "load",
    "score",
    "select",
    "weighted_dataset",
    "weighted_loss",
    "write_training_set",
]
OF_TRL = ("WeightedSFTTrainer", "weighted_dataset")
"""Names that need the package TRL, which is imported when they are used."""
LINES = ("grades.jsonl", "generations.jsonl", "metrics.jsonl")
"""The table of an artifact that has no Parquet file: grades, answers, or the curve of a training."""


def __getattr__(name: str) -> Any:
    if name in OF_TRL:
        from lark.training import trl  # noqa: PLC0415

        return getattr(trl, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def score(
    conversations: str | Path | Iterable[Mapping[str, Any] | Sequence[Mapping[str, Any]]],
    model: PreTrainedModel | str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    rank_clip: int = 100,
    progress: bool = True,
    **student: Any,
) -> pd.DataFrame:
    """The student's statistics of every trajectory, and the scores of every method that they allow.

    conversations: a pool file, or rows as such a file has them (docs/own-pool.md), or lists of messages. Rows
    with the same question are candidates of one question.
    model: a model of transformers, which is used as it is and left as it was; or a folder or hub id, which is
    loaded as runs load it. tokenizer: that of a loaded model.
    rank_clip: RSR's r_max (`scoring.rank_clip`). student: settings of the student, such as max_length=8192,
    instruction=None or chat_template="chatml" (lark/config/student.py).

    Returns one row per trajectory: ids, text, `messages` (as the student is trained on them), statistics, and
    a column for each method with its score.
    """
    if isinstance(conversations, str | Path):
        pool = Pool(name="pool", format="rows", path=str(conversations))
        trajectories = list(read(pool))
    else:
        pool = Pool(name="pool", format="hub", path="memory")  # rows without a file, as those of the hub
        trajectories = list(read_rows(_rows(conversations), pool))
    checks.require_trajectories(trajectories)
    rows = [vars(trajectory) for trajectory in trajectories]
    with loaded_student(model, tokenizer, student) as (loaded, chat, settings):
        encoded = chat.encode_many(rows, settings.max_length)
        tables = frozenset({SCORES_TABLE.name, ENTROPY_TABLE.name, TOP50_TABLE.name})
        scorer = StatisticsPass(loaded, tables, BATCH_TOKENS[-1], rank_clip)
        total = sum(len(one.ids) for one in encoded if one.n_response)
        with tqdm(total=total, unit="tok", unit_scale=True, disable=not progress, desc="scoring") as bar:
            contents = scorer(rows, encoded, bar.update)
    table = _described(trajectories, pool, settings)
    for name in sorted(tables, reverse=True):
        content = contents[name]
        assert isinstance(content, pa.Table)
        columns = content.to_pandas()
        # All tables of a pass have the ids and the number of tokens.
        table = pd.concat([table, columns[columns.columns.difference(table.columns, sort=False)]], axis=1)
    return table.assign(**_method_scores(table))


def _rows(conversations: Iterable[Any]) -> Iterator[Row]:
    for number, conversation in enumerate(conversations, start=1):
        values = conversation if isinstance(conversation, Mapping) else {"messages": list(conversation)}
        yield Row(values, f"conversation {number}")


def _described(trajectories: Sequence[Trajectory], pool: Pool, student: Student) -> pd.DataFrame:
    """What a table has before the student's pass: ids, texts, correctness, and indicators of the text."""
    rows = [vars(trajectory) for trajectory in trajectories]
    table = pd.DataFrame(rows, columns=[*KEY, "teacher", "question", "response", "answer"])
    # None, where nobody knows, becomes NaN.
    table["correct"] = np.array([verdict(trajectory, pool) for trajectory in trajectories], dtype=float)
    dialogues = [dialogue_of(row, student.instruction) for row in rows]
    texts = pd.DataFrame(
        {"messages": [dialogue.messages for dialogue in dialogues], "tools": [d.tools for d in dialogues]}
    )
    return pd.concat([table, texts, indicator_table(rows).to_pandas().drop(columns=KEY)], axis=1)


def _method_scores(table: pd.DataFrame) -> dict[str, npt.NDArray[np.float64]]:
    """The scores of the methods whose columns the table has. Some methods are a column themselves."""
    scores = {}
    for name, method in METHODS.items():
        if set(method.columns) <= set(table.columns) and name not in table.columns:
            scores[name] = method.score(table)
    return scores


def select(
    table: pd.DataFrame,
    method: str = "lark",
    budget: int = 3,
    weighting: str = "chi2",
    *,
    higher_is_better: bool | None = None,
    **options: Any,
) -> pd.DataFrame:
    """The `budget` best trajectories of each question by a method, with their weights.

    table: of `score`, or any table with question_id, candidate_id and a column of scores. method: one of
    METHODS in lark/scoring/methods.py, or the name of a column. higher_is_better: the direction of a column;
    methods have their own. options: of the method, such as seed=1 for random.

    Returns the chosen rows, best first, with `rank`, `score`, `weight` (q, sums to 1 in each question),
    `training_weight` (w = B q), `threshold` and `tau`.
    """
    checks.check_budget(budget)
    if method in METHODS:
        known = METHODS[method]
        scores = known.score(table, options)
        upwards = known.higher_is_better
    else:
        checks.require_column(method, table.columns, options)
        scores = table[method].to_numpy(dtype=np.float64, na_value=np.nan)
        upwards = True
    selection = rules.select(
        scores,
        table["question_id"],
        table["candidate_id"],
        budget,
        weighting,
        higher_is_better=upwards if higher_is_better is None else higher_is_better,
    )
    rules.check_dropped(selection)
    numbers = as_table(selection, table.assign(teacher=table.get("teacher", "unknown")))
    rest = table.iloc[selection.row].drop(columns=[name for name in numbers if name in table])
    return pd.concat([numbers, rest.reset_index(drop=True)], axis=1)


def chi2_weights(scores: npt.ArrayLike, budget: int) -> npt.NDArray[np.float64]:
    """The χ² weights of one question's candidates (Lemma 3): one per score, 0 for those outside the top
    `budget`. Higher scores are better.
    """
    checks.check_budget(budget)
    values = np.asarray(scores, dtype=np.float64)
    chosen = rules.select(values, np.zeros(len(values), dtype=int), np.arange(len(values)), budget, "chi2")
    weights = np.zeros(len(values))
    weights[chosen.row] = chosen.weight
    return weights


def write_training_set(selection: pd.DataFrame, path: str | Path) -> None:
    """Write a selection of `score`'s table as the `train.jsonl` of a run: messages and a weight."""
    with Path(path).expanduser().open("w", encoding="utf-8") as handle:
        for row in selection.to_dict("records"):
            line = {"messages": row["messages"]}
            if row["tools"]:
                line["tools"] = row["tools"]
            line |= {"weight": row["training_weight"], **{name: row[name] for name in KEY}}
            handle.write(json.dumps(line, ensure_ascii=False) + "\n")


def grade(answer: str, gold: str, grader: str = "paper", answer_format: str = "free_form") -> bool:
    """Whether an answer is the gold answer, by the grader `paper` or `verify` (docs/grading.md).

    answer: a response, whose last box counts, or only its answer, without a box. answer_format: numeric,
    choice, free_form or exact_text.
    """
    checks.check_grader(grader, answer_format)
    form = AnswerFormat(answer_format)
    has_box = bool(boxed_places(answer))
    if grader == "paper":
        return grade_paper(extract_boxed(answer) if has_box else answer, gold, form)
    with Verifier(processes=1) as verifier:
        (result,) = verifier.grade_many([(extract_boxed_list(answer) if has_box else answer, gold, form)])
    return result


def load(folder: str | Path) -> pd.DataFrame:
    """The table of a finished artifact, such as `outputs/scores/<name>`: a pool's trajectories, scores, a
    selection, the curve of a checkpoint, generations, or the grades of metrics.
    """
    path = Path(folder).expanduser()
    manifest = read_manifest(path)
    checks.check_finished(path, manifest)
    verify(path)
    own = path / f"{manifest.kind}.parquet"
    # A large pool is in several files.
    tables = [own] if own.exists() else sorted(path.glob("*.parquet"))
    if tables:
        return pd.concat([pd.read_parquet(file) for file in tables], ignore_index=True)
    lines = [path / name for name in LINES if (path / name).exists()]
    checks.require_table(path, lines)
    return pd.read_json(lines[0], lines=True)
