"""A student that was trained here is evaluated with the settings that its folder records."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from lark.config.trained import trained_name, with_trained_student

NAME = "demo-lark-B3-0123456789ab"


def trained(folder: Path, **student: Any) -> Path:
    """The folder of a trained student, without its model."""
    checkpoint = folder / NAME
    checkpoint.mkdir()
    (checkpoint / "manifest.json").write_text(json.dumps({"kind": "checkpoint", "status": "finished"}))
    described = {"depends": {"student": {"max_length": 512, "dtype": "float32", **student}}}
    (checkpoint / "config.yaml").write_text(yaml.safe_dump(described))
    return checkpoint


def added(*typed: str) -> dict[str, Any]:
    """What is added to a command line, as Hydra reads it."""
    more = with_trained_student(typed)[len(typed) :]
    return {
        override.key_or_group: override.value() for override in OverridesParser.create().parse_overrides(more)
    }


def test_it_has_its_own_name_and_trains_nothing(tmp_path: Path) -> None:
    path = f"student.path={trained(tmp_path)}"
    assert (
        added("stages=[evaluate,report]", path)
        == added("stages=[evaluate]", "student=own", path)
        == {
            "method": "base",
            "student.name": "demo-lark-B3",
            "student.max_length": 512,
            "student.dtype": "float32",
        }
    )


@pytest.mark.parametrize(
    "value", [None, "Put the answer within \\boxed{}", "it's {a}, $b", "ends with \\", ""]
)
def test_recorded_text_reaches_hydra_as_it_is(value: str | None, tmp_path: Path) -> None:
    options = {"enable_thinking": True, "reasoning_effort": "high"}
    path = f"student.path={trained(tmp_path, instruction=value, template_options=options)}"
    settings = added("stages=evaluate", path)
    assert (settings["student.instruction"], settings["student.template_options"]) == (value, options)


def test_what_is_typed_is_kept(tmp_path: Path) -> None:
    path = f"student.path={trained(tmp_path)}/"
    settings = added("stages=[evaluate]", path, "student.name=mine", "student.max_length=256", "method=base")
    assert settings == {"student.dtype": "float32"}


@pytest.mark.parametrize("more", [["stages=[train]"], [], ["stages=[evaluate]", "method=lark"]])
def test_a_second_round_of_training_is_left_alone(more: list[str], tmp_path: Path) -> None:
    assert added(f"student.path={trained(tmp_path)}", *more) == {}


def test_other_folders_have_no_name_of_their_own(tmp_path: Path) -> None:
    assert trained_name(str(trained(tmp_path))) == "demo-lark-B3"
    for path in (str(tmp_path), "demo", "owner/name", "smollm2"):
        assert trained_name(path) is None
        assert added("stages=[evaluate]", f"student.path={path}") == {}
