"""The functions that notebooks import give what runs give."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import trl
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from lark import api
from lark.errors import LarkError
from lark.models.shapes import DEMO
from lark.pipeline import pipeline as pipelines
from lark.pipeline.pipeline import Pipeline
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.scoring.methods import METHODS
from lark.scoring.sources import ENTROPIES, SUMMARY
from lark.training.loss import weighted_loss
from lark.training.trl import WeightedSFTTrainer
from tests.conftest import ROOT, composed, work_here

RUN = ("pool.questions=4", "stages=[select]", "tracking=none", "hardware.warm=false")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with selections of the demo's student, made by runs."""
    folder = tmp_path_factory.mktemp("outputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "run_worker", work_here)
        for method in ("lark", "rule_quality", "lark_top50", "entropy"):
            Pipeline(composed(*RUN, f"method={method}", f"outputs={folder}"), folder / "run").run()
    return folder


def artifact(outputs: Path, kind: str, name: str = "*") -> Path:
    (folder,) = (outputs / kind).glob(name)
    return folder


@pytest.fixture(scope="module")
def rows(outputs: Path) -> list[dict[str, object]]:
    """The run's pool as rows in memory."""
    columns = [*KEY, "teacher", "rollout", "question", "response", "answer"]
    return pools.frame(artifact(outputs, "pool") / pools.FILE, columns).to_dict("records")


@pytest.fixture(scope="module")
def student() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return AutoModelForCausalLM.from_pretrained(str(DEMO)), AutoTokenizer.from_pretrained(str(DEMO))


@pytest.fixture(scope="module")
def table(
    rows: list[dict[str, object]], student: tuple[PreTrainedModel, PreTrainedTokenizerBase]
) -> pd.DataFrame:
    return api.score(rows, *student, progress=False)


def test_a_pool_file_and_a_path_give_the_scores_of_a_run(
    rows: list[dict[str, object]], outputs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "pool.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    table = api.score(file, str(DEMO), dtype="float32", progress=False)
    stored = pd.read_parquet(artifact(outputs, "scores") / "scores.parquet")
    pd.testing.assert_frame_equal(table[stored.columns], stored, rtol=1e-6)


def test_a_loaded_student_gives_the_scores_of_a_run(table: pd.DataFrame, outputs: Path) -> None:
    for kind, columns in (
        ("scores", SUMMARY),
        ("entropy", ENTROPIES),
        ("top50", ("top50_residual",)),
        ("text", ("words", "exploration")),
    ):
        stored = pd.read_parquet(artifact(outputs, kind) / f"{kind}.parquet")
        assert table[KEY].equals(stored[KEY])
        for column in columns:
            np.testing.assert_allclose(table[column], stored[column], rtol=2e-5, atol=1e-6, err_msg=column)


def test_every_method_that_the_pass_allows_has_its_scores(table: pd.DataFrame) -> None:
    others = {"llm_judge", "local_naturalness", "ifd", "lark_gram", "lark_exact", "gnorm", "less", "external"}
    assert set(METHODS) - set(table.columns) == others
    for name in METHODS.keys() - others:
        np.testing.assert_array_equal(table[name], METHODS[name].score(table), err_msg=name)


@pytest.mark.parametrize("method", ["lark", "rule_quality"])
def test_a_selection_and_its_training_set_are_those_of_a_run(
    method: str, table: pd.DataFrame, outputs: Path, tmp_path: Path
) -> None:
    folder = artifact(outputs, "selection", f"*-{method}-*")
    stored = api.load(folder)
    selection = api.select(table, method, 3, "chi2" if method == "lark" else "uniform")
    assert selection[KEY].equals(stored[KEY]) and selection["teacher"].equals(stored["teacher"])
    for column in ("rank", "score", "weight", "training_weight", "threshold", "tau"):
        np.testing.assert_allclose(selection[column], stored[column], rtol=1e-3, err_msg=column)
    api.write_training_set(selection, tmp_path / "train.jsonl")
    ours, theirs = (
        [json.loads(line) for line in (path / "train.jsonl").open()] for path in (tmp_path, folder)
    )
    by_key = {(row["question_id"], row["candidate_id"]): row for row in theirs}
    assert len(ours) == len(theirs) == 12
    for row in ours:
        expected = by_key[row["question_id"], row["candidate_id"]]
        assert row["messages"] == expected["messages"] and list(row) == list(expected)
        assert row["weight"] == pytest.approx(expected["weight"], rel=1e-3)


def test_the_students_model_is_left_as_it_was(
    rows: list[dict[str, object]], student: tuple[PreTrainedModel, PreTrainedTokenizerBase]
) -> None:
    model, tokenizer = student
    layers = {name: type(module) for name, module in model.named_modules()}
    settings = model.config.to_dict()
    ids = tokenizer("2 + 3 = 5", return_tensors="pt")
    model.train()
    before = model(**ids).logits
    attention = model.config._attn_implementation
    api.score(rows[:3], model, tokenizer, progress=False)
    assert model.training and model.config._attn_implementation == attention
    assert model.config.to_dict() == settings
    assert {name: type(module) for name, module in model.named_modules()} == layers
    assert torch.equal(model(**ids).logits, before)


def test_conversations_may_be_lists_of_messages(
    student: tuple[PreTrainedModel, PreTrainedTokenizerBase],
) -> None:
    question = {"role": "user", "content": "What is 2+3?"}
    conversations = [[question, {"role": "assistant", "content": text}] for text in ("It is 5.", "5", "Six.")]
    table = api.score(conversations, *student, max_length=64, instruction=None, progress=False)
    assert table["question_id"].nunique() == 1 and table["candidate_id"].tolist() == ["0", "1", "2"]
    assert list(table["messages"]) == conversations
    assert len(api.select(table, budget=2)) == 2


def test_a_column_of_ones_own_is_selected_by_its_name(table: pd.DataFrame) -> None:
    table = table.assign(mine=np.arange(len(table)))
    low, high = (api.select(table, "mine", 1, higher_is_better=higher) for higher in (False, True))
    assert (low["mine"].to_numpy() < high["mine"].to_numpy()).all()
    for problem, arguments in (
        ("neither a column", ("nothing",)),
        ("budget=0 must be", ("lark", 0)),
        ("weighting=x: choose", ("lark", 3, "x")),
    ):
        with pytest.raises(LarkError, match=problem):
            api.select(table, *arguments)  # type: ignore[arg-type]


def test_the_pages_ten_lines_run(
    rows: list[dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.S)
    assert len([line for line in lines.splitlines() if line]) <= 10
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_pool.jsonl").write_text("\n".join(map(json.dumps, rows[:33])))
    exec(lines.replace('"my/student"', repr(str(DEMO))).replace("8192", "512"), {})
    assert len((tmp_path / "train.jsonl").read_text().splitlines()) == 3


def test_chi2_weights_are_the_papers() -> None:
    """q_i ∝ g_i - g_{B+1} (Lemma 3)."""
    np.testing.assert_allclose(api.chi2_weights([0.5, 3.0, 1.0, 2.0], 2), [0, 2 / 3, 0, 1 / 3])
    np.testing.assert_allclose(api.chi2_weights([1.0, 2.0], 5), [0.5, 0.5])


@pytest.mark.parametrize("grader", ["paper", "verify"])
def test_answers_are_graded_with_and_without_a_box(grader: str) -> None:
    assert api.grade(r"So it is \boxed{\frac{1}{2}}.", r"\frac12", grader)
    assert api.grade("7", "7", grader, "numeric")
    assert not api.grade(r"7, or \boxed{8}", "7", grader, "numeric")
    with pytest.raises(LarkError, match="answer_format=roman: choose one of"):
        api.grade("7", "7", grader, "roman")


def test_finished_artifacts_are_tables(outputs: Path, tmp_path: Path) -> None:
    assert len(api.load(artifact(outputs, "pool"))) == 4 * 33
    assert {"nll", "brier"} <= set(api.load(artifact(outputs, "scores")).columns)
    assert "score" in api.load(artifact(outputs, "selection", "*-lark-*"))
    with pytest.raises(LarkError):
        api.load(tmp_path)


def test_the_objective_and_the_trainer_are_ours() -> None:
    assert api.weighted_loss is weighted_loss
    assert api.WeightedSFTTrainer is WeightedSFTTrainer and issubclass(WeightedSFTTrainer, trl.SFTTrainer)


def test_a_model_comes_with_its_tokenizer(student: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> None:
    model, tokenizer = student
    rows = [{"question": "2+3?", "response": "5"}]
    with pytest.raises(LarkError, match="give the tokenizer"):
        api.score(rows, model)
    with pytest.raises(LarkError, match="Leave it out"):
        api.score(rows, str(DEMO), tokenizer)
    with pytest.raises(LarkError, match="no conversation to score"):
        api.score([], model, tokenizer)
