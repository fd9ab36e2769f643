"""Refusals of a plan: analyses that do not go with the other settings."""

from lark.config import Config
from lark.errors import LarkError
from lark.store.store import Artifact


def require_training(config: Config, checkpoint: Artifact | None) -> Artifact:
    """The trained student that analysis.name=kappa follows, with its snapshots."""
    if checkpoint is None:
        raise LarkError(
            f"analysis.name=kappa follows a training run, and method={config.method.name} has none: "
            "choose another method."
        )
    _require_snapshots(config)
    return checkpoint


def _require_snapshots(config: Config) -> None:
    if config.training.snapshots < 2:
        raise LarkError(
            "analysis.name=kappa measures the student at several training steps: add"
            " training.snapshots=11 (or another number, at least 2)."
        )


def require_exact_gradients(config: Config, analysis: str) -> None:
    """Refuse sketched gradients for an analysis that measures how far sketches are from exact ones."""
    if config.analysis.quick:
        raise LarkError(
            f"analysis.quick=true sketches gradients, and analysis.name={analysis} needs exact ones:"
            " remove it, or choose analysis.name=gradients."
        )
