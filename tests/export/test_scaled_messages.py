"""Exports in which weights of trajectories and of single messages act: by each trainer's own formula, the
file has our objective.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from lark.errors import LarkError
from lark.export.targets import TARGETS
from lark.models.chat import EQUAL, ChatFormat, Factors
from lark.models.students import DEMO
from lark.training.encoded_set import Example, read_examples
from tests.export.test_export import CONTEXT, PLAIN, THINKING, TOOLS, USER, exported, written

STUDENT = ("--student", str(DEMO))
SCALED = {
    "messages": [
        USER,
        {"role": "assistant", "content": "6", "weight": 0},
        USER,
        {"role": "assistant", "content": "Or 7?", "weight": 0.25},
        USER,
        {"role": "assistant", "content": "5 is right.", "weight": 3},
    ],
    "weight": 0.75, "question_id": "q4", "candidate_id": "a",
}  # fmt: skip


def examples(folder: Path, factors: Factors = EQUAL) -> dict[str, Example]:
    chat = ChatFormat(AutoTokenizer.from_pretrained(DEMO))
    found = read_examples(folder / "train.jsonl", chat, 512, factors)
    return {example.name: example for example in found}


def surprisals(example: Example) -> np.ndarray:
    """A number for each response token, whatever the student."""
    ids = np.array(example.encoded.response)
    return 1 + np.sin(ids + np.arange(len(ids)))


def our_losses(example: Example) -> float:
    """w ℓ."""
    weights = np.ones(example.encoded.n_response)
    if example.token_weights is not None:
        weights = np.array(example.token_weights)
    return float(example.weight * (weights * surprisals(example)).mean())


def test_ms_swifts_sum_over_tokens_is_our_loss_times_the_mean_length(tmp_path: Path) -> None:
    """Its loss is (surprisal x loss_scale).sum() / labels. Here a turn's end has the scale of its message."""
    rows = (PLAIN, THINKING, CONTEXT, SCALED)
    written(tmp_path, *rows)
    lines = exported(tmp_path, "swift", *STUDENT)
    ours = examples(tmp_path)
    mean_length = np.mean([example.encoded.n_response for example in ours.values()])
    for row, line in zip(rows, lines, strict=True):
        example = ours[f"{row['question_id']}/{row['candidate_id']}"]
        scales = [m["loss_scale"] for m in line["messages"] if m["role"] == "assistant" and m["loss_scale"]]
        lengths = [stop - start for start, stop in example.encoded.turns]
        swift = (np.repeat(scales, lengths) * surprisals(example)).sum()
        assert swift == pytest.approx(our_losses(example) * mean_length)
    assert [message.get("loss_scale") for message in lines[2]["messages"]][:3] == [None, 0, None]
    assert "weight" not in json.dumps(lines)


def test_ms_swift_gets_thinking_and_tools_as_it_reads_them(tmp_path: Path) -> None:
    written(tmp_path, THINKING, TOOLS)
    thinking, tools = exported(tmp_path, "swift", *STUDENT)
    assert thinking["messages"][-1]["content"] == "<think>\n2+3.\n</think>\n\n5"
    assert json.loads(tools["tools"]) == TOOLS["tools"]
    assert all(message["loss_scale"] > 0 for message in tools["messages"] if message["role"] == "assistant")


@pytest.mark.parametrize("factors", [(), ("--thinking-weight", "0"), ("--thinking-weight", "0.5")])
def test_tinkers_weighted_sum_is_our_loss(factors: tuple[str, ...], tmp_path: Path) -> None:
    """cross_entropy is the sum of -weight x log p over the targets of a Datum."""
    rows = (PLAIN, THINKING, CONTEXT, SCALED)
    written(tmp_path, *rows)
    lines = exported(tmp_path, "tinker", *STUDENT, *factors)
    ours = examples(tmp_path, Factors(float(factors[1])) if factors else EQUAL)
    for row, line in zip(rows, lines, strict=True):
        example = ours[f"{row['question_id']}/{row['candidate_id']}"]
        (chunk,) = line["model_input"]["chunks"]
        target, weights = (line["loss_fn_inputs"][name] for name in ("target_tokens", "weights"))
        assert [*chunk["tokens"][:1], *target["data"]] == list(example.encoded.ids)
        assert chunk["tokens"][1:] == target["data"][:-1]
        assert target["shape"] == weights["shape"] == [len(chunk["tokens"])]
        trained = np.array(weights["data"])
        assert np.array(target["data"])[trained > 0].tolist() == example.encoded.response
        assert (trained[trained > 0] * surprisals(example)).sum() == pytest.approx(our_losses(example))


@pytest.mark.parametrize("target", [name for name, target in TARGETS.items() if not target.scales])
def test_other_trainers_refuse_scaled_messages_and_take_their_masks(target: str, tmp_path: Path) -> None:
    row = {**SCALED, "messages": SCALED["messages"][2:], "weight": 1.0}
    written(tmp_path, row)
    for options in ((), ("--weights", "repeat")):
        with pytest.raises(LarkError, match="cannot scale single messages, and 1 of 1 examples"):
            exported(tmp_path, target, *options)
    assert not {0.25, 3} & set(_weights(exported(tmp_path, target, "--weights", "drop")))


def test_weights_that_are_dropped_leave_only_the_masks(tmp_path: Path) -> None:
    written(tmp_path, SCALED)
    (line,) = exported(tmp_path, "swift", *STUDENT, "--weights", "drop")
    assert _weights([line]) == [0, 1, 1]
    (tmp_path / "out.jsonl").unlink()
    (line,) = exported(tmp_path, "messages", "--weights", "drop")
    assert _weights([line]) == [0] and "weight" not in line


def _weights(lines: list[dict[str, Any]]) -> list[float]:
    found: list[float] = []
    for line in lines:
        for message in line.get("messages") or [*line["prompt"], *line["completion"]]:
            found += [message[key] for key in ("weight", "loss_scale") if key in message]
    return found


def test_a_student_is_needed_where_its_tokens_are_and_refused_elsewhere(tmp_path: Path) -> None:
    written(tmp_path, PLAIN)
    for options, said in (
        (("swift",), "depend on the student's tokens. Add --student"),
        (("fireworks", *STUDENT), "gets no tokens"),
        (("swift", *STUDENT, "--thinking-weight", "0.5"), "weights whole messages"),
        (("tinker", *STUDENT, "--thinking-weight", "-1"), "write numbers from 0"),
        (("tinker", *STUDENT, "max_size=3"), "--student .*max_size"),
        (("tinker", *STUDENT, "max_length=9"), "line 1: no token of this response"),
    ):
        with pytest.raises(LarkError, match=said):
            exported(tmp_path, *options)
    assert not (tmp_path / "out.jsonl").exists()
