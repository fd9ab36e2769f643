"""How trajectories are scored and chosen: the method, its judge, the budget, and what the forward pass records."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from lark.config.checks import one_of, plain_name, require
from lark.config.student import Student


@dataclass
class Judge:
    """The model behind method=llm_judge."""

    path: str = "Qwen/Qwen3-32B"
    """Hub id or local folder (paper, App. C.2: Qwen3-32B in non-thinking mode)."""
    revision: str | None = None
    """Commit or tag of a hub id."""
    style: str = "paper"
    """paper: its prompt and JSON, word for word. brief: a short prompt and only the overall score, for short contexts."""
    dtype: str = "bfloat16"
    """Precision of the judge's weights."""
    tensor_parallel: int = 1
    """GPUs that share one copy of the judge, with vllm or sglang."""
    max_length: int = 40960
    """Context of the judge; longer responses are cut from the right."""
    max_new_tokens: int = 1024
    """Maximum length of the answer."""
    temperature: float = 0.0
    """0: greedy."""
    retries: int = 2
    """How many times an answer that is not valid JSON is sampled again, with another seed."""

    def __post_init__(self) -> None:
        one_of("method.judge.style", self.style, ("paper", "brief"))
        require(self.tensor_parallel >= 1, "method.judge.tensor_parallel", self.tensor_parallel, "must be at least 1")
        require(self.retries >= 0, "method.judge.retries", self.retries, "must not be negative")
        require(self.max_new_tokens >= 1, "method.judge.max_new_tokens", self.max_new_tokens, "must be at least 1")

    @property
    def model(self) -> Student:
        """The judge in the form that engines load."""
        return Student("judge", self.path, revision=self.revision, max_length=self.max_length, dtype=self.dtype)


@dataclass
class Method:
    """How candidates are ranked. The function of the same name is in lark/scoring/methods.py."""

    name: str = MISSING
    label: str = MISSING
    """Name in the paper's tables."""
    weighting: str | None = "uniform"
    """Weighting of the selected trajectories, unless weighting=... overrides it. None: no training (method=base)."""
    seed: int = 42
    """Seed of method=random (paper, App. C.3)."""
    path: str | None = None
    """Scores from another tool, for method=external: Parquet or CSV with question_id, candidate_id, score."""
    higher_is_better: bool = True
    """Direction of the scores of method=external. The other methods define their own."""
    teacher: str | None = None
    """Select only among this teacher's candidates. Given by name, or by number (1 is the first in alphabetical order). Scores
    are still those of the whole pool. None: all teachers."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the method's function, all of them part of the selection's fingerprint."""
    judge: Judge = field(default_factory=Judge)

    def __post_init__(self) -> None:
        plain_name("method.name", self.name)


@dataclass
class Budget:
    """How many trajectories are selected for each question."""

    size: int = 3

    def __post_init__(self) -> None:
        require(self.size >= 1, "budget.size", self.size, "select at least 1 trajectory per question")


@dataclass
class Scoring:
    """What the forward pass records."""

    rank_clip: int = 100
    """RSR's r_max (paper, App. C.2)."""
    local_context: int = 4
    """Local Naturalness's m, preceding steps in the context (paper, App. C.2)."""
    tokens: bool = False
    """Also write every token's statistics, for any method (outputs/tokens/*/tokens-*.parquet). They are a separate artifact,
    written by the same pass, or by another pass if the scores already exist. The scores are the same either way."""
    shard_tokens: int = 2_000_000
    """A killed scoring run loses at most one shard of about this many tokens."""

    def __post_init__(self) -> None:
        for key in ("rank_clip", "local_context", "shard_tokens"):
            require(getattr(self, key) >= 1, f"scoring.{key}", getattr(self, key), "must be at least 1")
