"""Settings of the pool of candidate trajectories."""

import re
from dataclasses import dataclass, field
from math import inf
from typing import Any

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lark.config.checks import Section, one_of, plain_name, require
from lark.errors import LarkError
from lark.names import is_demo

ANSWER_FORMATS = ("numeric", "choice", "free_form", "exact_text")
ANSWERS = ("box", "tags", "hashes", "last_number")
"""Where the final answer of a response may be: \\boxed{…}, <answer>…</answer>, after ####, or its last
number.
"""
HYGIENE = {
    "loops": 0.5,
    "conclusion": 0.5,
    "scripts": 0.005,
    "branching": 20.0,
    "empty": 5,
    "refusals": 1,
}
"""What spoils long traces, and the thresholds from which it is counted (lark/pool/hygiene.py)."""
NOISE = ("none", "wrong", "truncated", "shuffled", "duplicated")
DEMO_QUESTIONS = 48_000
"""Different questions that the demo's generator has. It alternates between 20 combinations of kind and
level, of which the smallest has 2,400.
"""
LONGEST_LABEL = 40
"""Characters of a file's name in the names of a pool's artifacts."""
FORMATS = ("rows", "rsr", "hub")
"""Formats of a source that is read from files or from the hub."""
TAUGHT = "taught"
"""Format of a pool that the teachers of the run write."""


@dataclass
class Source:
    """Where trajectories are and how their rows are read."""

    format: str = MISSING
    """rows: JSONL, JSON, Parquet or CSV files. rsr: the paper's pool, one JSON file per teacher and
    rollout, as files or in a folder per teacher; a local folder or a dataset id. hub: a Hugging Face
    dataset id or folder. demo: generated. mix: several sources (pool.mix). taught: written by the
    teachers of the run.
    """
    path: str | None = None
    """File, folder or dataset id. A glob pattern selects several files."""
    layout: str | None = None
    """What a row contains: columns, messages, conversations and others (docs/own-pool.md). None: detected
    for each row.
    """
    subset: str | None = None
    """Configuration of a Hugging Face dataset that has several."""
    split: str = "train"
    """Split of a Hugging Face dataset."""
    revision: str | None = None
    """Revision of a Hugging Face dataset."""
    fields: dict[str, str] = field(default_factory=dict)
    """Names of the columns where they differ from ours, e.g. {question_id: problem_id}."""
    responses: list[str] = field(default_factory=list)
    """Columns that hold a response each, e.g. [qwq, r1]. They are named after the teachers."""
    requests: str | None = None
    """The file or files of requests that an OpenAI batch output answers: it has no questions itself."""
    exclude: list[str] = field(default_factory=list)
    """Files and subfolders of `path` that are not read: names or patterns, e.g. ["old", "*.bak.json"]."""

    @property
    def is_generated(self) -> bool:
        """True for the demo's pool, which is in no file."""
        return is_demo(self.format)


@dataclass
class Mixed(Source):
    """One of several sources that are mixed."""

    format: str = "rows"
    share: float = 1.0
    """Its share of the mixed pool's questions, relative to the other shares."""


@dataclass
class Pool(Source):
    """The questions and their candidate trajectories."""

    name: str = MISSING
    turns: str = "all"
    """Assistant turns of a conversation that are scored and trained on: all, or the last. The others are
    context.
    """
    questions: int | None = None
    """Use this many questions, in a sample that does not depend on their order. None: all. The demo
    generates this many.
    """
    seed: int = 42
    """Seed of that sample and of the demo's generator."""
    ids: list[str] = field(default_factory=list)
    """Keep only the questions with these ids. Empty: all."""
    correct_only: bool = False
    """Drop trajectories that are known to be wrong: by the pool's own verdict, or, without one, because
    their answer is not the question's (the evaluation's extraction rule; paper, App. C.1). Applied before
    pool.questions are sampled.
    """
    correct_from: float = 1.0
    """The least reward or score of a correct trajectory, where the pool's verdicts are numbers."""
    unknown: str = "keep"
    """Trajectories without a verdict and without an answer that could be compared, with correct_only. keep:
    kept and counted (a question with neither `answer` nor a verdict is an error). drop: dropped.
    """
    answer_from: list[str] = field(default_factory=lambda: ["box"])
    """Where the final answer of a response is read, in this order, to compare it with `answer`: box, tags
    (<answer>5</answer>), hashes (#### 5, also in `answer` itself) or last_number. Texts do not change.
    """
    labels: str = "given"
    """given: correctness comes from `answer` and `correct`. vote: questions without either get it by a
    majority vote of their candidates' boxed answers; ties stay unknown.
    """
    answer_format: str = "free_form"
    """How answers are compared by correct_only and labels=vote: numeric, choice or free_form."""
    answer_pattern: str | None = None
    """A regular expression for final answers that are not boxed (docs/own-pool.md). Its last match in a
    response is rewritten as \\boxed{…} around the first group, because evaluation reads only boxed answers.
    Later boxes are removed: the match is the answer.
    """
    incomplete: str = "keep"
    """Trajectories without a response, or that the pool marks as cut off (`is_reasoning_complete`). keep:
    an empty response is an error, the others are kept and counted. drop: they are dropped and counted.
    """
    special_tokens: str = "text"
    """Trajectories with text that looks like a control token, such as <|im_end|>. text: kept, and encoded
    as text. drop: dropped. error: refused. They are counted in all three cases.
    """
    drop: list[str] = field(default_factory=list)
    """Drop trajectories with loops, a late end (conclusion), other scripts, much branching, (nearly) empty
    reasoning, or refusals. All are counted in the summary (docs/own-pool.md).
    """
    trim: str = "none"
    """conclusion: cut what follows the conclusion of a trajectory that pool.drop=[conclusion] would drop."""
    thresholds: dict[str, float] = field(default_factory=dict)
    """Thresholds of pool.drop and of the summary's counts that differ from the usual ones, e.g.
    {loops: 0.3} (docs/own-pool.md).
    """
    decontaminate: bool = False
    """Remove questions that are in the benchmarks of the run, or nearly so (pool.similarity)."""
    similarity: float = 0.7
    """Character 8-gram Jaccard similarity to a benchmark's problem at which decontaminate removes a
    question. Variants of a problem with other numbers have 0.7 to 0.95 (paper, App. C.5).
    """
    noise: str = "none"
    """Damage to a share of the trajectories, for experiments (`make noise`): wrong (another final answer),
    truncated, shuffled (steps in another order) or duplicated (copies of the question's first candidate).
    Applied after all filters.
    """
    noise_share: float = 0.0
    """Share of the trajectories that are damaged. Trajectories that the damage would not change, such as
    responses without an answer, are not counted; if too few are left, the share is smaller, and the pool's
    summary reports it.
    """
    mix: dict[str, Any] = field(default_factory=dict)
    """Sources to mix, by name: {math: {path: a.jsonl, share: 3}, code: {path: b.jsonl, share: 1}}. Only
    with format: mix. Each is a `Mixed`.
    """

    def __post_init__(self) -> None:
        section = Section("pool", self)
        section.plain_name()
        section.one_of("format", ("demo", *FORMATS, "mix", TAUGHT))
        section.one_of("turns", ("all", "last"))
        section.one_of("answer_format", ANSWER_FORMATS)
        section.one_of("labels", ("given", "vote"))
        section.one_of("incomplete", ("keep", "drop"))
        section.one_of("special_tokens", ("text", "drop", "error"))
        section.one_of("unknown", ("keep", "drop"))
        section.one_of("trim", ("none", "conclusion"))
        self._check_lists()
        section.one_of("noise", NOISE)
        section.require("noise_share", 0 <= self.noise_share <= 1, "must be a share from 0 to 1")
        is_named = self.noise != "none" or not self.noise_share
        section.require("noise_share", is_named, "needs the kind of damage: set pool.noise too")
        section.require("similarity", 0 < self.similarity <= 1, "must be more than 0 and at most 1")
        if self.answer_pattern is not None:
            rule = "must be a regular expression with a (group) that matches the final answer"
            section.require("answer_pattern", _has_group(self.answer_pattern), rule)
        self._check_questions(section)
        self._check_sources()

    def _check_lists(self) -> None:
        require(
            bool(self.answer_from), "pool.answer_from", "[]", f"name at least one of {', '.join(ANSWERS)}"
        )
        for place in self.answer_from:
            one_of("pool.answer_from", place, ANSWERS)
        for fault in self.drop:
            one_of("pool.drop", fault, tuple(HYGIENE))
        for fault, threshold in self.thresholds.items():
            one_of("pool.thresholds", fault, tuple(HYGIENE))
            require(threshold > 0, f"pool.thresholds.{fault}", threshold, "must be more than 0")

    @property
    def label(self) -> str:
        """The name of this pool's artifacts: for pool=files and pool=hub, the name of the file or dataset."""
        if self.name not in ("files", "hub") or not self.path:
            return self.name
        last = re.split(r"[/\\]", self.path.rstrip("/\\"))[-1]
        stem = re.sub(r"(\.(jsonl?|ndjson|parquet|csv|eval))?(\.(gz|bz2|xz|zst))?$", "", last)
        name = re.sub(r"[^\w.+-]+", "-", stem).strip("-.+")[:LONGEST_LABEL]
        return name or self.name

    def threshold(self, fault: str) -> float:
        """The threshold from which a fault of a trajectory is counted."""
        return self.thresholds.get(fault, HYGIENE[fault])

    def _check_questions(self, section: Section) -> None:
        number = self.questions
        section.require("questions", number is None or number >= 1, "must be at least 1, or null for all")
        if not self.is_generated:
            return
        unlimited = "the demo's pool is generated and has no fixed size; give a number, e.g. 150"
        require(number is not None, "pool.questions", "null", unlimited)
        few = number is None or number <= DEMO_QUESTIONS
        rule = f"the demo has only {DEMO_QUESTIONS:,} different questions; use at most this many"
        section.require("questions", few, rule)

    def _check_sources(self) -> None:
        """A pool is read from one path, from the sources of a mix, or from none (the demo)."""
        if self.format == "mix":
            self._check_mix()
        else:
            _check_unmixed(self)
        if self.format in FORMATS:
            _require_path(f"pool={self.name}", "pool.path", self)

    def _check_mix(self) -> None:
        if not self.mix:
            raise LarkError("pool=mix needs its sources: add pool.mix.<name>.path=<file> for each of them.")
        _check_whole(self)
        for name, settings in self.mix.items():
            plain_name("pool.mix", name)
            source = _mixed(name, settings)
            section = Section(f"pool.mix.{name}", source)
            section.one_of("format", FORMATS)
            section.require("share", 0 < source.share < inf, "must be more than 0 and finite")
            _require_path(section.name, f"{section.name}.path", source)
            self.mix[name] = source


def _has_group(pattern: str) -> bool:
    try:
        return re.compile(pattern).groups >= 1
    except (re.error, RecursionError, OverflowError):
        return False


def _check_unmixed(pool: Pool) -> None:
    if pool.mix:
        raise LarkError(
            f"pool.mix is only read with pool=mix, not with pool={pool.name}: add pool=mix, or leave"
            " pool.mix out."
        )


def _check_whole(pool: Pool) -> None:
    """Refuse settings of a mix that belong to its sources."""
    if pool.path or pool.layout or pool.fields or pool.exclude or pool.subset or pool.revision:
        raise LarkError(
            "pool=mix: set path, layout, fields, … of each source (pool.mix.<name>.path), not of the pool."
        )


def _require_path(name: str, key: str, source: Source) -> None:
    if not source.path:
        raise LarkError(f"{name} needs a path: add {key}=<file, folder or dataset id>.")


def _mixed(name: str, settings: Any) -> Mixed:
    """A source from its settings."""
    if isinstance(settings, Mixed):
        return settings
    key = f"pool.mix.{name}"
    require(isinstance(settings, dict), key, settings, f"give its settings, at least {key}.path=<file>")
    try:
        source = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Mixed), settings))
    except OmegaConfBaseException as error:
        raise LarkError(f"{key}.{error.full_key or error.key}: {str(error).splitlines()[0]}.") from error
    assert isinstance(source, Mixed)
    return source
