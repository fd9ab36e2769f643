"""Refusals of a plan: analyses and teachers that do not go with the other settings."""

from lark.config import Config
from lark.config.pool import TAUGHT
from lark.config.teacher import SELF
from lark.errors import LarkError
from lark.scoring.own_method import method_of
from lark.store.store import Artifact
from lark.teaching.asked import entrants


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


def check_teaching(config: Config) -> None:
    """Refuse teachers without questions, and settings that need a teacher that the run does not have."""
    if (config.pool.format == TAUGHT) != bool(config.teacher):
        remedy = "name at least one with teacher=<name>" if not config.teacher else "add pool=taught"
        raise LarkError(f"pool=taught and teacher=… belong together: {remedy} (docs/teach.md).")
    if config.pool.format != TAUGHT:
        return
    teach = config.teach
    names = ", ".join(config.teacher)
    if teach.verify == "judge" and teach.judge not in config.teacher:
        raise LarkError(
            f"teach.judge={teach.judge}: the run has the teachers {names}. Add the judge to teacher=[…]; it"
            " is not asked the questions."
        )
    if teach.verify == "judge" and len(config.teacher) == 1:
        raise LarkError(f"teach.judge={teach.judge} is the only teacher: name at least one that it judges.")
    _check_heats(config)
    if config.questions.pass_rate is not None and (SELF not in config.teacher or teach.verify == "none"):
        raise LarkError(
            "questions.pass_rate is the share of the student's own samples that are correct: add self to"
            " teacher=[…], and do not set teach.verify=none."
        )


def _check_heats(config: Config) -> None:
    """Refuse heats without teachers to compare, without scores, or with a part of the pool."""
    reason = _against_heats(config) if config.teach.heats else None
    if reason is not None:
        raise LarkError(f"teach.heats: {reason}. Change that, or leave out teach.heats (docs/teach.md).")


def _against_heats(config: Config) -> str | None:
    """Why a run cannot have heats."""
    names = entrants(config)
    if len(names) < 2:
        return f"they compare teachers, and the run has only {', '.join(names) or SELF}"
    if config.weighting_name is None or "external" in method_of(config.method).needs:
        return f"method={config.method.name} does not score a pool while it is made"
    if config.pool.questions is not None or config.pool.ids:
        return "pool.questions and pool.ids would leave out questions of a heat"
    return None
