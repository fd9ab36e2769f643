"""The planner beside the paper's own figures, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from transformers import AutoTokenizer

from lark import planner
from lark import pool as pools
from lark.chat import ChatFormat
from lark.errors import LarkError
from lark.hardware import Machine
from lark.planner_pool import pool_lengths
from lark.students import DEMO
from tests.conftest import composed


def estimates(*overrides: str) -> dict[str, planner.Estimate]:
    """By task; of two evaluations the trained student's."""
    return {e.task: e for e in planner.estimate(composed(*overrides))}


def test_the_papers_main_run_costs_what_the_paper_says() -> None:
    """App. C.3 and D.1: 3-5 h for 5,000 trajectories on 8 A100, 1.32 s a sample, 15 min a benchmark; within a factor of 1.5."""
    run = estimates("student=qwen7b", "hardware=a100x8", "budget='1'")
    assert 3.0 <= run["train"].seconds / 3600 <= 5.0
    seconds_a_sample = run["score"].device_hours * 3600 / 165_000
    assert 1.32 / 1.5 <= seconds_a_sample <= 1.32 * 1.5
    assert 15 / 1.5 <= run["generate"].seconds / 60 / 4 <= 15 * 1.5
    assert all(e.fits for e in run.values())
    assert "3-5 h" in run["train"].paper


def test_the_demo_pools_assumed_lengths_are_its_own() -> None:
    config = composed("pool.questions=100")
    chat = ChatFormat(AutoTokenizer.from_pretrained(DEMO))
    encoded = chat.encode_many([vars(trajectory) for trajectory in pools.read(config.pool)], config.student.max_length)
    lengths = pool_lengths(config)
    assert lengths.trajectories == len(encoded)
    assert lengths.total.mean() == pytest.approx(np.mean([len(e.ids) for e in encoded]), rel=0.03)
    assert lengths.response.mean() == pytest.approx(np.mean([e.n_response for e in encoded]), rel=0.03)


def test_graphs_save_time_on_gpus_and_are_planned_with() -> None:
    run = ["student=qwen7b", "hardware=a100x8"]
    planned, eager = estimates(*run)["generate"], estimates(*run, "engine.eager=true")["generate"]
    assert planned.seconds == estimates(*run, "engine.eager=false")["generate"].seconds < eager.seconds


def test_a_larger_budget_trains_longer_and_scores_once() -> None:
    one, three = estimates("student=qwen7b", "hardware=a100x8", "budget='1'"), estimates("student=qwen7b", "hardware=a100x8")
    assert three["train"].flops == pytest.approx(3 * one["train"].flops)
    assert three["score"].flops == one["score"].flops


def test_a_judge_of_32_billion_parameters_costs_more_than_the_students_own_scores() -> None:
    judged = estimates("student=qwen7b", "hardware=a100x8", "method=llm_judge")["judge"]
    scored = estimates("student=qwen7b", "hardware=a100x8", "method=lark")["score"]
    assert 2 < judged.seconds / scored.seconds < 8
    assert judged.fits, "on the two GPUs that conf/method/llm_judge.yaml gives it"
    small = [
        "student=qwen7b",
        "hardware=a100x8",
        "hardware.memory_gib=48",
        "method=llm_judge",
        "method.judge.tensor_parallel=1",
    ]
    single = [e for e in planner.estimate(composed(*small)) if e.task == "judge"]
    with pytest.raises(LarkError, match=r"use method\.judge\.tensor_parallel=2"):
        planner.refuse(single)
    whole = planner.estimate(composed(*small[:-1], "engine=hf"))  # which shares no model between GPUs
    with pytest.raises(LarkError, match=r"use engine=vllm method\.judge\.tensor_parallel=2"):
        planner.refuse([e for e in whole if e.task == "judge"])


@pytest.mark.parametrize(
    ("overrides", "remedy"),
    [
        (["hardware=a100x1"], "hardware.zero=3 with 8 GPUs"),
        (["hardware=a100x8", "hardware.zero=0"], "hardware.zero=2"),
        (["hardware=a100x8", "hardware.memory_gib=48"], "hardware.zero=3"),
        (["hardware=a100x8", "hardware.zero=3", "hardware.memory_gib=30"], "student.max_length="),
        (["hardware=a100x1", "hardware.memory_gib=24"], "LoRA"),
    ],
)
def test_what_cannot_fit_is_refused_with_the_setting_that_would_make_it_fit(overrides: list[str], remedy: str) -> None:
    planned = planner.estimate(composed("student=qwen7b", *overrides))
    with pytest.raises(LarkError, match=r"needs about \d+ GiB on a device that has") as error:
        planner.refuse(planned)
    assert remedy in str(error.value)


def test_the_remedy_really_fits() -> None:
    planner.refuse(planner.estimate(composed("student=qwen7b", "hardware=a100x8", "hardware.memory_gib=48", "hardware.zero=3")))


def test_a_run_that_is_not_dry_is_refused_only_for_what_is_certain() -> None:
    machine = Machine("cuda", 8, 1, 1)
    planner.check_memory(composed("student=qwen7b", "hardware=a100x8", "hardware.memory_gib=40"), machine)
    with pytest.raises(LarkError, match="train"):
        planner.check_memory(
            composed("student=qwen7b", "hardware=a100x8", "hardware.memory_gib=40", "hardware.zero=0"), machine
        )


def test_lengths_are_measured_read_or_assumed_and_it_says_which(tmp_path: Path) -> None:
    config = composed("pool=files", f"pool.path={tmp_path / 'pool.jsonl'}", "student.max_length=400")
    assert pool_lengths(config).source.startswith("assumed")
    lines = [json.dumps({"question": "Q" * 200, "response": "R" * 1000, "question_id": i // 3}) for i in range(12)]
    (tmp_path / "pool.jsonl").write_text("\n".join(lines))
    read = pool_lengths(config)
    assert read.source.startswith("read")
    assert (read.questions, read.candidates) == (4, 3)
    assert 300 < read.total[0] <= 400
    table = pd.DataFrame({"question_id": ["a", "a", "b", "b"], "n_prompt": [10, 10, 12, 12], "n_tokens": [5, 6, 7, 8]})
    table.to_parquet(tmp_path / "lengths.parquet")
    measured = pool_lengths(config, tmp_path)
    assert (measured.questions, measured.candidates, measured.tokens) == (2, 2, 70)


def test_a_student_that_is_not_here_cannot_be_planned_for() -> None:
    with pytest.raises(LarkError, match=r"its config\.json is not here"):
        planner.estimate(composed("student.path=nobody/nothing"))


def test_the_table_names_every_step_and_its_sum() -> None:
    config = composed("student=llama3b", "hardware=a100x8", "method=local_naturalness")
    planned = planner.estimate(config)
    assert [e.task for e in planned] == ["lengths", "local", "train", "generate", "generate"]
    text = planner.table(planned)
    assert "all" in text
    assert "GiB a device" in text


def test_the_matrix_rate_is_that_of_a_computer() -> None:
    assert 1e-4 < planner.matrix_tflops(0.05) < 100
