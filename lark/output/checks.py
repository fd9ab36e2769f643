"""Refusals of reading what a run has made, one function per sentence."""

from pathlib import Path

from lark.errors import LarkError
from lark.evaluation.grade import METRICS
from lark.store.manifest import Manifest


def require_evaluation(folder: Path, manifest: Manifest) -> None:
    if manifest.kind != METRICS.name or not manifest.finished:
        raise LarkError(
            f"{folder}: this is not a finished evaluation. Give the folder of one, outputs/metrics/<name>, or"
            " run its command again."
        )


def require_generations(folder: Path, manifest: Manifest) -> None:
    """Refuse an evaluation whose answers are gone."""
    if not manifest.finished:
        raise LarkError(
            f"{folder}: the answers that it grades are not in this store (any more). Run the command of the"
            " evaluation again."
        )
