"""Run the notebooks of examples/ as Jupyter would, without Jupyter: each in a process of its own, one cell
after the other in one namespace. What a cell prints, its last value and its figures become its outputs.

Run as: python -m tests.examples.notebooks        run all and store their outputs
"""

import ast
import base64
import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

FOLDER = ROOT / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
DPI = 60
"""Of figures: small files, because they are in the repository."""


def run(path: Path, folder: Path) -> dict[str, Any]:
    """The notebook with the outputs of a run in this folder."""
    result = folder / path.name
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg", "TQDM_DISABLE": "1"}
    command = [sys.executable, "-m", "tests.examples.notebooks", str(path), str(result)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(result.read_text(encoding="utf-8")))


def _execute(path: Path) -> dict[str, Any]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    logging.disable(logging.WARNING)  # Jupyter shows logs apart from outputs
    namespace: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        cell["execution_count"] = number
        cell["outputs"] = _outputs("".join(cell["source"]), namespace, number)
    return dict(notebook)


def _outputs(source: str, namespace: dict[str, Any], number: int) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    name = f"cell {number}"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    outputs += [
        {"data": {"image/png": image}, "metadata": {}, "output_type": "display_data"} for image in _figures()
    ]
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = _lines(value._repr_html_())
        outputs.append(
            {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def _figures() -> list[str]:
    """The figures that a cell has drawn, as PNG in base64."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    from matplotlib import pyplot

    images = []
    for number in pyplot.get_fignums():
        buffer = io.BytesIO()
        pyplot.figure(number).savefig(
            buffer, format="png", dpi=DPI, bbox_inches="tight", metadata={"Software": None}
        )
        images.append(base64.b64encode(buffer.getvalue()).decode())
    pyplot.close("all")
    return images


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _write(notebook: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _write(_execute(Path(sys.argv[1])), Path(sys.argv[2]))
    else:
        for notebook in NOTEBOOKS:
            with tempfile.TemporaryDirectory() as folder:
                _write(run(notebook, Path(folder)), notebook)
