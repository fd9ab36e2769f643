"""A Ray cluster that cannot be used is reported within seconds, in a sentence that says what to do. No Ray
is started.
"""

import logging
import socket
import time
from pathlib import Path

import pytest

from experiments.__main__ import main
from lark.cluster import nodes as cluster
from lark.cluster.checks import ANSWER_SECONDS
from lark.errors import LarkError
from lark.pipeline.machine_check import check_machine
from tests.conftest import composed


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cluster.ADDRESS, raising=False)


@pytest.fixture
def closed() -> str:
    """An address on loopback at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_an_address_that_does_not_answer_is_named_at_once_and_refused_within_seconds(
    closed: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started = time.monotonic()
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(LarkError, match=rf"hardware\.address={closed}: nothing answers") as raised,
    ):
        cluster.reach(closed, tmp_path)
    assert "token" not in str(raised.value)
    assert time.monotonic() - started < ANSWER_SECONDS + 5
    assert f"connecting to Ray at {closed}" in caplog.text


def test_an_address_from_the_environment_is_blamed_on_the_environment(
    closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cluster.ADDRESS, closed)
    with pytest.raises(LarkError, match=f"RAY_ADDRESS={closed}: nothing answers there"):
        cluster.reach(closed, tmp_path)


@pytest.mark.parametrize(
    "wrong", ["nonsense", "auto", "node0:", ":6379", "node0:0", "node0:99999", "ray://node0:10001"]
)
def test_an_address_in_the_environment_is_checked_like_one_in_the_settings(
    wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(cluster.ADDRESS, wrong)
    with pytest.raises(LarkError, match=rf"RAY_ADDRESS={wrong}: .*host:port of the"):
        check_machine(composed("hardware=ray"))
    with pytest.raises(LarkError, match=rf"RAY_ADDRESS={wrong}: .*host:port of the"):
        main(["submit", "table1", "hardware=ray", f"outputs={tmp_path}"])
    check_machine(composed("hardware=cpu"))  # the variable has no effect
    assert (
        cluster.address_of(composed("hardware=ray", "hardware.address=node0:6379").hardware) == "node0:6379"
    )
