"""The files of a `tokens` artifact: written by the scoring pass, read by question. No model code.

A file per shard, a row group per question, a row per trajectory. The columns of statistics are lists with
one number per response token, in small types: half floats, clipped ranks. So a question is read in one
piece, and a token takes few bytes (`python -m experiments.bench.tokens`). The key-value metadata of a file
name the question of each row group; when all shards are done, `questions.parquet` lists them for the whole
artifact, so that a reader opens one file. Until then, readers look into the metadata of each shard that
exists.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lark.errors import LarkError, first_line
from lark.reading.untrusted import regular

ALTERNATIVES = 5
"""K, the most likely tokens that are kept at each position."""
INDEX_FILE = "questions.parquet"
"""The question of every row group: question_id, file, row_group, candidates. Written after all shards."""
INDEX_SCHEMA = pa.schema(
    dict.fromkeys(("question_id", "file"), pa.string())
    | dict.fromkeys(("row_group", "candidates"), pa.int32())
)
PIECES = "pieces.parquet"
"""The bytes of each token in running text, and whether it is a control token. The row is the token's id."""
SHARD_FILES = "tokens-*.parquet"
QUESTIONS_KEY = b"lark.questions"  # of a file's metadata: the question of each row group, as JSON
TOTAL_KEY = b"lark.tokens"  # of a file's metadata: the number of tokens
ID_COLUMNS = ("question_id", "candidate_id")
TOKEN_IDS = "token"
"""The column that has one number per response token in every file."""
LIST_TYPES = {
    TOKEN_IDS: pa.int32(),
    "surprisal": pa.float16(),
    "residual": pa.float16(),
    "rank": pa.uint16(),
    "entropy": pa.float16(),
    "alternatives": pa.int32(),
    "alternative_p": pa.float16(),
}
TOKENS_SCHEMA = pa.schema(
    dict.fromkeys(ID_COLUMNS, pa.string()) | {name: pa.list_(kind) for name, kind in LIST_TYPES.items()}
)
Places = dict[str, list[tuple[str, int]]]
"""The files and row groups that hold each question."""
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class TrajectoryTokens:
    """The T response tokens of a trajectory under the student: in a conversation, all tokens with loss."""

    question_id: str
    candidate_id: str
    token: np.ndarray
    """[T] Ids, int32."""
    surprisal: np.ndarray
    """[T] -log p(y) in nats."""
    residual: np.ndarray
    """[T] ||pi - e_y||^2."""
    rank: np.ndarray
    """[T] 1: the most likely token. Clipped at 65,535."""
    entropy: np.ndarray
    """[T] -Σ_v p log p of the student's distribution, in nats."""
    alternatives: np.ndarray
    """[T, K] Ids of the most likely tokens, likeliest first; -1 if fewer than K have a probability > 0."""
    alternative_p: np.ndarray
    """[T, K] Their probabilities."""

    @classmethod
    def empty(cls, question_id: str, candidate_id: str) -> "TrajectoryTokens":
        """A trajectory without response tokens: truncation left only the prompt."""
        return _trajectory(question_id, candidate_id, {name: np.empty(0, np.int32) for name in LIST_TYPES})

    def __len__(self) -> int:
        return len(self.token)

    @property
    def p(self) -> np.ndarray:
        """[T] The probability of each token."""
        return np.exp(-self.surprisal)


@dataclass(frozen=True)
class Footer:
    """Metadata of a shard's file."""

    metadata: pq.FileMetaData
    questions: list[str]
    tokens: int


def footer(path: Path) -> Footer:
    # A page of the explorer asks for many questions of one file. A file written again is another key.
    return _footer_of(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4096)
def _footer_of(path: Path, mtime: int) -> Footer:
    metadata = pq.read_metadata(regular(path))
    stored = metadata.metadata or {}
    return Footer(metadata, json.loads(stored[QUESTIONS_KEY]), int(stored[TOTAL_KEY]))


@lru_cache(maxsize=8)
def _index_of(path: Path, mtime: int) -> Places:
    table = pq.read_table(regular(path), columns=["question_id", "file", "row_group"])
    places: Places = {}
    for question, file, group in zip(*(column.to_pylist() for column in table.columns), strict=True):
        places.setdefault(question, []).append((file, group))
    return places


def places(folder: Path) -> Places:
    """The questions of an artifact, in its order. If the run has not finished: those so far."""
    with _readable(folder):
        index = folder / INDEX_FILE
        if index.exists():
            return _index_of(index, index.stat().st_mtime_ns)
        so_far: Places = {}
        for shard in sorted(folder.glob(SHARD_FILES)):
            for group, question in enumerate(footer(shard).questions):
                so_far.setdefault(question, []).append((shard.name, group))
        return so_far


def read_trajectories(folder: Path, question_id: str) -> list[TrajectoryTokens]:
    """The candidates of a question with their tokens, in the pool's order. Empty if none were kept."""
    return [row for table in read_tables(folder, question_id) for row in from_table(table)]


def read_tables(folder: Path, question_id: str) -> list[pa.Table]:
    """The same as they are stored. A question is in several tables if shards divide it."""
    return _read(folder, question_id, None, lambda table: [table])


def candidates(folder: Path, question_id: str) -> list[str]:
    """Ids of the candidates of a question with kept tokens, in the pool's order. Reads no statistics."""
    return _read(folder, question_id, ["candidate_id"], lambda table: table.column(0).to_pylist())


def _read(
    folder: Path, question_id: str, columns: list[str] | None, convert: Callable[[pa.Table], list[T]]
) -> list[T]:
    """The converted rows of a question. A question is in several row groups if shards divide it."""
    rows: list[T] = []
    for name, group in places(folder).get(question_id, []):
        path = folder / name
        with (
            _readable(path),
            pq.ParquetFile(path, metadata=footer(path).metadata, page_checksum_verification=True) as file,
        ):
            rows += convert(file.read_row_group(group, columns=columns))
    return rows


def read_trajectory(folder: Path, question_id: str, candidate_id: str) -> TrajectoryTokens | None:
    """One candidate of a question. None if its tokens were not kept."""
    rows = read_trajectories(folder, question_id)
    return next((row for row in rows if row.candidate_id == candidate_id), None)


def from_table(table: pa.Table) -> list[TrajectoryTokens]:
    """The trajectories of a table of a file."""
    lists = {name: _arrays(table.column(name), kind) for name, kind in LIST_TYPES.items()}
    ids = zip(*(table.column(name).to_pylist() for name in ID_COLUMNS), strict=True)
    trajectories = []
    for row, (question, candidate) in enumerate(ids):
        columns = {name: arrays[row] for name, arrays in lists.items()}
        trajectories.append(_trajectory(question, candidate, columns))
    return trajectories


def _arrays(column: pa.ChunkedArray, kind: pa.DataType) -> list[np.ndarray]:
    """One array per trajectory; half floats as single ones, with which NumPy computes at full speed."""
    lists = pa.concat_arrays(column.chunks)
    values = lists.values.to_numpy(zero_copy_only=False)
    values = values.astype(np.float32 if pa.types.is_float16(kind) else np.int32, copy=False)
    return [values[start:stop] for start, stop in pairwise(lists.offsets.to_numpy())]


def _trajectory(question: str, candidate: str, columns: dict[str, np.ndarray]) -> TrajectoryTokens:
    n_tokens = len(columns[TOKEN_IDS])
    n_alternatives = len(columns["alternatives"]) // n_tokens if n_tokens else ALTERNATIVES
    for name in ("alternatives", "alternative_p"):
        columns[name] = columns[name].reshape(n_tokens, n_alternatives)
    return TrajectoryTokens(question, candidate, **columns)


@dataclass(frozen=True, eq=False)
class Pieces:
    """The tokens of a vocabulary as they are in running text."""

    pieces: Sequence[bytes]
    special: Sequence[bool]
    """True for control tokens."""

    def __getitem__(self, token: int) -> bytes:
        """Bytes of a token. Empty for an id of the LM head that the tokenizer does not have, and for -1."""
        return self.pieces[token] if 0 <= token < len(self.pieces) else b""

    def text(self, tokens: Iterable[int]) -> str:
        """The text of a sequence of tokens. (Sentencepiece models start it with a space.)"""
        return b"".join(self[int(token)] for token in tokens).decode(errors="replace")


def read_pieces(folder: Path) -> Pieces:
    """The vocabulary of an artifact's student."""
    path = folder / PIECES
    with _readable(path):
        return _pieces_of(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _pieces_of(path: Path, mtime: int) -> Pieces:
    table = pq.read_table(regular(path))
    return Pieces(table.column("bytes").to_pylist(), table.column("special").to_pylist())


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Report a file that is gone, damaged or of another layout without a stack trace."""
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise LarkError(
            f"{path}: the statistics of its tokens cannot be read ({first_line(error)}). Run the command that"
            " wrote them again: it writes what is missing or damaged."
        ) from error
