"""How trajectories are scored and chosen: the method, its judge, the budget, and what the forward pass
records.
"""

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from omegaconf import MISSING

from lark.config.checks import one_of, plain_name, require, sampling_temperature, seed, text_name
from lark.config.student import Student
from lark.errors import LarkError


class JudgeModel(Student):
    """The judge in the form that engines load. Its settings have another prefix on the command line."""

    setting = "method.judge"


@dataclass
class Judge:
    """The model behind method=llm_judge."""

    path: str = "Qwen/Qwen3-32B"
    """Hub id or local folder (paper, App. C.2: Qwen3-32B in non-thinking mode)."""
    revision: str | None = None
    """Commit or tag of a hub id."""
    style: str = "paper"
    """paper: its prompt and JSON, word for word. brief: a short prompt and only the overall score, for
    short contexts.
    """
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
        require(
            self.tensor_parallel >= 1,
            "method.judge.tensor_parallel",
            self.tensor_parallel,
            "must be at least 1",
        )
        require(0 <= self.retries <= 100, "method.judge.retries", self.retries, "must be from 0 to 100")
        sampling_temperature("method.judge.temperature", self.temperature)
        require(
            self.max_new_tokens >= 1, "method.judge.max_new_tokens", self.max_new_tokens, "must be at least 1"
        )
        context, answer = self.model.max_length, self.max_new_tokens
        less = f"must be less than method.judge.max_length={context}, which also contains the prompt"
        require(answer < context, "method.judge.max_new_tokens", answer, less)

    @property
    def model(self) -> Student:
        """The judge in the form that engines load. Refuses settings that no model can have."""
        return JudgeModel(
            "judge", self.path, revision=self.revision, max_length=self.max_length, dtype=self.dtype
        )


@dataclass
class Validation:
    """What method=less compares gradients with."""

    path: str | None = None
    """A file of trajectories, in any layout of pool=files. None: trajectories of the pool itself; a
    candidate is then never compared with its own question.
    """
    questions: int = 100
    """Questions whose trajectories are used, at most: a sample that does not depend on their order. Where
    answers are known, only correct trajectories count.
    """
    seed: int = 42
    """Seed of the sample."""

    def __post_init__(self) -> None:
        require(self.questions >= 2, "method.validation.questions", self.questions, "must be at least 2")
        seed("method.validation.seed", self.seed)


@dataclass
class Method:
    """How candidates are ranked. The function of the same name is in lark/scoring/methods.py."""

    name: str = MISSING
    label: str = MISSING
    """Name in the paper's tables."""
    weighting: str | None = "uniform"
    """Weighting of the selected trajectories, unless weighting=... overrides it. None: no training
    (method=base).
    """
    seed: int = 42
    """Seed of method=random (paper, App. C.3)."""
    path: str | None = None
    """Scores from another tool, for method=external: Parquet or CSV with question_id, candidate_id, score,
    or the authors' scores.json.
    """
    partial: bool = False
    """Accept scores of method=external that cover less than 95% of the candidates. The others cannot be
    selected.
    """
    higher_is_better: bool = True
    """Direction of the scores of method=external. The other methods define their own."""
    reverse: bool = False
    """Select the other end: what the method puts last. Tables and folders then name it so: LARK (reversed).
    """
    teacher: str | None = None
    """Select only among this teacher's candidates. Given by name, or by number (1 is the first in
    alphabetical order). Scores are still those of the whole pool. None: all teachers.
    """
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the method's function, all of them part of the selection's fingerprint."""
    judge: Judge = field(default_factory=Judge)
    validation: Validation = field(default_factory=Validation)

    def __post_init__(self) -> None:
        plain_name("method.name", self.name)
        text_name("method.teacher", self.teacher)
        seed("method.seed", self.seed)

    @property
    def key(self) -> str:
        """Its name in folders and data: `lark`, `lark-reversed`."""
        return method_key(self.name, self.reverse)

    @property
    def title(self) -> str:
        """Its name in tables: `LARK`, `LARK (reversed)`."""
        return f"{self.label} (reversed)" if self.reverse else self.label


def method_key(name: str, reverse: bool) -> str:
    """The name of a method and its direction in folders, also before the configuration is loaded."""
    return f"{name}{REVERSED}" if reverse else name


REVERSED = "-reversed"


DEFAULT_SIZE = 3
"""Trajectories per question (the paper's main setting), unless budget.total or budget.tokens is set."""
UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}


@dataclass
class Budget:
    """How many trajectories are selected: `size` per question, or a `total` or `tokens` across all
    questions.
    """

    size: int | None = None
    """B, the number per question; 3 if nothing is set. With `total` or `tokens`: the maximum per question."""
    total: str | None = None
    """Trajectories across all questions, such as 5000 or 5k."""
    tokens: str | None = None
    """Response tokens across all questions, such as 50M, 1.5B, 200k or a plain number. Each trajectory
    counts once, however many epochs it is trained for.
    """

    def __post_init__(self) -> None:
        require(
            self.size is None or self.size >= 1,
            "budget",
            self.size,
            "select at least 1 trajectory per question",
        )
        alone = self.total is None or self.tokens is None
        require(
            alone, "budget.total", self.total, "cannot be combined with budget.tokens; choose one of them"
        )
        if self.limit is None and self.size is None:
            self.size = DEFAULT_SIZE

    @property
    def limit(self) -> int | None:
        """The number of trajectories or of tokens across all questions; None if the budget is per question."""
        if self.total is not None:
            return quantity("budget.total", self.total)
        return None if self.tokens is None else quantity("budget.tokens", self.tokens)

    @property
    def per_question(self) -> int:
        """B. Raises an error if the budget is not per question."""
        if self.limit is not None or self.size is None:
            raise LarkError(
                f"{self.typed}: the paper's tables and figures use a number of trajectories per question. Set"
                f" budget=3, or compare methods with `python run.py -m method=random,lark {self.typed}`."
            )
        return self.size

    @property
    def typed(self) -> str:
        """The budget as typed on the command line."""
        parts = {"total": self.total, "tokens": self.tokens, "size": self.size}
        return " ".join(f"budget.{key}={value}" for key, value in parts.items() if value is not None)

    @property
    def identity(self) -> int | dict[str, int]:
        """Its part of a fingerprint: B, or the limit across questions."""
        if self.limit is None:
            return self.per_question
        cap = {} if self.size is None else {"size": self.size}
        return {"tokens" if self.total is None else "total": self.limit, **cap}

    @property
    def name(self) -> str:
        """Its part of folder names: B3, total5k, tokens50M, tokens50M-B3."""
        return budget_name(self.size, self.total, self.tokens)


def quantity(key: str, text: str) -> int:
    """A whole number with an optional k, M or B: `50M`, `1.5B`, `200k`, `5000`."""
    match = re.fullmatch(
        r"(\d[\d_]*(?:\.\d+)?(?:e\+?\d{1,2})?)\s*([kmb]?)", text.strip(), re.ASCII | re.IGNORECASE
    )
    value = Decimal(match[1].replace("_", "")) * UNITS[match[2].lower()] if match else Decimal(0)
    whole = match is not None and 1 <= value <= 10**15 and value == value.to_integral_value()
    require(
        whole,
        key,
        text,
        "give a whole number of at least 1 (and at most 10^15), such as 5000, 200k, 50M or 1.5B",
    )
    return int(value)


def budget_name(size: int | None, total: str | None, tokens: str | None) -> str:
    """The name of a budget in folders, also before the configuration is loaded."""
    given = {"total": total, "tokens": tokens}
    across = [
        f"{key}{_short(quantity(f'budget.{key}', str(text)))}"
        for key, text in given.items()
        if text is not None
    ]
    cap = [f"B{size}"] if size is not None else [] if across else [f"B{DEFAULT_SIZE}"]
    return "-".join([*across, *cap])


def _short(value: int) -> str:
    """5k, 1.5M, 1234567: with a unit if one decimal is enough."""
    for unit in ("B", "M", "k"):
        scale = UNITS[unit.lower()]
        if value >= scale and value * 10 % scale == 0:
            whole, tenth = divmod(value * 10 // scale, 10)
            return f"{whole}.{tenth}{unit}" if tenth else f"{whole}{unit}"
    return str(value)


@dataclass
class Sketch:
    """How gradients are sketched (lark/scoring/sketches.py): for method=lark_gram, lark_exact, gnorm and
    less, and for analyses.
    """

    seed: int = 0
    """Seed of the random signs."""
    gram: int | None = 32
    """lark_gram: each output projection's gradient becomes a matrix of this size, squared. null: nothing is
    left out.
    """
    exact: int | None = 64
    """The same for lark_exact, gnorm and less."""
    words: int | None = 512
    """Rows of the head's gradient: the vocabulary is folded to this size."""
    states: int | None = 64
    """Columns of the head's gradient."""
    features: int = 4096
    """Numbers that are stored of each gradient, to compare gradients of different questions (less)."""

    def __post_init__(self) -> None:
        seed("sketch.seed", self.seed)
        for key in ("gram", "exact", "words", "states", "features"):
            value = getattr(self, key)
            require(
                value is None or 1 <= value <= 2**20, f"sketch.{key}", value, "must be from 1 to 1,048,576"
            )


@dataclass
class Scoring:
    """What the forward pass records."""

    rank_clip: int = 100
    """RSR's r_max (paper, App. C.2)."""
    local_context: int = 4
    """Local Naturalness's m, preceding steps in the context (paper, App. C.2)."""
    local_steps: str = "sentences"
    """Steps of Local Naturalness: sentences (paper, App. C.2), or paragraphs, as in the authors' script:
    parts between blank lines, or between newlines if there is a single part.
    """
    tokens: bool | int = False
    """Also write every token's statistics, for any method (outputs/tokens/*/tokens-*.parquet): true for the
    whole pool, or a number of questions, the first of the pool. They are a separate artifact, written by
    the same pass, or by another pass over these questions if the scores already exist. The scores are the
    same either way.
    """
    shard_tokens: int = 2_000_000
    """A killed scoring run loses at most one shard of about this many tokens."""

    def __post_init__(self) -> None:
        for key in ("rank_clip", "local_context", "shard_tokens"):
            require(getattr(self, key) >= 1, f"scoring.{key}", getattr(self, key), "must be at least 1")
        for key in ("rank_clip", "local_context"):
            require(getattr(self, key) < 2**31, f"scoring.{key}", getattr(self, key), "is too large")
        one_of("scoring.local_steps", self.local_steps, ("sentences", "paragraphs"))
        number = self.token_questions
        require(
            number is None or number >= 1,
            "scoring.tokens",
            number,
            "give true, false or a number of questions, at least 1",
        )

    @property
    def token_questions(self) -> int | None:
        """The number of questions whose tokens are kept. None: no number is set (`tokens` is true or
        false).
        """
        return None if isinstance(self.tokens, bool) else self.tokens
