"""The student's pass against a naive computation: one trajectory at a time, all logits, in float64."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from lark.models import varlen
from lark.models.chat import ChatFormat, Encoded
from lark.models.head import last_hidden_state, predicting
from lark.models.load import load_chat, load_model
from lark.models.students import DEMO
from lark.scoring import forward
from lark.scoring.forward import LoadedStudent, batches, packs, response_statistics
from lark.scoring.methods import METHODS
from lark.scoring.statistics import TokenStatistics, token_statistics
from lark.scoring.worker import summarise
from tests.conftest import composed
from tests.models.test_attention import ARCHITECTURES

RANK_CLIP = 100


def naive(model: torch.nn.Module, encoded: Encoded) -> dict[str, Tensor]:
    """By the paper's formulas. A rank is between two counts: another product rounds a logit's last bits
    differently.
    """
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([encoded.ids]), use_cache=False).logits[0].double()
    logits, gold = (
        logits[encoded.prompt_length - 1 : -1],
        torch.tensor(encoded.ids[encoded.prompt_length :])[:, None],
    )
    p = logits.softmax(-1)
    onehot = torch.zeros_like(p).scatter_(1, gold, 1.0)
    z = logits.gather(1, gold)
    slack = 5e-6 * logits.abs().max()
    return {
        "surprisal": -logits.log_softmax(-1).gather(1, gold)[:, 0],
        "residual": (p - onehot).square().sum(1),
        "p_gold": p.gather(1, gold)[:, 0],
        "rank": 1 + (logits > z).sum(1),
        "lowest_rank": 1 + (logits > z + slack).sum(1),
        "highest_rank": (logits > z - slack).sum(1),
    }


def assert_equals_naive(statistics: TokenStatistics, expected: dict[str, Tensor]) -> None:
    """Measured here: tokens to 2e-5, sums to 7e-7, every rank equal. The rest is room for another CPU's
    rounding.
    """
    for name in ("surprisal", "residual", "p_gold"):
        torch.testing.assert_close(getattr(statistics, name).double(), expected[name], rtol=1e-5, atol=6e-5)
    rank = statistics.rank.long()
    assert bool(((rank >= expected["lowest_rank"]) & (rank <= expected["highest_rank"])).all())
    assert int((rank != expected["rank"]).sum()) <= 1
    ours = summarise(statistics, RANK_CLIP)
    nll, brier = float(expected["surprisal"].sum()), float(expected["residual"].sum())
    assert ours["nll"] == pytest.approx(nll, rel=3e-6)
    assert ours["brier"] == pytest.approx(brier, rel=3e-6)
    lowest, highest = (
        float(expected[name].clamp(max=RANK_CLIP).sum()) for name in ("lowest_rank", "highest_rank")
    )
    assert lowest <= ours["rank_sum"] <= highest
    assert lowest / nll * (1 - 3e-6) <= ours["rank_sum"] / ours["nll"] <= highest / nll * (1 + 3e-6)  # RSR


def score_all(student: LoadedStudent, encoded: list[Encoded], budget: int) -> list[TokenStatistics]:
    found: list[TokenStatistics | None] = [None] * len(encoded)
    for batch in batches([len(e.ids) for e in encoded], budget, padded=not student.packs):
        for index, statistics in zip(
            batch, response_statistics(student, [encoded[i] for i in batch]), strict=True
        ):
            found[index] = statistics
    assert all(statistics is not None for statistics in found)
    return found  # type: ignore[return-value]


@pytest.fixture(scope="module")
def demo() -> tuple[LoadedStudent, ChatFormat]:
    config = composed().student
    return LoadedStudent.load(str(DEMO), config, "cpu"), load_chat(str(DEMO), config)


@pytest.fixture(scope="module")
def demo_rows() -> list[dict[str, Any]]:
    from lark.demo.pool import trajectories

    return list(trajectories(2, 42))  # type: ignore[arg-type]


def test_the_demo_student_gives_the_naive_numbers(demo, demo_rows):
    student, chat = demo
    encoded = chat.encode_many(demo_rows, 512)
    for e, statistics in zip(encoded, score_all(student, encoded, 2048), strict=True):
        assert_equals_naive(statistics, naive(student.model, e))


def test_neither_company_nor_padding_nor_order_changes_a_number(demo, demo_rows):
    student, chat = demo
    encoded = chat.encode_many(demo_rows, 512)
    alone = score_all(student, encoded, 1)
    for budget, step in ((600, 1), (100_000, -1), (1000, 7)):
        order = [i * step % len(encoded) for i in range(len(encoded))]
        assert sorted(order) == list(range(len(encoded)))
        for index, statistics in zip(
            order, score_all(student, [encoded[i] for i in order], budget), strict=True
        ):
            for name, column in vars(statistics).items():
                torch.testing.assert_close(column, getattr(alone[index], name), rtol=1e-5, atol=1e-5)


def test_packs_and_shared_prompts_give_the_numbers_of_padded_batches(demo_rows):
    """A CPU shares prompts by default. A GPU packs without sharing: on a CPU the same path runs if it is
    asked for.
    """
    config = composed().student
    chat = load_chat(str(DEMO), config)
    encoded = chat.encode_many(demo_rows, 512)
    students = [
        LoadedStudent.of(load_model(str(DEMO), replace(config, attention=name), "cpu"))
        for name in ("auto", "varlen", "eager")
    ]
    assert [(student.packs, student.shares) for student in students] == [
        (True, True),
        (True, False),
        (False, False),
    ]
    shared, packed, padded = (score_all(student, encoded, 2048) for student in students)
    for one, two, three in zip(shared, packed, padded, strict=True):
        for name, column in vars(three).items():
            torch.testing.assert_close(getattr(one, name), column, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(getattr(two, name), column, rtol=1e-5, atol=1e-5)


CANNOT_SHARE = {"qwen2_moe, whose layers do not pass their window on"}


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_every_architecture_gives_the_numbers_of_each_trajectory_alone(family, monkeypatch):
    """Three questions with several candidates, one of them in two turns, in passes so small that a question
    needs several.
    """
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(ARCHITECTURES[family], attn_implementation="sdpa").eval()
    generator = torch.Generator().manual_seed(1)
    ids = iter(torch.randint(97, (1000,), generator=generator).tolist())
    prompts = [[next(ids) for _ in range(size)] for size in (9, 1, 6)]
    batch = [
        Encoded(
            [*prompts[question], *(next(ids) for _ in range(size))], len(prompts[question]), False, context
        )
        for question, size, context in (
            (0, 5, ()),
            (0, 12, ((12, 15),)),
            (1, 8, ()),
            (0, 3, ()),
            (2, 7, ()),
            (1, 1, ()),
            (2, 11, ()),
            (2, 2, ()),
            (0, 4, ()),
        )
    ]
    student = LoadedStudent.of(model)
    assert (student.packs, student.shares) == (True, family not in CANNOT_SHARE)
    assert len(packs(batch, 1000, student.shares)) == 1
    for tokens in (1000, 30):
        monkeypatch.setattr(forward, "CPU_TOKENS", tokens)
        for encoded, found in zip(batch, response_statistics(student, batch), strict=True):
            hidden = last_hidden_state(model, torch.tensor(encoded.ids)[None])[0]
            alone = token_statistics(
                predicting(hidden, encoded), torch.tensor(encoded.response), student.head
            )
            for name, column in vars(found).items():
                torch.testing.assert_close(column, getattr(alone, name), rtol=1e-5, atol=1e-5)


def test_a_kernel_that_fails_at_start_up_means_padded_batches(monkeypatch, caplog):
    """As in training: not only a kernel that mixes trajectories, but also one that does not run."""

    def fails(*_args: object, **_kwargs: object) -> Tensor:
        raise RuntimeError("no kernel image is available for execution on the device")

    model = load_model(str(DEMO), replace(composed().student, attention="varlen"), "cpu")
    monkeypatch.setattr(varlen, "sdpa_per_segment", fails)
    assert not LoadedStudent.of(model).packs
    assert "Scoring padded batches instead of packs: no kernel image is available" in caplog.text


def test_batches_take_everything_once_and_keep_to_the_budget():
    lengths = [int(100 * abs(math.sin(i))) + 1 for i in range(50)]
    for padded, padding in ((True, math.inf), (True, 8), (False, math.inf)):
        found = batches(lengths, 300, padded, padding)
        assert sorted(i for batch in found for i in batch) == list(range(50))
        for batch in found:
            sizes = [lengths[i] for i in batch]
            assert len(batch) == 1 or (max(sizes) * len(batch) if padded else sum(sizes)) <= 300
            assert not padded or max(sizes) - min(sizes) <= padding
    assert batches([5, 900, 7], 300, padded=True) == [[1], [2, 0]]
    assert batches([5, 90, 7], 300, padded=True) == [[1, 2, 0]]
    assert batches([5, 90, 7], 300, padded=True, padding=32) == [[1], [2, 0]]
    assert batches([5, 900, 7], 300, padded=False) == [[0], [1], [2]]
    assert batches([], 300, padded=True) == []


def test_packs_hold_a_common_beginning_once():
    shapes = ((1, 5), (2, 5), (1, 4), (1, 40), (2, 6), (3, 99))
    batch = [Encoded([question] * 10 + [10 + size] * size, 10, False) for question, size in shapes]
    assert packs(batch, 100, shares=True) == [[2, 0, 3, 1, 4], [5]]  # 14 + 5 + 40, 15 + 6
    assert packs(batch, 59, shares=True) == [[2, 0, 3], [1, 4], [5]]
    assert packs(batch, 58, shares=True) == [[2, 0], [3], [1, 4], [5]]
    assert packs(batch, 58, shares=False) == [[0, 1, 2], [3], [4], [5]]
    assert packs(batch[:1] * 3, 17, shares=True) == [
        [0, 1, 2]
    ]  # a trajectory has at least one token of its own
    assert packs([], 60, shares=True) == []


def test_a_real_student_gives_the_naive_numbers_on_real_trajectories(smollm2, shared_data):
    """One question's answers by four teachers."""
    config = composed("student=smollm2", "student.dtype=float32").student
    student, chat = LoadedStudent.load(str(smollm2), config, "cpu"), load_chat(str(smollm2), config)
    model = load_model(str(smollm2), config, "cpu")  # with the weights' own layout
    lines = [
        json.loads(line) for line in (shared_data / "pools" / "gsm_symbolic.jsonl").open(encoding="utf-8")
    ]
    rows = [
        {
            "question": line["messages"][0]["content"],
            "system": None,
            "response": line["messages"][1]["content"],
        }
        for line in lines
        if line["problem_id"] == 1 and line["rollout"] == 0
    ]
    encoded = chat.encode_many(rows[:4], 2048)
    assert student.head.vocabulary == 49_152
    assert sum(e.n_response for e in encoded) > 300
    for e, statistics in zip(encoded, score_all(student, encoded, 2048), strict=True):
        assert_equals_naive(statistics, naive(model, e))


def test_the_papers_methods_of_the_forward_pass_need_nothing_else():
    shared = {name for name, method in METHODS.items() if method.needs == {"statistics"}}
    assert shared >= {"lark", "grape", "rsr", "inverse_loss", "brier", "rho"}
