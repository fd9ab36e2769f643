"""How the student is fine-tuned."""

from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING

from lark.config.checks import not_negative, one_of, require, seed
from lark.errors import LarkError

OBJECTIVES = ("nll", "dft", "entropy")
LARGEST_RATE, LARGEST = 1e6, 1e30
"""Limits that no recipe needs. Arithmetic in float32 overflows not far above them."""


@dataclass
class Lora:
    """Low-rank adapters instead of full fine-tuning, merged into the weights on export."""

    rank: int = 0
    """Rank of the adapters. 0: off, every weight is trained (as in the paper)."""
    alpha: float = 32.0
    """An adapter's product is scaled by alpha / rank."""
    dropout: float = 0.0
    """Dropout of an adapter's input."""
    targets: list[str] = field(default_factory=lambda: ["all-linear"])
    """Names of the layers that get an adapter, e.g. [q_proj, v_proj]. all-linear: every linear layer except
    the head.
    """
    bits: int | None = None
    """4: the frozen layers are in 4-bit NF4 (QLoRA), which needs bitsandbytes. null: in the student's
    precision.
    """

    def __post_init__(self) -> None:
        require(
            self.rank >= 0, "training.lora.rank", self.rank, "must not be negative; 0 trains every weight"
        )
        require(
            0 < self.alpha <= LARGEST,
            "training.lora.alpha",
            self.alpha,
            f"must be positive and at most {LARGEST:g}",
        )
        require(
            0 <= self.dropout < 1, "training.lora.dropout", self.dropout, "must be at least 0 and less than 1"
        )
        require(
            self.bits in (None, 4), "training.lora.bits", self.bits, "choose 4 (NF4), or null (not quantised)"
        )
        require(
            self.bits is None or self.rank > 0,
            "training.lora.bits",
            self.bits,
            "needs adapters: set training.lora.rank too",
        )
        require(
            len(self.targets) > 0,
            "training.lora.targets",
            self.targets,
            "name at least one layer, or all-linear",
        )


@dataclass
class HeldOut:
    """Trajectories whose loss is tracked during training, from step 0."""

    path: str | None = None
    """None: off. selection: the trajectories that are trained on. Otherwise a JSONL file like a selection's
    train.jsonl.
    """
    every: int = 10
    """Steps between two measurements; the last step is always measured."""

    def __post_init__(self) -> None:
        require(self.every >= 1, "training.held_out.every", self.every, "must be at least 1")
        if self.path not in (None, "selection") and not Path(str(self.path)).expanduser().is_file():
            raise LarkError(
                f"training.held_out.path={self.path}: there is no such file; give a JSONL file, or `selection`."
            )


@dataclass
class Training:
    """Weighted SFT. Settings that can change the trained weights are in the checkpoint's fingerprint
    (`SPEED_ONLY` in pipeline/fingerprints.py lists those that cannot); settings that only concern the machine are in
    `hardware`.
    """

    name: str = MISSING
    questions: int | None = None
    """Number of pool questions that this recipe is for (paper: 5,000; 500 for the verification runs)."""
    learning_rate: float = MISSING
    schedule: str = "cosine"
    warmup: float = 0.05
    """Length of the warm-up, as a fraction of all steps."""
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
    """Recompute activations in the backward pass instead of keeping them. Changes memory and speed, never
    the outcome.
    """
    seed: int = 42
    bf16: bool = True
    """Mixed precision: bf16 forward and backward, fp32 master weights and reduction."""
    liger: bool = True
    """Liger's fused RoPE, RMSNorm and SwiGLU on GPUs (paper, App. C.3). Changes speed, never the outcome."""
    lora: Lora = field(default_factory=Lora)
    checkpoints: int = 10
    """Maximum number of times that a run writes a checkpoint to resume from."""
    snapshots: int = 0
    """Keep the student at this many evenly spaced steps, including the first and the last. 0: only the
    last.
    """
    early_snapshots: int = 0
    """With `snapshots`: also keep it at this many evenly spaced steps of the first tenth, where the decay
    rate changes fastest (paper, App. A.3).
    """
    held_out: HeldOut = field(default_factory=HeldOut)
    objective: str = "nll"
    """How much each token of a response counts: nll (all alike, as in the paper), dft (by its probability)
    or entropy (by the student's uncertainty). The weights of trajectories multiply it.
    lark/training/loss.py has the formulas.
    """
    token_weights: str | None = None
    """A JSONL file with question_id, candidate_id and token_weights: one number per response token of the
    student's tokenizer. A copy of a selection's train.jsonl with this field added will do. None: every
    token counts 1.
    """

    def __post_init__(self) -> None:
        one_of("training.objective", self.objective, OBJECTIVES)
        if self.token_weights is not None and not Path(self.token_weights).expanduser().is_file():
            raise LarkError(
                f"training.token_weights={self.token_weights}: there is no such file; give a JSONL file."
            )
        one_of("training.schedule", self.schedule, ("cosine", "linear", "constant"))
        rate = self.learning_rate
        require(
            0 < rate <= LARGEST_RATE,
            "training.learning_rate",
            rate,
            f"must be positive and at most {LARGEST_RATE:g}",
        )
        require(
            0 <= self.warmup < 1,
            "training.warmup",
            self.warmup,
            "must be a fraction of the steps, less than 1",
        )
        for key in ("epochs", "global_batch", "checkpoints"):
            require(getattr(self, key) >= 1, f"training.{key}", getattr(self, key), "must be at least 1")
        betas = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        require(
            betas,
            "training.betas",
            list(self.betas),
            "must be two numbers from 0 to less than 1, e.g. [0.9,0.999]",
        )
        not_negative("training", self, "epsilon", "weight_decay")
        seed("training.seed", self.seed)
        for key in ("epsilon", "weight_decay", "max_grad_norm"):
            number = getattr(self, key)
            require(
                number <= LARGEST, f"training.{key}", number, f"must be a finite number, at most {LARGEST:g}"
            )
        require(self.max_grad_norm > 0, "training.max_grad_norm", self.max_grad_norm, "must be positive")
        require(
            self.snapshots == 0 or self.snapshots >= 2, "training.snapshots", self.snapshots,
            "must be 0 (keep none) or at least 2 (the first and the last step)",
        )  # fmt: skip
        early = self.early_snapshots
        require(
            early == 0 or (early >= 2 and self.snapshots > 0), "training.early_snapshots", early,
            "must be 0, or at least 2 together with training.snapshots",
        )  # fmt: skip
