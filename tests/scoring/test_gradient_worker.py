"""The gradient passes as they run: against autograd on the demo's student, in any order of the pool,
resumed, and LESS.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional

from lark.config import Config
from lark.demo.pool import trajectories
from lark.errors import LarkError
from lark.models.load import load_chat, load_model
from lark.models.shapes import DEMO
from lark.pipeline import pipeline
from lark.pipeline.pipeline import Pipeline
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.pool.trajectory import Trajectory, verdict
from lark.scoring import gradient_worker, merging
from lark.scoring.influence import correct_or_all, directions, sample
from lark.scoring.learnability import exact_score
from lark.scoring.methods import METHODS
from lark.scoring.shards import Shards
from lark.scoring.token_counts import lengths
from tests.conftest import composed, job_of, work_here

CANDIDATES = 5
WHOLE = (
    "sketch.gram=null",
    "sketch.exact=null",
    "sketch.words=null",
    "sketch.states=null",
    "sketch.features=400000",
)


def rows() -> list[Trajectory]:
    """Three questions, some candidates of each."""
    found = [Trajectory(**row) for row in trajectories(3, 42)]  # type: ignore[arg-type]
    return [row for at, row in enumerate(found) if at % 33 % 7 == 0]


def prepare(folder: Path, config: Config, order: list[Trajectory]) -> dict[str, Path]:
    folder.mkdir()
    pools.write(iter(order), folder / pools.FILE, config.pool)
    job = job_of(config, folder, inputs={"pool": folder})
    merging.collect_lengths(job, lengths(job))
    return {"pool": folder, "lengths": folder}


def run(
    task: str, config: Config, inputs: dict[str, Path], folder: Path, *outputs: str
) -> dict[str, pd.DataFrame]:
    folders = {output: folder / output for output in outputs}
    for path in folders.values():
        path.mkdir(parents=True, exist_ok=True)
    job = job_of(config, folder, inputs=inputs, outputs=folders)
    merging.collect(job, getattr(gradient_worker, task)(job))
    return {output: pd.read_parquet(path / f"{output}.parquet") for output, path in folders.items()}


@pytest.fixture(scope="module")
def config() -> Config:
    return composed("method=less", *WHOLE)


@pytest.fixture(scope="module")
def inputs(config: Config, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return prepare(tmp_path_factory.mktemp("pool") / "inputs", config, rows())


@pytest.fixture(scope="module")
def tables(
    config: Config, inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, pd.DataFrame]:
    folder = tmp_path_factory.mktemp("scored")
    return {
        **run("gram", config, inputs, folder, "gram"),
        **run("exact", config, inputs, folder, "exact", "features"),
    }


@pytest.fixture(scope="module")
def gradients(config: Config) -> torch.Tensor:
    """[R, P] Whole gradients by autograd, of the output projections and of the head's use for logits."""
    model = load_model(str(DEMO), config.student, "cpu")
    weights = [
        part.weight for layer in model.model.layers for part in (layer.self_attn.o_proj, layer.mlp.down_proj)
    ]
    head = model.lm_head.weight.detach().clone().requires_grad_()
    for weight in weights:
        weight.requires_grad_(True)
    found = []
    for e in load_chat(str(DEMO), config.student).encode_many(
        [asdict(row) for row in rows()], config.student.max_length
    ):
        hidden = model.model(input_ids=torch.tensor([e.ids])).last_hidden_state[0, e.prompt_length - 1 : -1]
        loss = functional.cross_entropy(hidden @ head.T, torch.tensor(e.ids[e.prompt_length :]))
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*weights, head])]).double())
    return torch.stack(found)


def test_norms_and_scores_are_those_of_autograd(
    tables: dict[str, pd.DataFrame], gradients: torch.Tensor
) -> None:
    table = tables["exact"]
    assert table[KEY].to_numpy().tolist() == [[row.question_id, row.candidate_id] for row in rows()]
    table = table.assign(n=table["n_tokens"])
    np.testing.assert_allclose(METHODS["gnorm"].score(table), gradients.norm(dim=1).numpy(), rtol=1e-4)
    for question in table["question_id"].unique():
        own = (table["question_id"] == question).to_numpy()
        part, losses = (
            gradients[torch.tensor(own.tolist())],
            (table["nll"] / table["n_tokens"])[own].to_numpy(),
        )
        expected = exact_score((part @ part.T).numpy(), losses)
        np.testing.assert_allclose(
            METHODS["lark_exact"].score(table)[own], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max()
        )
    assert tables["gram"]["nll"].to_numpy() == pytest.approx(table["nll"].to_numpy(), rel=1e-6)
    assert METHODS["lark_gram"].score(tables["gram"]).std() > 0


@pytest.mark.parametrize("own_file", [False, True])
def test_less_is_the_cosine_with_the_validation_sets_mean_gradient(
    own_file: bool,
    config: Config,
    inputs: dict[str, Path],
    tables: dict[str, pd.DataFrame],
    gradients: torch.Tensor,
    tmp_path: Path,
) -> None:
    tables["features"].to_parquet(tmp_path / "features.parquet")
    if own_file:
        path = tmp_path / "validation.jsonl"
        lines = [
            {"question_id": r.question_id, "question": r.question, "response": r.response}
            for r in rows()[:CANDIDATES]
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        asked = replace(config.method.validation, path=str(path))
        config = replace(config, method=replace(config.method, validation=asked))
    gradient_worker.influence(job_of(config, tmp_path, inputs={**inputs, "features": tmp_path}))
    found = pd.read_parquet(tmp_path / "influence.parquet")
    ids = np.array([row.question_id for row in rows()])
    right = np.array([bool(verdict(row, config.pool)) for row in rows()])
    for at, question in enumerate(ids):
        used = np.arange(len(ids)) < CANDIDATES if own_file else right & (ids != question)
        mean = gradients[used].mean(0)
        expected = float(gradients[at] @ mean / gradients[at].norm() / mean.norm())
        assert found["influence"][at] == pytest.approx(
            expected, abs=2e-3
        )  # vectors are stored in half precision


def test_sketched_scores_are_the_same_in_any_order_of_the_pool_and_after_a_kill(tmp_path: Path) -> None:
    """Candidates of a question may be anywhere in the pool; shards consist of whole questions."""
    config = composed(
        "method=less", "sketch.exact=16", "scoring.shard_tokens=100", "hardware.train_tokens=300"
    )
    by_candidate = sorted(rows(), key=lambda row: row.candidate_id)
    grouped, mixed = (
        prepare(tmp_path / name, config, order) for name, order in (("a", rows()), ("b", by_candidate))
    )
    expected = run("exact", config, grouped, tmp_path / "one", "exact", "features")
    cut = Shards.by_question(mixed["lengths"], 100)
    assert len(cut.rows) == 3
    assert [len(rows) for rows in cut.rows] == [CANDIDATES] * 3
    job = job_of(
        config,
        tmp_path / "two",
        inputs=mixed,
        outputs={"exact": tmp_path / "two", "features": tmp_path / "two"},
    )
    (tmp_path / "two").mkdir()
    job = replace(job, outputs={"exact": tmp_path / "two"})
    for rank in (
        0,
        1,
    ):  # the second of two processes finds what it needs; a shard that was lost is made again
        counts = gradient_worker.exact(replace(job, rank=rank, world=2))
    parts = sorted((tmp_path / "two").glob("questions-*.parquet"))
    assert len(parts) == 3
    parts[1].unlink()
    gradient_worker.exact(job)
    merging.collect(job, counts)
    found = pd.read_parquet(tmp_path / "two" / "exact.parquet").sort_values(KEY, ignore_index=True)
    pd.testing.assert_frame_equal(
        found, expected["exact"].sort_values(KEY, ignore_index=True), rtol=1e-5, atol=1e-6
    )
    vectors = directions(expected["features"]["feature"])
    assert np.linalg.norm(vectors.astype(float), axis=1) == pytest.approx(np.ones(len(vectors)), abs=1e-3)


def test_a_candidate_without_a_response_has_no_score_and_changes_no_other(tmp_path: Path) -> None:
    config = composed("method=lark_gram", "student.max_length=40")
    table = run("gram", config, prepare(tmp_path / "pool", config, rows()), tmp_path / "out", "gram")["gram"]
    empty = table["n_tokens"] == 0
    assert 0 < empty.sum() < len(table)
    assert table["g_gram"].isna().tolist() == empty.tolist()


def test_validation_uses_correct_trajectories_of_a_sample_that_depends_on_no_order() -> None:
    answers = {"a": "1", "b": None, "c": "9"}
    made = [
        Trajectory(question, f"c{i}", "t", 0, None, "?", f"\\boxed{{{i}}}", answer, None)
        for question, answer in answers.items()
        for i in range(3)
    ]
    kept = [(t.question_id, t.candidate_id) for t in correct_or_all(made, composed().pool)]
    assert kept == [("a", "c1"), ("b", "c0"), ("b", "c1"), ("b", "c2")]
    names = [f"q{i}" for i in range(50)]
    assert sample(names, 7, 1) == sample(names[::-1], 7, 1) != sample(names, 7, 2)


def test_a_validation_set_that_cannot_be_used_is_an_error_with_a_remedy(
    tables: dict[str, pd.DataFrame],
    config: Config,
    inputs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = tables["features"][tables["features"]["question_id"] == rows()[0].question_id]
    one.to_parquet(tmp_path / "features.parquet")
    with pytest.raises(
        LarkError, match=r"fewer than two questions with a usable trajectory.*method\.validation\.path"
    ):
        gradient_worker.influence(job_of(config, tmp_path, inputs={**inputs, "features": tmp_path}))
    monkeypatch.setattr(pipeline, "run_worker", work_here)
    with pytest.raises(LarkError, match=r"method\.validation\.path=nowhere\.jsonl: there is no such file"):
        Pipeline(
            composed(
                "method=less", "method.validation.path=nowhere.jsonl", f"outputs={tmp_path}", "tracking=none"
            ),
            tmp_path,
        )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"the file is empty"),
        (
            '{"frage": "q", "response": "r"}',
            r"v.jsonl, line 1: there is no `question`; .*Rename the file's columns",
        ),
        (
            '{"question": "q", "response": ""}',
            r"v.jsonl, line 1: the response is empty. Remove the trajectory from the file",
        ),
        ('{"question": "q", "respon', r"v.jsonl, line 1"),
        (
            '{"question": "q", "response": "\\\\boxed{1}", "answer": "2"}',
            r"all trajectories of 1 questions are wrong",
        ),
    ],
)
def test_a_validation_file_is_checked_before_anything_runs(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "v.jsonl").write_text(text)
    asked = composed(
        "method=less",
        f"method.validation.path={tmp_path}/v.jsonl",
        f"outputs={tmp_path}/out",
        "tracking=none",
    )
    with pytest.raises(LarkError, match=rf"^method\.validation\.path.*{said}") as error:
        Pipeline(asked, tmp_path).run()
    assert "Name the column with" not in str(error.value) and "pool.incomplete" not in str(error.value)
    assert not list(tmp_path.glob("out/pool/*")), "nothing ran"
