"""Weights & Biases mirrors the local files, and its failures never end a run."""

from pathlib import Path

import pytest

from lark.runtime.tracking import Tracker
from tests.conftest import composed


def test_without_a_key_what_was_to_go_online_is_kept_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    tracker = Tracker(composed("tracking=online"), tmp_path)
    tracker.log({"loss": 1.0})
    tracker.finish()
    assert "W&B cannot be used online" in caplog.text
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
