"""Options of a method: what its annotations allow is converted to them; anything else is one sentence."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Optional

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lark.errors import LarkError
from lark.pipeline.plan import make_plan
from lark.scoring import methods
from lark.scoring.by_question import Floats
from lark.scoring.options import fit
from lark.scoring.selection_method import SelectionMethod
from lark.store.store import Checksums
from tests.conftest import composed


def mine(
    trajectories: pd.DataFrame,
    *,
    power: float = 1.0,
    words: list[str] = [],  # noqa: B006
    floor: float | None = None,
    mode: Literal["mean", "sum"] = "mean",
    later: "float | None" = None,
) -> Floats:
    return trajectories["n_tokens"].to_numpy(dtype=float) ** power


def needy(trajectories: pd.DataFrame, *, power: float) -> Floats:
    return trajectories["n_tokens"].to_numpy(dtype=float) ** power


def method(function: Callable[..., Any] = mine) -> SelectionMethod:
    return SelectionMethod("mine", frozenset({"lengths"}), function)


@pytest.mark.parametrize(
    ("given_", "taken"),
    [
        ({"power": 2}, {"power": 2.0}),
        ({"words": ["a", "b"]}, {"words": ["a", "b"]}),
        ({"floor": None}, {"floor": None}),
        ({"floor": 1}, {"floor": 1.0}),
        ({"later": 1}, {"later": 1.0}),
        ({"mode": "sum"}, {"mode": "sum"}),
    ],
)
def test_an_option_has_the_type_of_its_annotation(given_: dict[str, Any], taken: dict[str, Any]) -> None:
    found = method().check(given_)
    assert found == taken
    assert [type(value) for value in found.values()] == [type(value) for value in taken.values()]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"power": "x"}, "method.options.power=x: method=mine takes a value of type float."),
        ({"power": True}, "method.options.power=true: method=mine takes a value of type float."),
        ({"power": None}, "method.options.power=null: method=mine takes a value of type float."),
        ({"words": "a"}, "method.options.words=a: method=mine takes a value of type list[str]."),
        ({"words": ["a", 1]}, "method.options.words=['a', 1]: method=mine takes a value of type list[str]."),
        ({"floor": "low"}, "method.options.floor=low: method=mine takes a value of type float | None."),
        (
            {"mode": "max"},
            "method.options.mode=max: method=mine takes a value of type Literal['mean', 'sum'].",
        ),
        (
            {"powr": 2},
            (
                "method.options.powr=2: method=mine has no such option; it takes power, words, floor, mode,"
                " later."
            ),
        ),
    ],
)
def test_an_option_of_another_type_or_name_is_one_sentence(options: dict[str, Any], said: str) -> None:
    with pytest.raises(LarkError) as error:
        method().check(options)
    assert str(error.value) == said


def test_an_option_without_default_must_be_given() -> None:
    assert method(needy).check({"power": 2}) == {"power": 2.0}
    with pytest.raises(
        LarkError, match=r"method\.options\.power has no value, and method=mine needs it: add"
    ):
        method(needy).check({})


def test_the_same_number_is_the_same_selection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(methods.METHODS, "mine", method())
    config = composed("pool.questions=2")
    found = []
    for power in (2, 2.0, 3):
        chosen = replace(config, method=replace(config.method, name="mine", options={"power": power}))
        found += [
            s.artifacts[0].fingerprint for s in make_plan(chosen, Checksums(tmp_path)) if s.stage == "select"
        ]
    assert found[0] == found[1] != found[2]


WHOLE = st.integers(-(2**53), 2**53)  # those that a float holds
SIMPLE = st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False) | st.text(max_size=3)
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
KINDS = [
    int,
    float,
    str,
    bool,
    None,
    Any,
    list,
    list[float],
    list[list[int]],
    tuple[int, str],
    tuple[float, ...],
    Sequence[str],
    dict[str, float],
    Literal[1, "a", True],
    Optional[float],  # noqa: UP045
    int | float | None,
    list[str] | str,
]


@given(VALUES, st.sampled_from(KINDS))
def test_a_value_is_converted_without_loss_and_only_once_or_is_refused(value: Any, kind: Any) -> None:
    try:
        taken = fit(value, kind)
    except ValidationError:
        return
    assert _lists(taken) == _lists(value)
    again = fit(taken, kind)
    assert again == taken
    assert type(again) is type(taken)
    assert kind is not float or type(taken) is float


def _lists(value: Any) -> Any:
    """A value with tuples as lists, and whole numbers as they are."""
    if isinstance(value, list | tuple):
        return [_lists(item) for item in value]
    return {key: _lists(item) for key, item in value.items()} if isinstance(value, dict) else value
