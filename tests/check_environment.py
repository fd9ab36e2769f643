"""The lists of packages for GPUs, resolved by pip from metadata alone: nothing is installed, and no GPU is
needed.

Run as: make check-environment. Not part of `make test`, because it needs a package index and twenty minutes.
It resolves for the platform and the Python it runs on, Linux on x86-64. For other Pythons and for macOS, pip
reads the metadata of all pinned packages, and their requirements are compared here. deepspeed and
antlr4-python3-runtime have no wheels: pip builds their metadata.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.test_environment import (
    ALONE,
    CONSTRAINTS,
    MAC,
    PYTHONS,
    applying,
    canonical,
    constraints,
    declared_groups,
    environment,
    pip_options,
    removed_on_cpus,
    unmet,
)

RESOLVE = [
    sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--retries", "2",
    "--only-binary", ":all:", "--no-binary", "deepspeed,antlr4-python3-runtime",
    # Where an index does not serve metadata, pip reads it from the end of a wheel, not the whole wheel.
    "--use-feature", "fast-deps",
]  # fmt: skip
LIMIT_SECONDS = 1800


@pytest.fixture(scope="module", autouse=True)
def index() -> None:
    """Skips these tests where pip cannot reach a package index."""
    probe = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-cache-dir",
        "--retries",
        "0",
        "--dest",
    ]
    probe += [
        os.devnull + "-unused",
        "--timeout",
        "15",
        "packaging==0",
    ]  # a version that does not exist: nothing is downloaded
    answer = subprocess.run(probe, capture_output=True, text=True, check=False, timeout=120).stderr
    if "from versions: none" in answer or "from versions" not in answer:
        pytest.skip("pip cannot reach a package index")


def resolved(report: Path, *arguments: str) -> dict[str, str]:
    """The versions that pip would install."""
    packages = described(report, *arguments)
    return {name: metadata["version"] for name, metadata in packages.items()}


def described(report: Path, *arguments: str) -> dict[str, Any]:
    """The metadata of the packages that pip would install."""
    done = subprocess.run(
        [*RESOLVE, "--report", str(report), *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, "\n".join(
        line for line in done.stderr.splitlines() if not line.startswith("WARNING")
    )
    packages = [package["metadata"] for package in json.loads(report.read_text())["install"]]
    return {canonical(package["name"]): package for package in packages}


def gpu_builds(lines: list[str]) -> list[str]:
    """The requirements, without a CPU build of torch that a local index may prefer."""
    return [line + f",!={line.split('==')[1]}+cpu" if line.startswith("torch==") else line for line in lines]


@pytest.mark.parametrize("file", ["environment.yml", "environment-sglang.yml"])
def test_the_list_resolves(file: str, tmp_path: Path) -> None:
    lines = environment(file)
    found = resolved(tmp_path / "report.json", *pip_options(file), *gpu_builds(lines))
    assert {f"{canonical(name)}=={version}" for name, version in found.items()} >= set(lines)
    assert found["cuda-toolkit"].startswith("13.0.")  # driver 580


def test_the_gpu_constraints_pin_all_that_make_setup_installs(tmp_path: Path) -> None:
    groups = [word for name in ("run", "test", "docs", "engine-gpu") for word in ("--group", name)]
    torch = gpu_builds([line for line in environment("environment.yml") if line.startswith("torch==")])
    found = resolved(tmp_path / "report.json", "-c", "constraints-gpu.txt", *groups, *torch)
    pinned = constraints("constraints-gpu.txt")
    assert {name: pinned.get(name) for name in found} == found


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("file", CONSTRAINTS)
def test_the_pinned_versions_agree_on_every_python(file: str, python: str, tmp_path: Path) -> None:
    """And each has a wheel for it. Without torch in the list for CPUs: its CPU build may be on another index,
    and the list for GPUs has the same version.
    """
    pinned = constraints(file)
    lines = gpu_builds([f"{name}=={version}" for name, version in pinned.items()])
    if file == "constraints.txt":
        lines = [line for line in lines if not line.startswith("torch==")]
        pinned |= {"torch": f"{pinned['torch']}+cpu"} | dict.fromkeys(removed_on_cpus(), "1.0")
    packages = described(tmp_path / "report.json", "--no-deps", "--python-version", python, *lines)
    assert len(packages) == len(lines)
    required = {
        name: metadata.get("requires_dist", []) for name, metadata in packages.items() if name not in ALONE
    }
    assert unmet(required, pinned, python) == []


@pytest.mark.parametrize("python", PYTHONS)
def test_what_the_demo_needs_has_wheels_for_macs(python: str, tmp_path: Path) -> None:
    """The pinned versions of `make run` on Apple silicon, macOS 14: each has a wheel, and they agree.
    Packages are added until none requires another one.
    """
    pinned = constraints("constraints.txt")
    roots = {"lark": declared_groups()["run"]}
    required: dict[str, list[str]] = {}
    while missing := {
        canonical(requirement.name) for _, requirement in applying(roots | required, python, MAC)
    } - set(required):
        lines = [f"{name}=={pinned[name]}" for name in sorted(missing)]
        place = ["--no-deps", "--python-version", python, "--platform", "macosx_14_0_arm64"]
        packages = described(tmp_path / "report.json", *place, "--target", str(tmp_path / "mac"), *lines)
        assert set(packages) == missing
        required |= {name: metadata.get("requires_dist", []) for name, metadata in packages.items()}
    assert {"torch", "transformers", "pyarrow"} < set(required)
    assert not {"triton", "liger-kernel", "deepspeed"} & set(required)
    assert unmet(roots | required, pinned, python, MAC) == []
