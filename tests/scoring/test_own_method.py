"""A method in the user's own module: found, checked, part of fingerprints, compared and shown as ours are."""

import importlib
import linecache
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from experiments.harness.sweep import compose_sweep
from lark.config.cli import as_hydra_reads
from lark.errors import LarkError
from lark.explorer.context import Context
from lark.explorer.rankings import rankings_of, scores
from lark.pipeline import pipeline as pipelines
from lark.pipeline.pipeline import Pipeline
from lark.scoring.own_method import imported_function, method_of
from lark.selection.write import ALL_SCORES
from tests.conftest import composed, work_here

MODULE = '''
import numpy as np
from lark.scoring.methods import _column

def score(table, *, power: float = 1.0):
    """The shortest first."""
    return -_column(table, "n_tokens") ** power

def of_all(table):
    return table["n_tokens"] - table["n_tokens"].mean()

def short(table):
    return [1.0]

def greedy(table):
    return table["brier"]

number = 3
'''
RUN = ("pool.questions=2", "stages=[select]", "tracking=none", "hardware.warm=false")
OWN = ("method=own", "method.function=own_scores:score")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user, outside this repository."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "own_scores.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(pipelines, "run_worker", work_here)
    _forget()
    return folder / "own_scores.py"


def _forget() -> None:
    """As if another process imported the module."""
    sys.modules.pop("own_scores", None)
    importlib.invalidate_caches()
    linecache.checkcache()
    imported_function.cache_clear()


def select(outputs: Path, *overrides: str) -> set[Path]:
    Pipeline(composed(*RUN, *overrides, f"outputs={outputs}"), outputs / "run").run()
    return set((outputs / "selection").iterdir())


def test_it_selects_as_the_same_function_of_ours(module: Path, tmp_path: Path) -> None:
    (own,) = select(tmp_path / "outputs", *OWN)
    others = select(tmp_path / "outputs", "method=shortest")
    (ours,) = others - {own}
    columns = ["question_id", "candidate_id", "weight", "rank"]
    tables = [pd.read_parquet(folder / "selection.parquet")[columns] for folder in (own, ours)]
    pd.testing.assert_frame_equal(*tables)
    depends = yaml.safe_load((own / "config.yaml").read_text())["depends"]
    assert depends["method"] == "own" and depends["function"] == "own_scores:score"
    assert set(depends["code"]) == {"method"}
    assert (
        "method=own" in (own / "README.md").read_text()
        and "method.function=own_scores:score" in (own / "README.md").read_text()
    )


def test_an_edit_and_an_option_make_another_selection(
    module: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outputs = tmp_path / "outputs"
    first = select(outputs, *OWN)
    with_option = select(outputs, *OWN, "++method.options.power=2.0")
    assert len(with_option) == 2 and "has changed" not in caplog.text
    module.write_text(MODULE.replace("return -_column", "return _column"))
    _forget()
    assert len(select(outputs, *OWN)) == 3
    assert "the code of method=own has changed since selection/" in caplog.text
    module.write_text(MODULE)
    _forget()
    assert select(outputs, *OWN) > first and len(select(outputs, *OWN)) == 3


def test_the_explorer_shows_its_scores_without_importing_it(module: Path, tmp_path: Path) -> None:
    (own,) = select(tmp_path / "outputs", *OWN)
    module.unlink()
    _forget()
    stored = pd.read_parquet(own / ALL_SCORES)
    (pool,), (lengths,) = ((tmp_path / "outputs" / kind).iterdir() for kind in ("pool", "lengths"))
    context = Context(tmp_path / "outputs")
    opened = context.open(pool.name.rpartition("-")[2], lengths.name.rpartition("-")[2])
    (ranking,) = [ranking for ranking in rankings_of(opened) if ranking.method.name == "own"]
    assert ranking.label.startswith("Own (code ") and "own_scores:score" in ranking.describe()["about"]
    np.testing.assert_array_equal(scores(ranking, opened), stored["score"])
    assert "own_scores" not in sys.modules


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        (["method.function=no_module:score"], "cannot be imported .No module named"),
        (["method.function=own_scores:nothing"], "cannot be imported .module 'own_scores' has no attribute"),
        (["method.function=own_scores:number"], "it is a int, not a function"),
        (["method.function=own_scores"], "method.function=own_scores: give package.module:function"),
        (["method.needs=[magic]"], "method.needs=magic: choose one of lengths, statistics"),
        (["++method.options.strength=1"], "has no such option; it takes power"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(
    typed: list[str], problem: str, module: Path, tmp_path: Path
) -> None:
    with pytest.raises(LarkError, match=problem):
        select(tmp_path / "outputs", *OWN, *typed)
    assert not list((tmp_path / "outputs").glob("pool/*"))


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("of_all", "depend on the order of the rows, on other questions"),
        ("short", "must return one number for each of the 66 rows of its table, and returned list"),
        ("greedy", "it raised KeyError: 'brier'. It sees the columns candidate_id, n_tokens, question_id;"),
    ],
)
def test_scores_that_cannot_be_right_are_refused(
    function: str, problem: str, module: Path, tmp_path: Path
) -> None:
    with pytest.raises(LarkError, match=problem):
        select(tmp_path / "outputs", "method=own", f"method.function=own_scores:{function}")


def test_the_settings_of_own_belong_to_own(module: Path) -> None:
    method = method_of(composed("method=lark", "method.function=own_scores:score").method)
    assert method.origin == ""
    assert not method_of(composed(*OWN, "method.higher_is_better=false").method).higher_is_better
    assert method_of(
        composed(*OWN, "method.higher_is_better=false", "method.reverse=true").method
    ).higher_is_better


def test_a_folder_of_yaml_files_adds_methods_to_runs_and_to_compare(module: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my_conf" / "method"
    folder.mkdir(parents=True)
    settings = {"name": "mine", "label": "Mine", "weighting": "chi2", "function": "own_scores:score"}
    (folder / "mine.yaml").write_text(yaml.safe_dump(settings))
    search = f"hydra.searchpath=[file://{folder.parent}]"
    config = composed(search, "method=mine")
    assert (config.method.title, config.weighting_name) == ("Mine", "chi2")
    typed = ["method=mine,random", search, f"outputs={tmp_path / 'outputs'}"]
    sweep = compose_sweep("compare", as_hydra_reads(typed))
    assert {trial.config.method.name for trial in sweep.trials} == {"mine", "random"}
