"""A Ray cluster that cannot be used is reported within seconds, in a sentence that says what to do. No Ray is started."""

import logging
import socket
import time

import pytest

from lark.errors import LarkError
from lark.runtime import cluster


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
    closed: str, caplog: pytest.LogCaptureFixture
) -> None:
    started = time.monotonic()
    with caplog.at_level(logging.INFO), pytest.raises(LarkError, match=rf"hardware\.address={closed}: nothing answers there"):
        cluster.reach(closed)
    assert time.monotonic() - started < cluster.ANSWER_SECONDS + 5
    assert f"connecting to Ray at {closed}" in caplog.text


def test_an_address_from_the_environment_is_blamed_on_the_environment(closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cluster.ADDRESS, closed)
    with pytest.raises(LarkError, match=f"RAY_ADDRESS={closed}: nothing answers there"):
        cluster.reach(closed)
