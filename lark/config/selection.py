"""Who learns from what: the student, the pool, and how trajectories are scored and chosen."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from lark.config.checks import has_group, one_of, plain_name, require
from lark.errors import LarkError

WEIGHTINGS = ("uniform", "proportional", "softmax", "kl", "chi2")
ANSWER_FORMATS = ("numeric", "choice", "free_form")


@dataclass
class Student:
    """The model that is scored, fine-tuned and evaluated."""

    name: str = MISSING
    """How run folders and tables call it."""
    path: str = MISSING
    """A Hugging Face hub id or a local folder; `demo` is the shipped student, `smollm2` the one in the registry."""
    revision: str | None = None
    """Commit or tag of a hub id. Part of the fingerprint, so set it for results that must not drift."""
    max_length: int = 32768
    """Tokens of prompt and response together, in scoring, training and evaluation alike (paper, App. C.3)."""
    chat_template: str | None = None
    """None: the tokenizer's own. `llama3`, `chatml`: ours. Otherwise a path to a Jinja file."""
    dtype: str = "bfloat16"
    """Of the weights in the scoring and training forward passes. The head is computed in float32 whatever this is."""
    attention: str = "auto"
    """auto: flash_attention_2 on a GPU that has it, else sdpa. Changes speed, never the outcome."""

    def __post_init__(self) -> None:
        plain_name("student.name", self.name)
        require(self.max_length >= 2, "student.max_length", self.max_length, "a prompt and one token of response need 2")
        one_of("student.dtype", self.dtype, ("float32", "bfloat16", "float16"))
        one_of("student.attention", self.attention, ("auto", "sdpa", "eager", "flash_attention_2"))


@dataclass
class Pool:
    """The questions and their candidate trajectories."""

    name: str = MISSING
    format: str = MISSING
    """demo: generated. rows: JSONL/Parquet, a trajectory a row. rsr: a folder of JSON files, one a teacher and rollout.
    hub: a Hugging Face dataset id or folder, rows as in `rows`."""
    path: str | None = None
    """File, folder or dataset id; several files by a glob pattern."""
    split: str = "train"
    """Of a Hugging Face dataset."""
    revision: str | None = None
    """Of a Hugging Face dataset."""
    questions: int | None = None
    """Take this many questions, a sample that does not depend on their order. None: all. The demo generates so many."""
    seed: int = 42
    """Of that sample, and of the demo's generator."""
    ids: list[str] = field(default_factory=list)
    """Keep only the questions with these ids. Empty: all."""
    correct_only: bool = False
    """Drop trajectories whose boxed answer is not the question's (the evaluation's extraction rule, paper, App. C.1); where the
    pool has no `answer`, or the response no box, those that its own `correct` calls wrong. Before the sample of pool.questions
    is taken."""
    answer_format: str = "free_form"
    """How answers are compared when correct_only: numeric, choice or free_form."""
    answer_pattern: str | None = None
    """What the teachers end with where it is no box, as a regular expression: '<answer>(.*?)</answer>'. Its last match in a
    response is rewritten as \\boxed{…} with the first group in it, because a box is all that evaluation reads."""
    fields: dict[str, str] = field(default_factory=dict)
    """Names of the columns where they differ from ours, e.g. {question_id: problem_id}."""

    def __post_init__(self) -> None:
        plain_name("pool.name", self.name)
        one_of("pool.format", self.format, ("demo", "rows", "rsr", "hub"))
        one_of("pool.answer_format", self.answer_format, ANSWER_FORMATS)
        require(
            self.questions is None or self.questions >= 1,
            "pool.questions",
            self.questions,
            "at least 1, or null for all",
        )
        if self.answer_pattern is not None:
            require(has_group(self.answer_pattern), "pool.answer_pattern", self.answer_pattern,
                     "a regular expression with one (group) is expected, the final answer")  # fmt: skip
        if self.format == "demo" and self.questions is None:
            raise LarkError("pool.questions=null: the demo's pool is generated and has no end; give a number, e.g. 150.")
        if self.format != "demo" and not self.path:
            raise LarkError(f"pool={self.name} needs a path: add pool.path=<file, folder or dataset id>.")


@dataclass
class Judge:
    """The model behind method=llm_judge."""

    path: str = "Qwen/Qwen3-32B"
    """Hub id or local folder (paper, App. C.2: Qwen3-32B in non-thinking mode)."""
    revision: str | None = None
    """Commit or tag of a hub id."""
    style: str = "paper"
    """paper: its prompt and JSON, word for word. brief: a short prompt and the overall score alone, for short contexts."""
    dtype: str = "bfloat16"
    """Of the judge's weights."""
    tensor_parallel: int = 1
    """GPUs that share one copy of the judge, with vllm or sglang."""
    max_length: int = 40960
    """Context of the judge; longer responses are cut from the right."""
    max_new_tokens: int = 1024
    """Room for the answer."""
    temperature: float = 0.0
    """0: greedy."""
    retries: int = 2
    """How often an answer that is not valid JSON is asked for again, sampled with another seed."""

    def __post_init__(self) -> None:
        one_of("method.judge.style", self.style, ("paper", "brief"))
        require(self.tensor_parallel >= 1, "method.judge.tensor_parallel", self.tensor_parallel, "must be at least 1")
        require(self.retries >= 0, "method.judge.retries", self.retries, "must not be negative")
        require(self.max_new_tokens >= 1, "method.judge.max_new_tokens", self.max_new_tokens, "must be at least 1")

    @property
    def model(self) -> Student:
        """The judge as what engines load."""
        return Student("judge", self.path, self.revision, self.max_length, None, self.dtype)


@dataclass
class Method:
    """How candidates are ranked. The function of the same name is in lark/scoring/methods.py."""

    name: str = MISSING
    label: str = MISSING
    """As in the paper's tables."""
    weighting: str | None = "uniform"
    """Of the selected trajectories, unless weighting=... says otherwise. None: no training at all (method=base)."""
    seed: int = 42
    """Of method=random (paper, App. C.3)."""
    path: str | None = None
    """Scores of another tool, for method=external: Parquet or CSV with question_id, candidate_id, score."""
    higher_is_better: bool = True
    """Direction of method=external; the other methods know theirs."""
    teacher: str | None = None
    """Select among this teacher's candidates alone, by name or by number (1 is the first in alphabetical order). Scores
    stay those of the whole pool. None: all teachers."""
    judge: Judge = field(default_factory=Judge)

    def __post_init__(self) -> None:
        plain_name("method.name", self.name)
        if self.weighting is not None:
            one_of("method.weighting", self.weighting, WEIGHTINGS)


@dataclass
class Weighting:
    """How the budget is weighted within a question."""

    name: str = "auto"
    """auto: the method's own."""

    def __post_init__(self) -> None:
        one_of("weighting.name", self.name, ("auto", *WEIGHTINGS))


@dataclass
class Budget:
    """How many trajectories are selected for each question."""

    size: int = MISSING

    def __post_init__(self) -> None:
        require(self.size >= 1, "budget.size", self.size, "select at least 1 trajectory a question")


@dataclass
class Scoring:
    """What the forward pass records."""

    rank_clip: int = 100
    """RSR's r_max (paper, App. C.2)."""
    local_context: int = 4
    """Local Naturalness's m, preceding steps in the context (paper, App. C.2)."""
    tokens: bool = False
    """Also write every token's statistics, whatever the method (outputs/tokens/*/tokens-*.parquet): an artifact of its own,
    written by the same pass, or by another one where the scores are there already. The scores are the same either way."""
    shard_tokens: int = 2_000_000
    """A killed scoring run loses at most one shard of about this many tokens."""

    def __post_init__(self) -> None:
        for key in ("rank_clip", "local_context", "shard_tokens"):
            require(getattr(self, key) >= 1, f"scoring.{key}", getattr(self, key), "must be at least 1")
