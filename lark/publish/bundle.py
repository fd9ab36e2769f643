"""An artifact as it is published: its files, its card, and the fields that the card lacks."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lark.config.checks import user_path
from lark.output.cards import dataset_card, model_card
from lark.output.markdown import metadata, with_licence
from lark.publish.checks import manifest_of, no_such_artifact, not_publishable, require_files, require_intact
from lark.publish.eval_results import Results, results_of
from lark.selection.write import SELECTION
from lark.store.store import CARD, write_text
from lark.training.checkpoints import CHECKPOINT

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Published:
    """How a kind of artifact is published."""

    repo_type: str
    files: re.Pattern[str]
    """Names of the files to upload; others, such as logs and states of the optimizer, stay here."""
    card: Callable[[Path], str]


PUBLISHABLE = {
    SELECTION.name: Published("dataset", re.compile(r"train\.jsonl|selection\.parquet"), dataset_card),
    CHECKPOINT.name: Published(
        "model",
        re.compile(
            r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json"
            r"|merges\.txt|chat_template\.jinja|tokenizer\.model|[\w.-]+\.safetensors(\.index\.json)?"
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
    results: Results = field(default_factory=Results)
    """Evaluation results, of a checkpoint."""

    @property
    def card(self) -> Path:
        return self.folder / CARD

    @property
    def missing(self) -> list[str]:
        """Fields of the card that must be filled in."""
        fields = metadata(self.card.read_text(encoding="utf-8"))
        return [] if fields.get("license") else ["license"]


def find_artifact(name: str, outputs: Path) -> Path:
    """The folder of an artifact, given as a path or as a fingerprint."""
    folder = user_path("artifact", name)
    if folder.is_dir():
        return folder.resolve()
    if re.fullmatch(r"[0-9a-f]{12}", name):
        for kind in PUBLISHABLE:
            for match in outputs.glob(f"{kind}/*-{name}"):
                return match.resolve()
    raise no_such_artifact(name, outputs)


def bundle(folder: Path, name: str, licence: str | None = None, grader: str | None = None) -> Bundle:
    """Check that the artifact is finished and complete, and make its card if it has none. `name`: of the
    repository. `licence`: written into the card. `grader`: of the results of a checkpoint; None: without
    results.
    """
    manifest = manifest_of(folder)
    kind = PUBLISHABLE.get(manifest.kind)
    if kind is None:
        raise not_publishable(folder)
    require_intact(folder, manifest)
    card = folder / CARD
    if not card.is_file():
        write_text(card, kind.card(folder))
        log.info("Wrote %s. Complete it before you publish.", card)
    if licence is not None:
        write_text(card, with_licence(card.read_text(encoding="utf-8"), licence))
    names = sorted(file for file in manifest.files if kind.files.fullmatch(file))
    require_files(folder, names)
    results = Results()
    if grader is not None and manifest.kind == CHECKPOINT.name:
        results = results_of(folder, grader, name)
    return Bundle(folder, kind.repo_type, (card, *(folder / file for file in names)), results)
