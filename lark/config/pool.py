"""What it learns from: the pool of candidate trajectories."""

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
