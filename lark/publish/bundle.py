"""What is published of an artifact: its files, its card, and what the card lacks."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lark.config.checks import user_path
from lark.errors import LarkError
from lark.output.cards import dataset_card, model_card
from lark.output.markdown import metadata, with_licence
from lark.selection.write import SELECTION
from lark.store.integrity import verify
from lark.store.manifest import MANIFEST, Manifest, read_manifest
from lark.store.store import CARD, damage, write_text
from lark.training.checkpoints import CHECKPOINT

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Published:
    """How a kind of artifact is published."""

    repo_type: str
    files: re.Pattern[str]
    """Names of the files to upload; others, such as logs and states of the optimizer, stay here."""
    card: Callable[[Path], str]


KINDS = {
    SELECTION.name: Published("dataset", re.compile(r"train\.jsonl|selection\.parquet"), dataset_card),
    CHECKPOINT.name: Published(
        "model",
        re.compile(
            r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json|merges\.txt"
            r"|chat_template\.jinja|tokenizer\.model|[\w.-]+\.safetensors(\.index\.json)?"
        ),
        model_card,
    ),
}


@dataclass(frozen=True)
class Bundle:
    """An artifact, ready to be published."""

    folder: Path
    repo_type: str
    files: tuple[Path, ...]
    """Including the card."""

    @property
    def card(self) -> Path:
        return self.folder / CARD

    @property
    def missing(self) -> list[str]:
        """Fields of the card that must be filled in."""
        found = metadata(self.card.read_text(encoding="utf-8"))
        return [] if found.get("license") else ["license"]


def find_artifact(given: str, outputs: Path) -> Path:
    """The folder of an artifact, given as a path or as a fingerprint."""
    folder = user_path("artifact", given)
    if folder.is_dir():
        return folder.resolve()
    matches = (
        [path for kind in KINDS for path in outputs.glob(f"{kind}/*-{given}")]
        if re.fullmatch(r"[0-9a-f]{12}", given)
        else []
    )
    if not matches:
        raise LarkError(
            f"{given}: there is no such folder, and no selection or checkpoint with this fingerprint in"
            f" {outputs}. Give a folder such as outputs/selection/<name>, or add --outputs <folder>."
        )
    return matches[0].resolve()


def bundle(folder: Path, licence: str | None = None) -> Bundle:
    """Check that the artifact is finished and complete, and make its card if it has none. `licence`:
    written into the card.
    """
    manifest = _manifest(folder)
    kind = KINDS.get(manifest.kind)
    if kind is None:
        raise LarkError(
            f"{folder}: only a selection or a checkpoint can be published, not a folder of another kind."
        )
    if not manifest.finished:
        raise LarkError(f"{folder}: this artifact is not finished. Run its command again, then publish it.")
    if harm := damage(folder, manifest):
        raise LarkError(f"{folder}: {harm} since the artifact was made. Run its command again to rebuild it.")
    verify(folder)
    card = folder / CARD
    if not card.is_file():
        write_text(card, kind.card(folder))
        log.info("Wrote %s. Complete it before you publish.", card)
    if licence is not None:
        write_text(card, with_licence(card.read_text(encoding="utf-8"), licence))
    names = sorted(name for name in manifest.files if kind.files.fullmatch(name))
    if not names:
        raise LarkError(f"{folder}: there is nothing to publish in this artifact.")
    return Bundle(folder, kind.repo_type, (card, *(folder / name for name in names)))


def _manifest(folder: Path) -> Manifest:
    try:
        return read_manifest(folder)
    except LarkError as error:
        raise LarkError(
            f"{folder}: there is no readable {MANIFEST}, so this is not an artifact of a run."
        ) from error
