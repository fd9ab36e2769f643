"""The demo, a sweep and the explorer on a machine like a Mac: without /proc, forks, limits on memory, and the
packages that have no builds for macOS. A real Mac runs them in .github/workflows/macos.yml.
"""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from lark.explorer import locks, run_records
from lark.explorer.locks import locked, locked_inodes
from lark.store.locks import locked as lock
from tests.conftest import ROOT, SMALL

MAC = str(Path(__file__).with_name("mac"))


def on_a_mac(*arguments: str) -> str:
    """Run Python as on a Mac; return its output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": MAC, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr  # summaries are logged


def test_what_stands_in_for_a_mac_lacks_what_a_mac_lacks() -> None:
    tried = (
        "import importlib.util as u, os, resource, sys\n"
        "print(sys.platform, u.find_spec('triton'), hasattr(os, 'sched_getaffinity'))\n"
        "for attempt in (lambda: open('/proc/stat'), os.fork,"
        " lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1))):\n"
        "    try: attempt(); print('allowed')\n"
        "    except OSError: print('refused')\n"
    )
    assert on_a_mac("-c", tried).split() == ["darwin", "None", "False", *["refused"] * 3]


def test_the_demo_a_sweep_and_the_explorer_run(tmp_path: Path) -> None:
    outputs = f"outputs={tmp_path / 'outputs'}"
    assert "Summary: " in on_a_mac("run.py", *SMALL, outputs)
    on_a_mac("run.py", "-m", *SMALL, outputs, "method=rsr,random", "stages=[select]")
    tables = [pd.read_parquet(path) for path in (tmp_path / "outputs").glob("selection/*/selection.parquet")]
    assert [len(table) for table in tables] == [18, 18, 18]
    on_a_mac("-m", "lark.explorer", "export", str(tmp_path / "outputs"), "--to", str(tmp_path / "pages"))
    assert (tmp_path / "pages" / "index.html").exists()


def test_locks_and_processes_are_seen_without_the_files_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "LIST", tmp_path / "no-list")
    monkeypatch.setattr(run_records, "PROCESSES", tmp_path / "no-processes")
    inodes = locked_inodes()
    assert inodes is None
    path = tmp_path / "a.lock"
    assert not locked(path, inodes)
    with lock(path, "thing"):
        assert locked(path, inodes)
    assert not locked(path, inodes)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = {"event": "start", "host": os.uname().nodename}
    for number, is_alive in ((os.getpid(), True), (ended.pid, False)):
        assert run_records._run([here | {"process": number}]).is_alive is is_alive
