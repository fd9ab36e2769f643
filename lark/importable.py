"""Let `import lark` find this project from any folder, in every Python of an environment.

A parser on the package index is called `lark` too, and vLLM installs it, so this project is not installed as
a distribution. `python -m lark.importable`, a part of `make setup`, copies this module to the environment
instead, with a `.pth` file that starts it with Python. What the parser's users import is still found: names,
modules and data that this project does not have are the parser's. Imports only the standard library, and
little of it, because every Python of the environment starts with it.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

NAME = "lark"
COPY = "_lark_project"
"""The name of this module in an environment: `import lark.importable` would import the parser."""
PARSERS_LOGGER = f"{NAME}.utils"
"""The module of the parser that silences the logger called `lark`, which is this project's too."""


class ProjectFinder:
    """Finds this project as `lark`: a copy of it on `sys.path`, such as the current folder, or else the
    folder that was installed. The parser is found only if neither exists.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == PARSERS_LOGGER:
            return _with_own_logger(name, path)
        if name != NAME:
            return None
        for entry in [*sys.path, self.root]:
            spec = PathFinder.find_spec(NAME, [entry])
            # A folder without an __init__.py, such as one that a clone is in, has no origin.
            if spec is not None and spec.origin is not None and not _is_parser(os.path.dirname(spec.origin)):
                return _with_parser(spec, _parser())
        return None


def _is_parser(folder: str) -> bool:
    """Whether a package called `lark` is the parser, which has a module of its own name."""
    return os.path.isfile(os.path.join(folder, f"{NAME}.py"))


def _parser() -> str | None:
    """The folder of the parser, if it is installed."""
    folders = (os.path.join(entry, NAME) for entry in sys.path)
    return next(filter(_is_parser, folders), None)


def _with_parser(spec: ModuleSpec, parser: str | None) -> ModuleSpec:
    """The project with the parser's folder after its own, so that imports look there last."""
    if parser is None or spec.origin is None or spec.submodule_search_locations is None:
        return spec
    loader = ProjectLoader(spec.origin, parser)
    both = ModuleSpec(NAME, loader, origin=spec.origin, is_package=True)
    both.submodule_search_locations = [loader.folder, parser]
    both.has_location = True
    return both


def _with_own_logger(name: str, path: object) -> ModuleSpec | None:
    """The parser's module, with a logger of its own. None if it is not there."""
    spec = PathFinder.find_spec(name, path)  # type: ignore[arg-type]
    if spec is not None and spec.origin is not None:
        spec.loader = ParsersLogger(name, spec.origin)
    return spec


class ParsersLogger(SourceFileLoader):
    """Loads a module of the parser that sets the logger called `lark`, and leaves that as it was."""

    def exec_module(self, module: ModuleType) -> None:
        import logging  # noqa: PLC0415  # every Python of the environment reads this file

        ours = logging.getLogger(NAME)
        level = ours.level
        handlers = list(ours.handlers)
        super().exec_module(module)
        ours.setLevel(level)
        ours.handlers[:] = handlers
        theirs = logging.getLogger(f"{NAME}.parser")
        theirs.setLevel(logging.CRITICAL)
        module.__dict__["logger"] = theirs


class ProjectLoader(SourceFileLoader):
    """Loads the project's package, which then has the parser's names too."""

    def __init__(self, path: str, parser: str) -> None:
        super().__init__(NAME, path)
        self.folder = os.path.dirname(path)
        self.parser = parser
        self.names: dict[str, object] | None = None

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        module.__dict__["__getattr__"] = self.attribute

    def get_data(self, path: str) -> bytes:
        """A file of the package: the parser reads its grammars through the loader of `lark`."""
        is_code = path.endswith((".py", ".pyc"))
        theirs = os.path.join(self.parser, os.path.relpath(path, self.folder))
        if not is_code and not os.path.exists(path) and os.path.exists(theirs):
            path = theirs
        return super().get_data(path)

    def attribute(self, name: str) -> object:
        """A name that the package does not have: the parser's, unless it is a module of the project."""
        own = os.path.join(self.folder, name)
        is_of_project = os.path.isdir(own) or os.path.isfile(f"{own}.py")
        if (name.startswith("__") and name != "__version__") or is_of_project:
            raise AttributeError(f"module {NAME!r} has no attribute {name!r}")
        if self.names is None:
            self.names = self._executed()
        try:
            return self.names[name]
        except KeyError:
            raise AttributeError(f"module {NAME!r} has no attribute {name!r}") from None

    def _executed(self) -> dict[str, object]:
        """The names of the parser's package. Its relative imports are found through `lark.__path__`."""
        path = os.path.join(self.parser, "__init__.py")
        names: dict[str, object] = {"__name__": NAME, "__package__": NAME, "__file__": path}
        exec(compile(super().get_data(path), path, "exec"), names)
        return names


def start(root: str) -> None:
    """Look for `lark` here first, in this process. Called by the environment's `.pth` file."""
    if not any(type(finder).__name__ == ProjectFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, ProjectFinder(root))


def install(folder: str, root: str) -> None:
    """Make `import lark` find the project at `root` in the environment with this site-packages folder."""
    with open(__file__, encoding="utf-8") as source:
        text = source.read()
    for file, content in {
        f"{COPY}.py": text,
        f"{COPY}.pth": f"import {COPY}; {COPY}.start({root!r})\n",
    }.items():
        with open(os.path.join(folder, file), "w", encoding="utf-8") as target:
            target.write(content)


if __name__ == "__main__":
    import sysconfig

    install(sysconfig.get_path("purelib"), os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
