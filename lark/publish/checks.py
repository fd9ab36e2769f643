"""Refusals of publishing, one function per sentence."""

import re
from pathlib import Path

from lark.errors import LarkError
from lark.store.integrity import verify
from lark.store.manifest import MANIFEST, Manifest, read_manifest
from lark.store.store import damage

LICENCE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,99}")
"""Identifiers as hubs have them."""


def check_licence(licence: str | None) -> None:
    """Refuse a text: hubs read an identifier, and the text of a licence would break the card's metadata."""
    if licence is not None and not LICENCE_NAME.fullmatch(licence):
        raise LarkError(
            f"--license {licence!r:.60}: this is not the identifier of a licence. Give one such as"
            " apache-2.0, mit, cc-by-4.0 or other; the text of a licence belongs in a file of the"
            " repository."
        )


def require_licence(card: Path, missing: list[str]) -> None:
    if missing:
        raise LarkError(
            f"{card} has no licence: add --license <identifier>, e.g. --license apache-2.0, or fill it in."
        )


def no_such_artifact(name: str, outputs: Path) -> LarkError:
    return LarkError(
        f"{name}: there is no such folder, and no selection or checkpoint with this fingerprint in"
        f" {outputs}. Give a folder such as outputs/selection/<name>, or add --outputs <folder>."
    )


def manifest_of(folder: Path) -> Manifest:
    """The manifest of an artifact."""
    try:
        return read_manifest(folder)
    except LarkError as error:
        raise LarkError(
            f"{folder}: there is no readable {MANIFEST}, so this is not an artifact of a run."
        ) from error


def not_publishable(folder: Path) -> LarkError:
    return LarkError(
        f"{folder}: only a selection or a checkpoint can be published, not a folder of another kind."
    )


def require_intact(folder: Path, manifest: Manifest) -> None:
    """Refuse an artifact that is not finished, or whose files have changed since."""
    if not manifest.finished:
        raise LarkError(f"{folder}: this artifact is not finished. Run its command again, then publish it.")
    _check_unchanged(folder, manifest)
    verify(folder)  # reads every byte, so it is last


def _check_unchanged(folder: Path, manifest: Manifest) -> None:
    harm = damage(folder, manifest)
    if harm:
        raise LarkError(f"{folder}: {harm} since the artifact was made. Run its command again to rebuild it.")


def require_files(folder: Path, names: list[str]) -> None:
    if not names:
        raise LarkError(f"{folder}: there is nothing to publish in this artifact.")
