"""The CUDA kernel compiled ahead of time for the GPUs of the paper, without one: what a launch by
`absorb_tile` would compile.

A stand-in for Triton's driver names the GPU. The launch itself is left out; signature, alignment, block
size and warps are those of the real call.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime import driver

from lark.models.head import Head
from lark.scoring import statistics, triton_kernel
from lark.scoring.tiles import KERNEL_TILE, Tiling

MAX_REGISTERS = 128
"""Registers of a thread if one program of 16 warps has the whole register file (65,536). With half, two
programs run at once.
"""


class Driver:
    """A GPU that can be compiled for, but not used."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # Triton keeps the kernels that it has compiled by device

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture(params=[80, 90], ids=["A100", "H100"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The kernels that `absorb_tile` has compiled for one kind of GPU."""
    kernels: list[Any] = []
    run = triton_kernel._absorb.run
    monkeypatch.setattr(
        triton_kernel._absorb,
        "run",
        lambda *a, **options: kernels.append(run(*a, **{**options, "warmup": True})),
    )
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "_active", Driver(request.param))
    return kernels


def usage(kernel: Any, folder: Path) -> SimpleNamespace:
    """Registers and spilled bytes of a kernel, as ptxas reports them."""
    source = folder / "kernel.ptx"
    source.write_text(kernel.asm["ptx"])
    target = re.search(r"^\.target (\w+)", kernel.asm["ptx"], re.M)
    assert target is not None and target[1].startswith(f"sm_{kernel.metadata.target.arch}")
    command = [
        get_ptxas(kernel.metadata.target.arch).path,
        "-v",
        f"--gpu-name={target[1]}",
        str(source),
        "-o",
        str(folder / "kernel.cubin"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = done.stderr
    registers = re.search(r"Used (\d+) registers", report)
    stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert registers and stack, report
    return SimpleNamespace(registers=int(registers[1]), spilled=sum(map(int, stack.groups())))


@pytest.mark.parametrize("vocabulary", [152_064, 151_936, 128_256, 49_152, 600])
def test_the_kernel_compiles_for_every_tile_without_spilling(
    vocabulary: int, compiled: list[Any], tmp_path: Path
) -> None:
    tiling = Tiling(*KERNEL_TILE, triton_kernel.absorb_tile).fitted(2, vocabulary)
    tile = torch.zeros(2, tiling.columns)
    state = torch.zeros(6, 2, dtype=torch.float64)
    triton_kernel.absorb_tile(tile, torch.zeros(2, dtype=torch.int64), torch.zeros(2), state)
    (kernel,) = compiled
    found = usage(kernel, tmp_path)
    assert found.spilled == 0
    assert found.registers <= MAX_REGISTERS // 2
    assert kernel.metadata.num_warps == (16 if vocabulary > 600 else 4)
    # 16 bytes per load where the rows are aligned: always, if a vocabulary takes several tiles.
    assert ("ld.global.v4" in kernel.asm["ptx"]) == (vocabulary > 600)


def test_a_sweep_on_a_gpu_compiles_one_kernel(compiled: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """All tiles of a head have the same shape and alignment, so nothing is compiled in the middle of a
    pass.
    """
    monkeypatch.setattr(statistics, "_check_bounds", lambda *arguments: None)  # the kernels do not run
    tiling = Tiling(16, 2048, triton_kernel.absorb_tile)
    head = Head(torch.randn(5000, 8))
    statistics.tiled_statistics(torch.randn(40, 8), torch.zeros(40, dtype=torch.int64), head, tiling)
    assert len(compiled) > 3
    assert len({kernel.hash for kernel in compiled}) == 1


def test_the_kernel_is_launched_on_the_device_of_its_tensors(
    compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton launches on the current device. If that is another GPU, the launch fails, or runs out of order
    with the product.
    """
    events: list[object] = []

    @contextmanager
    def device_of(tensor: torch.Tensor) -> Iterator[None]:
        events.append(tensor)
        yield
        events.append(len(compiled))

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    tile = torch.zeros(2, 64)
    triton_kernel.absorb_tile(
        tile, torch.zeros(2, dtype=torch.int64), torch.zeros(2), torch.zeros(6, 2, dtype=torch.float64)
    )
    assert events[0] is tile and events[1:] == [1]
