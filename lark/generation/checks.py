"""What an engine must satisfy: one function and one sentence per refusal."""

from typing import TYPE_CHECKING, Any

from lark.errors import LarkError
from lark.work.machine import Machine, pinned

if TYPE_CHECKING:
    from lark.generation.engine import EngineKind


def check_sharing(setting: str, gpus: int, engine: str, kind: "EngineKind", machine: Machine) -> None:
    """Refuse a model on several `gpus` that the engine or the machine cannot share."""
    why = None
    if gpus > 1 and not kind.shares_model:
        why = f": engine={engine} keeps a whole model on each GPU; set it to 1, or use engine=vllm."
    elif gpus > 1 and machine.device == "cpu":
        why = f" shares a model among GPUs, and this run uses the CPU: set {setting}=1."
    elif machine.device == "cuda" and machine.processes % gpus:
        why = f" does not divide the {machine.processes} GPUs of this machine: set {setting}=1."
    if why is not None:
        raise LarkError(f"{setting}={gpus}{why}")


def require_installed(engine: str, kind: "EngineKind", machine: Machine) -> None:
    """Refuse an engine whose package is missing."""
    if kind.package is not None and machine.lacks(kind.package):
        raise LarkError(
            f"engine={engine}, but it is not installed:"
            f" {_installation(kind.package, kind)}, or use engine=hf."
        )


def _installation(package: str, kind: "EngineKind") -> str:
    if kind.environment:
        return f"conda env create -f {kind.environment} (it cannot be installed next to vLLM), and run there"
    version = pinned(package)
    if not kind.cpu_package:
        return f"pip install {version}"
    return f"pip install {version} ({version.replace(package, kind.cpu_package)} without a GPU)"


def require_gpu(device: str) -> None:
    """SGLang has no build without a GPU."""
    if device == "cpu":
        raise LarkError("engine=sglang needs a GPU: use engine=hf or engine=vllm on a machine without one.")


def require_finished(reason: dict[str, Any]) -> None:
    """Refuse an answer that SGLang aborted. `reason`: its finish reason."""
    if reason["type"] not in ("stop", "length"):
        raise LarkError(
            f"engine=sglang did not finish a request ({reason['type']}: {reason.get('message', '')})."
        )
