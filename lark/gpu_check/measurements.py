"""The line of JSON with everything that was measured, which the planner reads back (`planner.measured`)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lark.gpu_check.runner import CheckResult
from lark.planner.measured import FORMAT
from lark.planner.throughput import core_tflops
from lark.store.store import write_text
from lark.work.machine import device_count, device_name

FILE = "measured.json"


def record(
    results: Sequence[CheckResult], gpus: int, versions: Sequence[tuple[str, str]], core: float
) -> dict[str, Any]:
    """Machine, versions, and the figures of all checks. `core`: TFLOP/s of a core, on CPU."""
    device = "cuda" if gpus else "cpu"
    checks = []
    rates: list[Any] = []
    for result in results:
        checks.append(
            {
                "check": result.check.name,
                "result": result.status,
                "on": result.where,
                "seconds": round(result.seconds, 1),
                "figure": result.detail,
                "expectation": result.check.claim,
                **result.measured.figures,
            }
        )
        rates += result.measured.rates
    return {
        "format": FORMAT,
        "device": device,
        "name": device_name(device),
        "count": device_count(device),
        "core_tflops": core,
        "rates": rates,
        "checks": checks,
        "versions": dict(versions),
    }


def core_rate(gpus: int) -> float:
    """The rate that the planner's rates on CPU are relative to. 0 on GPUs."""
    return 0.0 if gpus else core_tflops()


def write(folder: Path, values: dict[str, Any]) -> tuple[Path, str]:
    """The file and its line."""
    path = folder / FILE
    line = json.dumps(values)
    write_text(path, line + "\n")
    return path, line
