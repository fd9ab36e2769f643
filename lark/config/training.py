"""How the student is fine-tuned."""

from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING

from lark.config.checks import Section, require

OBJECTIVES = ("nll", "dft", "entropy")
ORDERS = ("shuffled", "easy_first", "hard_first", "by_score")
LARGEST_RATE, LARGEST, LARGEST_FACTOR = 1e6, 1e30, 1e6
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
        section = Section("training.lora", self)
        section.require("rank", self.rank >= 0, "must not be negative; 0 trains every weight")
        is_scale = 0 < self.alpha <= LARGEST
        section.require("alpha", is_scale, f"must be positive and at most {LARGEST:g}")
        section.require("dropout", 0 <= self.dropout < 1, "must be at least 0 and less than 1")
        section.require("bits", self.bits in (None, 4), "choose 4 (NF4), or null (not quantised)")
        has_adapters = self.bits is None or self.rank > 0
        section.require("bits", has_adapters, "needs adapters: set training.lora.rank too")
        section.require("targets", len(self.targets) > 0, "name at least one layer, or all-linear")


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
        section = Section("training.held_out", self)
        section.at_least(1, "every")
        is_file = self.path in (None, "selection") or Path(str(self.path)).expanduser().is_file()
        section.require("path", is_file, "there is no such file; give a JSONL file, or `selection`")


@dataclass
class Training:
    """Weighted SFT. Settings that can change the trained weights are in the checkpoint's fingerprint
    (`SPEED_ONLY` in pipeline/fingerprints.py lists those that cannot); settings that only concern the machine
    are in `hardware`.
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
    """Recompute activations in the backward pass instead of keeping them; on a GPU those of as few layers as
    its memory needs (hardware.recomputed_layers). Changes memory and speed, never the outcome.
    """
    seed: int = 42
    bf16: bool | None = True
    """Mixed precision: bf16 forward and backward, fp32 master weights and reduction. null: if the student's
    precision is bfloat16; part of the fingerprint exactly as the value that it stands for.
    """
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
    order: str = "shuffled"
    """Order of the trajectories in each epoch: shuffled (as in the paper), easy_first (the shortest response
    first), hard_first (the longest first) or by_score (the best score of the method first).
    """
    token_weights: str | None = None
    """A JSONL file with question_id, candidate_id and token_weights: one number per response token of the
    student's tokenizer. A copy of a selection's train.jsonl with this field added will do. None: every
    token counts 1.
    """
    thinking_weight: float = 1.0
    """Factor of the tokens of thinking, with the tag that closes it. 0 leaves them out of the loss and of its
    mean. Weights of messages and trajectories multiply it.
    """
    answer_weight: float = 1.0
    """Factor of all other tokens of the assistant's turns."""

    @property
    def mixed(self) -> bool:
        """Whether precision is mixed. Loading the settings has replaced null (config/schema.py)."""
        return bool(self.bf16)

    def __post_init__(self) -> None:
        section = Section("training", self)
        section.one_of("objective", OBJECTIVES)
        section.one_of("order", ORDERS)
        is_file = self.token_weights is None or Path(self.token_weights).expanduser().is_file()
        section.require("token_weights", is_file, "there is no such file; give a JSONL file")
        for key in ("thinking_weight", "answer_weight"):
            is_weight = 0 <= getattr(self, key) <= LARGEST_FACTOR
            section.require(key, is_weight, f"must be a number from 0 to {LARGEST_FACTOR:g}")
        are_factors = self.thinking_weight > 0 or self.answer_weight > 0
        section.require("answer_weight", are_factors, "must not be 0 if training.thinking_weight is")
        are_equal = self.thinking_weight == self.answer_weight == 1
        rule = "already weights every token: leave out training.thinking_weight and training.answer_weight"
        section.require("token_weights", are_equal or self.token_weights is None, rule)
        section.one_of("schedule", ("cosine", "linear", "constant"))
        is_rate = 0 < self.learning_rate <= LARGEST_RATE
        section.require("learning_rate", is_rate, f"must be positive and at most {LARGEST_RATE:g}")
        section.require("warmup", 0 <= self.warmup < 1, "must be a fraction of the steps, less than 1")
        section.at_least(1, "epochs", "global_batch", "checkpoints")
        # OmegaConf does not check the length of a tuple.
        are_betas = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        rule = "must be two numbers from 0 to less than 1, e.g. [0.9,0.999]"
        require(are_betas, "training.betas", list(self.betas), rule)
        section.not_negative("epsilon", "weight_decay")
        section.seed("seed")
        for key in ("epsilon", "weight_decay", "max_grad_norm"):
            is_finite = getattr(self, key) <= LARGEST
            section.require(key, is_finite, f"must be a finite number, at most {LARGEST:g}")
        section.require("max_grad_norm", self.max_grad_norm > 0, "must be positive")
        are_snapshots = self.snapshots == 0 or self.snapshots >= 2
        rule = "must be 0 (keep none) or at least 2 (the first and the last step)"
        section.require("snapshots", are_snapshots, rule)
        are_early = self.early_snapshots == 0 or (self.early_snapshots >= 2 and self.snapshots > 0)
        rule = "must be 0, or at least 2 together with training.snapshots"
        section.require("early_snapshots", are_early, rule)
