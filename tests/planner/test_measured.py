"""Plans with rates that `make gpu-check` has measured (`planner.measured`)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lark.config import Config
from lark.errors import LarkError
from lark.gpu_check import measurements as records
from lark.gpu_check.check import CHECKS, Measurements
from lark.gpu_check.runner import CheckResult
from lark.models.shapes import Shape, shape_of
from lark.pipeline.plan import make_plan
from lark.planner.division import Workload
from lark.planner.estimates import estimate
from lark.planner.lengths import assumed
from lark.planner.report import report
from lark.planner.scale_report import describe
from lark.planner.throughput import PEAK_SHARE, START_SECONDS, throughput
from lark.store.store import Checksums
from tests.conftest import composed
from tests.planner.steps import steps_of

A100 = "NVIDIA A100-SXM4-80GB"
PLAN = ["student=qwen7b", "hardware=a100x8", "pool.questions=500"]


def shape(config: Config) -> Shape:
    found = shape_of(config.student)
    assert found is not None
    return found


def rate(kind: str, tokens_per_second: float, flops_per_token: float, hidden: int = 3584) -> dict[str, Any]:
    return {
        "kind": kind,
        "tokens_per_second": tokens_per_second,
        "flops_per_token": flops_per_token,
        "hidden": hidden,
        "threads": 1,
    }


def decoding(tokens_per_second: float, **changes: Any) -> dict[str, Any]:
    values = {"engine": "vllm", "together": 100.0, "step_bytes": 30e9, "layers": 28, "eager": False}
    return {"kind": "decoding", "tokens_per_second": tokens_per_second, **values, **changes}


def write(folder: Path, *rates: dict[str, Any], **changes: Any) -> str:
    """A setting with a file of 8 A100 with these rates."""
    values = {"format": "lark gpu-check 1", "device": "cuda", "name": A100, "count": 8, "core_tflops": 0.0}
    path = folder / "measured.json"
    path.write_text(json.dumps(values | {"rates": rates} | changes) + "\n", encoding="utf-8")
    return f"planner.measured='{path}'"


def seconds(*overrides: str) -> dict[str, float]:
    config = composed(*overrides)
    estimates = estimate(config, steps_of(config), assumed(500, config.student.max_length))
    return {e.step.title: e.seconds for e in estimates}


@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.3])
def test_hours_change_by_the_measured_ratio(ratio: float, tmp_path: Path) -> None:
    """A rate that is `ratio` of the assumed one takes 1/ratio of the time, without starting and loading."""
    config = composed(*PLAN)
    assumed_rate = throughput(config).rate("forward", shape(config), 1)
    faster = rate("forward", ratio * assumed_rate / 1e10, 1e10)
    before, after = seconds(*PLAN), seconds(*PLAN, write(tmp_path, faster))
    start = START_SECONDS["cuda"] + 2 * shape(config).parameters / 1e9
    assert after["score"] - start == pytest.approx((before["score"] - start) / ratio)
    assert after["train"] == before["train"]  # it was not measured
    assert after["generate"] == before["generate"]


def test_training_and_scoring_have_their_own_rates(tmp_path: Path) -> None:
    peak = 312e12
    before = seconds(*PLAN)
    half = rate("training", PEAK_SHARE["cuda", "training"] * peak / 2 / 5e10, 5e10)
    after = seconds(*PLAN, write(tmp_path, half))
    assert after["score"] == before["score"]
    assert after["train"] / before["train"] == pytest.approx(2.0, rel=0.02)


def test_a_measured_rate_does_not_depend_on_the_peak_in_the_settings(tmp_path: Path) -> None:
    """It is tokens per second; a peak that is set too high cannot make it faster."""
    setting = write(tmp_path, rate("forward", 10_000.0, 1.6e10))
    times = {seconds(*PLAN, setting, f"hardware.tflops={peak}")["score"] for peak in (312, 600)}
    assert len(times) == 1


def test_generation_takes_the_measured_time_of_a_step(tmp_path: Path) -> None:
    config = composed(*PLAN)
    vllm, other = config.engine, replace(config.engine, name="hf")
    assumed_step = throughput(config).decoding_step(vllm, 28, 30e9)
    measured = decoding(100 / (2 * assumed_step))
    hardware = throughput(composed(*PLAN, write(tmp_path, measured)))
    assert hardware.decoding_step(vllm, 28, 30e9) == pytest.approx(2 * assumed_step)
    assert hardware.decoding_step(other, 28, 30e9) == throughput(config).decoding_step(other, 28, 30e9)
    before, after = seconds(*PLAN)["generate"], seconds(*PLAN, write(tmp_path, measured))["generate"]
    assert 1.5 < after / before < 2


def test_the_plan_says_where_its_rates_come_from(tmp_path: Path) -> None:
    setting = write(tmp_path, rate("forward", 12_345.6, 1.6e10), decoding(2000.0))
    config = composed(*PLAN, setting)
    text, _ = report(config, steps_of(config), assumed(500, config.student.max_length))
    line = (
        f"measured by make gpu-check on one of 8 x {A100}: scoring 12,346 tokens/s, generation 2,000 tokens/s"
    )
    assert line in text


def test_a_plan_for_many_gpus_uses_the_rates_of_one(tmp_path: Path) -> None:
    slow = rate("forward", 100.0, 1.6e10)
    described = []
    for overrides in (PLAN, [*PLAN, write(tmp_path, slow)]):
        config = composed(*overrides)
        described.append(describe(config, steps_of(config), Workload(1000, 16), 0.0))
    assumed_plan, measured_plan = described
    assert "score: " not in assumed_plan and "rates" not in assumed_plan
    assert "bottleneck  score: " in measured_plan
    assert (
        f"rates       measured by make gpu-check on one of 8 x {A100}: scoring 100 tokens/s" in measured_plan
    )


def test_the_setting_is_part_of_no_fingerprint(tmp_path: Path) -> None:
    setting = write(tmp_path, rate("forward", 12_345.6, 1.6e10))
    keys = []
    for overrides in (PLAN, [*PLAN, setting]):
        plan = make_plan(composed(*overrides), Checksums(tmp_path), elsewhere=True)
        keys.append([step.key for step in plan])
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"count": 4},
            r"has the rates of 4 x NVIDIA A100-SXM4-80GB \(cuda\), and this plan is for 8 x NVIDIA",
        ),
        ({"device": "cpu"}, r"of 8 x NVIDIA A100-SXM4-80GB \(cpu\), and this plan is for 8 x .* \(cuda\)"),
        ({"format": "other"}, "not the line of JSON that `make gpu-check` writes .*`format` must be lark"),
        ({"rates": {}}, "`rates` must be a list of objects"),
        ({"rates": [rate("forward", 0.0, 1.0)]}, "`tokens_per_second` must be more than 0"),
        ({"rates": [rate("judging", 1.0, 1.0)]}, "`kind` must be forward or training or decoding"),
        ({"count": None}, "there is no `count`"),
    ],
)
def test_other_files_are_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(LarkError, match=sentence):
        throughput(composed(*PLAN, write(tmp_path, **changes)))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LarkError, match=r"planner.measured=.*none.json: not the line .*No such file"):
        throughput(composed(*PLAN, f"planner.measured='{tmp_path / 'none.json'}'"))


def test_the_checks_line_is_read_back_and_of_this_machine_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written by the check on this machine's CPU, and then read on a machine with another processor."""
    measured = Measurements("", {"peak_gib": 1.0}, [rate("forward", 5000.0, 2e6, hidden=128)])
    result = CheckResult(CHECKS[0], "pass", "", 1.0, "cpu", measured)
    path, line = records.write(tmp_path, records.record([result], 0, [("torch", "2")], 0.08))
    assert json.loads(line)["checks"][0]["peak_gib"] == 1.0
    settings = ["hardware=cpu", "hardware.threads=1", f"planner.measured='{path}'"]
    config = composed(*settings)
    demo = shape(config)
    assert demo.hidden == 128
    assert throughput(config).rate("forward", demo) == pytest.approx(5000 * 2e6)
    assert throughput(config).tflops == pytest.approx(0.08)  # not measured again
    monkeypatch.setattr("lark.planner.measured.device_name", lambda device: "Another CPU")
    with pytest.raises(LarkError, match=r"this plan is for \d+ x Another CPU"):
        throughput(composed(*settings))
