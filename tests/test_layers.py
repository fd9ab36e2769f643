"""Imports point downwards only: a module knows nothing of those above it (docs/architecture.md)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

LAYERS = [
    ["lark.errors", "lark.report.tables", "lark.report.style"],
    ["lark.reading"],
    ["lark.config"],
    ["lark.runtime"],  # store, machine, operation, launch, worker, …: all but those named below
    ["lark.models", "lark.grading"],
    ["lark.demo.pool", "lark.demo.problems", "lark.demo.phrasing", "lark.demo.teachers", "lark.demo.exams"],
    ["lark.pool"],
    ["lark.generation"],
    ["lark.scoring"],
    ["lark.selection"],
    ["lark.training"],
    ["lark.evaluation"],
    ["lark.demo", "lark.analysis"],
    ["lark.planner"],
    [
        "lark.pool.operations", "lark.models.operations", "lark.scoring.operations", "lark.selection.operations",
        "lark.training.operations", "lark.evaluation.operations", "lark.analysis.operations",
    ],
    ["lark.runtime.registry"],
    ["lark.runtime.plan"],
    ["lark.runtime.pipeline"],
    ["lark.report"],
    ["experiments"],
]  # fmt: skip
"""Lowest first. The longest prefix counts."""


def layer(module: str) -> int:
    found = {
        len(prefix): number
        for number, prefixes in enumerate(LAYERS)
        for prefix in prefixes
        if module == prefix or module.startswith(f"{prefix}.")
    }
    return found[max(found)]


def modules(root: Path) -> dict[str, Path]:
    """Every module of the project but `lark` and `experiments` themselves, which hold no code."""
    files = [path for package in ("lark", "experiments") for path in sorted((root / package).rglob("*.py"))]
    names = {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    return {name: path for name, path in names.items() if "." in name}


def imported(path: Path, known: set[str]) -> set[str]:
    """The project's modules that a file imports, anywhere but for type checkers alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ignored = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in ignored:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inside & known) or {node.module}
    return found & known


def upward(root: Path) -> list[str]:
    """Imports of a higher layer, as sentences."""
    known = modules(root)
    return [
        f"{name} imports {other}"
        for name, path in known.items()
        for other in sorted(imported(path, set(known)))
        if layer(other) > layer(name)
    ]


def test_imports_point_downwards() -> None:
    assert upward(ROOT) == []


@pytest.mark.parametrize("line", ["from lark.runtime import plan", "def f():\n    from lark.scoring.methods import METHODS"])
def test_an_upward_import_is_found(line: str, tmp_path: Path) -> None:
    for name in ("lark/models/chat.py", "lark/runtime/plan.py", "lark/scoring/methods.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "experiments").mkdir()
    assert upward(tmp_path) == []
    (tmp_path / "lark/models/chat.py").write_text(line + "\n")
    assert len(upward(tmp_path)) == 1


def test_no_package_hides_code_in_its_init() -> None:
    """But for the schema, which is what `lark.config` is."""
    for path in (ROOT / "lark").rglob("__init__.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), f"{path} has no docstring"
        if path.parent.name != "config":
            assert len(tree.body) == 1, f"{path} has code"


def test_planning_a_run_imports_no_torch() -> None:
    """run.py must answer in a second; the planner is a part of it."""
    heavy = "{'torch', 'transformers', 'scipy'}"
    code = f"import sys, lark.runtime.pipeline, lark.report.run_summary; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "set()"
