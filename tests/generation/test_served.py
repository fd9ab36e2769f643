"""A teacher behind a real `vllm serve`, and the same model as a local teacher."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from lark.config.evaluation import EngineSettings
from lark.config.teacher import Teacher
from lark.errors import LarkError
from lark.generation.conversation import Ask, AskSampling, Failure, Reply, asking, start
from tests.conftest import ROOT, SERVED_KEY

LOCAL = Teacher(path="demo", engine="hf", dtype="float32", context=512, max_new_tokens=64, logprobs=True)


def asks(count: int = 6, samples: int = 3) -> list[Ask]:
    return [
        Ask(({"role": "user", "content": f"What is {number} + 4?"},), 100 * number, samples)
        for number in range(count)
    ]


def served(address: str, **settings: Any) -> Teacher:
    defaults = {"endpoint": address, "model": "demo", "key": SERVED_KEY, "max_new_tokens": 64}
    return Teacher(**{**defaults, "logprobs": True, "timeout": 300.0, **settings})


def outcomes(teacher: Teacher, questions: list[Ask]) -> dict[int, list[Reply] | Failure]:
    with asking(start("strong", teacher, EngineSettings("hf"), "cpu")) as running:
        return dict(running.ask(questions, AskSampling.of(teacher)))


def replies(teacher: Teacher, questions: list[Ask]) -> list[list[Reply]]:
    answered = outcomes(teacher, questions)
    ordered = []
    for index in range(len(questions)):
        samples = answered[index]
        assert isinstance(samples, list)
        ordered.append(samples)
    return ordered


def test_samples_have_tokens_and_log_probabilities(vllm_endpoint: str) -> None:
    for samples in replies(served(vllm_endpoint), asks()):
        assert len(samples) == 3
        for reply in samples:
            assert reply.logprobs is not None
            assert len(reply.logprobs) == reply.n_tokens > 0
            assert max(reply.logprobs) <= 0
            assert (reply.model, reply.n_prompt_tokens) == ("demo", 10)


def test_samples_differ_by_their_seeds_alone(vllm_endpoint: str) -> None:
    teacher = served(vllm_endpoint, temperature=1.0)
    together = replies(teacher, asks(2, samples=4))
    assert len({reply.text for reply in together[1]}) > 1
    later = [Ask(ask.messages, ask.seed + 2, 2) for ask in asks(2, samples=4)]
    assert [[reply.text for reply in samples[2:]] for samples in together] == [
        [reply.text for reply in samples] for samples in replies(teacher, later)
    ]


def test_a_local_teacher_and_an_endpoint_give_the_same_greedy_answers(vllm_endpoint: str) -> None:
    questions = asks(6, samples=2)
    near = replies(replace(LOCAL, temperature=0.0), questions)
    far = replies(served(vllm_endpoint, temperature=0.0), questions)
    for here, there in zip(near, far, strict=True):
        assert [reply.text for reply in here] == [reply.text for reply in there]
        assert here[0].n_tokens == there[0].n_tokens
        assert here[0].logprobs == pytest.approx(there[0].logprobs, abs=1e-3)


def test_a_prompt_that_is_too_long_fails_alone(vllm_endpoint: str) -> None:
    questions = [*asks(1), Ask(({"role": "user", "content": "1 + " * 600},), 1)]
    for teacher in (served(vllm_endpoint), LOCAL):
        answered = outcomes(teacher, questions)
        assert isinstance(answered[0], list)
        assert isinstance(answered[1], Failure)
        assert answered[1].reason == "too_long"


def test_more_tokens_than_the_context_has_are_cut_to_it(vllm_endpoint: str) -> None:
    assert replies(served(vllm_endpoint, max_new_tokens=30_000), asks(1))


def test_a_wrong_key_is_a_sentence(vllm_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRONG_ONE", "not-the-key-of-this-server")
    with pytest.raises(
        LarkError, match="does not accept the key in the environment variable WRONG_ONE"
    ) as error:
        outcomes(served(vllm_endpoint, key="WRONG_ONE"), asks(1))
    assert "not-the-key" not in str(error.value)
    with pytest.raises(LarkError, match=r"it needs a key: set teacher.strong.key"):
        outcomes(served(vllm_endpoint, key=None), asks(1))


def test_an_unknown_model_is_a_sentence(vllm_endpoint: str) -> None:
    with pytest.raises(LarkError, match=r"teacher.strong.model=other: .*does not exist"):
        outcomes(served(vllm_endpoint, model="other"), asks(1))


def test_a_local_teacher_gives_the_same_samples_whatever_else_is_asked() -> None:
    everything = replies(LOCAL, asks(4, samples=4))
    later = replies(LOCAL, [Ask(ask.messages, ask.seed + 2, 2) for ask in asks(4)[2:]])
    for together, alone in zip(everything[2:], later, strict=True):
        assert [reply.text for reply in together[2:]] == [reply.text for reply in alone]
        # The shape of a batch changes rounding.
        assert together[2].logprobs == pytest.approx(alone[0].logprobs, abs=1e-4)


def test_a_local_teacher_separates_its_thinking() -> None:
    """The demo's student has no tags, so a word that it writes stands for one."""
    question = [Ask(({"role": "user", "content": "What is 3 + 4?"},), 1)]
    plain = replies(replace(LOCAL, temperature=0.0), question)[0][0]
    assert plain.reasoning is None
    before, tag, after = plain.text.partition("\\boxed")
    tagged = replies(replace(LOCAL, temperature=0.0, tags=["<none>", tag]), question)[0][0]
    assert (tagged.reasoning, tagged.text) == (before or None, after)


SCRIPT = """
import json
from dataclasses import asdict
from lark.config.evaluation import EngineSettings
from lark.config.teacher import Teacher
from lark.generation.conversation import Ask, AskSampling, asking, start

teacher = Teacher(path="demo", engine="vllm", dtype="float32", context=512, max_new_tokens=64, logprobs=True)
questions = [Ask(({"role": "user", "content": f"What is {n} + 4?"},), 100 * n, 4) for n in range(3)]
later = [Ask(ask.messages, ask.seed + 2, 2) for ask in questions]
with asking(start("strong", teacher, EngineSettings("hf", eager=True), "cpu")) as running:
    for asked in (questions, later):
        answered = dict(running.ask(asked, AskSampling.of(teacher)))
        print("@", json.dumps([[asdict(reply) for reply in answered[i]] for i in range(len(asked))]))
"""


def test_vllm_as_a_local_teacher_gives_the_same_samples_whatever_else_is_asked() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    printed = [line.removeprefix("@ ") for line in done.stdout.splitlines() if line.startswith("@")]
    everything, later = map(json.loads, printed)
    assert [[reply["text"] for reply in samples[2:]] for samples in everything] == [
        [reply["text"] for reply in samples] for samples in later
    ]
    for reply in everything[0]:
        assert len(reply["logprobs"]) == reply["n_tokens"] > 0
        assert (reply["model"], reply["n_prompt_tokens"]) == ("demo", 10)
