"""Settings of hardware, planning, tracking and experiments."""

from dataclasses import dataclass, field
from typing import Any

from lark.config.checks import Section, cluster_address, require, text_name


@dataclass
class Hardware:
    """Hardware settings. They are meant to change speed and not results, so they are not part of any
    fingerprint.

    In float32, results agree to 1e-5 under any of these settings. In bfloat16, the shape of a batch changes
    the rounding, and a trajectory's statistics change by up to 0.3% (decision 15).
    """

    name: str = "auto"
    device: str = "auto"
    """auto (the GPUs if there are any), cpu or cuda."""
    processes: int = 0
    """Processes per node, one per GPU. 0: the number of GPUs, or 1 on CPU."""
    cluster: str = "none"
    """none: this machine does the work. ray: a Ray cluster does. slurm: the nodes of the SLURM job do,
    through Ray if there are several.
    """
    address: str | None = None
    """host:port of the Ray cluster (hardware=ray). None: RAY_ADDRESS, or else a cluster that is started on
    this machine.
    """
    workers: int = 0
    """Processes on the whole cluster. 0: as many as it has GPUs (or nodes, on CPU)."""
    elastic: bool = False
    """Whether training on a cluster may continue with fewer processes after a loss. The global batch does
    not change.
    """
    threads: int = 0
    """CPU threads per process. 0: the cores are divided equally."""
    warm: bool = True
    """Import the code of later steps while earlier ones run (lark/work/warm.py). False: each worker imports
    its own.
    """
    score_tokens: int = 0
    """Tokens in one scoring batch. 0: 65,536 on a GPU that has room for them, or else 32,768 or 16,384. A CPU
    runs a batch in several forward passes (lark/scoring/pass_sizes.py).
    """
    train_tokens: int = 4096
    """Tokens in one packed forward pass of training; never less than student.max_length."""
    micro_batch: int = 1
    """Trajectories in one forward pass of training, when they are not packed."""
    zero: int | None = None
    """DeepSpeed ZeRO stage: 0 (off), 2 (the paper's) or 3 (parameters sharded too). None: 2 on several
    GPUs, 0 otherwise.
    """
    offload: str = "none"
    """none, or optimizer: AdamW's state, the fp32 weights and the gradients' shards are in the host's
    memory. Always with ZeRO-3.
    """
    recomputed_layers: int | None = None
    """Layers whose activations training computes again in the backward pass, with
    training.gradient_checkpointing; those of the last layers are kept. None: as few as a GPU has room for by
    the planner's estimate, and all on CPU.
    """
    sequence_parallel: int = 1
    """Processes that share each micro-batch of training, every one with a part of its positions. For long
    contexts.
    """
    gradient_gib: float = 4.0
    """Memory for the gradients of a question's trajectories in analyses. Less memory means more passes over
    them.
    """
    gradient_scratch: str | None = None
    """A folder on a fast disk for those gradients; gradient_gib is then disk space. None: they are kept in
    memory.
    """
    memory_gib: float = 0.0
    """Memory of one device, for the planner. 0: that of this machine."""
    tflops: float = 0.0
    """Peak throughput of one device, for the planner. 0: measured on CPU, an A100's otherwise."""
    bandwidth: float = 0.0
    """Memory bandwidth of one device in GB/s, to plan generation. 0: an A100's, or 12 on CPU."""
    silence: float = 10.0
    """Minutes without a sign of life from a worker process (it is stopped, or its machine hangs) after
    which the run ends. Loading and compiling do not count. A worker that only waits for this long has its
    stack written to the log. On a cluster, such a process is ended, and its work goes to another. 0: no
    limit.
    """
    max_hours: float = 2000.0
    """Longest run that is started, as the planner estimates it. 0: no limit."""

    def __post_init__(self) -> None:
        section = Section("hardware", self)
        section.plain_name()
        section.one_of("device", ("auto", "cpu", "cuda"))
        section.require("zero", self.zero in (None, 0, 2, 3), "choose 0 (off), 2 or 3, or null (automatic)")
        section.one_of("offload", ("none", "optimizer"))
        section.require("gradient_gib", self.gradient_gib > 0, "must be positive")
        section.one_of("cluster", ("none", "ray", "slurm"))
        if self.address is not None:
            cluster_address("hardware.address", self.address)
            section.require("address", self.cluster == "ray", "belongs to hardware=ray")
        section.not_negative("processes", "threads", "workers", "score_tokens")
        if self.recomputed_layers is not None:
            section.not_negative("recomputed_layers")
        section.not_negative("memory_gib", "tflops", "bandwidth", "silence", "max_hours")
        for key in ("workers", "elastic"):
            has_cluster = self.cluster != "none"
            value = str(getattr(self, key)).lower()
            rule = "belongs to a cluster: hardware=ray or hardware=slurm"
            require(has_cluster or not getattr(self, key), f"hardware.{key}", value, rule)
        section.at_least(1, "sequence_parallel", "train_tokens", "micro_batch")


@dataclass
class Planning:
    """What estimates are based on. They are not part of any fingerprint."""

    measured: str | None = None
    """The file measured.json that `make gpu-check` has written on this machine: estimates of time then use
    its rates. None: assumed rates.
    """


@dataclass
class Tracking:
    """Where curves and tables are sent in addition to the local files, which are authoritative."""

    mode: str = "offline"
    """offline (W&B, written to the run's folder; `wandb sync` uploads it), online (W&B), trackio (in
    outputs/trackio on this machine, without an account), or none.
    """
    project: str = "lark"
    entity: str | None = None
    group: str | None = None
    """Group of runs. All trials of a sweep are in one group. None: a sweep (`-m`) is named after what it
    sweeps over.
    """

    def __post_init__(self) -> None:
        section = Section("tracking", self)
        section.one_of("mode", ("offline", "online", "trackio", "none"))
        for key in ("project", "entity", "group"):
            text_name(f"tracking.{key}", getattr(self, key))
        # What W&B refuses in the name of a project.
        is_allowed = not set(self.project) & set("/\\#?%:")
        section.require("project", is_allowed, "must not contain / \\ # ? % or :")


@dataclass
class Experiment:
    """A table or figure of the paper as a sweep: conf/experiment/<name>.yaml."""

    name: str | None = None
    """None: a single run, or a custom sweep."""
    scales: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The values of each `scale=...` of this experiment. The sweep refers to those of the chosen scale."""
