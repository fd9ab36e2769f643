"""Settings of evaluation: benchmarks, decoding and the generation engine."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from lark.config.checks import Section, one_of, plain_name, require, sampling_temperature, seed, text_name
from lark.config.pool import ANSWER_FORMATS
from lark.names import is_demo

GRADERS = ("paper", "verify")
AVERAGE = "Avg"
"""Name of the column with the average over benchmarks."""


@dataclass
class PublicFile:
    """A file of a public dataset on the Hugging Face hub, which is read if a benchmark's own file is not
    here.
    """

    instead_of: str = MISSING
    """The benchmark's own file. The dataset is read if `path` names this file and it does not exist: any
    other path is meant.
    """
    dataset: str = MISSING
    """Id of the dataset."""
    file: str = MISSING
    """Path of the file in the dataset."""
    revision: str | None = None
    """Commit of the dataset. None: the newest."""
    question_field: str | None = None
    """Column of the question. None: as in the benchmark's own file."""
    gated: bool = False
    """Whether its conditions must be accepted on the hub."""
    task_id: str | None = None
    """Name of the task in the dataset's `eval.yaml`, if the hub has a leaderboard for it."""


@dataclass
class Task:
    """One benchmark: where its problems are and how its answers are read."""

    label: str = MISSING
    """Name in the paper's tables."""
    path: str | None = None
    """JSONL, Parquet or CSV file, or a hub dataset id. `demo`: generated."""
    subset: str | None = None
    """Configuration of a hub dataset that has several."""
    split: str = "test"
    revision: str | None = None
    answer_format: str = MISSING
    """numeric, choice, free_form (paper, App. C.4) or exact: the system prompt and the grading rule."""
    question_field: str = "problem"
    answer_field: str = "answer"
    answer_from: str | None = None
    """Where the answer is, if `answer_field` has a whole solution: box (`\\boxed{5}`), hashes (`#### 5`) or
    tags (`<answer>5</answer>`).
    """
    id_field: str | None = None
    """Column of the problem's id. None: the row number."""
    level_field: str | None = None
    """Column of the difficulty, for a breakdown by level: a number, or a text such as `Level 5`."""
    distractor_fields: list[str] = field(default_factory=list)
    """Columns of the wrong options of a multiple-choice benchmark. Shuffled with the right one, one seed
    per question.
    """
    options_field: str | None = None
    """Column with the list of all options, in their order. The answer is then the letter of the right one."""
    count: int | None = None
    """Expected number of problems; any other number is an error. None: not checked."""
    limit: int | None = None
    """Use only this many problems, the first ones, for a quick test."""
    public: PublicFile | None = None
    """The public dataset that has the problems, for a benchmark whose file is not here."""

    @property
    def is_generated(self) -> bool:
        """True for the demo's problems, which are in no file."""
        return is_demo(self.path)


@dataclass
class Decoding:
    """How answers are sampled (paper, App. C.4)."""

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = -1
    """Sample from this many of the most likely tokens. -1: off."""
    repetition_penalty: float = 1.1
    max_new_tokens: int = 32768
    samples: int = 5
    """Samples per problem. Acc@5 counts a problem as solved if any of the 5 is right."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """Decoding seeds; the reported spread is the sample standard deviation over them."""

    def __post_init__(self) -> None:
        section = Section("benchmark.decoding", self)
        sampling_temperature("benchmark.decoding.temperature", self.temperature)
        section.require("top_p", 0 < self.top_p <= 1, "must be more than 0 and at most 1")
        is_count = self.top_k == -1 or self.top_k >= 1
        section.require("top_k", is_count, "must be at least 1, or -1 (off)")
        in_range = 0.01 <= self.repetition_penalty <= 100
        section.require("repetition_penalty", in_range, "must be from 0.01 to 100; 1 is no penalty")
        section.at_least(1, "samples", "max_new_tokens")
        section.require("seeds", len(self.seeds) >= 1, "give at least one seed")
        for number in self.seeds:
            seed("benchmark.decoding.seeds", number)
        section.require("seeds", len(set(self.seeds)) == len(self.seeds), "seeds must differ")


@dataclass
class Benchmark:
    """What the student is evaluated on."""

    name: str = MISSING
    tasks: dict[str, Task] = field(default_factory=dict)
    skip: list[str] = field(default_factory=list)
    """Names of tasks that are left out, e.g. [gpqa_diamond]."""
    decoding: Decoding = field(default_factory=Decoding)
    grader: str = "paper"
    """The grader of the headline number: paper (string rules) or verify (mathematical equality). Both
    grades are stored.
    """

    def __post_init__(self) -> None:
        section = Section("benchmark", self)
        section.plain_name()
        section.one_of("grader", GRADERS)
        require(len(self.tasks) > 0, "benchmark.tasks", "{}", "name at least one benchmark")
        labels = [AVERAGE]
        for name, task in self.tasks.items():
            plain_name("benchmark.tasks", name)
            _check_task(Section(f"benchmark.tasks.{name}", task), task)
            is_new = task.label not in labels and name != AVERAGE.lower()
            rule = "another column has this name; choose another one"
            require(is_new, f"benchmark.tasks.{name}.label", task.label, rule)
            labels.append(task.label)

    def leave_out(self) -> None:
        """Remove the tasks in `skip`, and empty it: workers rebuild the configuration from its values,
        without these tasks.
        """
        for name in self.skip:
            one_of("benchmark.skip", name, tuple(self.tasks))
        remaining = {name: task for name, task in self.tasks.items() if name not in self.skip}
        rule = "nothing would be left; keep at least one benchmark"
        require(len(remaining) > 0, "benchmark.skip", self.skip, rule)
        self.tasks = remaining
        self.skip = []


ANSWER_PLACES = ("box", "hashes", "tags")


def _check_task(section: Section, task: Task) -> None:
    text_name(f"{section.name}.label", task.label)
    section.one_of("answer_format", ANSWER_FORMATS)
    if task.answer_from is not None:
        section.one_of("answer_from", ANSWER_PLACES)
    if task.options_field is not None:
        section.require(
            "options_field",
            task.answer_format == "choice" and not task.distractor_fields,
            "a column of all options: use answer_format=choice, without distractor_fields",
        )
    for key, number in (("limit", task.limit), ("count", task.count)):
        section.require(key, number is None or number >= 1, "must be at least 1, or null")
    wrong = task.distractor_fields
    is_choice = not wrong or task.answer_format == "choice"
    section.require(
        "answer_format", is_choice, "distractor_fields are wrong options: use answer_format=choice"
    )
    differ = len({*wrong, task.answer_field, task.question_field}) == len(wrong) + 2
    section.require(
        "distractor_fields",
        differ or not wrong,
        "name columns other than the question's and the answer's, once each",
    )


VLLM_MEMORY = 0.9


@dataclass
class EngineSettings:
    """The engine that generates text."""

    name: str = MISSING
    """hf, vllm or sglang."""
    tensor_parallel: int = 1
    """GPUs that share one copy of the model, with vllm or sglang; the rest work on other questions (paper:
    1).
    """
    batch: int = 256
    """Sequences that the hf engine generates at once."""
    memory: float | None = None
    """Fraction of a GPU's memory: with vLLM for everything (None: 0.9), with SGLang for weights and KV
    cache only (None: its own estimate of what CUDA graphs and activations leave).
    """
    kv_cache_gib: int = 1
    """Memory for vLLM's KV cache on CPU."""
    eager: bool | None = None
    """No compilation or CUDA graphs: slower to run, much faster to start. None: true on CPU, false on GPUs.
    """

    def __post_init__(self) -> None:
        section = Section("engine", self)
        section.at_least(1, "tensor_parallel", "batch", "kv_cache_gib")
        is_share = self.memory is None or 0 < self.memory <= 1
        section.require("memory", is_share, "must be more than 0 and at most 1, or null")

    @property
    def memory_share(self) -> float:
        """The effective value of `memory`; for SGLang, what it is likely to estimate."""
        return VLLM_MEMORY if self.memory is None else self.memory

    def is_eager(self, device: str) -> bool:
        """The effective value of `eager` on this device."""
        return device == "cpu" if self.eager is None else self.eager
