"""Lengths of a pool's trajectories: measured if the lengths artifact is finished, read from a small pool,
or assumed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pyarrow.parquet as pq

from lark.config import Config
from lark.config.pool import TAUGHT
from lark.errors import DamagedError, LarkError
from lark.planner.checks import empty_pool
from lark.pool.formats import source_files
from lark.pool.read import read
from lark.pool.trajectories import POOL_TABLE
from lark.scoring.contents import Chat, RowKeys, contents
from lark.scoring.sources import LENGTHS_TABLE
from lark.store.integrity import verify
from lark.store.store import Store
from lark.teaching.asked import in_order
from lark.teaching.size import planned
from lark.work.operation import Step

READ_BYTES = 200_000_000
"""A local pool of up to this size is read for its plan."""
CHARACTERS = 3.2
"""Characters per token, in mathematical English with the students' tokenizers."""
PAPER_QUESTIONS, PAPER_CANDIDATES = 5000, 33
PAPER_MEDIAN, PAPER_SIGMA = 7500.0, 0.634
"""Assumed for the paper's pool: log-normal with a median of 7,500 tokens and 1% longer than 32,768 (App. C.3:
fewer than 1% are truncated). The mean is then 9,170 and the 95th percentile 21,280; for one of the 33 files
(Qwen3-4B), 9,560 and 23,343 are reported."""
DEMO_CANDIDATES = 33
DEMO_PROMPT, DEMO_RESPONSE = 51.0, 67.0
"""Mean tokens of the demo's pool with its student's tokenizer."""
TEMPLATE_CHARACTERS = 120
"""Characters that the chat template and the instruction add to a question."""
PAPER_PROMPT = 150
"""Assumed tokens of a prompt of the paper's pool."""


@dataclass(frozen=True)
class PoolLengths:
    """Tokens of a pool's trajectories, or of a sample of them if `repeat` is not 1."""

    questions: int
    candidates: int
    """Candidates per question, on average."""
    total: np.ndarray
    """Prompt and response together, after truncation."""
    response: np.ndarray
    source: str
    """Where the lengths come from, for the report."""
    rows: Callable[[], RowKeys] | None = None
    """Reads the trajectories' contents, to compare them with those of finished artifacts. None: unknown."""
    part: tuple[int, int] | None = None
    """If it is a part of the pool: the trajectories of this part, and of the whole pool."""

    @property
    def trajectories(self) -> int:
        return self.questions * self.candidates if self.part is None else self.part[0]

    @property
    def described(self) -> str:
        """The number of trajectories, for the report."""
        if self.part is None:
            return f"{self.trajectories:,} trajectories"
        new, whole = self.part
        return f"{whole:,} trajectories, {new:,} to score"

    def only(self, chosen: np.ndarray) -> "PoolLengths":
        """A part of the pool. `chosen`: for each of its trajectories, whether it is in the part."""
        new = int(chosen.sum())
        share = new / len(chosen)
        candidates = max(1, round(self.candidates * share))
        part = replace(self, candidates=candidates, part=(new, len(chosen)))
        # Lengths that represent several trajectories each are those of any part.
        if len(chosen) != len(self.total):
            return part
        return replace(part, total=self.total[chosen], response=self.response[chosen])

    def of_heat(self, config: Config, heat: int) -> "PoolLengths":
        """What a heat adds to the pool: its questions that are new."""
        teach = config.teach
        last = min(teach.first_questions(heat) or self.questions, self.questions)
        first = min(teach.first_questions(heat - 1) or 0, self.questions) if heat > 1 else 0
        return replace(self, questions=last - first, rows=None)

    @property
    def repeat(self) -> float:
        """Number of the pool's trajectories that each entry of the arrays represents."""
        return self.trajectories / len(self.total)

    @property
    def tokens(self) -> float:
        return float(self.total.sum()) * self.repeat

    def shared(self, tokens: int) -> float:
        """The share of the pool's tokens that is left if candidates share their prompt in forward passes of
        `tokens` tokens.
        """
        prompt = float((self.total - self.response).mean())
        response = float(self.response.mean())
        passes = ceil(self.candidates * response / max(1.0, tokens - prompt))
        copies = min(self.candidates, max(1, passes)) / self.candidates
        return (copies * prompt + response) / (prompt + response)

    def cut(self, longest: int) -> "PoolLengths":
        """The same pool with trajectories of at most `longest` tokens."""
        total = np.minimum(self.total, longest)
        return replace(self, total=total, response=np.minimum(self.response, total))


def lengths_of(config: Config, plan: Sequence[Step], store: Store) -> PoolLengths:
    """The lengths of a plan's pool: measured if a run has tokenised it, otherwise estimated. Pools of heats
    are parts of it.
    """
    plan = [step for step in plan if not step.heat]
    tables = [artifact for step in plan if step.makes(LENGTHS_TABLE) for artifact in step.artifacts]
    folder = next((store.path(table) for table in tables if store.state(table) == "finished"), None)
    if folder is not None:
        try:
            verify(folder)
        except DamagedError:  # the pipeline makes them again
            folder = None
    lengths = pool_lengths(config, folder)
    pools = [artifact for step in plan if step.makes(POOL_TABLE) for artifact in step.artifacts]
    folder = next((store.path(pool) for pool in pools if store.state(pool) == "finished"), None)
    if folder is None:
        return lengths
    return replace(lengths, rows=partial(contents, folder, "conversation", Chat.of(config)))


def pool_lengths(config: Config, artifact: Path | None = None) -> PoolLengths:
    """The best available lengths. `artifact`: the folder of a finished lengths artifact."""
    if artifact is not None and (artifact / LENGTHS_TABLE.file).is_file():
        return _measured(artifact)
    pool = config.pool
    longest = config.student.max_length
    if pool.is_generated:
        return _demo(config)
    if pool.format == TAUGHT:
        return _taught(config)
    try:
        files = source_files(pool)
    except LarkError:
        files = []
    size = sum(path.stat().st_size for path in files)
    if files and pool.format != "rsr" and size <= READ_BYTES:
        return _read(config)
    return assumed(len(pool.ids) or pool.questions or PAPER_QUESTIONS, longest)


def _demo(config: Config) -> PoolLengths:
    pool = config.pool
    assert pool.questions is not None
    questions = min(pool.questions, len(pool.ids) or pool.questions)
    candidates = np.full(DEMO_CANDIDATES, 1.0)
    return PoolLengths(
        questions,
        DEMO_CANDIDATES,
        candidates * min(DEMO_PROMPT + DEMO_RESPONSE, config.student.max_length),
        candidates * DEMO_RESPONSE,
        "assumed: the demo pool's mean with its own tokenizer",
    )


def _taught(config: Config) -> PoolLengths:
    """The pool that teachers will write: as long as the paper's, or as they may write."""
    questions, is_assumed = planned(config)
    longest = max(teacher.max_new_tokens for teacher in config.teacher.values())
    lengths = assumed(questions, min(longest + PAPER_PROMPT, config.student.max_length))
    candidates = config.teach.samples * len(in_order(config))
    guess = f"; assumed: {questions:,} questions" if is_assumed else ""
    note = f"assumed: as the paper's teachers write, at most {longest:,} tokens{guess}"
    return replace(lengths, candidates=candidates, source=note)


def _measured(folder: Path) -> PoolLengths:
    columns = pq.read_table(folder / LENGTHS_TABLE.file, columns=["question_id", "n_prompt", "n_tokens"])
    response = columns["n_tokens"].to_numpy().astype(np.float64)
    total = columns["n_prompt"].to_numpy() + response
    questions = len(columns["question_id"].unique())
    candidates = round(len(response) / questions)
    return PoolLengths(questions, candidates, total, response, "measured: the tokenised pool")


def _read(config: Config) -> PoolLengths:
    """Lengths from characters: the pool is read, not tokenised."""
    questions = set()
    prompts = []
    responses = []
    chat = Chat.of(config)
    rows = RowKeys([], [], [])
    for trajectory in read(config.pool):
        rows.add(trajectory.question_id, trajectory.candidate_id, chat.key(vars(trajectory)))
        questions.add(trajectory.question_id)
        system = trajectory.system or ""
        prompts.append(len(trajectory.question) + len(system) + TEMPLATE_CHARACTERS)
        responses.append(trajectory.characters)
    if not questions:
        raise empty_pool(config)
    response = np.array(responses) / CHARACTERS
    total = np.minimum(np.array(prompts) / CHARACTERS + response, config.student.max_length)
    candidates = round(len(responses) / len(questions))
    note = f"read: the pool's characters, at {CHARACTERS} per token"
    return PoolLengths(len(questions), candidates, total, np.minimum(response, total), note, lambda: rows)


def shortest() -> PoolLengths:
    """One trajectory of one token: a lower bound. A step that does not fit with it fits with no pool."""
    return PoolLengths(1, 1, np.ones(1), np.ones(1), "nothing is assumed")


def assumed(questions: int, longest: int) -> PoolLengths:
    """The paper's pool, represented by quantiles of a log-normal distribution."""
    normal = NormalDist()
    quantiles = np.array([normal.inv_cdf((i + 0.5) / 1000) for i in range(1000)])
    response = PAPER_MEDIAN * np.exp(PAPER_SIGMA * quantiles)
    total = np.minimum(response + PAPER_PROMPT, longest)
    note = (
        f"assumed: log-normal, median {PAPER_MEDIAN:,.0f} tokens, 1% over 32,768 (the paper's pool is not"
        " available here)"
    )
    return PoolLengths(questions, PAPER_CANDIDATES, total, np.minimum(response, total), note)
