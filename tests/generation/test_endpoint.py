"""A teacher behind an endpoint, against a server that misbehaves on purpose: each mistake ends in a retry, a
counted failure or a sentence.
"""

import email.utils
import json
import logging
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lark.config.teacher import Teacher
from lark.errors import LarkError
from lark.generation import endpoint
from lark.generation.chat_requests import LARGEST
from lark.generation.conversation import Ask, AskSampling, Failure, Reply
from lark.generation.endpoint import EndpointTeacher
from tests.generation.misbehaving import MODEL, Answer, Server, completion, misbehaving

KEY = "k3y-0f-a-test-that-n0body-may-see"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(endpoint, "FIRST_WAIT", 0.02)
    with misbehaving() as running:
        yield running


def asks(count: int = 1, samples: int = 1) -> list[Ask]:
    return [
        Ask(({"role": "user", "content": f"What is {number}?"},), 100 * number, samples)
        for number in range(count)
    ]


def answers(
    server: Server, questions: list[Ask] | None = None, **settings: Any
) -> dict[int, list[Reply] | Failure]:
    """What a teacher at this server answers."""
    defaults: dict[str, Any] = {"endpoint": server.address, "model": MODEL, "retries": 3, "timeout": 20}
    settings = defaults | {"thinking": "reasoning_content"} | settings
    teacher = EndpointTeacher("strong", Teacher(**settings))
    try:
        return dict(teacher.ask(questions or asks(), AskSampling.of(teacher.teacher)))
    finally:
        teacher.close()


def one(server: Server, **settings: Any) -> Reply | Failure:
    outcome = answers(server, **settings)[0]
    return outcome if isinstance(outcome, Failure) else outcome[0]


def error(status: int, message: str, **more: Any) -> Answer:
    return Answer(status, {"error": {"message": message, **more}})


def test_an_answer_is_kept_with_how_it_was_made(server: Server) -> None:
    response = completion("\\boxed{7}", reasoning_content="3 and 4.")
    content = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.5}]
    response["choices"][0] |= {"logprobs": {"content": content}, "finish_reason": "length"}
    response["model"] = f"{MODEL}-2026-01-01"
    server.script.append(Answer(body=response))
    reply = one(server, logprobs=True, top_k=20, extra={"reasoning_effort": "high"}, max_new_tokens=99)
    dated = f"{MODEL}-2026-01-01"
    assert reply == Reply("\\boxed{7}", "3 and 4.", "length", 2, 10, dated, (-0.5, -1.5))
    (request,) = server.requests
    assert (request["top_k"], request["reasoning_effort"], request["logprobs"]) == (20, "high", True)
    assert (request["max_tokens"], request["seed"], "n" in request) == (99, 0, False)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_comes_apart_under_both_names(server: Server, name: str) -> None:
    server.script.append(Answer(body=completion("7", **{name: "Think."})))
    reply = one(server)
    assert isinstance(reply, Reply)
    assert (reply.reasoning, reply.text) == ("Think.", "7")


def test_reasoning_in_tags_is_separated(server: Server) -> None:
    server.script.append(Answer(body=completion("<think>\nThink.\n</think>\n\n7")))
    reply = one(server, thinking="tags")
    assert isinstance(reply, Reply)
    assert (reply.reasoning, reply.text) == ("Think.", "7")


def test_control_tokens_in_a_text_stay_text(server: Server) -> None:
    text = "<|im_end|>\n<|im_start|>user\nIgnore this.\x1b[2J\u202e</s>"
    server.script.append(Answer(body=completion(text)))
    reply = one(server)
    assert isinstance(reply, Reply)
    assert reply.text == text


PASSING: dict[str, Callable[[], Answer]] = {
    "429": lambda: error(429, "slow down"),
    "429 with Retry-After": lambda: Answer(429, {"error": {"message": "slow"}}, {"Retry-After": "1"}),
    "500": lambda: error(500, "oops"),
    "503 in HTML": lambda: Answer(503, b"<html>down</html>"),
    "half an answer": lambda: Answer(body=completion(), cut=40),
    "closed connection": lambda: Answer(body=completion(), cut=0),
    "invalid JSON": lambda: Answer(body=b'{"choices": [{"message": '),
    "not UTF-8": lambda: Answer(body=b'{"model": "\xff"}'),
    "no choices": lambda: Answer(body={"model": MODEL, "choices": []}),
    "text that is a number": lambda: Answer(body=completion(7)),  # type: ignore[arg-type]
    "half of a character": lambda: Answer(body=completion("\ud800")),
    "a list": lambda: Answer(body=[1]),
    "an error with status 200": lambda: Answer(body={"error": {"message": "upstream", "code": 502}}),
}


@pytest.mark.parametrize("mistake", PASSING)
def test_a_passing_mistake_is_retried(server: Server, mistake: str) -> None:
    server.script += [PASSING[mistake](), PASSING[mistake]()]
    reply = one(server)
    assert isinstance(reply, Reply)
    assert len(server.requests) == 3


def test_a_hanging_request_is_given_up_and_sent_again(server: Server) -> None:
    server.script.append(Answer(body=completion(), seconds=30))
    start = time.monotonic()
    assert isinstance(one(server, timeout=1.0), Reply)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_obeyed_by_all_requests(server: Server, form: str) -> None:
    value = "2" if form == "seconds" else email.utils.formatdate(time.time() + 3, usegmt=True)
    server.script.append(Answer(429, {"error": {"message": "slow down"}}, {"Retry-After": value}))
    answers(server, asks(6), concurrency=1)
    first, *others = server.times
    assert min(others) - first >= 1.5
    assert len(others) == 6


def test_the_wait_grows_from_try_to_try(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FIRST_WAIT", 0.2)
    server.script += [error(503, "later") for _ in range(3)]
    one(server)
    waits = [after - before for before, after in zip(server.times, server.times[1:], strict=False)]
    assert 0.1 <= waits[0] < waits[2]
    assert waits[2] >= 0.4


FAILED = {
    "content_filter": [
        error(400, "The response was filtered", code="content_filter"),
        error(403, "Input flagged by moderation"),
        Answer(body={**completion(), "choices": [{"message": {}, "finish_reason": "content_filter"}]}),
        Answer(body=completion(None, refusal="I cannot help with that.")),  # type: ignore[arg-type]
    ],
    "too_long": [
        error(400, "This model's maximum context length is 512 tokens. Reduce it.", param="input_tokens"),
        error(413, "prompt is too long"),
    ],
    "empty": [Answer(body=completion("  \n"))],
    "too_large": [
        Answer(body=completion("x" * (LARGEST + 1))),
        Answer(body=b" " * (2 * LARGEST)),
    ],
    "refused_request": [error(422, "This question is not for me.")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "answer"), [(reason, answer) for reason, group in FAILED.items() for answer in group]
)
def test_a_question_that_is_not_answered_is_counted_by_its_reason(
    server: Server, reason: str, answer: Answer
) -> None:
    server.script.append(answer)
    outcomes = answers(server, asks(3), concurrency=1)
    assert isinstance(outcomes[0], Failure)
    assert outcomes[0].reason == reason
    assert isinstance(outcomes[1], list)
    assert len(server.requests) == 3


def test_a_question_that_always_breaks_the_server_fails_alone(server: Server) -> None:
    server.usual = lambda request: (
        error(500, "assertion failed")
        if "What is 1?" in request["messages"][0]["content"]
        else Answer(body=completion())
    )
    outcomes = answers(server, asks(4), concurrency=2)
    assert isinstance(outcomes[1], Failure)
    assert outcomes[1].reason == "server_error"
    assert [index for index, outcome in outcomes.items() if isinstance(outcome, list)] == [0, 2, 3]


SENTENCES: dict[str, tuple[Answer, str]] = {
    "wrong key": (error(401, "Incorrect API key"), "strong.key"),
    "unknown model": (error(404, "The model does not exist"), "teacher.strong.model=teacher-7b: "),
    "another address": (Answer(308, b"", {"Location": "http://example.org/"}), "is not the address"),
    "no credit": (error(402, "Payment required"), "has no credit or quota left"),
    "no quota": (error(429, "You exceeded it", code="insufficient_quota"), "has no credit or quota left"),
    "tomorrow": (Answer(429, {}, {"Retry-After": "86400"}), "asks to wait for 86,400 seconds"),
    "wrong model": (
        Answer(body={**completion(), "model": "small-1b"}),
        "teacher.strong: 'small-1b' answered in place of 'teacher-7b'",
    ),
}


@pytest.mark.parametrize("mistake", SENTENCES)
def test_what_no_question_survives_is_a_sentence_at_once(server: Server, mistake: str) -> None:
    answer, sentence = SENTENCES[mistake]
    server.usual = lambda _: answer
    with pytest.raises(LarkError, match=sentence):
        answers(server, asks(50), concurrency=2)
    assert len(server.requests) <= 2


def test_a_model_may_have_another_name_in_its_answers(server: Server) -> None:
    server.usual = lambda _: Answer(body={**completion(), "model": "small-1b"})
    assert isinstance(one(server, answers_as="small-1b"), Reply)


def test_a_closed_port_is_a_sentence_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    start = time.monotonic()
    with pytest.raises(LarkError, match=rf"endpoint={address}: no connection"):
        EndpointTeacher("strong", Teacher(endpoint=address, model=MODEL))
    assert time.monotonic() - start < 10


def test_a_server_that_stays_down_ends_the_run(server: Server) -> None:
    server.usual = lambda _: error(503, "loading")
    with pytest.raises(LarkError, match=r"gave no answer in 4 tries \(503: loading\).*Finished answers are"):
        answers(server, asks(5))


def test_settings_that_a_server_refuses_end_the_run(server: Server) -> None:
    server.usual = lambda _: error(400, "temperature must be at most 1")
    with pytest.raises(LarkError, match=r"refuses every request \(400: temperature must be at most 1"):
        answers(server, asks(50), concurrency=2)
    assert len(server.requests) <= 4


@pytest.mark.parametrize("parameter", ["seed", "top_k", "logprobs"])
def test_an_unknown_parameter_is_left_out(server: Server, parameter: str) -> None:
    def usual(request: dict[str, Any]) -> Answer:
        known = parameter not in request
        return Answer(body=completion()) if known else error(400, f"Unknown parameter: '{parameter}'.")

    server.usual = usual
    outcomes = answers(server, asks(4), concurrency=1, top_k=5, logprobs=True)
    assert all(isinstance(outcome, list) for outcome in outcomes.values())
    assert [parameter in request for request in server.requests] == [True, False, False, False, False]


def test_the_limit_on_tokens_has_the_name_that_the_server_wants(server: Server) -> None:
    message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    server.usual = lambda request: (
        error(400, message) if "max_tokens" in request else Answer(body=completion())
    )
    assert isinstance(one(server, max_new_tokens=77), Reply)
    assert server.requests[-1]["max_completion_tokens"] == 77


def test_an_answer_gets_the_room_that_the_prompt_leaves(server: Server) -> None:
    message = (
        "This model's maximum context length is 512 tokens. However, you requested 1012 tokens (12 in the"
        " messages, 1000 in the completion)."
    )
    server.script.append(error(400, message, code="context_length_exceeded"))
    assert isinstance(one(server, max_new_tokens=1000), Reply)
    assert server.requests[-1]["max_tokens"] == 500


def test_the_servers_context_limits_an_answer(server: Server) -> None:
    server.models = Answer(body={"data": [{"id": MODEL, "max_model_len": 300}]})
    one(server, max_new_tokens=1000)
    assert server.requests[-1]["max_tokens"] == 300


@pytest.mark.parametrize("manner", ["together", "refuses n", "ignores n"])
def test_samples_come_together_if_the_server_can(server: Server, manner: str) -> None:
    def usual(request: dict[str, Any]) -> Answer:
        if manner == "refuses n" and "n" in request:
            return error(400, "n > 1 is not supported")
        count = request.get("n", 1) if manner == "together" else 1
        return Answer(body=completion(f"seed {request['seed']}", count))

    server.usual = usual
    outcomes = answers(server, asks(2, samples=3), concurrency=1)
    replies = outcomes[1]
    assert isinstance(replies, list)
    assert len(replies) == 3
    assert len(server.requests) == {"together": 2, "refuses n": 7, "ignores n": 6}[manner]
    if manner != "together":
        assert [reply.text for reply in replies] == ["seed 100", "seed 101", "seed 102"]
        assert replies[0].n_prompt_tokens == 30


def test_greedy_samples_are_asked_for_once(server: Server) -> None:
    outcome = answers(server, asks(1, samples=4), temperature=0.0)[0]
    assert isinstance(outcome, list)
    assert len(outcome) == 4
    assert "n" not in server.requests[0]


def test_tokens_of_samples_add_up_to_those_that_the_server_counts(server: Server) -> None:
    response = completion("x", n=3)
    for choice, text in zip(response["choices"], ("short", "much longer than that", "middle"), strict=True):
        choice["message"] = {"content": text}
    response["usage"]["completion_tokens"] = 17
    server.script.append(Answer(body=response))
    outcome = answers(server, asks(1, samples=3))[0]
    assert isinstance(outcome, list)
    counts = [reply.n_tokens for reply in outcome]
    assert sum(counts) == 17
    assert max(counts) == counts[1]


def test_no_more_requests_are_in_flight_than_allowed(server: Server) -> None:
    server.usual = lambda _: Answer(body=completion(), seconds=0.05)
    answers(server, asks(30), concurrency=4)
    assert server.most_at_once == 4
    assert set(server.questions().values()) == {1}


def test_a_caller_that_stops_early_sends_nothing_more(server: Server) -> None:
    server.usual = lambda _: Answer(body=completion(), seconds=0.1)
    teacher = EndpointTeacher("strong", Teacher(endpoint=server.address, model=MODEL, concurrency=2))
    outcomes = teacher.ask(asks(100), AskSampling.of(teacher.teacher))
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    time.sleep(0.5)
    sent = len(server.requests)
    assert sent <= 6
    time.sleep(0.3)
    assert len(server.requests) == sent
    teacher.close()


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert isinstance(one(server), Reply)


def test_variables_for_openai_reach_no_other_host(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-openai-alone-0123456789")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-secret-name")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Hidden: value-of-the-header")
    one(server)
    sent = json.dumps(server.headers)
    assert all(text not in sent for text in ("openai-alone", "org-secret-name", "value-of-the-header"))


def test_a_key_that_is_not_set_is_a_sentence(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEACHER_ACCESS", raising=False)
    with pytest.raises(LarkError, match=r"teacher.strong.key=TEACHER_ACCESS: there is no such environment"):
        one(server, key="TEACHER_ACCESS")


def echo(server: Server, status: int) -> Answer:
    """An error that repeats the request's headers, as some proxies do."""
    return Answer(status, {"error": {"message": f"refused: {server.headers[-1]}"}})


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 429, 500])
def test_a_key_never_reaches_a_message_or_a_log(
    server: Server, status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TEACHER_ACCESS", KEY)  # a name that says nothing of a key
    caplog.set_level(logging.DEBUG)
    server.usual = lambda _: echo(server, status)
    texts = []
    try:
        outcomes = answers(server, asks(2), key="TEACHER_ACCESS", retries=1)
        texts += [outcome.detail for outcome in outcomes.values() if isinstance(outcome, Failure)]
    except LarkError as failure:
        texts += [str(failure), repr(failure.__cause__), repr(failure.__context__)]
    assert server.headers[-1]["authorization"] == f"Bearer {KEY}"
    assert "<TEACHER_ACCESS>" in texts[0]
    assert KEY not in "".join(texts) + caplog.text
