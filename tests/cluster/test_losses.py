"""What a cluster's log says: how much work was lost, and the messages of other nodes."""

import logging
import threading
from pathlib import Path

import pytest

from lark.cluster import relay
from lark.cluster.losses import Losses


def test_only_the_part_without_results_is_lost() -> None:
    losses = Losses()
    losses.finished(70.0)
    losses.add(30.0, missing=2, shards=3)
    losses.add(9.0, missing=0, shards=0)  # while it was loading: nothing is lost
    expected = (
        "Lost 2 processes of the cluster, and with them 20.0 s of 100.0 s of work (20.0%), on 2 shards that"
        " others did"
    )
    assert str(losses).startswith(expected)


def test_messages_of_another_process_are_logged_once_and_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tail, sender = relay.Tail(tmp_path), logging.Logger("lark.other")
    sender.addHandler(relay.Relay(tmp_path))
    caplog.set_level(logging.INFO)
    sent = [f"step {number}" for number in range(500)]

    def send() -> None:
        for message in sent:
            sender.info(message)
        with (tmp_path / relay.RELAY_FILE).open("a") as handle:
            handle.write('{"level": 20, "mess')  # its process was killed

    thread = threading.Thread(target=send)
    thread.start()
    while thread.is_alive():
        tail.log(logging.getLogger("lark.leader"))
    tail.log(logging.getLogger("lark.leader"))
    assert [record.getMessage() for record in caplog.records if record.name == "lark.leader"] == sent
    tail.close()
    assert not list(tmp_path.iterdir())
