"""The questions that teachers are asked: read from files, from the hub or generated, checked, and sampled.

Rows and columns are read as those of a pool (lark/pool/columns.py). The table is read again one batch at a
time, so that the number of questions is not limited by memory.
"""

import heapq
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lark.config.teaching import Questions
from lark.pool.checks import check_question
from lark.pool.columns import Columns
from lark.pool.formats import source_rows
from lark.pool.hashing import hash64
from lark.pool.mixing import named_after
from lark.reading.fields import Fields, is_blank
from lark.reading.rows import Row
from lark.reading.untrusted import require_characters
from lark.store.store import Kind, atomic
from lark.teaching import checks

QUESTIONS = Kind("questions", 1, "questions.parquet")
ROWS = 2000
"""Rows of a row group: what readers hold in memory."""
DEMO_QUESTIONS = 40
"""Questions of the demo if `questions.number` is not set."""


@dataclass(frozen=True)
class AskedQuestion:
    """A question to teachers."""

    question_id: str
    question: str
    answer: str | None = None
    """The gold answer, if it is known."""
    system: str | None = None

    @property
    def key(self) -> str:
        """What a teacher's answer belongs to: the text, whatever the question's id and place."""
        return f"{hash64(self.question, self.system or ''):016x}"


SCHEMA = pa.schema([(field.name, pa.string()) for field in fields(AskedQuestion)])


@dataclass
class Counts:
    """Questions that are left out, by reason."""

    read: int = 0
    repeated: int = 0
    """Rows with the text of an earlier question."""
    contaminated: int = 0


def read(source: Questions, counts: Counts | None = None) -> Iterator[AskedQuestion]:
    """Every different question of a source, checked. The first row with a text counts."""
    counts = Counts() if counts is None else counts
    keys: set[str] = set()
    texts: dict[str, str] = {}
    """The key of each question's text, by id."""
    with named_after("questions"):
        for where, question in _located(source):
            counts.read += 1
            checks.same_question(question, texts.setdefault(question.question_id, question.key), where)
            if question.key in keys:
                counts.repeated += 1
                continue
            keys.add(question.key)
            yield question


def _located(source: Questions) -> Iterator[tuple[str, AskedQuestion]]:
    if source.is_generated:
        from lark.demo.pool import questions  # noqa: PLC0415  # the demo is generated, not read

        for values in questions(source.number or DEMO_QUESTIONS, source.seed):
            yield "the demo's questions", AskedQuestion(**values)
        return
    checks.require_path(source)
    empty: set[str] = set()
    _, rows = source_rows(source, empty)
    for row in rows:
        yield row.where, _question(row, source)


def _question(row: Row, source: Questions) -> AskedQuestion:
    columns = Columns(row, source)
    text = columns.text("pair_question")
    check_question(text, row.where)
    labels = Fields({"id": columns.get("row_id"), "answer": columns.get("pair_answer")}, row.where)
    question_id = labels.identity("id") if not is_blank(labels.values["id"]) else f"{hash64(text):016x}"
    answer = None if is_blank(labels.values["answer"]) else labels.answer("answer")
    question = AskedQuestion(question_id, text, answer, columns.optional("pair_system"))
    require_characters(list(asdict(question).values()), row.where)
    return question


def sampled(
    questions: Iterator[AskedQuestion], source: Questions, without: Collection[str]
) -> list[AskedQuestion]:
    """The questions that are asked, in the order of the source. `without`: ids of those that are left out."""
    kept = [question for question in questions if question.question_id not in without]
    if source.number is None or source.is_generated:
        return kept
    checks.enough(source, len(kept))

    def place(question: AskedQuestion) -> int:
        return hash64(str(source.seed), question.question_id)

    chosen = {question.question_id for question in heapq.nsmallest(source.number, kept, key=place)}
    return [question for question in kept if question.question_id in chosen]


def write(questions: list[AskedQuestion], folder: Path) -> None:
    with atomic(folder / QUESTIONS.file) as draft, pq.ParquetWriter(draft, SCHEMA, compression="zstd") as out:
        for start in range(0, len(questions), ROWS):
            rows = [asdict(question) for question in questions[start : start + ROWS]]
            out.write_batch(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))


def stored(folder: Path) -> Iterator[AskedQuestion]:
    """The questions of an artifact."""
    for batch in pq.ParquetFile(folder / QUESTIONS.file, pre_buffer=False).iter_batches(ROWS):
        values: list[dict[str, Any]] = batch.to_pylist()
        for row in values:
            yield AskedQuestion(**row)


def number(folder: Path) -> int:
    """How many there are."""
    return int(pq.read_metadata(folder / QUESTIONS.file).num_rows)
