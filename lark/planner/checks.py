"""Refusals of the planner, one function per sentence."""

from lark.config import Config
from lark.errors import LarkError
from lark.work.machine import resolve


def require_gpus(config: Config) -> None:
    """Refuse hardware without GPUs: rates of this machine's cores are not those of a GPU."""
    if resolve(config.hardware, here=False).device != "cuda":
        raise LarkError(
            "This plan is for GPUs, and the hardware has none: name a machine with GPUs, such as"
            " hardware=a100x8. For other GPUs, add hardware.tflops=<TFLOP/s> and hardware.bandwidth=<GB/s>."
        )


def number(argument: str, value: str) -> float:
    """A number of the command line. `argument`: as it was typed."""
    try:
        return float(value.replace("_", ""))
    except ValueError as error:
        raise LarkError(f"{argument}: must be a number.") from error


def require_rate(argument: str, value: float, most: int) -> None:
    """Refuse a rate that is negative or absurdly high."""
    if not 0 <= value <= most:
        raise LarkError(f"{argument}: must be a number from 0 to {most:,}.")


def require_count(argument: str, value: float, most: int) -> None:
    """Refuse a count that is not a whole number from 1."""
    if not 1 <= value <= most or value % 1:
        raise LarkError(f"{argument}: must be a whole number from 1 to {most:,}.")


def require_setting(key: str, value: float) -> None:
    """Refuse a command without one of its own settings."""
    if not value:
        raise LarkError(f"Give {key}=<number>, for example trajectories=10000000 gpus=64.")


def unknown_size(config: Config) -> LarkError:
    """The student's shape is needed for every estimate."""
    return LarkError(
        f"student.path={config.student.path}: its config.json is not available locally, so its cost"
        " cannot be estimated. Download the model first, or give its folder."
    )


def empty_pool(config: Config) -> LarkError:
    return LarkError(
        f"pool {config.pool.name}: there are no trajectories in {config.pool.path}; check pool.path."
    )


def not_measured(setting: str, reason: str) -> LarkError:
    return LarkError(
        f"planner.measured={setting}: not the line of JSON that `make gpu-check` writes ({reason}). Give"
        " outputs/gpu_check/measured.json of this machine, or leave planner.measured out."
    )


def require_measured_here(
    setting: str, measured: tuple[str, str, int], planned: tuple[str, str, int]
) -> None:
    """Refuse rates of another machine. Both are a device (cuda or cpu), its name and their number."""
    if measured == planned:
        return
    there, here = (f"{count} x {name} ({device})" for device, name, count in (measured, planned))
    raise LarkError(
        f"planner.measured={setting} has the rates of {there}, and this plan is for {here}. Run"
        " `make gpu-check` on the machine that the plan is for, or leave planner.measured out."
    )
