"""A model is loaded completely or refused, wherever its weights are used."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lark.errors import LarkError
from lark.models.load import load_model
from lark.models.students import DEMO
from lark.models.weights import INDEX, check_complete
from tests.conftest import composed

UP = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO, tmp_path / "student"))


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace tensors of the checkpoint; None removes one."""
    weights = {**load_file(folder / "model.safetensors"), **tensors}
    save_file({name: t for name, t in weights.items() if t is not None}, folder / "model.safetensors", {"format": "pt"})


def split(folder: Path, second: dict[str, torch.Tensor], where: str = "b.safetensors") -> None:
    """A checkpoint in two files with an index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file(second, folder / "b.safetensors", {"format": "pt"})
    names = {**dict.fromkeys(weights, "a.safetensors"), **dict.fromkeys(second, where)}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))


def damage(folder: Path, how: str) -> None:
    match how:
        case "missing":
            change(folder, **{UP: None})
        case "unexpected":
            change(folder, **{"model.layers.9.mlp.up_proj.weight": torch.zeros(2, 2)})
        case "shape":
            change(folder, **{UP: torch.zeros(3, 3)})
        case "twice":
            split(folder, {UP: load_file(folder / "model.safetensors")[UP]})
        case "outside":
            split(folder, {"x": torch.zeros(1)}, where="../b.safetensors")
        case "index":
            (folder / INDEX).write_text('{"weight_map": [1]}')
        case "pickle":
            torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
            (folder / "model.safetensors").unlink()
        case "truncated":
            data = (folder / "model.safetensors").read_bytes()
            (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


DAMAGE = {
    "missing": f"lacks the tensor {UP}", "unexpected": r"has unexpected the tensor model\.layers\.9",
    "shape": f"has the wrong shape for the tensor {UP}", "twice": f"the tensor {UP} is in a.safetensors and in b.safetensors",
    "outside": r"names '\.\./b\.safetensors', which is not a file in the folder", "index": "has no `weight_map`",
    "pickle": r"pytorch_model\.bin is a pickle, which can execute code", "truncated": "cannot be read",
}  # fmt: skip


@pytest.mark.parametrize("how", DAMAGE)
def test_an_incomplete_or_damaged_checkpoint_is_refused(how: str, folder: Path) -> None:
    damage(folder, how)
    student = composed().student
    with pytest.raises(LarkError, match=DAMAGE[how]):
        load_model(str(folder), student, "cpu")
    with pytest.raises(LarkError, match=DAMAGE[how]):
        check_complete(str(folder), None, "student.path=x")


def test_a_complete_checkpoint_in_several_files_is_loaded(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    second = {UP: weights.pop(UP)}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    split(folder, second)
    check_complete(str(folder), None, "student.path=x")
    loaded = load_model(str(folder), composed().student, "cpu").state_dict()
    assert torch.equal(loaded[UP], second[UP])
