"""Bytes per token of the statistics that `scoring.tokens` keeps, and the time to read a question, beside
the layout of version 1.

Run as: python -m experiments.bench.tokens [--quick] [--student <folder>]
Time: about 2 minutes on 2 idle cores, 20 seconds with --quick.
Expect: about 6 bytes per token, and 12 more for the alternatives; all 33 candidates of a question in under
0.1 s.
Writes outputs/bench/tokens.csv.

Version 1 had a row per token with 9 numbers and no entropy or alternatives; version 2 has a row per
trajectory and a row group per question (lark/scoring/tokens.py).

Bytes are those of real statistics: the demo's pool under the demo's student, or under another one
(`--student`), both layouts from one pass.

Reading is measured on an artifact of the paper's proportions: 5,000 questions, 8 in each file, with 33
candidates. In 5 files they have 8,000 tokens each, in the others one; a reader has to find the file among
all. The numbers are random, so they compress less than real ones, and reading takes longer. Version 1 is
read with the question as a filter, which skips what it can; its readers used to read everything. Time is
processor time, which other jobs disturb less.
"""

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from experiments.bench._measuring import timed
from experiments.bench._output import command_line, table, write_csv
from lark.config import Student as StudentConfig
from lark.demo.pool import trajectories
from lark.models.load import load_chat, load_model
from lark.models.shapes import DEMO
from lark.printing import log_to
from lark.scoring import tokens
from lark.scoring.forward import LoadedStudent, response_statistics
from lark.scoring.statistics import DetailedStatistics, TokenStatistics
from lark.scoring.token_files import write_index, write_shard
from lark.scoring.tokens import ALTERNATIVES, TrajectoryTokens, read_trajectories
from lark.scoring.worker import trajectory_tokens
from lark.work.entry import run_main

log = logging.getLogger("bench.tokens")
CANDIDATES = 33
LENGTH = 8000
QUESTIONS = 5000
PER_FILE = 8
OLD = "version 1"
NEW = "version 2"


@dataclass(frozen=True)
class StorageResult:
    """One row of the table."""

    layout: str
    measure: str
    value: float
    unit: str


COLUMNS = {
    "layout": "{r.layout}",
    "measure": "{r.measure}",
    "value": "{r.value:.3f}",
    "unit": "{r.unit}",
}


@dataclass(frozen=True)
class OldTokens:
    """A trajectory's statistics as version 1 kept them."""

    question_id: str
    candidate_id: str
    columns: dict[str, np.ndarray]


Pair = tuple[OldTokens, TrajectoryTokens]
"""A trajectory's statistics in both forms."""


def write_old(path: Path, rows: Sequence[OldTokens]) -> None:
    """One row per token, with the ids of its trajectory."""
    sizes = [len(row.columns["token"]) for row in rows]
    row_of_token = pa.array(np.repeat(np.arange(len(rows)), sizes))
    columns = {}
    for name in ("question_id", "candidate_id"):
        ids = pa.array([getattr(row, name) for row in rows]).dictionary_encode()
        columns[name] = ids.take(row_of_token)
    for name in rows[0].columns:
        columns[name] = np.concatenate([row.columns[name] for row in rows])
    pq.write_table(pa.table(columns), path, compression="zstd", write_page_checksum=True)


def read_old(folder: Path, question: str) -> pa.Table:
    return pq.read_table(folder, filters=[("question_id", "=", question)])


def real(folder: Path, questions: int) -> Iterator[Pair]:
    """The demo's pool under a student."""
    config = StudentConfig("bench", str(folder), max_length=512)
    student = LoadedStudent.of(load_model(str(folder), config, "cpu"))
    chat = load_chat(str(folder), config)
    for row in trajectories(questions, seed=0):
        encoded = chat.encode_many([row], config.max_length)[0]
        (statistics,) = response_statistics(student, [encoded], ALTERNATIVES)
        assert isinstance(statistics, DetailedStatistics)
        columns = {
            "position": np.arange(encoded.n_response, dtype=np.int32),
            "token": np.asarray(encoded.response, dtype=np.int32),
        }
        for field in fields(TokenStatistics):
            columns[field.name] = getattr(statistics, field.name).numpy()
        old = OldTokens(str(row["question_id"]), str(row["candidate_id"]), columns)
        yield old, trajectory_tokens(row, encoded, statistics)


def invented(question: int, length: int) -> Iterator[Pair]:
    """The candidates of a question with random numbers."""
    rng = np.random.default_rng(question)
    for candidate in range(CANDIDATES):
        ids = f"{question:05d}", f"teacher-{candidate}"
        token = rng.integers(1, 150_000, length, dtype=np.int32)
        rank = rng.integers(1, 150_000, length, dtype=np.int32)
        columns: dict[str, np.ndarray] = {"position": np.arange(length, dtype=np.int32), "token": token}
        for field in fields(TokenStatistics):
            if field.name not in ("rank", "ties"):
                columns[field.name] = rng.random(length, dtype=np.float32)
        columns |= {"rank": rank, "ties": 0 * rank}
        new = TrajectoryTokens(
            *ids,
            token,
            columns["surprisal"],
            columns["residual"],
            rank,
            columns["p_gold"],
            rng.integers(1, 150_000, (length, ALTERNATIVES), dtype=np.int32),
            rng.random((length, ALTERNATIVES), dtype=np.float32),
        )
        yield OldTokens(*ids, columns), new


def measure_bytes(folder: Path, student: Path, questions: int) -> list[StorageResult]:
    """Bytes per token of both layouts, and of the columns of the new one."""
    pairs = list(real(student, questions))
    total = sum(len(new) for _, new in pairs)
    log.info("%s trajectories, %s tokens, %s", f"{len(pairs):,}", f"{total:,}", student)
    old_file = folder / "old.parquet"
    new_file = folder / "new.parquet"
    write_old(old_file, [old for old, _ in pairs])
    write_shard(new_file, [new for _, new in pairs])
    sizes = {
        (OLD, "whole file"): old_file.stat().st_size,
        (NEW, "whole file"): new_file.stat().st_size,
    }
    metadata = pq.read_metadata(new_file)
    groups = list(map(metadata.row_group, range(metadata.num_row_groups)))
    for place, name in enumerate(tokens.TOKENS_SCHEMA.names):
        sizes[NEW, f"column {name}"] = sum(group.column(place).total_compressed_size for group in groups)
    return [StorageResult(*what, size / total, "bytes per token") for what, size in sizes.items()]


def write_artifacts(folder: Path, questions: int, long: int) -> list[int]:
    """Write an artifact in both layouts. Returns a question of each of the `long` files that have long
    responses.
    """
    starts = range(0, questions, PER_FILE)
    chosen = [starts[place] for place in np.linspace(0, len(starts) - 1, long).astype(int)]
    for start in starts:
        length = LENGTH if start in chosen else 1
        pairs: list[Pair] = []
        for question in range(start, min(start + PER_FILE, questions)):
            pairs += invented(question, length)
        first = start * CANDIDATES
        name = f"tokens-{first:08d}-{first + len(pairs):08d}.parquet"
        write_old(folder / OLD / name, [old for old, _ in pairs])
        write_shard(folder / NEW / name, [new for _, new in pairs])
    write_index(folder / NEW, sorted((folder / NEW).glob(tokens.SHARD_FILES)))
    return [start + PER_FILE // 2 for start in chosen]


def measure_reading(folder: Path, questions: int, long: int) -> list[StorageResult]:
    """Processor time of reading all candidates of a question: the first, when nothing is remembered, and
    others.
    """
    readers: dict[str, Callable[[Path, str], object]] = {OLD: read_old, NEW: read_trajectories}
    for layout in readers:
        (folder / layout).mkdir()
    chosen = write_artifacts(folder, questions, long)
    tokens._footer_of.cache_clear()
    seconds: dict[str, list[float]] = {layout: [] for layout in readers}
    for question in chosen:
        for layout, read in readers.items():
            spent, _ = timed(partial(read, folder / layout, f"{question:05d}"))
            seconds[layout].append(spent)
    results = []
    for layout, times in seconds.items():
        results.append(StorageResult(layout, "first question", times[0], "s per question"))
        results.append(StorageResult(layout, "median question", median(times), "s per question"))
    return results


def main() -> None:
    log_to()
    parser = command_line(__doc__, "fewer questions")
    parser.add_argument("--student", type=Path, default=DEMO, help="a folder with a model and its tokenizer")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    real_questions, questions, long = (5, 496, 2) if arguments.quick else (30, QUESTIONS, 5)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        results = measure_bytes(folder, arguments.student, real_questions)
        results += measure_reading(folder, questions, long)
    write_csv(results, "tokens.csv")
    log.info("\n%s", table(results, COLUMNS, right=2))


if __name__ == "__main__":
    run_main(main)
