"""The hf engine: samples depend only on their own request and follow the sampling parameters."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config

from lark.evaluation.benchmarks import load
from lark.generation import hf_attention
from lark.generation.engine import Engine, Generation, Request, Sampling, answers, documents
from lark.generation.hf import HFEngine
from lark.generation.hf_attention import blocks_of, read_in_blocks
from lark.generation.hf_cache import new_cache
from lark.generation.hf_sampling import next_token
from lark.models.load import load_chat
from lark.models.prompts import NUMERIC
from lark.models.students import DEMO
from lark.scoring.judge import schema
from tests.conftest import composed

CONFIG = composed()
CHAT = load_chat(str(DEMO), CONFIG.student)
GREEDY = Sampling(0.0, 1.0, -1, 1.0, 1, tuple(CHAT.stop_ids))
SAMPLED = Sampling(1.0, 0.95, -1, 1.1, 3, tuple(CHAT.stop_ids))


def requests(count: int, max_new_tokens: int = 24) -> list[Request]:
    problems = load("demo_words", CONFIG.benchmark.tasks["demo_words"])[:count]
    return [
        Request(tuple(CHAT.prompt(p.question, NUMERIC)), 100 * i, max_new_tokens)
        for i, p in enumerate(problems)
    ]


def engine(batch: int) -> HFEngine:
    return HFEngine(replace(CONFIG.engine, batch=batch), CONFIG.student, str(DEMO), CHAT.tokenizer, "cpu")


@pytest.fixture(scope="module")
def wide() -> HFEngine:
    return engine(64)


def test_a_sample_does_not_depend_on_its_batch(wide: HFEngine) -> None:
    asked = requests(6)
    together = answers(wide, asked, SAMPLED)
    narrow = engine(4)  # rows are replaced all the time
    assert answers(narrow, asked, SAMPLED) == together
    assert answers(narrow, asked[2:4], SAMPLED) == together[2:4]
    assert answers(wide, asked[::-1], SAMPLED) == together[::-1]
    assert len({sample.text for samples in together for sample in samples}) > 6


def test_greedy_is_what_transformers_generates_alone(wide: HFEngine) -> None:
    asked = requests(4, 40)
    for request, (ours,) in zip(asked, answers(wide, asked, GREEDY), strict=True):
        whole = wide.model.generate(
            torch.tensor([request.prompt]),
            max_new_tokens=40,
            do_sample=False,
            use_cache=True,
            eos_token_id=CHAT.stop_ids,
        )[0, len(request.prompt) :].tolist()
        assert ours.n_tokens == len(whole)
        assert ours.finish_reason == ("stop" if whole[-1] in CHAT.stop_ids else "length")
        assert ours.text == CHAT.tokenizer.decode(whole, skip_special_tokens=True)


def test_greedy_samples_are_made_once_and_repeated(wide: HFEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests(3)
    once = answers(wide, asked, GREEDY)
    given, generate = [], wide.generate

    def watched(requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, list[Generation]]]:
        given.append(sampling.samples)
        return generate(requests, sampling)

    monkeypatch.setattr(wide, "generate", watched)
    assert answers(wide, asked, replace(GREEDY, samples=5)) == [[sample] * 5 for (sample,) in once]
    assert [len(samples) for samples in answers(wide, asked, SAMPLED)] == [3, 3, 3]
    assert given == [1, 3]


def test_a_prompt_is_read_once_for_all_its_samples_and_seeds(
    wide: HFEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    forward = wide._forward

    def counting(ids: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        read.append(ids.numel())
        return forward(ids, *rest, **more)

    monkeypatch.setattr(wide, "_forward", counting)
    (request,) = requests(1, 2)
    answers(wide, [request, replace(request, seed=7)], SAMPLED)
    assert read[0] == len(request.prompt)


def test_answers_are_yielded_as_soon_as_they_are_complete(wide: HFEngine) -> None:
    long, short = requests(2, 30)
    order = [number for number, _ in engine(1).generate([long, replace(short, max_new_tokens=2)], GREEDY)]
    assert sorted(order) == [0, 1]
    assert next(iter(wide.generate([long, replace(short, max_new_tokens=1)], GREEDY)))[0] == 1


def test_an_answer_that_is_cut_off_has_finish_reason_length(wide: HFEngine) -> None:
    ((cut,),) = answers(wide, requests(1, 1), GREEDY)
    assert (cut.finish_reason, cut.n_tokens) == ("length", 1)


def test_a_finite_schema_leaves_no_other_answer(wide: HFEngine) -> None:
    sampling = replace(
        SAMPLED, samples=20, schema=schema("brief"), repetition_penalty=1.0, temperature=30.0, top_p=1.0
    )
    (samples,) = answers(wide, requests(1), sampling)
    allowed = {f'{{"overall_score": {i / 10}}}' for i in range(11)}
    assert {sample.text for sample in samples} <= allowed
    assert len({sample.text for sample in samples}) > 1
    assert {sample.finish_reason for sample in samples} == {"stop"}
    assert documents(schema("paper")) is None


def test_documents_are_every_combination() -> None:
    finite = {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"enum": ["x", "y"]}}}
    assert [json.loads(text) for text in documents(finite) or []] == [
        {"a": a, "b": b} for a in (1, 2) for b in "xy"
    ]


def reference(logits: np.ndarray, uniform: float, sampling: Sampling, seen: np.ndarray) -> int:
    """An independent formulation: plain loops over one sequence in float64."""
    scores = [
        z if not s else (z / sampling.repetition_penalty if z > 0 else z * sampling.repetition_penalty)
        for z, s in zip(logits.astype(np.float64), seen, strict=True)
    ]
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    if sampling.temperature == 0:
        return order[0]
    order = order[: sampling.top_k] if sampling.top_k > 0 else order
    weights = [np.exp((scores[i] - scores[order[0]]) / sampling.temperature) for i in order]
    kept, mass = [], 0.0
    for token, weight in zip(order, weights, strict=True):
        if mass >= sampling.top_p * sum(weights):
            break
        kept.append((token, weight))
        mass += weight
    threshold = uniform * mass
    for token, weight in kept:
        threshold -= weight
        if threshold < 0:
            return token
    return kept[-1][0]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([0.0, 0.6, 1.0, 3.0]),
    top_p=st.sampled_from([0.1, 0.5, 0.95, 1.0]),
    top_k=st.sampled_from([-1, 1, 5, 100]),
    penalty=st.sampled_from([1.0, 1.3]),
)
def test_sampling_agrees_with_plain_loops(
    seed: int, temperature: float, top_p: float, top_k: int, penalty: float
) -> None:
    rng = np.random.default_rng(seed)
    sampling = Sampling(temperature, top_p, top_k, penalty, 1, ())
    logits = rng.normal(0, 3, (3, 200)).astype(np.float32)
    uniform, seen = rng.random(3, dtype=np.float32), rng.random((3, 200)) < 0.3
    found = next_token(torch.tensor(logits), torch.tensor(uniform), sampling, torch.tensor(seen)).tolist()
    expected = [reference(logits[i], float(uniform[i]), sampling, seen[i]) for i in range(3)]
    assert (
        sum(a != b for a, b in zip(found, expected, strict=True)) <= 1
    )  # a draw within rounding of a boundary


def test_a_flat_distribution_does_not_change_the_other_sequences_tokens() -> None:
    """Only its own vocabulary is sorted."""
    torch.manual_seed(0)
    peaked, uniform = 9 * torch.randn(40, 300), torch.rand(41)
    sampling = Sampling(1.0, 0.95, -1, 1.0, 1, ())
    both = next_token(torch.cat([peaked, torch.zeros(1, 300)]), uniform, sampling)
    assert torch.equal(both[:-1], next_token(peaked, uniform[:-1], sampling))
    assert int(both[-1]) == int(uniform[-1] * 0.95 * 300)


@pytest.mark.parametrize("family", [LlamaConfig, MistralConfig, Qwen2Config])
def test_blocks_of_rows_read_their_own_columns(
    family: type[PretrainedConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits of a step, for rows of very different lengths, are those of plain sdpa over the whole cache."""
    monkeypatch.setattr(hf_attention, "BLOCK_ROWS", 2)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = family(
        **shape, num_key_value_heads=2, vocab_size=97, max_position_embeddings=64, sliding_window=8
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    lengths = [30, 28, 9, 7, 3]
    ids = torch.randint(97, (5, 30))
    mask = torch.tensor([[0] * (30 - n) + [1] * n for n in lengths])
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    logits = []
    for blocks in (None, blocks_of([n + 1 for n in lengths])):
        cache = new_cache()
        with torch.inference_mode():
            model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            )
            more = {} if blocks is None else {"blocks": blocks}
            wider = torch.cat([mask, torch.ones(5, 1, dtype=mask.dtype)], dim=1)
            inputs = {
                "attention_mask": wider,
                "position_ids": mask.sum(-1, keepdim=True),
                "past_key_values": cache,
            }
            logits.append(model(input_ids=ids[:, :1], **inputs, use_cache=True, **more).logits)
        assert read_in_blocks(model) is (blocks is None)
    assert blocks == [(0, 2, 31), (2, 4, 10), (4, 5, 4)]
    torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)


def test_samples_follow_the_distribution() -> None:
    probability = torch.tensor([0.5, 0.3, 0.15, 0.05])
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    tokens = next_token(probability.log().expand(20_000, 4), uniform, Sampling(1.0, 0.9, -1, 1.0, 1, ()))
    counts = Counter(tokens.tolist())
    assert set(counts) == {0, 1, 2}  # 0.5 + 0.3 do not reach 0.9, so the third is in and the fourth out
    assert counts[0] / 20_000 == pytest.approx(0.5 / 0.95, abs=0.02)


def test_every_engine_has_the_same_interface() -> None:
    from lark.generation.sglang import SGLangEngine, parameters
    from lark.generation.vllm import VLLMEngine

    for kind in (HFEngine, VLLMEngine, SGLangEngine):
        assert all(callable(getattr(kind, name)) for name in ("generate", "close") if hasattr(Engine, name))
    asked = parameters(Request((1, 2), 40, 8), 3, replace(SAMPLED, schema=schema("paper")))
    assert (asked["sampling_seed"], asked["max_new_tokens"], asked["repetition_penalty"]) == (43, 8, 1.1)
    assert json.loads(asked["json_schema"]) == schema("paper")
    brief = parameters(Request((1, 2), 40, 8), 3, replace(SAMPLED, schema=schema("brief")))["regex"]
    assert all(re.fullmatch(brief, text) for text in documents(schema("brief")) or [])
    assert not re.fullmatch(brief, '{"overall_score": 0.55}')
