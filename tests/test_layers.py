"""Imports point downwards only: a module knows nothing of those above it (docs/architecture.md).

Every import of the project's own modules counts: absolute or relative, of a module, of a package or of a
name in it, at the top of a file or inside a function. An import inside a function runs later, but the
module still depends on the other one. Imports under `if TYPE_CHECKING:` do not count: they never run. They
let a lower module name the types that it is given, such as the planner's in `Operation.cost`.
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

LAYERS = [
    ["errors", "names", "limits", "secrets", "printing", "processors", "importable"],
    ["reading"],
    ["config"],
    ["store"],
    ["work"],
    ["cluster"],
    ["models"],
    ["grading"],
    ["generation"],
    ["demo"],
    ["pool"],
    ["teaching"],
    ["scoring"],
    ["selection"],
    ["training"],
    ["evaluation"],
    ["analysis"],
    ["planner"],
    ["output"],
    ["pipeline"],
    ["export", "publish", "explorer", "gpu_check", "api", "api_checks"],
    ["experiments"],
]
"""Lowest first: modules and packages of lark, and the experiments."""
PACKAGES = ("lark", "experiments")


def layer(module: str) -> int | None:
    """The number of a module's layer; None if no layer contains it. `lark` itself is below all: it has no
    code. The `__main__` of a package of lark is a command, and in their layer.
    """
    first, *rest = module.split(".")
    if module == "lark":
        return -1
    name = rest[0] if first == "lark" else first
    if first == "lark" and rest[-1] == "__main__":
        name = "explorer"
    return next((number for number, names in enumerate(LAYERS) if name in names), None)


def modules(root: Path) -> dict[str, Path]:
    """Every module and package of the project."""
    files = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files
    }


def imported(name: str, path: Path, known: set[str]) -> set[str]:
    """The project's modules that a module imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ignored = {
        id(node)
        for block in ast.walk(tree)
        if _is_for_types(block)
        for child in block.body
        for node in ast.walk(child)
    }
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = {
        target
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in ignored
        for target in _targets(node, package, known)
    }
    return {target for target in found if target.split(".")[0] in PACKAGES} - {name}


def _is_for_types(node: ast.AST) -> bool:
    """Whether a node is `if TYPE_CHECKING:`; its `else` runs and counts."""
    if not isinstance(node, ast.If):
        return False
    test = node.test
    return (test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")) == "TYPE_CHECKING"


def _targets(node: ast.Import | ast.ImportFrom, package: str, known: set[str]) -> Iterator[str]:
    """The modules that a statement names: `from lark.pipeline import plan, registry` names two."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    source = ".".join([*above, *([node.module] if node.module else [])])
    for alias in node.names:
        yield f"{source}.{alias.name}" if f"{source}.{alias.name}" in known else source


def problems(root: Path) -> list[str]:
    """Modules without a layer, and imports of a higher layer, as sentences."""
    known = modules(root)
    lost = [
        f"{name} is in no layer: add it to LAYERS in tests/test_layers.py"
        for name in known
        if layer(name) is None
    ]
    placed = {name: number for name in known if (number := layer(name)) is not None}
    return lost + [
        f"{name} imports {other}, which is in a higher layer"
        for name, number in placed.items()
        for other in sorted(imported(name, known[name], set(known)))
        if (higher := layer(other)) is not None and higher > number
    ]


def test_imports_point_downwards() -> None:
    assert problems(ROOT) == []


def test_the_strict_reader_of_answers_imports_nothing_else_of_lark() -> None:
    known = modules(ROOT)
    strict = {name for name in known if name.startswith("lark.grading.strict")}
    assert {other for name in strict for other in imported(name, known[name], set(known))} <= strict


def test_every_layer_exists() -> None:
    known = modules(ROOT)
    names = [name for layer in LAYERS for name in layer]
    assert [name for name in names if f"lark.{name}" not in known and name not in known] == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small project without upward imports."""
    files = [
        "lark/models/chat.py",
        "lark/models/load.py",
        "lark/pipeline/plan.py",
        "lark/scoring/methods.py",
        "experiments/harness/sweep.py",
    ]
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        for folder in (path.parent, path.parent.parent):
            if folder != tmp_path:
                (folder / "__init__.py").touch()
    (tmp_path / "lark/scoring/methods.py").write_text(
        "from lark.models import chat\nfrom ..models.load import one\n"
    )
    assert problems(tmp_path) == []
    return tmp_path


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("from lark.pipeline import plan", "lark.pipeline.plan"),
        ("from lark.pipeline.plan import make_plan", "lark.pipeline.plan"),
        ("import lark.scoring.methods as methods", "lark.scoring.methods"),
        ("import lark.scoring", "lark.scoring"),
        ("from lark.scoring import anything", "lark.scoring"),
        ("from lark import scoring", "lark.scoring"),
        ("from ..scoring import methods", "lark.scoring.methods"),
        ("from ..scoring.methods import METHODS", "lark.scoring.methods"),
        ("from .. import scoring", "lark.scoring"),
        ("from experiments import ROOT", "experiments"),
        ("import experiments", "experiments"),
        ("from experiments.harness import sweep", "experiments.harness.sweep"),
        ("def f():\n    from lark.scoring.methods import METHODS", "lark.scoring.methods"),
        ("try:\n    import lark.scoring\nexcept ImportError:\n    pass", "lark.scoring"),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import lark.scoring", "lark.scoring"),
    ],
)
def test_an_upward_import_is_found(line: str, other: str, tree: Path) -> None:
    (tree / "lark/models/chat.py").write_text(line + "\n")
    assert problems(tree) == [f"lark.models.chat imports {other}, which is in a higher layer"]


def test_an_upward_import_of_a_package_is_found(tree: Path) -> None:
    (tree / "lark/models/__init__.py").write_text("from ..scoring import methods\nfrom . import load\n")
    assert problems(tree) == ["lark.models imports lark.scoring.methods, which is in a higher layer"]


@pytest.mark.parametrize("test", ["TYPE_CHECKING", "typing.TYPE_CHECKING"])
def test_imports_for_type_checkers_alone_do_not_count(test: str, tree: Path) -> None:
    (tree / "lark/models/chat.py").write_text(f"if {test}:\n    from lark.scoring import methods\n")
    assert problems(tree) == []


def test_a_package_without_a_layer_is_reported(tree: Path) -> None:
    (tree / "lark/unknown").mkdir()
    (tree / "lark/unknown/module.py").write_text("from lark.scoring import methods\n")
    assert problems(tree) == ["lark.unknown.module is in no layer: add it to LAYERS in tests/test_layers.py"]


def test_no_package_hides_code_in_its_init() -> None:
    """Except `lark.config`, which names the parts of the schema that others import."""
    for path in (ROOT / "lark").rglob("__init__.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), f"{path} has no docstring"
        rest = (
            tree.body[1:]
            if path.parent.name != "config"
            else [n for n in tree.body[1:] if not _names_only(n)]
        )
        assert rest == [], f"{path} has code"


SAME_WORD = {"checks", "gradients", "hub", "pool", "shards", "student", "teachers", "worker"}
"""Names of modules in several packages. They mean the same thing there, for another package."""


def test_a_modules_name_has_one_meaning() -> None:
    """Except in the explorer, whose modules are named after what they show."""
    modules = [path for path in (ROOT / "lark").rglob("*.py") if "explorer" not in path.parts]
    names = Counter(path.stem for path in modules if not path.stem.startswith("__"))
    assert {name for name, count in names.items() if count > 1} <= SAME_WORD


def _names_only(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) or (
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )


def test_planning_a_run_imports_no_torch() -> None:
    """run.py must answer in a second; the planner is a part of it."""
    heavy = "{'torch', 'transformers', 'scipy'}"
    code = f"import sys, lark.pipeline.pipeline, lark.output.run_summary; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "set()"
