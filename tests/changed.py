"""The tests of what changed since main, for `make check`.

Run as: python -m tests.changed [branch]     prints test files, one per line

A changed test runs. A changed module runs the tests that import it, and the test of its name. Files that
start whole runs, clusters, engines or browsers take minutes; unless they changed themselves they are left
to `make test`, and named on stderr.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import LONGEST, ROOT

ALWAYS = ("tests/test_layers.py", "tests/pipeline/test_golden_plans.py")
"""Cheap, and they fail for changes anywhere."""


def changed_files(branch: str) -> list[str]:
    """Files that differ from the commit where this branch left `branch`, committed or not."""
    since = _git("merge-base", branch, "HEAD")[0]
    return _git("diff", "--name-only", since) + _git("ls-files", "--others", "--exclude-standard")


def tests_of(files: list[str]) -> set[str]:
    """Test files to run for changes in `files`."""
    modules = {file.removesuffix(".py").replace("/", ".") for file in files if file.endswith(".py")}
    names = {f"test_{module.rpartition('.')[2]}" for module in modules}
    selected = {test for test in ALWAYS if files}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        test = str(path.relative_to(ROOT))
        if test in files:
            selected.add(test)
        elif path.stem in names or not modules.isdisjoint(imported(path)):
            selected.add(test)
    return selected


def imported(path: Path) -> Iterator[str]:
    """Modules that a file imports, at any level: `from a.b import c` is a.b, and a.b.c if that is one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _git(*arguments: str) -> list[str]:
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


def main() -> None:
    files = changed_files(sys.argv[1] if len(sys.argv) > 1 else "main")
    selected = tests_of(files)
    postponed = {test for test in selected if Path(test).stem in LONGEST and test not in files}
    if postponed:
        print("left to `make test`:", *sorted(postponed), file=sys.stderr)
    print(*sorted(selected - postponed), sep="\n")


if __name__ == "__main__":
    main()
