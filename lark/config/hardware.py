"""Settings of hardware, tracking and experiments."""

from dataclasses import dataclass, field
from typing import Any

from lark.config.checks import not_negative, one_of, plain_name, require, text_name


@dataclass
class Hardware:
    """Hardware settings. They are meant to change speed and not results, so they are not part of any fingerprint.

    In float32, results agree to 1e-5 under any of these settings. In bfloat16, the shape of a batch changes the rounding,
    and a trajectory's statistics change by up to 0.3% (decision 15).
    """

    name: str = "auto"
    device: str = "auto"
    """auto (the GPUs if there are any), cpu or cuda."""
    processes: int = 0
    """Processes per node, one per GPU. 0: the number of GPUs, or 1 on CPU."""
    nodes: int = 1
    """Machines that work together. Each runs the same command and sees the same `outputs`. 0: the nodes of the SLURM job."""
    node: int | None = None
    """Index of this node; node 0 leads the run. None: the index that SLURM gives."""
    rendezvous: str | None = None
    """host:port of node 0, when nodes > 1. None: the first node of the SLURM job."""
    threads: int = 0
    """CPU threads per process. 0: the cores are divided equally."""
    warm: bool = True
    """Import the code of later steps while earlier ones run (lark/runtime/warm.py). False: each worker imports its own."""
    score_tokens: int = 16384
    """Tokens in one scoring batch. A CPU runs it in several forward passes (lark/scoring/constants.py)."""
    train_tokens: int = 4096
    """Tokens in one packed forward pass of training; never less than student.max_length."""
    micro_batch: int = 1
    """Trajectories in one forward pass of training, when they are not packed."""
    zero: int | None = None
    """DeepSpeed ZeRO stage: 0 (off), 2 (the paper's) or 3 (parameters sharded too). None: 2 on several GPUs, 0 otherwise."""
    offload: str = "none"
    """none, or optimizer: AdamW's state, the fp32 weights and the gradients' shards are in the host's memory (ZeRO-2 or 3)."""
    sequence_parallel: int = 1
    """Processes that share each micro-batch of training, every one with a part of its positions. For long contexts."""
    gradient_gib: float = 4.0
    """Memory for the gradients of a question's trajectories in analyses. Less memory means more passes over them."""
    gradient_scratch: str | None = None
    """A folder on a fast disk for those gradients; gradient_gib is then disk space. None: they are kept in memory."""
    memory_gib: float = 0.0
    """Memory of one device, for the planner. 0: that of this machine."""
    tflops: float = 0.0
    """Peak throughput of one device, for the planner. 0: measured on CPU, an A100's otherwise."""
    bandwidth: float = 0.0
    """Memory bandwidth of one device in GB/s, to plan generation. 0: an A100's, or 12 on CPU."""
    silence: float = 10.0
    """Minutes without a sign of life from a worker process (it is stopped, or its machine hangs) after which the run ends.
    Loading and compiling do not count. A worker that only waits for this long has its stack written to the log. 0: no limit."""
    max_hours: float = 2000.0
    """Longest run that is started, as the planner estimates it. 0: no limit."""

    def __post_init__(self) -> None:
        plain_name("hardware.name", self.name)
        one_of("hardware.device", self.device, ("auto", "cpu", "cuda"))
        require(self.zero in (None, 0, 2, 3), "hardware.zero", self.zero, "choose 0 (off), 2 or 3, or null (automatic)")
        one_of("hardware.offload", self.offload, ("none", "optimizer"))
        require(self.sequence_parallel >= 1, "hardware.sequence_parallel", self.sequence_parallel, "must be at least 1")
        require(self.gradient_gib > 0, "hardware.gradient_gib", self.gradient_gib, "must be positive")
        require(self.nodes >= 0, "hardware.nodes", self.nodes, "must be at least 1, or 0 for the nodes of the SLURM job")
        if self.rendezvous is not None:
            host, _, port = self.rendezvous.rpartition(":")
            valid = bool(host) and port.isdigit() and 0 < int(port) < 65536
            require(valid, "hardware.rendezvous", self.rendezvous, "must be host:port of node 0, with a port from 1 to 65535")
        not_negative("hardware", self, "processes", "threads", "memory_gib", "tflops", "bandwidth", "silence", "max_hours")
        for key in ("processes", "threads", "nodes"):
            require(getattr(self, key) <= 65536, f"hardware.{key}", getattr(self, key), "must be at most 65,536")
        for key in ("score_tokens", "train_tokens", "micro_batch"):
            require(getattr(self, key) >= 1, f"hardware.{key}", getattr(self, key), "must be at least 1")


@dataclass
class Tracking:
    """Where curves and tables are sent in addition to the local files, which are authoritative."""

    mode: str = "offline"
    """offline (written to the run's folder; `wandb sync` uploads it), online, or none."""
    project: str = "lark"
    entity: str | None = None
    group: str | None = None
    """W&B group. All trials of a sweep are in one group."""

    def __post_init__(self) -> None:
        one_of("tracking.mode", self.mode, ("offline", "online", "none"))
        for key in ("project", "entity", "group"):
            text_name(f"tracking.{key}", getattr(self, key))
        allowed = not set(self.project) & set("/\\#?%:")
        require(allowed, "tracking.project", self.project, "must not contain / \\ # ? % or :")


@dataclass
class Experiment:
    """A table or figure of the paper as a sweep: conf/experiment/<name>.yaml."""

    name: str | None = None
    """None: a single run, or a custom sweep."""
    scales: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The values of each `scale=...` of this experiment. The sweep refers to those of the chosen scale."""
