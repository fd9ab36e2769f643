"""Count the places where code decides by the name of an operation, a stage or an analysis instead of asking
the operation.

Run as: python -m tests.operation_names [folder]

The names come from the tree that is counted: its declared operations, and its lists of stages and analyses.
What counts, in lark/ and experiments/ (not in lark/demo and experiments/bench):

- declaration: `Operation("score", …)`; in trees without that class, `Step("score", …)`
- comparison: ==, !=, in, is or `case` of something that may hold a name (`SUBJECTS`) with a name; or of
  anything with an operation (`operation is TRAIN`, `stage == TRAIN.stage`), a kind (`kind == METRICS`) or a
  constant that holds a name
- table: a dict, tuple, list or set at least half of which are names, or that extends such a table
  (`("student", *STAGES)`)
- lookup: access to such a table by a name, `SOURCES["text"]`, or a call of a function that does it,
  `kind_of("text")`

Names of columns (`row["score"]`), of a step's inputs and outputs (`job.inputs["pool"]`) and of
configuration keys do not count, nor does passing an operation or a kind to a function.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
LISTS = frozenset({"STAGES", "ANALYSES", "TASKS", "FORCEABLE"})
"""Module-level lists of names. Projects without operation objects list their operations in the last two."""
SUBJECTS = frozenset(
    {
        "task",
        "tasks",
        "stage",
        "stages",
        "operation",
        "operations",
        "step",
        "steps",
        "kind",
        "kinds",
        "name",
        "names",
        "title",
        "key",
        "purpose",
        "force",
        "forced",
        "needs",
        "needed",
        "asked",
        "which",
        "source",
        "sources",
        "output",
        "outputs",
        "analysis",
    }
)
"""Variables and attributes that may hold such a name. `thinking == "text"` and `role == "judge"` are
something else.
"""
DECLARE = frozenset({"Operation", "Step"})
DISPLAYS = (ast.Tuple, ast.List, ast.Set)


@dataclass(frozen=True, order=True)
class Place:
    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.what}"


@dataclass
class Vocabulary:
    """What a tree calls its operations."""

    names: set[str] = field(default_factory=set)
    objects: set[str] = field(default_factory=set)
    """Variables that hold an operation, a kind or a name."""
    tables: set[str] = field(default_factory=set)
    """Module-level variables that hold a table of names."""
    lookups: set[str] = field(default_factory=set)
    """Functions that access such a table by one of their parameters."""


def trees(folder: Path) -> dict[str, ast.Module]:
    """Every module that is counted, by its path below `folder`."""
    paths = [path for package in ("lark", "experiments") for path in sorted((folder / package).rglob("*.py"))]
    kept = [path for path in paths if not {"demo", "bench"} & set(path.relative_to(folder).parts)]
    return {path.relative_to(folder).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in kept}


def vocabulary(modules: dict[str, ast.Module]) -> Vocabulary:
    """The names of a tree's operations, stages and analyses, and the variables and functions that lead to
    them.
    """
    words, assigned = Vocabulary(), [pair for tree in modules.values() for pair in _assigned(tree)]
    for name, value in assigned:
        if name in LISTS:
            words.names |= set(_strings(value))
        if isinstance(value, ast.Call) and _called(value) == "Operation":
            words.names |= set(_strings(value.args[0]))
        if isinstance(value, ast.Call) and _called(value) in ("Operation", "Kind"):
            words.objects.add(name)
    words.objects |= {name for name, value in assigned if _is_name(value, words)}
    words.tables = {name for name, _ in assigned if name in LISTS}
    words.tables |= {name for name, value in assigned if _is_table(value, words)}
    functions = [
        node for tree in modules.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    ]
    words.lookups = {function.name for function in functions if _looks_up(function, words)}
    return words


def places(folder: Path) -> list[Place]:
    """Every place, in order. Several of one sort in a line count once."""
    modules = trees(folder)
    words = vocabulary(modules)
    found = set()
    for file, tree in modules.items():
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.Match)]
        compared = {
            id(side)
            for node in nodes
            if isinstance(node, ast.Compare)
            for side in [node.left, *node.comparators]
        }
        found |= {
            Place(file, node.lineno, what)
            for node in nodes
            if (what := _sort(node, words))
            and not (what == "table" and id(node) in compared)  # the comparison counts
        }
    return sorted(found)


def _sort(node: ast.expr | ast.Match, words: Vocabulary) -> str:
    """Which sort of place a node is; empty if it does not count."""
    if isinstance(node, ast.Call) and node.args and _is_name(node.args[0], words):
        called = _called(node)
        return "declaration" if called in DECLARE else "lookup" if called in words.lookups else ""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        seen = words if any(_identifier(side) in SUBJECTS for side in sides) else replace(words, names=set())
        pairs = zip(sides, [None, *node.ops], strict=True)
        return "comparison" if any(_is_compared(side, operator, seen) for side, operator in pairs) else ""
    if isinstance(node, ast.Match):
        seen = words if _identifier(node.subject) in SUBJECTS else replace(words, names=set())
        values = [part.value for part in ast.walk(node) if isinstance(part, ast.MatchValue)]
        return "comparison" if any(_is_compared(value, None, seen) for value in values) else ""
    if isinstance(node, ast.Subscript):
        keys = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        known = isinstance(node.value, ast.Name | ast.Attribute) and _identifier(node.value) in words.tables
        return "lookup" if known and any(_is_name(key, words) for key in keys) else ""
    return "table" if isinstance(node, ast.expr) and _is_table(node, words) else ""


def _is_compared(node: ast.expr, operator: ast.cmpop | None, words: Vocabulary) -> bool:
    """Whether a side of a comparison is a name or an operation; or, right of `in`, contains one."""
    if isinstance(node, DISPLAYS):
        each = [_is_compared(item, None, words) for item in node.elts]
        return any(each) if isinstance(operator, ast.In | ast.NotIn) else bool(each) and all(each)
    if isinstance(node, ast.Attribute) and node.attr == "stage":  # of an operation
        node = node.value
    return _is_name(node, words) or _identifier(node) in words.objects


def _is_table(node: ast.expr, words: Vocabulary) -> bool:
    """A display with two names or more, at least half of its strings; a known table in it counts as
    several.
    """
    if isinstance(node, ast.Dict):
        items = [key for key in node.keys if key is not None]
        items = [part for key in items for part in (key.elts if isinstance(key, ast.Tuple) else [key])]
    elif isinstance(node, DISPLAYS):
        items = node.elts
    else:
        return False
    extended = any(isinstance(item, ast.Starred) and _identifier(item.value) in LISTS for item in items)
    names, strings = (
        sum(_is_name(item, words) for item in items),
        sum(bool(list(_strings(item))) for item in items),
    )
    return (names >= 2 and 2 * names >= strings) or (extended and names >= 1)


def _looks_up(function: ast.FunctionDef, words: Vocabulary) -> bool:
    """Whether a function accesses a table of names by one of its parameters."""
    parameters = {argument.arg for argument in function.args.args}
    return any(
        isinstance(node, ast.Subscript)
        and _identifier(node.value) in words.tables
        and isinstance(node.slice, ast.Name)
        and node.slice.id in parameters
        for node in ast.walk(function)
    )


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Module-level variables and their values."""
    for node in tree.body:
        target = (
            node.targets[0]
            if isinstance(node, ast.Assign)
            else node.target
            if isinstance(node, ast.AnnAssign)
            else None
        )
        if (
            isinstance(target, ast.Name)
            and isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value is not None
        ):
            yield target.id, node.value


def _strings(node: ast.expr) -> Iterator[str]:
    """A string, or the strings (a dict's keys) of a display."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    items = node.keys if isinstance(node, ast.Dict) else node.elts if isinstance(node, DISPLAYS) else []
    yield from (text for item in items if item is not None for text in _strings(item))


def _is_name(node: ast.expr, words: Vocabulary) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in words.names


def _identifier(node: ast.expr) -> str:
    """The last part of a variable or an attribute."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _called(node: ast.Call) -> str:
    return _identifier(node.func)


if __name__ == "__main__":
    found = places(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    sorts = ", ".join(
        f"{what} {number}" for what, number in sorted(Counter(place.what for place in found).items())
    )
    sys.stdout.write("\n".join([*map(str, found), f"{len(found)} places: {sorts}"]) + "\n")
