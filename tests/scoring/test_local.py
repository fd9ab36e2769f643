"""Local Naturalness against one separate forward pass for each step on its truncated context."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lark.models.chat import ChatFormat, Encoded
from lark.models.load import load_chat, load_model
from lark.models.students import DEMO
from lark.scoring import local
from lark.scoring.forward import LoadedStudent
from lark.scoring.local import Block, LocalScorer, blocks, local_naturalness, steps_of
from lark.scoring.sentences import split_steps
from tests.conftest import composed
from tests.models.test_head import tiny

STEPS = st.lists(st.integers(1, 5), min_size=1, max_size=14).map(
    lambda sizes: [j for j, size in enumerate(sizes) for _ in range(size)]
)
"""Step numbers of a response's tokens."""


@given(STEPS, st.integers(1, 6))
def test_every_token_is_scored_once_given_exactly_the_m_steps_before_its_own(steps, m):
    numbers = np.array(steps)
    seen = np.zeros(len(steps), int)
    for block in blocks(steps, m):
        seen[block.scored : block.stop] += 1
        for token in range(block.scored, block.stop):
            context = numbers[block.start : token + 1]
            assert sorted(set(context)) == list(range(max(0, steps[token] - m), steps[token] + 1))
            assert block.start == np.flatnonzero(numbers == context[0])[0]  # whole steps
    assert (seen == 1).all()


@given(STEPS, st.integers(1, 6))
def test_blocks_cost_no_more_than_m_plus_1_passes_over_the_response(steps, m):
    assert sum(block.stop - block.start for block in blocks(steps, m)) <= (m + 1) * len(steps)


def test_the_first_steps_share_a_block():
    assert blocks([0, 0, 1, 2, 2, 3], 1) == [Block(0, 0, 3), Block(2, 3, 5), Block(3, 5, 6)]
    assert blocks([0, 0, 1, 2], 4) == [Block(0, 0, 4)]


def test_the_score_is_the_mean_over_steps_of_their_mean():
    assert local_naturalness(np.array([1.0, 3.0, 5.0]), [0, 0, 1]) == -(2 + 5) / 2


def step_by_step(model: torch.nn.Module, encoded: Encoded, steps: list[int], m: int) -> list[float]:
    """Surprisals from the definition: for each step, a separate sequence of the prompt, the m steps before
    it and the step.
    """
    prompt, response = list(encoded.ids[: encoded.prompt_length]), encoded.ids[encoded.prompt_length :]
    found = []
    for j in range(steps[-1] + 1):
        context = prompt + [token for token, step in zip(response, steps, strict=True) if j - m <= step < j]
        step = [token for token, number in zip(response, steps, strict=True) if number == j]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([context + step]), use_cache=False).logits[0].double()
        log_p = logits.log_softmax(-1)[len(context) - 1 : -1]
        found += [-float(log_p[i, token]) for i, token in enumerate(step)]
    return found


def random_group(prompt: int, sizes: list[list[int]]) -> tuple[list[Encoded], list[list[int]]]:
    """Trajectories of one question: a list of step lengths for each."""
    generator = torch.Generator().manual_seed(prompt)
    ids = torch.randint(0, 101, (prompt + sum(map(sum, sizes)),), generator=generator).tolist()
    question, rest = ids[:prompt], ids[prompt:]
    group, steps = [], []
    for size in sizes:
        group.append(Encoded(question + rest[: sum(size)], prompt, truncated=False))
        rest = rest[sum(size) :]
        steps.append([j for j, n in enumerate(size) for _ in range(n)])
    return group, steps


FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "gpt2, learned positions": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
    "gemma2, soft cap and a window of 6": (
        "Gemma2Config",
        {"head_dim": 8, "final_logit_softcapping": 3.0, "sliding_window": 6, "query_pre_attn_scalar": 8},
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shared", [True, False], ids=["prompt once", "own prompts"])
def test_surprisals_equal_one_forward_pass_for_each_step(family, shared, monkeypatch):
    config_class, settings = FAMILIES[family]
    model = tiny(config_class, **settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                0.2 * torch.randn_like(parameter)
            )  # so that logits differ and attention is not uniform
    if not shared:
        monkeypatch.setattr(local, "can_continue", lambda student: False)
    sizes = [[3, 1, 4, 1, 5, 9, 2, 6], [1], [2, 7, 1, 8, 2, 8], [1, 1, 1]]
    for m, prompt, budget in ((4, 7, 10_000), (1, 7, 40), (2, 1, 60)):
        group, steps = random_group(prompt, sizes)
        scorer = LocalScorer(LoadedStudent.of(model), m, budget)
        assert scorer.continues == shared
        shares: list[float] = []
        found = scorer.surprisals(group, steps, shares.append)
        for encoded, numbers, surprisal in zip(group, steps, found, strict=True):
            np.testing.assert_allclose(
                surprisal, step_by_step(model, encoded, numbers, m), rtol=1e-5, atol=1e-5
            )
        assert sum(shares) == pytest.approx(1)


def test_a_model_that_cannot_continue_from_keys_is_detected_and_logged(caplog):
    model = tiny("LlamaConfig")
    plain = model.model.forward

    def forgetful(*args, past_key_values=None, **kwargs):
        return plain(*args, **kwargs)

    model.model.forward = forgetful
    with caplog.at_level(logging.WARNING):
        assert not local.can_continue(LoadedStudent.of(model))
    assert "Every block is run after the full prompt" in caplog.text


@pytest.fixture(scope="module")
def demo() -> tuple[LoadedStudent, ChatFormat]:
    config = composed().student
    return LoadedStudent.of(load_model(str(DEMO), config, "cpu")), load_chat(str(DEMO), config)


def test_the_demo_student_agrees_with_the_definition_from_text_to_score(demo):
    """A question's candidates, the longest cut off in the middle of a step."""
    from lark.demo.pool import trajectories

    student, chat = demo
    rows = [row for row in trajectories(1, 42) if row["teacher"] in ("narrator", "splitter", "terse")]
    longest = max(len(e.ids) for e in chat.encode_many(rows, 512))
    encoded = chat.encode_many(rows, longest - 3, offsets=True)
    assert {e.truncated for e in encoded} == {True, False}
    steps = [steps_of(e) for e in encoded]
    assert max(numbers[-1] for numbers in steps) >= 2
    found = LocalScorer(student, 1, 400).surprisals(encoded, steps)
    for e, numbers, surprisal in zip(encoded, steps, found, strict=True):
        expected = step_by_step(student.model, e, numbers, 1)
        np.testing.assert_allclose(surprisal, expected, rtol=1e-4, atol=1e-5)
        by_step = [
            [-s for s, n in zip(expected, numbers, strict=True) if n == j] for j in range(numbers[-1] + 1)
        ]
        naive = sum(sum(step) / len(step) for step in by_step) / len(by_step)
        assert local_naturalness(surprisal, numbers) == pytest.approx(naive, rel=1e-5)


TEXT = (
    "First, add 3.5 and 2. So we get\n\n$$x = 5.5.$$ Then 7! is 5040.\n  - Done? Yes. The answer is"
    " \\boxed{5.5}."
)


@pytest.mark.parametrize("family", ["qwen2_5", "llama3_1"])
def test_real_tokens_join_the_step_in_which_they_begin(family, shared_data: Path):
    from transformers import AutoTokenizer

    chat = ChatFormat(AutoTokenizer.from_pretrained(shared_data / "tokenizers" / family))
    row = {"question": "What is it?", "system": None, "response": TEXT}
    (encoded,) = chat.encode_many([row], 4096, offsets=True)
    assert encoded.ids == chat.encode("What is it?", TEXT, 4096).ids
    steps, texts = steps_of(encoded), split_steps(TEXT)
    assert len(steps) == encoded.n_response
    assert steps[-1] == steps[-2] == len(texts) - 1  # the end of the turn belongs to the last step
    response = encoded.ids[encoded.prompt_length : -1]
    for j, text in enumerate(texts):
        tokens = [token for token, step in zip(response, steps, strict=False) if step == j]
        # A token may reach over the end of its step (".\n\n"), never begin outside it.
        assert chat.tokenizer.decode(tokens).strip().startswith(text.strip()[:4])
    assert chat.tokenizer.decode(response) == TEXT
