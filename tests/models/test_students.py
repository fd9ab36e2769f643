"""A fingerprint covers every file that can change a student's tokens or predictions."""

import os
import shutil
from pathlib import Path

import pytest

from lark.errors import LarkError
from lark.models.students import DEMO, tokenizer_identity, weights_identity
from lark.store.store import Checksums
from tests.conftest import composed

TOKENIZER = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.4.0.0.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "qwen.tiktoken",
    "vocab.bpe",
    "encoder.json",
]
WEIGHTS = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO, tmp_path / "student"))


def identities(folder: Path) -> tuple[dict[str, object], dict[str, object]]:
    student, checksums = composed("student=own", f"student.path={folder}").student, Checksums(folder.parent)
    return tokenizer_identity(student, checksums), weights_identity(student, checksums)


@pytest.mark.parametrize("name", TOKENIZER)
def test_a_tokenizers_file_changes_all_fingerprints(name: str, folder: Path) -> None:
    seen = [identities(folder)]
    for content in ("one", "other"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
        seen.append(identities(folder))
    assert all(len({str(each[part]) for each in seen}) == 3 for part in (0, 1))


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_file_of_the_weights_changes_their_fingerprint_only(name: str, folder: Path) -> None:
    before = identities(folder)
    (folder / name).write_text("other")
    after = identities(folder)
    assert before[0] == after[0] and before[1] != after[1]


@pytest.mark.parametrize(
    "name", ["generation_config.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"]
)
@pytest.mark.parametrize("kind", ["dangling", "loop", "folder", "pipe"])
def test_a_file_that_is_not_there_is_not_just_missing(kind: str, name: str, folder: Path) -> None:
    """Transformers would go on without the file: with fewer stop tokens, or another template."""
    (folder / name).unlink()
    if kind == "folder":
        (folder / name).mkdir()
    elif kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to(name if kind == "loop" else "../blobs/0123")
    with pytest.raises(
        LarkError, match=f"{name} is not a file, or it is a link to a file that does not exist"
    ):
        identities(folder)


def test_links_to_files_are_followed(folder: Path) -> None:
    """A folder of the hub's cache consists of links."""
    before = identities(folder)
    for path in sorted(folder.iterdir()):
        path.rename(folder.parent / path.name)
        path.symlink_to(folder.parent / path.name)
    assert identities(folder) == before


def test_other_files_change_nothing(folder: Path) -> None:
    before = identities(folder)
    for name in ("README.md", "LICENSE.txt", ".gitattributes", "modeling_custom.py"):
        (folder / name).write_text("other")
    assert identities(folder) == before
