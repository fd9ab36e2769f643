"""The timed methods compute what they should, and the sample is representative."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lark.analysis import timing as cost
from lark.config import Pool, Scoring
from lark.models.chat import Encoded
from lark.pool import trajectories as pools
from lark.pool.read import Trajectory
from lark.scoring.forward import LoadedStudent
from lark.work.machine import Machine
from lark.work.operation import Job
from tests.conftest import composed


def test_every_way_of_scoring_gives_the_same_numbers() -> None:
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=211,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
    )
    student = LoadedStudent.of(LlamaForCausalLM(shape).eval())
    trajectory = Encoded(torch.randint(0, 211, (30,)).tolist(), 9, truncated=False)
    job = Job("cost", None, {}, {}, "", _Config(), None)  # type: ignore[arg-type]
    ours = cost.statistics(student, trajectory, job)
    loss = ours["nll"] / trajectory.n_response
    assert -cost.grape(student, trajectory, job) == pytest.approx(loss, rel=1e-5)
    assert cost.lark(student, trajectory, job) == pytest.approx((loss, ours["brier"]), rel=1e-5)
    assert cost.rsr(student, trajectory, job) == pytest.approx((loss, ours["rank_sum"]), rel=1e-5)
    assert cost.local_naturalness(student, trajectory, job) == pytest.approx([-loss] * 5, rel=1e-5)


class _Config:
    scoring = Scoring()


def test_the_sample_is_spread_over_the_lengths() -> None:
    lengths = pd.DataFrame(
        {"question_id": "q", "candidate_id": map(str, range(1001)), "n_tokens": range(1001)}
    )
    chosen = cost.sample(lengths, 10)
    assert len(chosen) == 10
    assert chosen["n_tokens"].mean() == pytest.approx(500, abs=5)
    assert (chosen["n_tokens"] > 0).all()
    assert len(cost.sample(lengths.head(4), 10)) == 3  # the one without a token is not timed


def test_a_trajectory_without_a_system_prompt_is_timed_without_one(tmp_path: Path) -> None:
    rows = [
        Trajectory("q", str(number), "t", 0, None, "Why?", "So.", "7", correct=None) for number in range(3)
    ]
    pools.write(iter(rows), tmp_path / pools.FILE, Pool(name="p", format="rows", path="none"))
    chosen = pd.DataFrame({"question_id": ["q", "q"], "candidate_id": ["2", "0"]})
    found = cost.read(tmp_path / pools.FILE, chosen)
    assert [(row["candidate_id"], row["system"]) for row in found] == [("0", None), ("2", None)]


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ([], None),
        (["engine=vllm"], "engine=vllm would need the memory"),
        (
            ["student=smollm2", "engine=hf"],
            "the weights of method.judge.path=Qwen/Qwen3-32B take 61 GiB, and this device has 24",
        ),
        (["method.judge.path=owner/unknown", "method.judge.dtype=float32"], None),
    ],
)
def test_a_judge_that_cannot_be_loaded_next_to_the_student_is_left_out(
    typed: list[str], why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With engine=hf a run once downloaded the paper's judge of 61 GiB, whatever the memory."""
    monkeypatch.setattr(cost, "memory_gib", lambda device: 24.0)
    job = Job("cost", Path(), {}, {}, "", composed("analysis.name=cost", *typed), Machine("cpu", 1, 1, 1))
    found = cost.judge_left_out(job)
    assert found is None if why is None else why in str(found)
