"""Settings of the stage `analyse`."""

from dataclasses import dataclass

from lark.config.checks import Section


@dataclass
class Analysis:
    """What the stage `analyse` measures (lark/analysis). By default, nothing."""

    name: str | None = None
    """gradients: exact gradients of some questions' trajectories (Fig. 3a). surrogate: the same, plus the
    g* of lark_gram and lark_exact (App. B.8). theory: exact gradients, plus the Jacobians behind the
    constants of App. B. grace: gradients of each teacher's trajectories (beside Fig. 3c). kappa: the decay
    rate along a training run (App. A.3). contamination: App. C.5. cost: seconds per trajectory of each
    scoring method (App. D.1).
    """
    questions: int = 50
    """Number of questions with exact gradients. The sample does not depend on the questions' order (paper,
    App. B.8).
    """
    quick: bool = False
    """Sketch the gradients as method=lark_exact does, in one pass for each trajectory, instead of computing
    all of their numbers. Only for analysis.name=gradients.
    """
    seed: int = 42
    """Seed of that sample and of power iteration."""
    dtype: str = "float32"
    """Precision of the student and its gradients in gradients, theory and kappa, independent of
    student.dtype: float32, or bfloat16, which needs half the memory, is 16 times as fast on an A100 and
    changes g* by about 1% (decision 17).
    """
    jacobians: int = 3
    """Number of those questions that also get Jacobians, for analysis.name=theory."""
    iterations: int = 30
    """Maximum number of power iterations."""
    samples: int = 24
    """Number of trajectories to time, spread evenly over the pool's lengths."""
    rounds: int = 3
    """Number of times each is timed; the median is used."""

    def __post_init__(self) -> None:
        section = Section("analysis", self)
        section.seed("seed")
        section.one_of("dtype", ("float32", "bfloat16"))
        section.at_least(1, "questions", "jacobians", "iterations", "samples", "rounds")
