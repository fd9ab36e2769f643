"""What is analysed."""

from dataclasses import dataclass

from lark.config.checks import one_of, require


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
    dtype: str = "float32"
    """Of the student and its gradients in gradients, theory and kappa, whatever it is elsewhere: float32, or bfloat16, which
    needs half the memory, is 16 times as fast on an A100 and moves g* by about 1% (decision 17)."""
    jacobians: int = 3
    """How many of those questions get Jacobians too, for analysis.name=theory."""
    iterations: int = 30
    """Of power iteration, at most."""
    samples: int = 24
    """How many trajectories are timed, spread evenly over the pool's lengths."""
    rounds: int = 3
    """How often each is timed; the median counts."""

    def __post_init__(self) -> None:
        one_of("analysis.dtype", self.dtype, ("float32", "bfloat16"))
        for key in ("questions", "jacobians", "iterations", "samples", "rounds"):
            require(getattr(self, key) >= 1, f"analysis.{key}", getattr(self, key), "must be at least 1")
