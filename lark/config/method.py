"""How trajectories are scored: the method, its judge, and what the forward pass records."""

import re
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from lark.config.checks import Section, sampling_temperature, text_name
from lark.config.student import Student


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
        section = Section("method.judge", self)
        section.one_of("style", ("paper", "brief"))
        section.at_least(1, "tensor_parallel", "max_new_tokens")
        section.require("retries", 0 <= self.retries <= 100, "must be from 0 to 100")
        sampling_temperature("method.judge.temperature", self.temperature)
        context = self.model.max_length
        less = f"must be less than method.judge.max_length={context}, which also contains the prompt"
        section.require("max_new_tokens", self.max_new_tokens < context, less)

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
        section = Section("method.validation", self)
        section.at_least(2, "questions")
        section.seed("seed")


@dataclass
class Method:
    """How candidates are ranked. The function of the same name is in lark/scoring/methods.py, unless
    `function` names another.
    """

    name: str = MISSING
    label: str = MISSING
    """Name in the paper's tables."""
    weighting: str | None = "uniform"
    """Weighting of the selected trajectories, unless weighting=... overrides it. None: no training
    (method=base).
    """
    seed: int = 42
    """Seed of method=random (paper, App. C.3)."""
    function: str | None = None
    """The function of method=own, as `package.module:name`, in a module that Python can import here. It takes
    a table and returns one score per row (docs/add-a-method.md).
    """
    needs: list[str] = field(default_factory=list)
    """What the function of method=own needs, such as [statistics]: it sees these columns and the lengths."""
    path: str | None = None
    """Scores from another tool, for method=external: Parquet or CSV with question_id, candidate_id, score,
    or the authors' scores.json.
    """
    partial: bool = False
    """Accept scores of method=external that cover less than 95% of the candidates. The others cannot be
    selected.
    """
    higher_is_better: bool = True
    """Direction of the scores of method=external and method=own. The other methods define their own."""
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
        section = Section("method", self)
        section.plain_name()
        is_function = self.function is None or re.fullmatch(r"[\w.]+:\w+", self.function) is not None
        section.require("function", is_function, "give package.module:function")
        text_name("method.teacher", self.teacher)
        section.seed("seed")

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
        section = Section("sketch", self)
        section.seed("seed")
        for key in ("gram", "exact", "words", "states", "features"):
            value = getattr(self, key)
            section.require(key, value is None or 1 <= value <= 2**20, "must be from 1 to 1,048,576")


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
    liger: bool = True
    """Liger's fused RoPE, RMSNorm and SwiGLU in the forward pass, on GPUs in half precision. Like the shape
    of a batch, it changes rounding only, so it is not part of any fingerprint (decision 15). False: as scores
    were computed before this setting existed, to the last bit.
    """
    reuse: bool = True
    """Rows of finished artifacts of the same student and settings are taken over where a trajectory's
    content is the same, whatever pool it is in (lark/scoring/take_over.py). Not part of any fingerprint:
    results are the same up to rounding (decision 15). False: every trajectory is scored.
    """

    def __post_init__(self) -> None:
        section = Section("scoring", self)
        section.at_least(1, "rank_clip", "local_context", "shard_tokens")
        section.one_of("local_steps", ("sentences", "paragraphs"))
        number = self.token_questions
        is_number = number is None or number >= 1
        section.require("tokens", is_number, "give true, false or a number of questions, at least 1")

    @property
    def token_questions(self) -> int | None:
        """The number of questions whose tokens are kept. None: no number is set (`tokens` is true or
        false).
        """
        return None if isinstance(self.tokens, bool) else self.tokens
