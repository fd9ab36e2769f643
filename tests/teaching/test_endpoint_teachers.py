"""A teacher behind an endpoint in the real pipeline: nothing is paid twice, and no key is written."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from lark.errors import LarkError
from tests.conftest import run_program, start_program
from tests.generation.misbehaving import MODEL, Answer, Server, completion, misbehaving
from tests.teaching.test_rollouts import SMALL, counts, ran, rollouts

KEY = "k3y-0f-a-test-that-n0body-may-see"
AT_ONCE = 2


def settings(server: Server) -> list[str]:
    return [
        "teacher=[endpoint]", f"teacher.endpoint.model={MODEL}",
        f"teacher.endpoint.endpoint={server.address}",
        f"teacher.endpoint.concurrency={AT_ONCE}", "teacher.endpoint.key=TEST_KEY",
        "teacher.endpoint.price.input=100", "teacher.endpoint.price.output=1000",
    ]  # fmt: skip


def slow(request: dict[str, Any]) -> Answer:
    return Answer(body=completion(n=request.get("n", 1)), seconds=0.05)


def answered(outputs: Path) -> set[str]:
    """The keys of the questions whose answers are in a journal."""
    keys = set()
    for path in outputs.glob("rollouts/*/shard-*.jsonl"):
        lines = path.read_bytes().split(b"\n")[:-1]
        keys |= {json.loads(line)["key"] for line in lines}
    return keys


def test_a_killed_run_asks_nothing_again_that_was_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)
    typed = [*SMALL, "questions.number=60", "stages=[teach]"]
    with misbehaving() as server:
        server.usual = slow
        for _ in range(3):
            before = answered(tmp_path)
            process = start_program(*typed, *settings(server), outputs=tmp_path, start_new_session=True)
            while len(answered(tmp_path)) < len(before) + 5 and process.poll() is None:
                time.sleep(0.01)
            assert process.poll() is None, "it ended before it could be killed"
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        kept = len(answered(tmp_path))
        asked = len(server.requests)
        code, output = run_program(*typed, *settings(server), outputs=tmp_path)
        assert code == 0, output
        assert 15 <= kept < 60
        # What was in flight when a run was killed is asked again; nothing else is.
        assert len(server.requests) - asked == 60 - kept
        assert len(server.requests) <= 60 + 3 * AT_ONCE
        assert {headers["authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    assert server.address.split("/")[2] in output  # the host is named
    assert KEY not in output
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def test_more_samples_are_further_ones_and_costs_are_those_of_the_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)
    with misbehaving() as server:
        first = ran(tmp_path, *SMALL, *settings(server), "stages=[teach]")
        assert len(server.requests) == 6
        more = ran(tmp_path, *SMALL, *settings(server), "stages=[teach]", "teach.samples=5")
        assert [request["n"] for request in server.requests[6:]] == [3] * 6
    seeds = {(row["question"], row["rollout"]): row["seed"] for row in rollouts(more)}
    for row in rollouts(first):
        assert seeds[row["question"], row["rollout"]] == row["seed"]
        assert seeds[row["question"], 4] == row["seed"] - row["rollout"] + 4
    made = counts(more, "rollouts")
    assert made["taken"] == {next(iter(made["taken"])): 12}
    # Per million: 100 for the prompts of 12 requests, 1000 for what was generated.
    prompts = 12 * 10
    assert made["cost"] == pytest.approx((100 * prompts + 1000 * made["tokens"]) / 1e6)


def test_a_limit_on_money_stops_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)
    with misbehaving() as server:
        server.usual = slow
        run = ran(tmp_path, *SMALL, *settings(server), "stages=[teach]", "teach.limit_money=0.03")
        asked = len(server.requests)
    made = counts(run, "rollouts")
    assert made["not_asked"] > 0
    assert 0.03 <= made["cost"] < 0.06
    assert asked <= made["rollouts"] // 2 + 2 * AT_ONCE


def test_failures_are_counted_by_reason_and_too_many_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)
    refused = {"error": {"message": "filtered", "code": "content_filter"}}
    with misbehaving() as server:
        server.script.append(Answer(400, refused))
        with pytest.raises(LarkError, match="failed at 1 of 6 questions"):
            ran(tmp_path, *SMALL, *settings(server), "stages=[teach]")
        asked = len(server.requests)
        run = ran(tmp_path, *SMALL, *settings(server), "stages=[pool]", "teacher.endpoint.failures=0.5")
        assert len(server.requests) <= 6 + AT_ONCE
        assert asked >= 1
    assert counts(run, "rollouts")["failures"] == {"content_filter": 1}
    assert counts(run, "pool")["questions"] == 5


def test_a_judge_behind_an_endpoint_is_asked_about_each_rollout_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)
    judge = ["teacher=[endpoint,self]", "teacher.self.max_new_tokens=48"]
    judge += ["teach.verify=judge", "teach.judge=endpoint"]
    with misbehaving() as server:
        server.usual = lambda request: Answer(body=completion("Let me see. Verdict: wrong"))
        run = ran(tmp_path, *SMALL, *settings(server), *judge)
        asked = len(server.requests)
        assert {request["messages"][0]["role"] for request in server.requests} == {"user"}
        more = ran(tmp_path, *SMALL, *settings(server), *judge, "teach.samples=3")
        assert len(server.requests) - asked <= 6
    texts = {(row["question"], row["response"]) for row in rollouts(run)}
    assert len(texts) <= asked <= 12
    assert counts(run, "verdicts")["wrong"] == 12
    assert counts(more, "verdicts")["wrong"] == 18
    assert set(counts(run, "pool")["teachers"]) == {"self"}  # the judge is not asked the questions
