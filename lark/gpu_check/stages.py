"""Checks of whole stages: run.py as a user starts it, on the demo's student, and the files that it writes."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lark.generation.vllm import is_cpu_build
from lark.gpu_check import expectations
from lark.gpu_check.check import Place, within
from lark.models.shapes import DEMO
from lark.scoring.sources import SCORES_TABLE
from lark.training.checkpoints import COMPLETE
from lark.work.launch import ROOT, die_with_parent

if TYPE_CHECKING:
    from torch import Tensor

PROBLEM_COUNT = 16
GREEDY = [
    "stages=[evaluate]", "method=base", "benchmark=demo_words",
    f"benchmark.tasks.demo_words.limit={PROBLEM_COUNT}", "benchmark.decoding.samples=1",
    "benchmark.decoding.seeds=[0]", "benchmark.decoding.temperature=0",
    "benchmark.decoding.repetition_penalty=1.0", "benchmark.decoding.max_new_tokens=24",
]  # fmt: skip
SCORE_LIMIT = 1e-3
"""Relative. Processes cut the pool into other batches, and a GPU then sums in another order."""


def scoring(place: Place) -> str:
    """Score a pool in one process and in several; compare every statistic of every trajectory."""
    import pandas as pd  # noqa: PLC0415  # slow to import

    settings = ["stages=[score]", "pool.questions=6", "scoring.shard_tokens=2000"]
    tables = []
    seconds = []
    for processes in (1, place.processes):
        outputs = place.folder / str(processes)
        start = time.monotonic()
        _run(place, outputs, settings, processes)
        seconds.append(time.monotonic() - start)
        table = pd.read_parquet(_only(outputs, f"scores/*/{SCORES_TABLE.file}"))
        tables.append(table.sort_values(["question_id", "candidate_id"], ignore_index=True))
    one, several = tables
    expectations.expect_same_trajectories(
        list(one["candidate_id"]), list(several["candidate_id"]), place.processes
    )
    statistics = one.select_dtypes("number").columns
    differences = (one[statistics] - several[statistics]).abs() / one[statistics].abs().clip(lower=1)
    error = float(differences.to_numpy().max())
    compared = within(f"{len(one)} trajectories, {len(statistics)} statistics:", error, SCORE_LIMIT)
    return f"{compared}, {seconds[1]:.0f} s after {seconds[0]:.0f} s in 1 process, with start-up"


def resume(place: Place) -> str:
    """Train twice: undisturbed, and killed after the first checkpoint and started again. Compare weights."""
    from safetensors.torch import load_file  # noqa: PLC0415

    bf16 = str(place.cuda).lower()
    settings = [
        "stages=[train]", "method=random", "pool.questions=24", "training.epochs=6", "training.checkpoints=6",
        f"training.bf16={bf16}", f"training.liger={bf16}",
    ]  # fmt: skip
    undisturbed = place.folder / "whole"
    killed = place.folder / "killed"
    _run(place, undisturbed, settings, place.processes)
    with _started(place, killed, settings, place.processes) as process:
        while process.poll() is None and not list(killed.glob(f"checkpoint/*/checkpoints/*/{COMPLETE}")):
            time.sleep(0.005)
        running = process.poll() is None
        process.kill()
    expectations.expect_interrupted(running)
    expectations.expect_resumed(_run(place, killed, settings, place.processes))
    trained = load_file(_only(undisturbed, "checkpoint/*/model.safetensors"))
    resumed = load_file(_only(killed, "checkpoint/*/model.safetensors"))
    change = _square_distance(load_file(DEMO / "model.safetensors"), trained)
    expectations.expect_trained(change)
    error = (_square_distance(resumed, trained) / change) ** 0.5
    # On a GPU sums are not in a fixed order, and AdamW turns a tiny gradient's sign into a whole step.
    return within("weights, relative to their change in training:", error, 1e-1 if place.cuda else 1e-4)


def _square_distance(a: "Mapping[str, Tensor]", b: "Mapping[str, Tensor]") -> float:
    """||a - b||² of two sets of weights with the same names."""
    return sum(float((a[name].double() - weight.double()).square().sum()) for name, weight in b.items())


def vllm(place: Place) -> str:
    """Greedy answers of vLLM, with the problems divided between its engines."""
    return _agreement(place, ["engine=vllm"])


def tensor_parallel(place: Place) -> str:
    """Greedy answers of one model on two GPUs."""
    return _agreement(place, ["engine=vllm", "engine.tensor_parallel=2"])


def _agreement(place: Place, engine: list[str]) -> str:
    """Compare an engine's answers with those of engine=hf."""
    expectations.expect_gpu_build(place.cuda and is_cpu_build())
    start = time.monotonic()
    _run(place, place.folder / "engine", [*GREEDY, *engine], place.processes)
    seconds = time.monotonic() - start
    _run(place, place.folder / "hf", [*GREEDY, "engine=hf"], 1)
    answers = _answers(place.folder / "engine")
    expected = _answers(place.folder / "hf")
    expectations.expect_answers(len(answers), PROBLEM_COUNT, answers.keys() == expected.keys())
    same = sum(answers[problem] == expected[problem] for problem in answers) / PROBLEM_COUNT
    expectations.expect_agreement(same)
    return f"{same:.0%} of {PROBLEM_COUNT} answers are those of engine=hf, {seconds:.0f} s with start-up"


def _answers(outputs: Path) -> dict[str, str]:
    lines = _only(outputs, "generations/*/generations.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["problem"]: row["text"] for row in map(json.loads, lines)}


def _only(outputs: Path, pattern: str) -> Path:
    files = sorted(outputs.glob(pattern))
    expectations.expect_one_file(files, pattern)
    return files[0]


def _command(place: Place, outputs: Path, settings: list[str], processes: int) -> list[str]:
    machine = ["hardware=auto", f"hardware.device={place.device}", f"hardware.processes={processes}"]
    quoted = f"outputs='{outputs}'"  # Hydra reads a quoted path as it is
    return [sys.executable, str(ROOT / "run.py"), quoted, "tracking=none", *machine, *settings]


@contextmanager
def _started(
    place: Place, outputs: Path, settings: list[str], processes: int
) -> Iterator["subprocess.Popen[bytes]"]:
    """run.py in the background; its workers end with it."""
    process = subprocess.Popen(
        _command(place, outputs, settings, processes), cwd=ROOT, stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,  # noqa: PLW1509  # the child only calls prctl
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _run(place: Place, outputs: Path, settings: list[str], processes: int) -> str:
    """Run run.py to its end; return its output. Raises LarkError with its error."""
    done = subprocess.run(
        _command(place, outputs, settings, processes),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        preexec_fn=die_with_parent,
    )
    sys.stdout.write(done.stdout)
    sys.stdout.flush()
    expectations.expect_success(done.returncode, done.stdout)
    return done.stdout
