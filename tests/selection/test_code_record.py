"""A selection is made again when the code of its method or weighting has changed.

After a change of this repository's code that changes no result, record it again:
python -m tests.selection.test_code_record. If it changes results, raise the version of SELECTION first
(docs/versions.md).
"""

import importlib
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lark.explorer.context import Context
from lark.explorer.rankings import rankings_of, scores
from lark.pipeline import pipeline as pipelines
from lark.pipeline.pipeline import Pipeline
from lark.scoring import methods, source_code
from lark.scoring.source_code import digest
from lark.selection import rules
from lark.selection.code_record import RECORD, current
from tests.conftest import composed, work_here

RUN = ("pool.questions=2", "stages=[select]", "tracking=none", "hardware.warm=false")


def test_the_record_is_that_of_the_code() -> None:
    assert json.loads(RECORD.read_text()) == current()


MODULE = '''
import re
from dataclasses import dataclass

import numpy as np

FACTOR = 2
PATTERN = re.compile("a+")

@dataclass(frozen=True)
class Scale:
    by: float = 1.0

    @property
    def doubled(self) -> float:
        return 2 * self.by

SCALE = Scale()
RULES = {"plain": lambda x: x}

def helper(x):
    """Its docstring."""
    return x * FACTOR  # a comment

def score(table, *, power: float = 1.0):
    assert PATTERN
    return RULES["plain"](helper(table["n_tokens"].to_numpy(dtype=np.float64))) * SCALE.doubled ** power
'''


@pytest.fixture
def digest_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The digest of `score` in a module with some text."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def imported(text: str) -> str:
        (tmp_path / "digested.py").write_text(text)
        sys.modules.pop("digested", None)
        importlib.invalidate_caches()
        source_code.inspect.linecache.checkcache()  # type: ignore[attr-defined]
        return digest(importlib.import_module("digested").score)

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return imported


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * FACTOR", "x + FACTOR"),
        ("FACTOR = 2", "FACTOR = 3"),
        ('"a+"', '"b+"'),
        ("lambda x: x}", "lambda x: -x}"),
        ("2 * self.by", "3 * self.by"),
        ("by: float = 1.0", "by: float = 2.0"),
        ("SCALE = Scale()", "SCALE = Scale(4)"),
        ("power: float = 1.0", "power: float = 2.0"),
    ],
)
def test_what_a_function_calls_and_mentions_counts(
    old: str, new: str, digest_of: Callable[[str], str]
) -> None:
    assert MODULE.count(old) == 1
    assert digest_of(MODULE) != digest_of(MODULE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [("a comment", "another"), ("Its docstring", "Other words"), ("FACTOR = 2", "\nFACTOR = 2\nB = 1")],
)
def test_what_changes_no_score_does_not_count(old: str, new: str, digest_of: Callable[[str], str]) -> None:
    assert digest_of(MODULE) == digest_of(MODULE.replace(old, new))


def select(outputs: Path, *overrides: str) -> set[str]:
    """Run the stages up to `select`; all selections of the store."""
    Pipeline(composed(*RUN, *overrides, f"outputs={outputs}"), outputs / "run").run()
    return {folder.name for folder in (outputs / "selection").iterdir()}


def edited(trajectories: pd.DataFrame) -> np.ndarray:
    """token_length after an edit: the shortest ones."""
    return -trajectories["n_tokens"].to_numpy(dtype=np.float64)


def test_a_method_that_is_edited_between_two_runs_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pipelines, "run_worker", work_here)
    caplog.set_level(logging.WARNING)
    first = select(tmp_path, "method=token_length")
    (old,) = first
    assert (
        "code" not in (tmp_path / "selection" / old / "config.yaml").read_text()
    )  # as older versions wrote it
    with monkeypatch.context() as patch:
        method = methods.METHODS["token_length"]
        patch.setitem(methods.METHODS, "token_length", replace(method, function=edited))
        second = select(tmp_path, "method=token_length")
        said = f"the code of method=token_length has changed since selection/{old} was made"
        assert said in caplog.text
        caplog.clear()
        assert select(tmp_path, "method=token_length") == second  # reused
        assert "has changed" not in caplog.text
    (new,) = second - first
    longest, shortest = (
        pd.read_parquet(tmp_path / "selection" / name / "selection.parquet") for name in (old, new)
    )
    assert set(longest["candidate_id"]) != set(shortest["candidate_id"])
    assert select(tmp_path, "method=token_length") == second  # the edit is taken back: the old one is reused
    assert "has changed" not in caplog.text
    # The explorer shows the scores that the selection was made with, although the code is another by now.
    opened = Context(tmp_path).open(*_view(tmp_path))
    labels = {ranking.label: ranking for ranking in rankings_of(opened)}
    (with_code,) = [label for label in labels if label.startswith("Token Length max (code ")]
    plain = scores(labels["Token Length max"], opened)
    np.testing.assert_array_equal(scores(labels[with_code], opened), -plain)


def _view(outputs: Path) -> tuple[str, str]:
    """The pool's fingerprint, and the view of its lengths."""
    (pool,), (lengths,) = ((outputs / kind).iterdir() for kind in ("pool", "lengths"))
    return pool.name.rpartition("-")[2], lengths.name.rpartition("-")[2]


def test_a_weighting_that_is_edited_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pipelines, "run_worker", work_here)
    run = ("method=token_length", "weighting=softmax")
    first = select(tmp_path, *run)
    monkeypatch.setitem(rules.WEIGHTINGS, "softmax", lambda top: (top.utility == top.best).astype(float))
    assert len(select(tmp_path, *run) - first) == 1
    assert "the code of weighting=softmax has changed" in caplog.text


if __name__ == "__main__":
    RECORD.write_text(json.dumps(current(), indent=1) + "\n")
