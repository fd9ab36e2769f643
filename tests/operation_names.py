"""Count the places where code decides by an operation's name instead of by the operation itself.

Run as: python -m tests.operation_names [folder]

A place is a comparison with such a name, a table (dict, set, tuple or list) of several, or a keyed access by one, in lark/ and
experiments/. Declarations count too: `Operation("score", …)`.
"""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = frozenset({
    "pool", "student", "lengths", "score", "local", "text", "judge", "select", "train", "generate", "grade", "gradients",
    "jacobians", "kappa", "contamination", "cost", "evaluate", "analyse", "theory", "report", "scores", "tokens",
})  # fmt: skip
SUBJECTS = frozenset({"task", "stage", "operation", "which", "kind", "name", "needs", "tasks", "stages", "asked", "needed", "TASKS",
                      "force", "output", "purpose", "key"})  # fmt: skip
"""Names of what holds an operation's or a stage's name, or several."""


def places(folder: Path) -> list[str]:
    """file:line of each, in order."""
    found = []
    for package in ("lark", "experiments"):
        for path in sorted((folder / package).rglob("*.py")):
            if {"demo", "bench"} & set(path.parts):
                continue
            tree = ast.parse(path.read_text(encoding="utf-8"))
            lines = {node.lineno for node in ast.walk(tree) if _is_place(node)}
            found += [f"{path.relative_to(folder)}:{line}" for line in sorted(lines)]
    return found


def _is_place(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return any(_subject(side) for side in sides) and any(_names(side) for side in sides)
    if isinstance(node, ast.Dict):
        return sum(_names(key) for key in node.keys if key is not None) >= 2
    if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Tuple | ast.Set | ast.List):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "ORDER":
            return False  # of experiments, some of which have an operation's name
        return sum(_names(item) for item in node.value.elts) >= 2
    if isinstance(node, ast.Call):
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        return called in ("Operation", "Step") and bool(node.args) and _names(node.args[0])
    return False


def _subject(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in SUBJECTS


def _names(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return node.value in NAMES
    return isinstance(node, ast.Tuple | ast.Set | ast.List) and any(_names(item) for item in node.elts)


if __name__ == "__main__":
    all_places = places(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    sys.stdout.write("\n".join([*all_places, f"{len(all_places)} places"]) + "\n")
