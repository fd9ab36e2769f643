"""The typed schema of conf/, and its checks: a typo, a wrong type or an impossible value is one sentence before anything runs.

Hydra merges conf/ into these dataclasses (registered below, named first in conf/config.yaml); `load` turns the result into
plain objects, whose `__post_init__` checks what types cannot say. Every key is explained here; the YAML files say where
their values come from.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lark.errors import LarkError

STAGES = ("pool", "score", "select", "train", "evaluate", "analyse", "report")
ANALYSES = ("gradients", "theory", "kappa", "contamination", "cost")
FORCEABLE = (*STAGES, "lengths", "local", "text", "judge", "generate", "grade", "student", "jacobians", *ANALYSES)
WEIGHTINGS = ("uniform", "proportional", "softmax", "kl", "chi2")
ANSWER_FORMATS = ("numeric", "choice", "free_form")
GRADERS = ("paper", "verify")


def _require(condition: bool, key: str, value: object, what: str) -> None:
    if not condition:
        raise LarkError(f"{key}={value}: {what}.")


def _one_of(key: str, value: object, options: tuple[str, ...]) -> None:
    _require(value in options, key, value, f"choose one of {', '.join(options)}")


def _has_group(pattern: str) -> bool:
    try:
        return re.compile(pattern).groups >= 1
    except re.error:
        return False


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
        _require(self.max_length >= 2, "student.max_length", self.max_length, "a prompt and one token of response need 2")
        _one_of("student.dtype", self.dtype, ("float32", "bfloat16", "float16"))
        _one_of("student.attention", self.attention, ("auto", "sdpa", "eager", "flash_attention_2"))


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
    """Take this many questions, a sample that does not depend on their order. None: all."""
    seed: int = 42
    """Of that sample, and of the demo's generator."""
    ids: list[str] = field(default_factory=list)
    """Keep only the questions with these ids. Empty: all."""
    correct_only: bool = False
    """Drop trajectories whose boxed answer is not the question's (the evaluation's extraction rule, paper, App. C.1)."""
    answer_format: str = "free_form"
    """How answers are compared when correct_only: numeric, choice or free_form."""
    answer_pattern: str | None = None
    """What the teachers end with where it is no box, as a regular expression: '<answer>(.*?)</answer>'. Its last match in a
    response is rewritten as \\boxed{…} with the first group in it, because a box is all that evaluation reads."""
    fields: dict[str, str] = field(default_factory=dict)
    """Names of the columns where they differ from ours, e.g. {question_id: problem_id}."""

    def __post_init__(self) -> None:
        _one_of("pool.format", self.format, ("demo", "rows", "rsr", "hub"))
        _one_of("pool.answer_format", self.answer_format, ANSWER_FORMATS)
        _require(
            self.questions is None or self.questions >= 1,
            "pool.questions",
            self.questions,
            "at least 1, or null for all",
        )
        if self.answer_pattern is not None:
            _require(_has_group(self.answer_pattern), "pool.answer_pattern", self.answer_pattern,
                     "a regular expression with one (group) is expected, the final answer")  # fmt: skip
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
        _one_of("method.judge.style", self.style, ("paper", "brief"))
        _require(self.tensor_parallel >= 1, "method.judge.tensor_parallel", self.tensor_parallel, "must be at least 1")
        _require(self.retries >= 0, "method.judge.retries", self.retries, "must not be negative")
        _require(self.max_new_tokens >= 1, "method.judge.max_new_tokens", self.max_new_tokens, "must be at least 1")

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
        if self.weighting is not None:
            _one_of("method.weighting", self.weighting, WEIGHTINGS)


@dataclass
class Weighting:
    """How the budget is weighted within a question."""

    name: str = "auto"
    """auto: the method's own."""

    def __post_init__(self) -> None:
        _one_of("weighting", self.name, ("auto", *WEIGHTINGS))


@dataclass
class Budget:
    """How many trajectories are selected for each question."""

    size: int = MISSING

    def __post_init__(self) -> None:
        _require(self.size >= 1, "budget.size", self.size, "select at least 1 trajectory a question")


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
            _require(getattr(self, key) >= 1, f"scoring.{key}", getattr(self, key), "must be at least 1")


@dataclass
class Lora:
    """Low-rank adapters instead of full fine-tuning, merged into the weights on export."""

    rank: int = 0
    """Of the adapters. 0: off, every weight is trained (the paper's way)."""
    alpha: float = 32.0
    """An adapter's product is scaled by alpha / rank."""
    dropout: float = 0.0
    """Of an adapter's input."""
    targets: list[str] = field(default_factory=lambda: ["all-linear"])
    """Names of the layers that get one, e.g. [q_proj, v_proj]. all-linear: every linear layer but the head."""

    def __post_init__(self) -> None:
        _require(self.rank >= 0, "training.lora.rank", self.rank, "must not be negative; 0 trains every weight")
        _require(self.alpha > 0, "training.lora.alpha", self.alpha, "must be positive")
        _require(0 <= self.dropout < 1, "training.lora.dropout", self.dropout, "is a probability, less than 1")
        _require(len(self.targets) > 0, "training.lora.targets", self.targets, "name at least one layer, or all-linear")


@dataclass
class HeldOut:
    """Trajectories whose loss is followed during training, from step 0."""

    path: str | None = None
    """None: off. selection: the trajectories that are trained on. Otherwise a JSONL file like a selection's train.jsonl."""
    every: int = 10
    """Steps from one measurement to the next; the last step is always measured."""

    def __post_init__(self) -> None:
        _require(self.every >= 1, "training.held_out.every", self.every, "must be at least 1")
        if self.path not in (None, "selection") and not Path(str(self.path)).expanduser().is_file():
            raise LarkError(f"training.held_out.path={self.path}: there is no such file (or write `selection`).")


@dataclass
class Training:
    """Weighted SFT. Everything here changes the result; what only changes speed is in `hardware`."""

    name: str = MISSING
    questions: int | None = None
    """How many questions of the pool this recipe is for (paper: 5,000; 500 for the verification runs)."""
    learning_rate: float = MISSING
    schedule: str = "cosine"
    warmup: float = 0.05
    """Share of all steps."""
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1.0e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    epochs: int = MISSING
    global_batch: int = MISSING
    """Trajectories in one optimisation step, over all processes and accumulation steps."""
    packing: bool = True
    """Fill sequences with several trajectories. Changes speed, never the outcome."""
    gradient_checkpointing: bool = True
    seed: int = 42
    bf16: bool = True
    """Mixed precision: bf16 forward and backward, fp32 master weights and reduction."""
    liger: bool = True
    """Liger's fused RoPE, RMSNorm and SwiGLU on GPUs (paper, App. C.3). Changes speed, never the outcome."""
    lora: Lora = field(default_factory=Lora)
    checkpoints: int = 10
    """How often in a run a checkpoint is written to resume from."""
    snapshots: int = 0
    """Keep the student at so many evenly spaced steps, the first and the last among them. 0: only the last."""
    held_out: HeldOut = field(default_factory=HeldOut)

    def __post_init__(self) -> None:
        _one_of("training.schedule", self.schedule, ("cosine", "linear", "constant"))
        _require(self.learning_rate > 0, "training.learning_rate", self.learning_rate, "must be positive")
        _require(0 <= self.warmup < 1, "training.warmup", self.warmup, "is a share of the steps, 0 to 1")
        for key in ("epochs", "global_batch", "checkpoints"):
            _require(getattr(self, key) >= 1, f"training.{key}", getattr(self, key), "must be at least 1")
        _require(self.max_grad_norm > 0, "training.max_grad_norm", self.max_grad_norm, "must be positive")
        _require(
            self.snapshots == 0 or self.snapshots >= 2, "training.snapshots", self.snapshots,
            "0 keeps none, 2 the first and the last step's, and so on",
        )  # fmt: skip


@dataclass
class Analysis:
    """What the stage `analyse` measures (lark/analysis). Nothing, unless it is asked for."""

    name: str | None = None
    """gradients: exact gradients of some questions' trajectories (App. B.8, Fig. 3a). theory: the same, and the Jacobians
    behind the constants of App. B. kappa: the decay rate along a training run (App. A.3). contamination: App. C.5.
    cost: seconds a trajectory of each scoring method (App. D.1)."""
    questions: int = 50
    """How many questions get exact gradients, a sample that does not depend on their order (paper, App. B.8)."""
    seed: int = 42
    """Of that sample, and of power iteration."""
    jacobians: int = 3
    """How many of those questions get Jacobians too, for analysis.name=theory."""
    iterations: int = 30
    """Of power iteration, at most."""
    samples: int = 24
    """How many trajectories are timed, spread evenly over the pool's lengths."""
    rounds: int = 3
    """How often each is timed; the median counts."""

    def __post_init__(self) -> None:
        if self.name is not None:
            _one_of("analysis.name", self.name, ANALYSES)
        for key in ("questions", "jacobians", "iterations", "samples", "rounds"):
            _require(getattr(self, key) >= 1, f"analysis.{key}", getattr(self, key), "must be at least 1")


@dataclass
class Task:
    """One benchmark: where its problems are and how its answers are read."""

    label: str = MISSING
    """As in the paper's tables."""
    path: str | None = None
    """JSONL or Parquet file, or a hub dataset id. `demo`: generated."""
    split: str = "test"
    revision: str | None = None
    answer_format: str = MISSING
    """numeric, choice or free_form: decides the system prompt and the grading rule (paper, App. C.4)."""
    question_field: str = "problem"
    answer_field: str = "answer"
    id_field: str | None = None
    """None: the row number."""
    level_field: str | None = None
    """Difficulty, for a breakdown by level."""
    distractor_fields: list[str] = field(default_factory=list)
    """The wrong options of a multiple-choice benchmark; shuffled with the right one, a seed for each question."""
    count: int | None = None
    """How many problems it must have; anything else is an error. None: not checked."""
    limit: int | None = None
    """Take only the first so many problems, for a trial."""

    def __post_init__(self) -> None:
        _one_of("answer_format", self.answer_format, ANSWER_FORMATS)


@dataclass
class Decoding:
    """How answers are sampled (paper, App. C.4)."""

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = -1
    """-1: off."""
    repetition_penalty: float = 1.1
    max_new_tokens: int = 32768
    samples: int = 5
    """Acc@5 counts a problem as solved when any of these is right."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """Decoding seeds; the reported spread is the sample standard deviation over them."""

    def __post_init__(self) -> None:
        _require(self.temperature >= 0, "benchmark.decoding.temperature", self.temperature, "must not be negative")
        _require(0 < self.top_p <= 1, "benchmark.decoding.top_p", self.top_p, "is a probability, more than 0")
        _require(self.samples >= 1, "benchmark.decoding.samples", self.samples, "must be at least 1")
        _require(len(self.seeds) >= 1, "benchmark.decoding.seeds", self.seeds, "give at least one seed")
        _require(len(set(self.seeds)) == len(self.seeds), "benchmark.decoding.seeds", self.seeds, "seeds must differ")
        _require(self.max_new_tokens >= 1, "benchmark.decoding.max_new_tokens", self.max_new_tokens, "must be at least 1")


@dataclass
class Benchmark:
    """What the student is evaluated on."""

    name: str = MISSING
    tasks: dict[str, Task] = field(default_factory=dict)
    decoding: Decoding = field(default_factory=Decoding)
    grader: str = "paper"
    """Which of the two graders gives the headline number: paper (string rules) or verify (math-verify). Both are stored."""

    def __post_init__(self) -> None:
        _one_of("benchmark.grader", self.grader, GRADERS)
        _require(len(self.tasks) > 0, "benchmark.tasks", "{}", "name at least one benchmark")


@dataclass
class Engine:
    """What generates text at evaluation."""

    name: str = MISSING
    """hf, vllm or sglang."""
    tensor_parallel: int = 1
    """GPUs that share one copy of the model; the rest work on other questions (paper: 1)."""
    batch: int = 256
    """Sequences that the hf engine generates at once."""
    memory: float = 0.9
    """Share of a GPU's memory that vLLM and SGLang may take."""
    kv_cache_gib: int = 1
    """Memory for vLLM's KV cache on CPU."""
    eager: bool = True
    """No compilation or CUDA graphs: slower to run, much faster to start."""

    def __post_init__(self) -> None:
        _one_of("engine", self.name, ("hf", "vllm", "sglang"))
        for key in ("tensor_parallel", "batch", "kv_cache_gib"):
            _require(getattr(self, key) >= 1, f"engine.{key}", getattr(self, key), "must be at least 1")
        _require(0 < self.memory <= 1, "engine.memory", self.memory, "is a share of the memory, more than 0")


@dataclass
class Hardware:
    """What the machine has. Only what changes speed, never what changes a result: not part of any fingerprint."""

    name: str = "auto"
    device: str = "auto"
    """auto (the GPUs if there are any), cpu or cuda."""
    processes: int = 0
    """Processes on each node, one a GPU. 0: as many as there are GPUs, or 1 on CPU."""
    nodes: int = 1
    """Machines that work together; each runs the same command and sees the same `outputs`. 0: those of the SLURM job."""
    node: int | None = None
    """Which of them this is; 0 leads the run. None: what SLURM says."""
    rendezvous: str | None = None
    """host:port of node 0, when nodes > 1. None: the first node of the SLURM job."""
    threads: int = 0
    """CPU threads of each process. 0: the cores shared equally."""
    score_tokens: int = 16384
    """Tokens in one scoring batch."""
    train_tokens: int = 4096
    """Tokens in one packed forward pass of training; never less than student.max_length."""
    micro_batch: int = 1
    """Trajectories in one forward pass of training, when they are not packed."""
    zero: int = 0
    """DeepSpeed ZeRO stage: 0 (off), 2 (the paper's) or 3 (parameters sharded too)."""
    gradient_gib: float = 4.0
    """Memory for the gradients of a question's trajectories in analyses. With less, there are more passes over them."""
    gradient_scratch: str | None = None
    """A folder on a fast disk for those gradients; gradient_gib is then space there. None: they are kept in memory."""
    memory_gib: float = 0.0
    """Of one device, for the planner. 0: what the machine has."""
    tflops: float = 0.0
    """Peak of one device, for the planner. 0: measured on CPU, an A100's otherwise."""
    bandwidth: float = 0.0
    """GB/s of one device's memory, for the planner of generation. 0: an A100's, or 12 on CPU."""

    def __post_init__(self) -> None:
        _one_of("hardware.device", self.device, ("auto", "cpu", "cuda"))
        _require(self.zero in (0, 2, 3), "hardware.zero", self.zero, "choose 0 (off), 2 or 3")
        _require(self.gradient_gib > 0, "hardware.gradient_gib", self.gradient_gib, "must be positive")
        _require(self.nodes >= 0, "hardware.nodes", self.nodes, "must be at least 1, or 0 for those of the SLURM job")
        if self.rendezvous is not None:
            host, _, port = self.rendezvous.rpartition(":")
            _require(bool(host) and port.isdigit(), "hardware.rendezvous", self.rendezvous, "is host:port of node 0")
        _require(self.processes >= 0, "hardware.processes", self.processes, "must not be negative; 0 means one a GPU")
        for key in ("score_tokens", "train_tokens", "micro_batch"):
            _require(getattr(self, key) >= 1, f"hardware.{key}", getattr(self, key), "must be at least 1")
        if self.nodes > 1 and not self.rendezvous and "SLURM_JOB_NODELIST" not in os.environ:
            raise LarkError(f"hardware.nodes={self.nodes} needs hardware.rendezvous=host:port of the first node.")


@dataclass
class Tracking:
    """Where curves and tables go besides the local files, which are the truth."""

    mode: str = "offline"
    """offline (written beside the run, `wandb sync` sends it), online, or none."""
    project: str = "lark"
    entity: str | None = None
    group: str | None = None
    """Runs of one sweep belong together."""

    def __post_init__(self) -> None:
        _one_of("tracking", self.mode, ("offline", "online", "none"))


@dataclass
class Experiment:
    """A table or figure of the paper as a sweep: conf/experiment/<name>.yaml."""

    name: str | None = None
    """None: a single run, or a sweep of your own."""
    scales: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each `scale=...` means for this experiment: the sweep refers to the values of the chosen one."""


@dataclass
class Config:
    """Everything one run of run.py depends on."""

    student: Student = MISSING
    pool: Pool = MISSING
    method: Method = MISSING
    weighting: Weighting = MISSING
    budget: Budget = MISSING
    scoring: Scoring = field(default_factory=Scoring)
    training: Training = MISSING
    benchmark: Benchmark = MISSING
    engine: Engine = MISSING
    hardware: Hardware = MISSING
    tracking: Tracking = MISSING
    analysis: Analysis = field(default_factory=Analysis)
    experiment: Experiment = field(default_factory=Experiment)
    scale: str = "demo"
    """How large an experiment is run: demo (here, in minutes), paper, or another that the experiment has."""
    stages: list[str] = field(default_factory=lambda: list(STAGES))
    """Which stages to run; the ones before them must be finished or are run too."""
    force: list[str] = field(default_factory=list)
    """Stages whose artifact is made again although it is finished."""
    dry_run: bool = False
    """Print the plan and stop."""
    outputs: str = "outputs"
    """Where artifacts are kept."""

    def __post_init__(self) -> None:
        for stage in self.stages:
            _one_of("stages", stage, STAGES)
        for stage in self.force:
            _one_of("force", stage, FORCEABLE)

    @property
    def weighting_name(self) -> str | None:
        """The weighting that acts: the one asked for, or the method's own."""
        return self.method.weighting if self.weighting.name == "auto" else self.weighting.name

    @property
    def outputs_path(self) -> Path:
        return Path(self.outputs).expanduser().resolve()


def register() -> None:
    """Make the schema known to Hydra. Must run before @hydra.main composes."""
    ConfigStore.instance().store(name="schema", node=Config)


def load(composed: DictConfig) -> Config:
    """The composed configuration as checked, plain objects."""
    try:
        config = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise LarkError(f"{error.full_key or 'configuration'}: {str(error).splitlines()[0]}") from error
    assert isinstance(config, Config)
    return config


def from_dict(values: dict[str, Any]) -> Config:
    """A configuration that `dataclasses.asdict` wrote, as a worker reads it."""
    return load(OmegaConf.merge(OmegaConf.structured(Config), values))  # type: ignore[arg-type]
