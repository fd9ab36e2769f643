"""Bytes per token of the statistics that `scoring.tokens` keeps, and the time to read a question, beside
the layout of version 1.

Run as: python -m experiments.bench.tokens [--quick] [--student <folder>] Time: about 2 minutes on 2 idle
cores, 20 seconds with --quick. Expect: about 6 bytes per token, and 12 more for the alternatives; all 33
candidates of a question in under 0.1 s. Writes outputs/bench/tokens.csv.

Version 1 had a row per token with 9 numbers and no entropy or alternatives; version 2 has a row per
trajectory and a row group per question (lark/scoring/tokens.py). Bytes are those of real statistics: the
demo's pool under the demo's student, or under another one (`--student`), both layouts from one pass.
Reading is measured on an artifact of the paper's proportions: 5,000 questions, 8 in each file, with 33
candidates. In 5 files they have 8,000 tokens each, in the others one; a reader has to find the file among
all. The numbers are random, so they compress less than real ones, and reading takes longer. Version 1 is
read with the question as a filter, which skips what it can; its readers used to read everything. Time is
processor time, which other jobs disturb less.
"""

import argparse
import csv
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lark.config import Student as StudentConfig
from lark.demo.pool import trajectories
from lark.models.load import load_chat, load_model
from lark.models.shapes import DEMO
from lark.printing import text_table
from lark.scoring import tokens
from lark.scoring.forward import LoadedStudent, response_statistics
from lark.scoring.statistics import DetailedStatistics, TokenStatistics
from lark.scoring.tokens import ALTERNATIVES, TrajectoryTokens, read_trajectories, write_index, write_shard
from lark.scoring.worker import trajectory_tokens

log = logging.getLogger("bench.tokens")
FOLDER = Path("outputs/bench")
CANDIDATES, LENGTH, QUESTIONS, PER_FILE = 33, 8000, 5000, 8
OLD, NEW = "version 1", "version 2"


@dataclass(frozen=True)
class StorageResult:
    """One row of the table."""

    layout: str
    measure: str
    value: float
    unit: str


@dataclass(frozen=True)
class OldTokens:
    """A trajectory's statistics as version 1 kept them."""

    question_id: str
    candidate_id: str
    columns: dict[str, np.ndarray]


def write_old(path: Path, rows: Sequence[OldTokens]) -> None:
    """One row per token, with the ids of its trajectory."""
    sizes = [len(row.columns["token"]) for row in rows]
    ids = {
        name: pa.array([getattr(row, name) for row in rows]).dictionary_encode()
        for name in ("question_id", "candidate_id")
    }
    numbers = {name: np.concatenate([row.columns[name] for row in rows]) for name in rows[0].columns}
    repeated = {
        name: column.take(pa.array(np.repeat(np.arange(len(rows)), sizes))) for name, column in ids.items()
    }
    pq.write_table(pa.table({**repeated, **numbers}), path, compression="zstd", write_page_checksum=True)


def read_old(folder: Path, question: str) -> pa.Table:
    return pq.read_table(folder, filters=[("question_id", "=", question)])


def real(folder: Path, questions: int) -> Iterator[tuple[OldTokens, TrajectoryTokens]]:
    """The demo's pool under a student, in both forms."""
    config = StudentConfig("bench", str(folder), max_length=512)
    student, chat = LoadedStudent.of(load_model(str(folder), config, "cpu")), load_chat(str(folder), config)
    for row in trajectories(questions, seed=0):
        encoded = chat.encode_many([row], config.max_length)[0]
        (found,) = response_statistics(student, [encoded], ALTERNATIVES)
        assert isinstance(found, DetailedStatistics)
        numbers = {field.name: getattr(found, field.name).numpy() for field in fields(TokenStatistics)}
        place = np.arange(encoded.n_response, dtype=np.int32)
        columns = {"position": place, "token": np.asarray(encoded.response, dtype=np.int32), **numbers}
        yield (
            OldTokens(str(row["question_id"]), str(row["candidate_id"]), columns),
            trajectory_tokens(row, encoded, found),
        )


def invented(question: int, length: int) -> Iterator[tuple[OldTokens, TrajectoryTokens]]:
    """The candidates of a question, in both forms, with random numbers."""
    rng = np.random.default_rng(question)
    for candidate in range(CANDIDATES):
        ids = f"{question:05d}", f"teacher-{candidate}"
        token, rank = (rng.integers(1, 150_000, length, dtype=np.int32) for _ in range(2))
        numbers = {
            f.name: rng.random(length, dtype=np.float32)
            for f in fields(TokenStatistics)
            if f.name not in ("rank", "ties")
        }
        old = {
            "position": np.arange(length, dtype=np.int32),
            "token": token,
            **numbers,
            "rank": rank,
            "ties": 0 * rank,
        }
        words = rng.integers(1, 150_000, (length, ALTERNATIVES), dtype=np.int32)
        p = rng.random((length, ALTERNATIVES), dtype=np.float32)
        new = TrajectoryTokens(
            *ids, token, numbers["surprisal"], numbers["residual"], rank, numbers["p_gold"], words, p
        )
        yield OldTokens(*ids, old), new


def measure_bytes(folder: Path, student: Path, questions: int) -> list[StorageResult]:
    """Bytes per token of both layouts, and of the columns of the new one."""
    pairs = list(real(student, questions))
    total = sum(len(new) for _, new in pairs)
    write_old(folder / "old.parquet", [old for old, _ in pairs])
    write_shard(folder / "new.parquet", [new for _, new in pairs])
    metadata = pq.read_metadata(folder / "new.parquet")
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    columns = {
        name: sum(group.column(place).total_compressed_size for group in groups)
        for place, name in enumerate(tokens.TOKENS_SCHEMA.names)
    }
    sizes = {
        layout: (folder / file).stat().st_size
        for layout, file in ((OLD, "old.parquet"), (NEW, "new.parquet"))
    }
    log.info("%s trajectories, %s tokens, %s", f"{len(pairs):,}", f"{total:,}", student)
    return [
        *(
            StorageResult(layout, "whole file", size / total, "bytes per token")
            for layout, size in sizes.items()
        ),
        *(
            StorageResult(NEW, f"column {name}", size / total, "bytes per token")
            for name, size in columns.items()
        ),
    ]


def write_artifacts(folder: Path, questions: int, long: int) -> list[int]:
    """Both layouts of an artifact. Returns a question of each of the `long` files that have long responses."""
    starts = list(range(0, questions, PER_FILE))
    chosen = [starts[place] for place in np.linspace(0, len(starts) - 1, long).astype(int)]
    for start in starts:
        length = LENGTH if start in chosen else 1
        pairs = [
            pair
            for question in range(start, min(start + PER_FILE, questions))
            for pair in invented(question, length)
        ]
        name = f"tokens-{start * CANDIDATES:08d}-{start * CANDIDATES + len(pairs):08d}.parquet"
        write_old(folder / OLD / name, [old for old, _ in pairs])
        write_shard(folder / NEW / name, [new for _, new in pairs])
    write_index(folder / NEW, sorted((folder / NEW).glob(tokens.SHARD_FILES)))
    return [start + PER_FILE // 2 for start in chosen]


def measure_reading(folder: Path, questions: int, long: int) -> list[StorageResult]:
    """Processor time of reading all candidates of a question: the first, when nothing is remembered, and
    others.
    """
    for layout in (OLD, NEW):
        (folder / layout).mkdir()
    chosen = write_artifacts(folder, questions, long)
    tokens._footer_of.cache_clear()
    readers: dict[str, Callable[[str], object]] = {
        OLD: lambda question: read_old(folder / OLD, question),
        NEW: lambda question: read_trajectories(folder / NEW, question),
    }
    seconds: dict[str, list[float]] = {layout: [] for layout in readers}
    for question in chosen:
        for layout, read in readers.items():
            start = time.process_time()
            read(f"{question:05d}")
            seconds[layout].append(time.process_time() - start)
    return [
        StorageResult(layout, what, value, "s per question")
        for layout, found in seconds.items()
        for what, value in (("first question", found[0]), ("median question", median(found)))
    ]


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer questions")
    parser.add_argument("--student", type=Path, default=DEMO, help="a folder with a model and its tokenizer")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        results = measure_bytes(Path(folder), arguments.student, 5 if arguments.quick else 30)
        results += measure_reading(Path(folder), *((496, 2) if arguments.quick else (QUESTIONS, 5)))
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "tokens.csv").open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, [field.name for field in fields(StorageResult)])
        writer.writeheader()
        writer.writerows(map(asdict, results))
    rows = [[r.layout, r.measure, f"{r.value:.3f}", r.unit] for r in results]
    log.info("\n%s", text_table(["layout", "measure", "value", "unit"], rows, right=2))


if __name__ == "__main__":
    main()
