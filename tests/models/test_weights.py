"""A model is loaded completely or refused, wherever its weights are used."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lark.errors import LarkError
from lark.generation.engine import ENGINES, start
from lark.models.checks import WEIGHT_INDEX
from lark.models.load import load_chat, load_model
from lark.models.students import DEMO
from lark.models.weights import check_complete
from lark.pool import trajectories as pools
from lark.pool.read import read as read_pool
from lark.scoring.judge_worker import judge_pool
from tests.conftest import composed, job_of

UP = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO, tmp_path / "student"))


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace tensors of the checkpoint; None removes one."""
    weights = {**load_file(folder / "model.safetensors"), **tensors}
    save_file(
        {name: t for name, t in weights.items() if t is not None},
        folder / "model.safetensors",
        {"format": "pt"},
    )


def split(folder: Path, second: dict[str, torch.Tensor], where: str = "b.safetensors") -> None:
    """A checkpoint in two files with an index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file(second, folder / "b.safetensors", {"format": "pt"})
    names = {**dict.fromkeys(weights, "a.safetensors"), **dict.fromkeys(second, where)}
    (folder / WEIGHT_INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))


def damage(folder: Path, how: str) -> None:  # noqa: PLR0912
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
            (folder / WEIGHT_INDEX).write_text('{"weight_map": [1]}')
        case "pickle":
            torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
            (folder / "model.safetensors").unlink()
        case "adapter":
            (folder / "adapter_config.json").write_text(
                '{"base_model_name_or_path": "another/model", "peft_type": "LORA"}'
            )
        case "two files":
            save_file({"x": torch.zeros(1)}, folder / "extra.safetensors", {"format": "pt"})
        case "beside an index":  # transformers would load this file, vLLM those of the index
            split(folder, {"x": torch.zeros(1)})
            shutil.copy(folder / "a.safetensors", folder / "model.safetensors")
        case "elsewhere":
            split(folder, {"x": torch.zeros(1)})
            index = json.loads((folder / WEIGHT_INDEX).read_text())
            (folder / WEIGHT_INDEX).write_text(
                json.dumps({"weight_map": {**index["weight_map"], UP: "b.safetensors"}})
            )
        case "config":
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**config, "hidden_size": "large"}))
        case "integers":
            change(folder, **{UP: load_file(folder / "model.safetensors")[UP].to(torch.int64)})
        case "activation":
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**config, "hidden_act": "nope"}))
        case "truncated":
            data = (folder / "model.safetensors").read_bytes()
            (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


DAMAGE = {
    "missing": f"lacks the tensor {UP}",
    "unexpected": r"has, without a place in the model, the tensor model\.layers\.9",
    "beside an index": (
        r"model\.safetensors is in the folder, but not named by model\.safetensors\.index\.json"
    ),
    "shape": f"has the wrong shape for the tensor {UP}",
    "twice": f"names b.safetensors for the tensor {UP}, but it is in a.safetensors",
    "outside": r"should be in '\.\./b\.safetensors', which is not a file in the folder",
    "index": "has no `weight_map`",
    "adapter": "is an adapter for another model",
    "two files": r"extra\.safetensors is in the folder, but not named by",
    "elsewhere": f"names b.safetensors for the tensor {UP}, but it is in a.safetensors",
    "config": "the model cannot be loaded",
    "pickle": r"pytorch_model\.bin is a pickle, which can execute code",
    "truncated": "cannot be read",
    "integers": f"the tensor {UP} is stored as I64, but the model's weights are floating-point numbers",
    "activation": "transformers does not know 'nope', which config.json names",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_an_incomplete_or_damaged_checkpoint_is_refused(how: str, folder: Path) -> None:
    damage(folder, how)
    student = composed().student
    with pytest.raises(LarkError, match=DAMAGE[how]):
        load_model(str(folder), student, "cpu")
    with pytest.raises(LarkError, match=DAMAGE[how]):
        check_complete(str(folder), None, "student.path=x")


@pytest.mark.parametrize("how", ["missing", "pickle", "outside"])
@pytest.mark.parametrize("name", ENGINES)
def test_no_engine_starts_with_such_a_checkpoint(
    name: str, how: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for a student nor for a judge. An engine of its own would start (vLLM) or fail to be imported
    (SGLang).
    """
    damage(folder, how)
    config = composed(f"engine={name}")
    tokenizer = load_chat(str(folder), config.student).tokenizer
    monkeypatch.setitem(sys.modules, "vllm", None)
    for model in (config.student, config.method.judge.model):
        with pytest.raises(LarkError, match=rf"^{model.setting}\.path=.*{DAMAGE[how]}"):
            start(config.engine, model, str(folder), tokenizer, "cpu")


@pytest.mark.parametrize("how", ["missing", "shape"])
def test_a_judge_with_such_a_checkpoint_is_refused_before_it_is_asked(
    how: str, folder: Path, tmp_path: Path
) -> None:
    damage(folder, how)
    config = composed("method=llm_judge", f"method.judge.path={folder}", "pool.questions=1", "engine=vllm")
    job = job_of(config, tmp_path / "outputs" / "judge" / "x", weights=str(folder), inputs={"pool": tmp_path})
    job.folder.mkdir(parents=True)
    (job.folder / "config.yaml").write_text("version: 3\ndepends: {}\n")
    pools.write(read_pool(config.pool), tmp_path / pools.FILE, config.pool)
    with pytest.raises(LarkError, match=rf"^method\.judge\.path=.*{DAMAGE[how]}"):
        judge_pool(job)
    assert not list((tmp_path / "outputs" / ".cache").glob("*/*.jsonl"))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_numbers_are_refused(value: float, folder: Path) -> None:
    weight = load_file(folder / "model.safetensors")[UP]
    weight[1, 2] = value
    change(folder, **{UP: weight})
    with pytest.raises(LarkError, match=rf"the tensor {UP} has values that are not finite"):
        load_model(str(folder), composed().student, "cpu")


def test_a_student_whose_embeddings_are_all_zero_is_refused(folder: Path) -> None:
    name = "model.embed_tokens.weight"
    change(folder, **{name: torch.zeros_like(load_file(folder / "model.safetensors")[name])})
    with pytest.raises(LarkError, match="all of its embeddings are zero"):
        load_model(str(folder), composed().student, "cpu")


@pytest.mark.parametrize(
    "config", [{"model_type": "llama"}, {"vocab_size": 10**9}, {"intermediate_size": 10**8}]
)
def test_a_config_of_a_much_larger_model_is_refused_before_memory_is_reserved(
    config: dict[str, object], folder: Path
) -> None:
    before = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config if "model_type" in config else {**before, **config})
    )
    with pytest.raises(
        LarkError, match=r"describes a model with [0-9,]+ parameters, but the checkpoint has [0-9,]+\."
    ):
        load_model(str(folder), composed().student, "cpu")


def test_what_a_config_says_about_outputs_changes_nothing(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    ids = torch.tensor([[5, 6, 7]])
    expected = load_model(str(folder), composed().student, "cpu")(ids).logits
    (folder / "config.json").write_text(
        json.dumps({**config, "return_dict": False, "output_hidden_states": True})
    )
    found = load_model(str(folder), composed().student, "cpu")(ids)
    assert torch.equal(found.logits, expected)
    assert found.hidden_states is None


def test_a_head_of_its_own_in_a_checkpoint_with_tied_embeddings_is_refused(folder: Path) -> None:
    embeddings = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    change(folder, **{"lm_head.weight": embeddings.clone()})
    load_model(str(folder), composed().student, "cpu")
    change(folder, **{"lm_head.weight": embeddings * 2})
    with pytest.raises(LarkError, match=r"`tie_word_embeddings` .* the checkpoint has another lm_head"):
        load_model(str(folder), composed().student, "cpu")
    with pytest.raises(LarkError, match="`tie_word_embeddings` in"):
        check_complete(str(folder), None, "student")


def test_quantised_students_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    asked = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": asked}))
    with pytest.raises(LarkError, match="has a quantization_config"):
        load_model(str(folder), composed().student, "cpu")


def test_a_complete_checkpoint_in_several_files_is_loaded(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    second = {UP: weights.pop(UP)}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    split(folder, second)
    check_complete(str(folder), None, "student.path=x")
    loaded = load_model(str(folder), composed().student, "cpu").state_dict()
    assert torch.equal(loaded[UP], second[UP])
