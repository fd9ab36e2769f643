"""Damaged pools, benchmarks, scores and training sets: what is read is what another reader finds in the
same file.
"""

import csv
import gzip
import io
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lark.config import Pool, Task
from lark.errors import LarkError
from lark.evaluation import benchmarks
from lark.pool import trajectories as pools
from lark.pool.cleaning import Tally
from lark.pool.read import read
from lark.scoring.external_scores import read_scores
from lark.training.training_set import read_rows
from tests.fuzz.case import Case, Result, judged
from tests.fuzz.mutations import change_bytes, change_value
from tests.hostile import forked, program, small

Row = dict[str, Any]
SECONDS = 30.0
TEACHERS = ("ann", "bob (high)", "qwen/qwen-72b")


def base_rows() -> list[Row]:
    """A correct pool."""
    return [
        {
            "question_id": f"q{number}", "candidate_id": f"{teacher}.0", "teacher": teacher, "rollout": 0,
            "question": f"What is {number} + 2, “exactly”?",
            "response": f"It is {number}, then two more.\nSo \\boxed{{{number + 2}}}.",
            "answer": str(number + 2), "correct": True,
        }
        for number in range(4)
        for teacher in TEACHERS
    ]  # fmt: skip


# Formats


def as_jsonl(rows: list[Row]) -> bytes:
    return b"".join(
        json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n" for row in rows
    )


def as_json(rows: list[Row]) -> bytes:
    return json.dumps(rows, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")


def as_csv(rows: list[Row]) -> bytes:
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, list(dict.fromkeys(key for row in rows for key in row)), restval="")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().encode("utf-8", "surrogatepass")


def as_parquet(rows: list[Row]) -> bytes:
    buffer = io.BytesIO()
    pd.DataFrame(rows).to_parquet(buffer, index=False)
    return buffer.getvalue()


def from_json(data: bytes) -> list[Row]:
    text = data.decode("utf-8-sig")
    return (
        json.loads(text)
        if text.lstrip().startswith("[")
        else [json.loads(line) for line in text.split("\n") if line.strip()]
    )


def from_csv(data: bytes) -> list[Row]:
    return [
        {key: value for key, value in row.items() if key}
        for row in csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""))
    ]


def from_parquet(data: bytes) -> list[Row]:
    return list(pq.read_table(io.BytesIO(data)).to_pylist())


FORMATS: dict[str, tuple[Callable[[list[Row]], bytes], Callable[[bytes], list[Row]]]] = {
    ".jsonl": (as_jsonl, from_json),
    ".json": (as_json, from_json),
    ".csv": (as_csv, from_csv),
    ".parquet": (as_parquet, from_parquet),
}


def write(rows: list[Row], folder: Path, rng: random.Random, formats: list[str]) -> tuple[Path, str, bytes]:
    """Write damaged rows in a random format: the file, what was changed, and its content before
    compression.
    """
    ending = rng.choice(formats)
    said = []
    changes = rng.choice([0, 1, 1, 1, 2, 3])
    for _ in range(changes):
        at = rng.randrange(len(rows))
        rows[at], how = change_value(rows[at], rng)
        said.append(f"row {at}: {how}")
        if not isinstance(rows[at], dict):
            rows[at] = {"question": rows[at]}
    try:
        data = FORMATS[ending][0](rows)
    except (TypeError, ValueError, OverflowError, pa.ArrowException):  # Parquet has no such values
        ending, data = ".jsonl", as_jsonl(rows)
    if rng.random() < 0.5 or not changes:
        data, how = change_bytes(data, rng)
        said.append(how)
    packed = data
    if ending == ".jsonl" and rng.random() < 0.15:
        ending, packed = ".JSONL.gz", gzip.compress(data)
        if rng.random() < 0.5:
            packed, how = change_bytes(packed, rng)
            said.append(f"compressed: {how}")
            data = b""
    path = folder / f"data{ending}"
    path.write_bytes(packed)
    return path, f"{ending}: {'; '.join(said)}", data


def independent(data: bytes, ending: str) -> list[Row] | None:
    """The rows as another reader sees them; None if it cannot read the file."""
    try:
        rows = FORMATS[ending.lower().removesuffix(".gz")][1](data)
    except Exception:
        return None
    return rows if all(isinstance(row, dict) for row in rows) else None


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or value in ("", [], {})


def shown(value: Any) -> str | None:
    """A value as text, as an answer is written: numbers without exponent. The only value of a list is that
    value.
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if is_missing(value):
        return None
    if isinstance(value, float) and math.isfinite(value):
        digits = np.format_float_positional(value, trim="-")
        return digits.removeprefix("-") if float(digits) == 0 else digits
    return str(value)


def shown_id(value: Any) -> str:
    """An id as text: a number as an answer is written, without the white space around it."""
    return str(shown(value) if isinstance(value, float) else value).strip()


@dataclass
class Tables:
    """Damaged files of one kind. `read` reads one in a fork and saves it; `compare` checks that."""

    name: str
    share: float
    read: Callable[[Path, Path], None]
    compare: Callable[[list[Row], list[Row]], str | None]
    rows: Callable[[], list[Row]]
    formats: tuple[str, ...] = (".jsonl", ".jsonl", ".json", ".csv", ".parquet")
    arguments: Callable[[Path, Path], list[str]] | None = None
    """Arguments of the program that read the same file, for some of the cases."""

    def prepare(self, shared: Path) -> None:
        pass

    def run(self, case: Case, folder: Path) -> Result:
        rng = case.rng
        path, what, data = write(self.rows(), folder, rng, list(self.formats))
        found = folder / "found.json"
        if self.arguments is not None and rng.random() < 0.15:
            arguments = self.arguments(path, folder / "outputs")
            return judged(forked(lambda: program(tuple(arguments)), 60), f"{what} (run.py)")
        return judged(
            forked(lambda: self._call(path, found), SECONDS),
            what,
            lambda: self._difference(path, data, found),
        )

    def _call(self, path: Path, found: Path) -> None:
        try:
            self.read(path, found)
        except LarkError as error:
            raise SystemExit(f"error: {error}") from error

    def _difference(self, path: Path, data: bytes, found: Path) -> str | None:
        expected = independent(data or gzip.decompress(path.read_bytes()), "".join(path.suffixes))
        if expected is None:
            return "it is read, but another reader cannot read it"
        return self.compare(expected, json.loads(found.read_text()))


def save(rows: Iterator[Row] | list[Row], found: Path) -> None:
    found.write_text(json.dumps(list(rows)))


# Pools


def read_pool(path: Path, found: Path) -> None:
    pool, tally = Pool(name="files", format="rows", path=str(path)), Tally()
    table = found.with_name("pool.parquet")
    counts = pools.write(read(pool, tally), table, pool, tally)
    save([*pools.iterate(table), {"unused": counts.get("unused", {})}], found)


KNOWN = {"question_id", "problem_id", "candidate_id", "teacher", "rollout", "question", "problem", "response",
         "completion", "answer", "correct", "system", "thinking", "messages", "tools"}  # fmt: skip


def same_pool(rows: list[Row], found: list[Row]) -> str | None:
    *stored, summary = found
    if len(rows) != len(stored):
        return f"{len(rows)} rows, but {len(stored)} trajectories"
    for number, (row, got) in enumerate(zip(rows, stored, strict=True)):
        if is_missing(row.get("messages")) and "conversations" not in row:
            for name in ("question", "response"):
                if (
                    row.get(name) != got[name]
                    and row.get({"question": "problem", "response": "completion"}[name]) != got[name]
                ):
                    return f"row {number}: {name} is {row.get(name)!r:.80}, but {got[name]!r:.80} is stored"
        for name in ("answer", "teacher"):
            text = shown(row.get(name))
            if text is not None and not any(c.isprintable() and not c.isspace() for c in text):
                text = None
            if text != got[name] and (text, got[name]) != (None, "unknown"):
                return f"row {number}: {name} is {row.get(name)!r:.80}, but {got[name]!r:.80} is stored"
        for name in ("question_id", "candidate_id"):
            if row.get(name) is not None and shown_id(row[name]) != got[name]:
                return f"row {number}: {name} is {row[name]!r:.80}, but {got[name]!r:.80} is stored"
        lost = [
            name
            for name, value in row.items()
            if name not in KNOWN and name not in summary["unused"] and not is_missing(value)
        ]
        if lost:
            return f"row {number}: the column {lost[0]!r} is not used, and not reported"
    return None


# Benchmarks


def benchmark_rows() -> list[Row]:
    return [
        {"id": f"p{n}", "question": f"What is {n} + 2?", "answer": str(n + 2), "level": n % 3 + 1}
        for n in range(8)
    ]


def read_benchmark(path: Path, found: Path) -> None:
    task = Task(
        "x",
        str(path),
        answer_format="free_form",
        question_field="question",
        id_field="id",
        level_field="level",
    )
    save([asdict(problem) for problem in benchmarks.load("x", task)], found)


def same_benchmark(rows: list[Row], found: list[Row]) -> str | None:
    if len(rows) != len(found):
        return f"{len(rows)} rows, but {len(found)} problems"
    for number, (row, got) in enumerate(zip(rows, found, strict=True)):
        for theirs, ours in (
            ("id", "id"),
            ("question", "question"),
            ("answer", "answer"),
            ("level", "level"),
        ):
            if theirs == "id" and shown_id(row.get(theirs)) == got[ours]:
                continue
            if shown(row.get(theirs)) != shown(got[ours]) and str(row.get(theirs)) != got[ours]:
                if theirs == "level" and float(row[theirs]) == got[ours]:
                    continue
                return f"row {number}: {theirs} is {row.get(theirs)!r:.80}, but {got[ours]!r:.80} is read"
    return None


# Scores of another tool


def score_rows() -> list[Row]:
    return [{"question_id": row["question_id"], "candidate_id": row["candidate_id"], "score": number / 8}
            for number, row in enumerate(base_rows())]  # fmt: skip


def read_score_file(path: Path, found: Path) -> None:
    table = read_scores(path)
    save(json.loads(table.to_json(orient="records", double_precision=15)), found)


def same_scores(rows: list[Row], found: list[Row]) -> str | None:
    if len(rows) != len(found):
        return f"{len(rows)} rows, but {len(found)} scores"
    for number, (row, got) in enumerate(zip(rows, found, strict=True)):
        for name in ("question_id", "candidate_id"):
            if shown_id(row.get(name)) != got[name].strip():
                return f"row {number}: {name} is {row.get(name)!r:.80}, but {got[name]!r:.80} is read"
        theirs = _number(row.get("score"))
        ours = math.nan if got["score"] is None else got["score"]
        if not (
            theirs == ours
            or (not math.isfinite(theirs) and math.isnan(ours))
            or math.isclose(theirs, ours, rel_tol=1e-9)
        ):
            return f"row {number}: the score is {row.get('score')!r:.80}, but {ours} is read"
    return None


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


# Training sets


def training_rows() -> list[Row]:
    return [
        {
            "messages": [{"role": "user", "content": row["question"]},
                         {"role": "assistant", "content": row["response"]}],
            "weight": 0.5, "question_id": row["question_id"], "candidate_id": row["candidate_id"],
        }
        for row in base_rows()
    ]  # fmt: skip


def read_training_set(path: Path, found: Path) -> None:
    save(
        [
            {"messages": list(row.dialogue.messages), "weight": row.weight, "ids": list(row.key)}
            for row in read_rows(path)
        ],
        found,
    )


def same_training_set(rows: list[Row], found: list[Row]) -> str | None:
    if len(rows) != len(found):
        return f"{len(rows)} rows, but {len(found)} examples"
    for number, (row, got) in enumerate(zip(rows, found, strict=True)):
        ids = [str(row["question_id"]), str(row["candidate_id"])]
        if (ids, row["weight"], row["messages"]) != (got["ids"], got["weight"], got["messages"]):
            return f"row {number}: {row!r:.200} is read as {got!r:.200}"
    return None


KINDS = (
    Tables("pool", 2.0, read_pool, same_pool, base_rows,
           arguments=lambda path, outputs: small(
               outputs, "pool=files", f"pool.path={path}", "pool.questions=null")),
    Tables("benchmark", 1.0, read_benchmark, same_benchmark, benchmark_rows,
           arguments=lambda path, outputs: [
               f"outputs={outputs}", "dry_run=true", "tracking=none", "benchmark=demo_words",
               f"benchmark.tasks.demo_words.path={path}", "benchmark.tasks.demo_words.count=null"]),
    Tables("scores", 0.5, read_score_file, same_scores, score_rows, (".csv", ".csv", ".parquet")),
    Tables("training set", 0.5, read_training_set, same_training_set, training_rows, (".jsonl",)),
)  # fmt: skip
