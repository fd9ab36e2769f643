"""The settings of the checks: those of the runs that a machine is for. On GPUs in bfloat16, so that scoring
packs with the varlen kernel, Liger applies, and vLLM can use FlashAttention; on CPU in float32.
"""

from hydra import compose, initialize_config_dir

from lark import config as schema
from lark.config import Config
from lark.gpu_check.check import CheckPlace
from lark.work.launch import ROOT


def composed(settings: list[str]) -> Config:
    """The configuration, as run.py composes it from these settings."""
    schema.register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return schema.load(compose("config", overrides=settings))


def dtype(place: CheckPlace) -> str:
    """The precision of a student that runs use on this device."""
    return "bfloat16" if place.cuda else "float32"


def machine(place: CheckPlace, processes: int) -> list[str]:
    return [
        "hardware=auto", f"hardware.device={place.device}", f"hardware.processes={processes}",
        "tracking=none",
    ]  # fmt: skip


def training(place: CheckPlace) -> list[str]:
    """Mixed precision and Liger's kernels where runs use them."""
    bf16 = str(place.cuda).lower()
    return [f"training.bf16={bf16}", f"training.liger={bf16}"]
