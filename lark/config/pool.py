"""Settings of the pool of candidate trajectories."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from lark.config.checks import has_group, one_of, plain_name, require
from lark.errors import LarkError

ANSWER_FORMATS = ("numeric", "choice", "free_form")


@dataclass
class Pool:
    """The questions and their candidate trajectories."""

    name: str = MISSING
    format: str = MISSING
    """demo: generated. rows: JSONL/Parquet, one trajectory per row. rsr: a folder of JSON files, one per teacher and rollout.
    hub: a Hugging Face dataset id or folder, with rows as in `rows`."""
    path: str | None = None
    """File, folder or dataset id. A glob pattern selects several files."""
    split: str = "train"
    """Split of a Hugging Face dataset."""
    revision: str | None = None
    """Revision of a Hugging Face dataset."""
    turns: str = "all"
    """Assistant turns of a conversation that are scored and trained on: all, or the last. The others are context."""
    questions: int | None = None
    """Use this many questions, in a sample that does not depend on their order. None: all. The demo generates this many."""
    seed: int = 42
    """Seed of that sample and of the demo's generator."""
    ids: list[str] = field(default_factory=list)
    """Keep only the questions with these ids. Empty: all."""
    correct_only: bool = False
    """Drop trajectories whose boxed answer is not the question's (the evaluation's extraction rule; paper, App. C.1). If the
    pool has no `answer` or the response has no box, drop those that the pool's `correct` marks as wrong. Applied before
    pool.questions are sampled."""
    answer_format: str = "free_form"
    """How answers are compared when correct_only: numeric, choice or free_form."""
    answer_pattern: str | None = None
    """A regular expression for final answers that are not boxed: '<answer>(.*?)</answer>'. Its last match in a response is
    rewritten as \\boxed{…} around the first group, because evaluation reads only boxed answers."""
    fields: dict[str, str] = field(default_factory=dict)
    """Names of the columns where they differ from ours, e.g. {question_id: problem_id}."""

    def __post_init__(self) -> None:
        plain_name("pool.name", self.name)
        one_of("pool.format", self.format, ("demo", "rows", "rsr", "hub"))
        one_of("pool.turns", self.turns, ("all", "last"))
        one_of("pool.answer_format", self.answer_format, ANSWER_FORMATS)
        require(
            self.questions is None or self.questions >= 1,
            "pool.questions",
            self.questions,
            "must be at least 1, or null for all",
        )
        if self.answer_pattern is not None:
            require(has_group(self.answer_pattern), "pool.answer_pattern", self.answer_pattern,
                     "must be a regular expression with a (group) that matches the final answer")  # fmt: skip
        if self.format == "demo" and self.questions is None:
            raise LarkError("pool.questions=null: the demo's pool is generated and has no fixed size; give a number, e.g. 150.")
        if self.format != "demo" and not self.path:
            raise LarkError(f"pool={self.name} needs a path: add pool.path=<file, folder or dataset id>.")
