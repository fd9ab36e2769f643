"""Weights of turns, thinking and answers have their exact effect: on 1 process and 2, under DDP and ZeRO-2,
packed and padded.

The truth is ∇ 1/N Σ_i w_i Σ_t f_t s_t / |{t: f_t ≠ 0}| in fp64, one trajectory at a time. Its conversations
are written by hand, and a token's factor f_t is that of its first character in the text: neither the chat
format nor the training set's reader takes part in it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from lark.errors import LarkError
from lark.models.chat import ChatFormat, Factors
from lark.models.students import DEMO
from lark.training.encoded_set import read_examples
from tests.training.probe import gradients, trained
from tests.training.test_gradients import ARRANGEMENTS
from tests.training.tiny import WEIGHTS, relative_error, run_probe, write_student

TURN_WEIGHTS = (0.5, 0, None, 2.5, 0.125)
SETTINGS = {
    "turns": (1.0, 1.0),
    "factors": (0.25, 1.5),
    "masked thinking": (0.0, 1.0),
    "masked answers": (1.0, 0.0),
}
"""(training.thinking_weight, training.answer_weight)."""


def rows() -> Iterator[dict[str, Any]]:
    """Trajectories of one to three assistant turns, every second with thinking in some of them."""
    for k, weight in enumerate([*WEIGHTS, *WEIGHTS]):
        messages: list[dict[str, Any]] = []
        for turn in range(1 + k % 3):
            words = " ".join(f"{k} + {j} = {k + j}." for j in range(1 + (k + turn) % 3))
            answer: dict[str, Any] = {"role": "assistant", "content": words}
            if (k + turn) % 2:
                answer["reasoning_content"] = f"Is it {k * turn}?"
            factor = TURN_WEIGHTS[(k + turn) % len(TURN_WEIGHTS)]
            if factor is not None:
                answer["weight"] = factor
            messages += [{"role": "user", "content": f"{k} + {turn}?"}, answer]
        if all(message.get("weight") == 0 for message in messages[1::2]):
            del messages[-1]["weight"]
        yield {"question_id": f"q{k:02d}", "candidate_id": "c", "weight": weight, "messages": messages}


def written(row: dict[str, Any], thinking: float, answer: float) -> tuple[str, list[float]]:
    """A conversation as the demo's template writes it, and the factor of each of its characters."""
    text = ""
    factors: list[float] = []
    for message in row["messages"]:
        weight = message.get("weight", 1) if message["role"] == "assistant" else 0
        thought = message.get("reasoning_content")
        parts = [
            (f"<|{message['role']}|>", 0.0),
            (f"<think>\n{thought}\n</think>" if thought else "", weight * thinking),
            ("\n\n" if thought else "", weight * answer),
            (f"{message['content']}<|end|>", weight * answer),
        ]
        for part, factor in parts:
            text += part
            factors += [factor] * len(part)
    return text, factors


def losses(model: Any, examples: list[dict[str, Any]], thinking: float, answer: float) -> Iterator[Tensor]:
    """w_i ℓ_i of the trajectories that have a token with a factor."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    for row in examples:
        text, characters = written(row, thinking, answer)
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        factors = torch.tensor(
            [characters[start] for start, _ in encoded.offset_mapping], dtype=torch.float64
        )
        ids = torch.tensor([encoded.input_ids])
        surprisals = functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="none")
        trained_on = int((factors != 0).sum())
        if trained_on:
            yield row["weight"] * (factors[1:] * surprisals).sum() / trained_on


def direct_gradient(student: Path, thinking: float, answer: float) -> dict[str, Tensor]:
    model = AutoModelForCausalLM.from_pretrained(student, dtype=torch.float64)
    parts = list(losses(model, list(rows()), thinking, answer))
    (torch.stack(parts).sum() / len(parts)).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def overrides(name: str) -> list[str]:
    thinking, answer = SETTINGS[name]
    return [f"training.thinking_weight={thinking}", f"training.answer_weight={answer}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The student, the training set, and the gradients of 2 processes."""
    folder = tmp_path_factory.mktemp("turns")
    write_student(folder / "student")
    (folder / "turns").mkdir()
    lines = [json.dumps(row) + "\n" for row in rows()]
    (folder / "turns" / "train.jsonl").write_text("".join(lines), encoding="utf-8")
    cases: dict[str, Any] = {}
    for name in SETTINGS:
        for kind in ("packed", "padded"):
            for zero in (0, 2):
                settings = [f"hardware.zero={zero}", *ARRANGEMENTS[2, kind, 4], *overrides(name)]
                cases[f"{zero}-{kind}-{name}"] = {
                    "student": "student",
                    "selection": "turns",
                    "overrides": settings,
                }
    run_probe(folder, cases)
    return folder


@pytest.fixture(scope="module", params=SETTINGS)
def setting(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def exact(setting: str, folder: Path) -> dict[str, Tensor]:
    return direct_gradient(folder / "student", *SETTINGS[setting])


@pytest.mark.parametrize("kind", ["packed", "padded"])
@pytest.mark.parametrize("zero", [0, 2])
def test_two_processes_give_the_direct_gradient(
    zero: int, kind: str, setting: str, folder: Path, exact: dict[str, Tensor]
) -> None:
    assert json.loads((folder / "results-2.json").read_text())[f"{zero}-{kind}-{setting}"]["micro_steps"] > 1
    assert relative_error(load_file(folder / f"{zero}-{kind}-{setting}.safetensors"), exact) < 1e-5


@pytest.mark.parametrize("kind", ["packed", "padded"])
def test_one_process_gives_the_direct_gradient(
    kind: str, setting: str, folder: Path, exact: dict[str, Tensor]
) -> None:
    before = AutoModelForCausalLM.from_pretrained(folder / "student").state_dict()
    settings = [*ARRANGEMENTS[1, kind, 4], *overrides(setting)]
    run = trained(folder / "student", folder / "turns", folder / f"1-{kind}-{setting}", *settings)
    assert relative_error(gradients(before, run), exact) < 1e-5


def test_the_settings_have_different_gradients(folder: Path) -> None:
    """Or the tests above could pass without the weights."""
    plain, *others = (direct_gradient(folder / "student", *factors) for factors in SETTINGS.values())
    for other in others:
        assert relative_error(other, plain) > 0.1


def test_a_masked_turn_is_no_part_of_the_mean_and_a_light_one_is(folder: Path) -> None:
    """The mean is over the tokens whose factor is not 0, however small it is."""
    chat = ChatFormat(AutoTokenizer.from_pretrained(DEMO))
    examples = read_examples(folder / "turns" / "train.jsonl", chat, 200)
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    for example, row in zip(examples, rows(), strict=True):
        text, characters = written(row, 1.0, 1.0)
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        factors = [characters[start] for start, _ in encoded.offset_mapping]
        ids = list(example.encoded.ids)
        assert ids == encoded.input_ids[: len(ids)] and not any(factors[len(ids) :])
        weights = [factor for factor in factors if factor]
        assert example.encoded.n_response == len(weights)
        assert list(example.token_weights or [1.0] * len(weights)) == weights


def test_trajectories_without_a_token_to_train_on_are_left_out_and_none_left_is_an_error(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chat = ChatFormat(AutoTokenizer.from_pretrained(DEMO))
    examples = read_examples(folder / "turns" / "train.jsonl", chat, 200, Factors(1.0, 0.0))
    lost = 16 - len(examples)
    assert 0 < lost < 16 and f"{lost} of 16 trajectories are left out of training" in caplog.text
    plain = folder / "plain.jsonl"
    row = next(rows())
    plain.write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(LarkError, match="mask every token"):
        read_examples(plain, chat, 200, Factors(1.0, 0.0))
