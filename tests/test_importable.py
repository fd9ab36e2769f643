"""`import lark` in an environment where lark/importable.py is installed: it finds this project from any
folder, and the parser of the same name still works for those who use it.
"""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from lark.importable import install
from tests.conftest import ROOT

START = "import site, sys; site.addsitedir(sys.argv[1]); "
"""Reads the .pth files of a folder as Python does with those of site-packages when it starts."""


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    install(str(folder), str(ROOT))
    return folder


def run(code: str, site_packages: Path, cwd: Path) -> str:
    command = [sys.executable, "-c", START + code, str(site_packages)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_other_folders_import_the_parser_without_it(tmp_path: Path) -> None:
    assert run("import lark; print(hasattr(lark, 'Lark'))", tmp_path, tmp_path) == "True"


def test_every_folder_imports_this_project(site_packages: Path, tmp_path: Path) -> None:
    code = "import lark.names; from lark import limits; print(lark.__file__, lark.names.__file__)"
    for folder in (tmp_path, ROOT.parent):
        found = run(code, site_packages, folder)
        assert found == f"{ROOT}/lark/__init__.py {ROOT}/lark/names.py"


def test_the_parser_does_not_silence_the_projects_log(site_packages: Path, tmp_path: Path) -> None:
    code = (
        "import logging; logging.basicConfig(level=logging.INFO, format='%(message)s', stream=sys.stdout);"
        "from lark import Lark; from lark.utils import logger;"
        "logging.getLogger('lark.scoring').info('scored'); logger.warning('an ambiguity of a grammar')"
    )
    assert run(code, site_packages, tmp_path) == "scored"


def test_another_copy_of_the_project_comes_first_in_its_own_folder(
    site_packages: Path, tmp_path: Path
) -> None:
    (tmp_path / "lark").mkdir()
    (tmp_path / "lark" / "__init__.py").touch()
    code = "sys.path.insert(0, ''); import lark; print(lark.__file__)"
    assert run(code, site_packages, tmp_path) == f"{tmp_path}/lark/__init__.py"


def test_a_project_that_was_moved_leaves_the_parser(tmp_path: Path) -> None:
    install(str(tmp_path), str(tmp_path / "gone"))
    assert run("import lark; print(hasattr(lark, 'Lark'))", tmp_path, tmp_path) == "True"


PARSING = """
import lark
from lark import Lark, Token, Transformer
from lark.exceptions import LarkError
import lark.errors
assert lark.errors.LarkError is not LarkError is lark.LarkError
tree = Lark("start: NUMBER+\\n%import common.NUMBER\\n%import common.WS\\n%ignore WS").parse("1 2 3")
assert [type(token) for token in tree.children] == [Token] * 3
assert not hasattr(lark, "nothing") and not hasattr(lark, "__wrapped__")
print(*tree.children, lark.__version__)
"""


def test_the_parser_parses_beside_this_project(site_packages: Path, tmp_path: Path) -> None:
    """Its names, its modules, and its grammars, which it reads as files of the package `lark`."""
    assert run(PARSING, site_packages, tmp_path) == f"1 2 3 {importlib.metadata.version('lark')}"


@pytest.mark.parametrize("first", ["", "import lark.names; "])
def test_packages_that_use_the_parser_find_it(first: str, site_packages: Path, tmp_path: Path) -> None:
    """The two in this environment that import it. Nothing in vLLM, xgrammar and llguidance does."""
    code = """
from sympy.parsing.latex import parse_latex
import hypothesis.extra.lark
print(parse_latex(r"\\frac{1}{2} + x", backend="lark"))
"""
    assert run(first + code, site_packages, tmp_path) == "x + 1/2"
