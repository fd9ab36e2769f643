"""The method of a run: one of this repository (methods.py), or a function of the user's own module.

`method=own method.function=my_package.my_scores:score method.needs=[statistics]` ranks by a function that
takes and returns what the functions in methods.py do. It sees only the columns that it needs.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lark.config import Method
from lark.scoring import checks
from lark.scoring.by_question import Floats
from lark.scoring.methods import METHODS, find_method
from lark.scoring.selection_method import SelectionMethod

SAMPLE = 20
"""Questions on which a user's function is checked, at most."""


def is_own(settings: Method) -> bool:
    """Whether a method is the user's. The names of ours stay ours."""
    return settings.function is not None and settings.name not in METHODS


def method_of(settings: Method) -> SelectionMethod:
    """The method that the settings name, in its direction."""
    if settings.function is None or settings.name in METHODS:
        return find_method(settings.name, settings.higher_is_better, settings.reverse)
    checks.check_needs(settings.needs)
    method = SelectionMethod(
        settings.name,
        frozenset(settings.needs),
        imported_function(settings.function),
        settings.higher_is_better != settings.reverse,
    )
    return replace(method, origin=settings.function)


@cache
def imported_function(target: str) -> Callable[..., Floats]:
    """The function that `package.module:name` names, from an installed package, PYTHONPATH or the current
    folder.
    """
    module, _, name = target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # Python adds the folder of run.py, not the one where it was started
        sys.path.append(here)
    try:
        function: Callable[..., Floats] = getattr(import_module(module), name)
    except Exception as error:  # the user's module may raise anything
        raise checks.no_function(target, error) from error
    checks.check_callable(function, target)
    return function


def check_own_scores(
    method: SelectionMethod, table: pd.DataFrame, score: Floats, options: Mapping[str, Any]
) -> None:
    """Refuse a function whose scores depend on the order of the rows or on other questions, as the tests do
    for ours: the same candidates would be ranked differently in another pool.
    """
    questions = table["question_id"].to_numpy()
    names = pd.unique(questions)
    # Not all of them: the others must be missing.
    some = names[: min(SAMPLE, max(1, len(names) // 2))]
    rows = np.flatnonzero(np.isin(questions, some))[::-1]
    alone = method.score(table.iloc[rows], options)
    rounding = 1e-9 * float(np.nanmax(np.abs(score), initial=0))
    if not np.allclose(alone, score[rows], rtol=1e-6, atol=rounding, equal_nan=True):
        raise checks.not_by_question(method.origin)
