"""A stand-in for CUDA, for processes that have this folder in PYTHONPATH: PyTorch appears to have GPUs, and
$CUDA_CALLS records with which allocator settings a process first connects to others and chooses its GPU. The
processes exchange through gloo, because NCCL needs GPUs.
"""

import contextlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


class AfterImport:
    """Changes modules of PyTorch right after they are imported."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self.changes = changes

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name not in self.changes:
            return None
        change = self.changes.pop(name)
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def changed(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = changed
        return spec


def record(call: str) -> None:
    """Add a line to $CUDA_CALLS, with what PyTorch would read from the environment at this moment."""
    settings = {name: value for name, value in os.environ.items() if name.endswith("ALLOC_CONF")}
    line = json.dumps({"process": os.getpid(), "call": call, "settings": settings})
    with Path(os.environ["CUDA_CALLS"]).open("a", encoding="utf-8") as handle:
        handle.write(line + "\n")


def with_gpus(cuda: Any) -> None:
    cuda.is_available = lambda: True
    cuda.set_device = lambda device: record("set_device")
    cuda.device = lambda device: contextlib.nullcontext()
    cuda.empty_cache = lambda: None


def with_gloo(distributed: Any) -> None:
    connect = distributed.init_process_group

    def connect_with_gloo(backend: str, **settings: Any) -> None:
        record(f"connect with {backend}")
        connect("gloo", **settings)

    distributed.init_process_group = connect_with_gloo


if "CUDA_CALLS" in os.environ:
    sys.meta_path.insert(0, AfterImport({"torch.cuda": with_gpus, "torch.distributed": with_gloo}))  # type: ignore
