"""`make gpu-check`: every check is isolated, the table adds up, and the arithmetic checks can both pass and
fail.
"""

import importlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lark.errors import LarkError
from lark.gpu_check import __main__ as program
from lark.gpu_check import arithmetic, versions
from lark.gpu_check.check import CHECKS, Check, CheckPlace, within
from lark.gpu_check.runner import CheckResult, run_checks, table, verdict
from tests.conftest import ROOT

BROKEN = ("passes", "fails", "undefined", "refuses", "raises", "crashes", "leaves", "hangs")
LIMIT = 6


def broken(name: str) -> Check:
    return Check(name, f"it {name}", f"tests.broken_checks:{name}", cpu=1, limit=60)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, CheckResult], Path]:
    """Every broken check, then one that passes, and one that needs two GPUs, on a machine without."""
    folder = tmp_path_factory.mktemp("checks")
    checks = [
        *(replace(broken(name), limit=LIMIT if name == "hangs" else 60) for name in BROKEN),
        replace(broken("passes"), name="last"),
    ]
    checks.append(Check("gpu", "needs two", "tests.broken_checks:crashes", gpus=2))
    found = run_checks(checks, 0, folder, folder / "log.txt")
    return {outcome.check.name: outcome for outcome in found}, folder


def test_every_check_has_a_line_whatever_the_others_do(outcomes: tuple[dict[str, CheckResult], Path]) -> None:
    found, _ = outcomes
    assert list(found) == [*BROKEN, "last", "gpu"]
    failed = {name for name, outcome in found.items() if outcome.status == "FAIL"}
    assert failed == set(BROKEN) - {"passes"}
    assert found["last"].status == "pass" and found["gpu"].status == "skipped"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("passes", "error 1.0e-09 (limit 1e-06)"),
        ("fails", "error: error 1.0e-03, more than the limit 1e-06"),
        ("undefined", "error: error nan, more than the limit 1e-06"),
        ("refuses", "The kernel is missing: install it"),
        ("raises", "ValueError: wrong shape"),
        ("crashes", "the process crashed (SIGSEGV)"),
        ("leaves", "the process crashed (exit code 0)"),
        ("hangs", f"no result after {LIMIT} s"),
        ("gpu", "needs 2 GPUs"),
    ],
)
def test_the_reason_is_one_line(name: str, said: str, outcomes: tuple[dict[str, CheckResult], Path]) -> None:
    assert outcomes[0][name].detail == said


def test_a_check_that_hangs_leaves_no_process(outcomes: tuple[dict[str, CheckResult], Path]) -> None:
    pid = int((outcomes[1] / "hangs" / "pid").read_text())
    deadline = time.monotonic() + 10
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_log_has_the_whole_text_of_every_check(outcomes: tuple[dict[str, CheckResult], Path]) -> None:
    log = (outcomes[1] / "log.txt").read_text()
    assert (
        "said by the check that passes" in log
        and "A second line for the log." in log
        and "ValueError: wrong shape\ndetails" in log
    )
    assert [line.split()[1] for line in log.splitlines() if line.startswith("===")] == [
        f"{n}:" for n in (*BROKEN, "last")
    ]


def test_the_table_and_the_verdict_add_up(outcomes: tuple[dict[str, CheckResult], Path]) -> None:
    found = list(outcomes[0].values())
    lines = table(found).splitlines()[2:]
    assert [line.split()[0] for line in lines] == [outcome.check.name for outcome in found]
    assert verdict(found, 0).startswith("FAILED: 2 passed, 7 failed, 1 skipped. Failed: fails, undefined, ")
    good = [outcome for outcome in found if outcome.status != "FAIL"]
    assert verdict(good, 0).startswith("OK on CPU: 2 passed, 0 failed, 1 skipped.")
    assert verdict(good, 1) == "OK: 2 passed, 0 failed, 1 skipped."


def test_the_program_starts_with_versions_and_fails_only_if_a_check_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real check of the Triton kernel, in a process with Triton's interpreter."""
    monkeypatch.setattr(program, "visible_gpus", lambda: 0)
    checks = [*(check for check in CHECKS if check.name in ("gpus", "kernel")), broken("refuses")]
    with caplog.at_level(logging.INFO):
        assert program.main(["--only", "gpus,kernel", "--outputs", str(tmp_path)], checks) == 0
        said = caplog.text
        monkeypatch.setattr(program, "versions", list)  # once is enough
        assert program.main(["--only", "refuses", "--outputs", str(tmp_path)], checks) == 1
    for word in (
        "lark ",
        "driver ",
        "CUDA of torch ",
        f"torch          {torch.__version__}",
        "transformers ",
        "deepspeed ",
    ):
        assert word in said
    assert "This machine has no GPU" in said and "surprisal" in said and "needs a GPU" in said
    assert said.strip().splitlines()[-1].startswith("OK on CPU: 1 passed, 0 failed, 1 skipped")
    assert caplog.text.strip().splitlines()[-1] == "FAILED: 0 passed, 1 failed, 0 skipped. Failed: refuses."
    assert str(tmp_path / "gpu_check" / "log.txt") in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--only", "kernle"], "'kernle'. The checks are gpus, kernel"), (["--limit", "0"], "--limit 0")],
)
def test_bad_arguments_are_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(LarkError, match=said):
        program.main(arguments)


@pytest.mark.parametrize("gpus", [0, 1, 2, 8])
def test_checks_never_use_more_gpus_than_there_are(gpus: int, tmp_path: Path) -> None:
    for check in CHECKS:
        place = check.place(gpus, tmp_path)
        if place is None:
            assert gpus < check.gpus
        elif gpus:
            assert place.device == "cuda" and check.gpus <= place.processes <= gpus
        else:
            assert place.device == "cpu" and place.processes == check.cpu > 0


def test_with_two_gpus_nothing_is_skipped(tmp_path: Path) -> None:
    assert all(check.place(2, tmp_path) for check in CHECKS)


def test_every_check_exists() -> None:
    for check in CHECKS:
        module, function = check.run.split(":")
        assert callable(getattr(importlib.import_module(module), function))


@pytest.fixture
def cpu(tmp_path: Path) -> CheckPlace:
    return CheckPlace("cpu", 1, tmp_path)


@pytest.mark.parametrize("check", [arithmetic.loss, arithmetic.attention])
def test_arithmetic_agrees_with_float64(check: Callable[[CheckPlace], str], cpu: CheckPlace) -> None:
    assert "limit" in check(cpu)


def test_a_wrong_loss_is_found(cpu: CheckPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its value is right, but the gradient of the head is 2% too small."""
    right, calls = arithmetic.weighted_loss, 0

    class Lossy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, weight: torch.Tensor) -> torch.Tensor:
            return weight.clone()

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 0.98

    def wrong(hidden: torch.Tensor, weight: torch.Tensor, *rest: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        return right(hidden, Lossy.apply(weight), *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(arithmetic, "weighted_loss", wrong)
    with pytest.raises(LarkError, match="gradient of head: error 2"):
        arithmetic.loss(cpu)
    assert calls == 1


def test_attention_across_trajectories_is_found(cpu: CheckPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = arithmetic.Segments.of([31, 52])  # pairs of the four trajectories
    monkeypatch.setattr(arithmetic.Segments, "of", lambda sizes: joined)
    with pytest.raises(LarkError, match="output: error"):
        arithmetic.attention(cpu)


def test_the_limit_includes_the_value_itself() -> None:
    assert within("x", 0.5, 0.5) == "x 5.0e-01 (limit 5e-01)"


def test_versions_do_not_need_git_or_a_working_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    monkeypatch.setattr(versions, "CUDA_VERSION", "raise ImportError")
    found = dict(versions.versions())
    assert found["lark"] == "unknown commit (not a git checkout)"
    assert found["CUDA of torch"] == "torch cannot be imported"


def test_the_makefile_runs_it() -> None:
    assert "$(PY) -m lark.gpu_check $(ARGS)" in (ROOT / "Makefile").read_text(encoding="utf-8")
