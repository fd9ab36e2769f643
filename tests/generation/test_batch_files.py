"""Batch files: what is written is what OpenAI and vLLM read, and what they write is read."""

import json
from pathlib import Path
from typing import Any

import pytest

from lark.config.teacher import Teacher
from lark.demo.vllm_server import run
from lark.errors import LarkError
from lark.generation import batch_files
from lark.generation.conversation import Ask, AskSampling, Failure, Reply
from lark.generation.refusals import Again
from lark.models.shapes import DEMO
from tests.generation.misbehaving import MODEL, completion

TEACHER = Teacher(endpoint="https://host/v1", model=MODEL, thinking="reasoning_content", max_new_tokens=40)
SAMPLING = AskSampling.of(TEACHER)


def asks(count: int = 3, samples: int = 2) -> list[tuple[str, int, Ask]]:
    questions = []
    for number in range(count):
        ask = Ask(({"role": "user", "content": f"What is {number} + 4?"},), 100 * number, samples)
        questions.append((f"key{number}", 5, ask))
    return questions


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def results(tmp_path: Path, *rows: dict[str, Any]) -> list[batch_files.BatchResult]:
    file = tmp_path / "results.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(batch_files.read([file], "strong", TEACHER))


def row(custom_id: str = "key0/5", status: int = 200, body: Any = None, error: Any = None) -> dict[str, Any]:
    response = {"status_code": status, "request_id": "r", "body": body}
    return {"id": "1", "custom_id": custom_id, "response": response, "error": error}


def test_a_line_is_a_sample_of_a_question(tmp_path: Path) -> None:
    (file,) = batch_files.write(tmp_path, TEACHER, asks(), SAMPLING)
    requests = lines(file)
    assert [request["custom_id"] for request in requests] == [
        "key0/5", "key0/6", "key1/5", "key1/6", "key2/5", "key2/6"
    ]  # fmt: skip
    assert {(request["method"], request["url"]) for request in requests} == {("POST", "/v1/chat/completions")}
    assert [request["body"]["seed"] for request in requests] == [0, 1, 100, 101, 200, 201]
    assert all("n" not in request["body"] and request["body"]["model"] == MODEL for request in requests)


@pytest.mark.parametrize(("limits", "files"), [({"most_lines": 4}, 2), ({"most_bytes": 500}, 3)])
def test_files_are_as_small_as_batch_apis_want_them(
    tmp_path: Path, limits: dict[str, int], files: int
) -> None:
    written = batch_files.write(tmp_path, TEACHER, asks(), SAMPLING, **limits)
    assert [file.name for file in written] == [f"requests-{number + 1}.jsonl" for number in range(files)]
    assert sum(len(lines(file)) for file in written) == 6


def test_nothing_to_ask_writes_no_file(tmp_path: Path) -> None:
    assert batch_files.write(tmp_path, TEACHER, [], SAMPLING) == []
    assert list(tmp_path.iterdir()) == []


def test_results_have_their_question_and_sample(tmp_path: Path) -> None:
    body = completion("7", reasoning_content="3 and 4.")
    (result,) = results(tmp_path, row("key/with/slashes/12", body=body))
    assert (result.key, result.sample) == ("key/with/slashes", 12)
    assert result.outcome == Reply("7", "3 and 4.", "stop", 8, 10, MODEL)


@pytest.mark.parametrize(
    ("failed", "kind", "reason"),
    [
        (row(status=400, error={"error": {"message": "the context length is 9"}}), Failure, "too_long"),
        (row(status=400, body={"error": {"code": "content_filter"}}), Failure, "content_filter"),
        (row(status=400, error="Request must not be sent in stream mode"), Failure, "refused_request"),
        (row(status=500, body={"error": {"message": "oops"}}), Again, "server_error"),
        (row(status=429, body={"error": {"message": "later"}}), Again, "rate_limit"),
        ({"custom_id": "a/1", "response": None, "error": {"code": "batch_expired"}}, Again, "server_error"),
        (row(body={"model": MODEL, "choices": [{"message": 3}]}), Again, "invalid_answer"),
    ],
)  # fmt: skip
def test_failed_requests_are_counted_or_can_be_sent_again(
    tmp_path: Path, failed: dict[str, Any], kind: type, reason: str
) -> None:
    (result,) = results(tmp_path, failed)
    assert isinstance(result.outcome, kind)
    assert getattr(result.outcome, "reason", None) == reason


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (row("theirs"), "is not the custom_id of a request that LARK wrote"),
        ({"answer": 3}, "`custom_id`"),
        (row(body={**completion(), "model": "small-1b"}), "'small-1b' answered in place of 'teacher-7b'"),
    ],
)
def test_results_of_something_else_are_refused(tmp_path: Path, wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LarkError, match=sentence):
        results(tmp_path, wrong)


def test_vllm_reads_the_requests_and_its_results_are_read(tmp_path: Path) -> None:
    teacher = Teacher(path=str(DEMO), max_new_tokens=4000, context=512, dtype="float32")
    long = Ask(({"role": "user", "content": "1 + " * 600},), 7)
    questions = [*asks(), ("long", 0, long)]
    (requests,) = batch_files.write(tmp_path, teacher, questions, AskSampling.of(teacher))
    output = tmp_path / "results.jsonl"
    run(
        [
            "run-batch", "-i", str(requests), "-o", str(output), "--model", str(DEMO),
            "--max-model-len", "512", "--dtype", "float32", "--enforce-eager", "--no-enable-chunked-prefill",
            "--max-num-batched-tokens", "4096",
        ],
        tmp_path / "log",
    )  # fmt: skip
    read = {(one.key, one.sample): one.outcome for one in batch_files.read([output], "strong", teacher)}
    failure = read.pop(("long", 0))
    assert isinstance(failure, Failure)
    assert failure.reason == "too_long"
    assert set(read) == {(f"key{number}", sample) for number in range(3) for sample in (5, 6)}
    for reply in read.values():
        assert isinstance(reply, Reply)
        assert reply.text
        assert reply.n_tokens > 0
