"""The tests of what changed since main, for `make check`.

Run as: python -m tests.changed [branch]     prints test files, one per line

A changed test runs. A changed module runs the tests that import it; if there are none, all tests of its
package. Files that start whole runs, clusters, engines or browsers take minutes; unless they changed
themselves they are left to `make test`, and named on stderr.
"""

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.conftest import LONGEST, ROOT

TESTS = ROOT / "tests"
ALWAYS = ("tests/test_layers.py", "tests/pipeline/test_golden_plans.py")
"""Cheap, and they fail for changes anywhere."""
NOT_PYTHON = {
    ".md": "tests/test_docs.py",
    ".yaml": "tests/config/test_config.py",
    ".js": "tests/explorer/test_server.py",
    ".ipynb": "tests/examples/test_notebooks.py",
}
"""The tests of files that are not modules, by their ending."""


def changed_files(branch: str) -> list[str]:
    """Files that differ from the commit where this branch left `branch`, committed or not."""
    since = _git("merge-base", branch, "HEAD")[0]
    return _git("diff", "--name-only", since) + _git("ls-files", "--others", "--exclude-standard")


def files_to_run(files: list[str]) -> set[str]:
    """Test files of changes in `files`."""
    selected = set(ALWAYS)
    modules = set()
    for file in files:
        path = Path(file)
        if path.suffix in NOT_PYTHON:
            selected.add(NOT_PYTHON[path.suffix])
        elif path.suffix == ".py":
            modules.add(".".join(path.with_suffix("").parts))
    tests = {str(path.relative_to(ROOT)): set(imported(path)) for path in TESTS.rglob("test_*.py")}
    selected |= tests.keys() & set(files)
    for module in modules:
        importing = {test for test, names in tests.items() if module in names}
        selected |= importing or tests_of_package(module, tests)
    return selected


def tests_of_package(module: str, tests: Collection[str]) -> set[str]:
    """The tests in the folder of a module's package: of lark.models.rendering, those in tests/models."""
    first, *rest = module.split(".")
    package = rest[0] if first == "lark" and rest else first
    return {test for test in tests if test.startswith(f"tests/{package}/")}


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
    selected = files_to_run(files)
    postponed = {test for test in selected if Path(test).stem in LONGEST and test not in files}
    if postponed:
        sys.stderr.write(f"left to `make test`: {' '.join(sorted(postponed))}\n")
    sys.stdout.write("\n".join(sorted(selected - postponed)) + "\n")


if __name__ == "__main__":
    main()
