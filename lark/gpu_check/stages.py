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
from lark.gpu_check import expectations, settings
from lark.gpu_check.check import CheckPlace, within
from lark.models.shapes import DEMO
from lark.scoring.sources import SCORES_TABLE
from lark.training.checkpoints import COMPLETE
from lark.work.launch import ROOT, die_with_parent

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

PROBLEM_COUNT = 16
GREEDY = [
    "stages=[evaluate]", "method=base", "benchmark=demo_words",
    f"benchmark.tasks.demo_words.limit={PROBLEM_COUNT}", "benchmark.decoding.samples=1",
    "benchmark.decoding.seeds=[0]", "benchmark.decoding.temperature=0",
    "benchmark.decoding.repetition_penalty=1.0", "benchmark.decoding.max_new_tokens=24",
]  # fmt: skip
SCORING = ["stages=[score]", "pool.questions=6", "scoring.shard_tokens=2000"]
SCORE_LIMIT = {"float32": 1e-3, "bfloat16": 5e-2}
"""Relative. Processes cut the pool into other batches, and a GPU then sums in another order. In bfloat16,
the demo's scores differ by up to 2% from those in float32.
"""


def packs(place: CheckPlace) -> str:
    """Score a pool in bfloat16, as runs do, and in float32 on padded batches with PyTorch's own kernels."""
    _run(place, place.folder / "bfloat16", [*SCORING, "student.dtype=bfloat16"], 1)
    _run(place, place.folder / "float32", [*SCORING, *EXACT], 1)
    half, exact = (_scores(place.folder / name) for name in ("bfloat16", "float32"))
    expectations.expect_same_trajectories(list(exact["candidate_id"]), list(half["candidate_id"]), 1)
    errors = [_difference(exact, half, [name]) for name in ("nll", "brier")]
    return within(f"{len(exact)} trajectories, loss and Brier score:", max(errors), SCORE_LIMIT["bfloat16"])


EXACT = ["student.dtype=float32", "student.attention=sdpa", "scoring.liger=false"]
"""Code that scoring on a GPU falls back to."""


def scoring(place: CheckPlace) -> str:
    """Score a pool in one process and in several; compare every statistic of every trajectory."""
    seconds = []
    for processes in (1, place.processes):
        start = time.monotonic()
        _run(place, place.folder / str(processes), [*SCORING, _dtype(place)], processes)
        seconds.append(time.monotonic() - start)
    one, several = (_scores(place.folder / str(processes)) for processes in (1, place.processes))
    expectations.expect_same_trajectories(
        list(one["candidate_id"]), list(several["candidate_id"]), place.processes
    )
    statistics = list(one.select_dtypes("number").columns)
    error = _difference(one, several, statistics)
    limit = SCORE_LIMIT[settings.dtype(place)]
    compared = within(f"{len(one)} trajectories, {len(statistics)} statistics:", error, limit)
    return f"{compared}, {seconds[1]:.0f} s after {seconds[0]:.0f} s in 1 process, with start-up"


def _scores(outputs: Path) -> "pd.DataFrame":
    import pandas as pd  # noqa: PLC0415  # slow to import

    table = pd.read_parquet(_only(outputs, f"scores/*/{SCORES_TABLE.file}"))
    return table.sort_values(["question_id", "candidate_id"], ignore_index=True)


def _difference(one: "pd.DataFrame", other: "pd.DataFrame", columns: list[str]) -> float:
    """The largest difference of some statistics, in units of those that are larger than 1."""
    differences = (one[columns] - other[columns]).abs() / one[columns].abs().clip(lower=1)
    return float(differences.to_numpy().max())


def _dtype(place: CheckPlace) -> str:
    return f"student.dtype={settings.dtype(place)}"


def resume(place: CheckPlace) -> str:
    """Train twice: undisturbed, and killed after the first checkpoint and started again. Compare weights."""
    from safetensors.torch import load_file  # noqa: PLC0415

    short = [
        "stages=[train]", "method=random", "pool.questions=24", "training.epochs=6", "training.checkpoints=6",
        _dtype(place), *settings.training(place),
    ]  # fmt: skip
    undisturbed = place.folder / "whole"
    killed = place.folder / "killed"
    _run(place, undisturbed, short, place.processes)
    with _started(place, killed, short, place.processes) as process:
        while process.poll() is None and not list(killed.glob(f"checkpoint/*/checkpoints/*/{COMPLETE}")):
            time.sleep(0.005)
        running = process.poll() is None
        process.kill()
    expectations.expect_interrupted(running)
    expectations.expect_resumed(_run(place, killed, short, place.processes))
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


def vllm(place: CheckPlace) -> str:
    """Greedy answers of vLLM, with the problems divided between its engines."""
    return _agreement(place, ["engine=vllm"])


def tensor_parallel(place: CheckPlace) -> str:
    """Greedy answers of one model on two GPUs."""
    return _agreement(place, ["engine=vllm", "engine.tensor_parallel=2"])


def _agreement(place: CheckPlace, engine: list[str]) -> str:
    """Compare an engine's answers with those of engine=hf."""
    expectations.expect_gpu_build(place.cuda and is_cpu_build())
    start = time.monotonic()
    _run(place, place.folder / "engine", [*GREEDY, *engine, _dtype(place)], place.processes)
    seconds = time.monotonic() - start
    _run(place, place.folder / "hf", [*GREEDY, "engine=hf", "student.dtype=float32"], 1)
    answers = _answers(place.folder / "engine")
    expected = _answers(place.folder / "hf")
    expectations.expect_answers(len(answers), PROBLEM_COUNT, answers.keys() == expected.keys())
    same = sum(answers[problem] == expected[problem] for problem in answers) / PROBLEM_COUNT
    expectations.expect_agreement(same, settings.dtype(place))
    return f"{same:.0%} of {PROBLEM_COUNT} answers are those of engine=hf, {seconds:.0f} s with start-up"


def _answers(outputs: Path) -> dict[str, str]:
    lines = _only(outputs, "generations/*/generations.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["problem"]: row["text"] for row in map(json.loads, lines)}


def _only(outputs: Path, pattern: str) -> Path:
    files = sorted(outputs.glob(pattern))
    expectations.expect_one_file(files, pattern)
    return files[0]


def _command(place: CheckPlace, outputs: Path, overrides: list[str], processes: int) -> list[str]:
    quoted = f"outputs='{outputs}'"  # Hydra reads a quoted path as it is
    return [sys.executable, str(ROOT / "run.py"), quoted, *settings.machine(place, processes), *overrides]


@contextmanager
def _started(
    place: CheckPlace, outputs: Path, overrides: list[str], processes: int
) -> Iterator["subprocess.Popen[bytes]"]:
    """run.py in the background; its workers end with it."""
    process = subprocess.Popen(
        _command(place, outputs, overrides, processes), cwd=ROOT, stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,  # noqa: PLW1509  # the child only calls prctl
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _run(place: CheckPlace, outputs: Path, overrides: list[str], processes: int) -> str:
    """Run run.py to its end; return its output. Raises LarkError with its error."""
    done = subprocess.run(
        _command(place, outputs, overrides, processes),
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
    if place.cuda and not set(EXACT) <= set(overrides):
        expectations.expect_runs_code(done.stdout)
    return done.stdout
