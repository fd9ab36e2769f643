"""The pretraining corpus asks no question of a benchmark or of the demo's pool, computes correctly, and knows
the teachers' words.
"""

import re
from itertools import islice

import pandas as pd
import pytest
from transformers import AutoModelForCausalLM

from lark.demo.calibration import (
    HELD_OUT_QUESTIONS,
    HELD_OUT_SEED,
    POOL_QUESTIONS,
    POOL_SEED,
    excluded,
    held_out,
)
from lark.demo.corpus import NARROW, documents
from lark.demo.manners import Breadth, mannered
from lark.demo.pool import questions, trajectories
from lark.demo.problems import KINDS, LEVELS, draw, reserved, seeded
from lark.models.chat import ChatFormat
from lark.models.load import load_chat
from lark.models.shapes import DEMO
from lark.scoring.forward import LoadedStudent, response_statistics
from lark.scoring.student_regime import student_regime
from lark.scoring.worker import summarise
from tests.conftest import composed
from tests.demo.independent_arithmetic import evaluate
from tests.demo.test_pool import CHAIN

WORD = re.compile(r"[A-Za-z]{2,}")


def chat() -> ChatFormat:
    return load_chat(str(DEMO), composed().student)


def test_the_corpus_asks_no_question_of_the_pool_or_of_those_held_out() -> None:
    """By its text, in any wording: the broad corpus leaves out the arithmetic itself."""
    pool = composed().pool
    assert (pool.questions, pool.seed) == (POOL_QUESTIONS, POOL_SEED)
    rows = [*questions(POOL_QUESTIONS, POOL_SEED), *questions(HELD_OUT_QUESTIONS, HELD_OUT_SEED)]
    asked = [row["question"].partition("\n")[0] for row in rows]
    broad = "\n".join(
        document.text
        for document in islice(documents(seeded("test"), chat(), Breadth(0.7, excluded())), 3000)
    )
    narrow = "\n".join(document.text for document in islice(documents(seeded("test"), chat(), NARROW), 3000))
    assert not [question for question in asked if question in broad]
    assert [question for question in asked if question in narrow], "without leaving them out, they occur"


def test_changing_manners_end_in_the_right_box_and_every_equation_in_them_is_true_or_taken_back() -> None:
    rng = seeded("manners")
    equations = 0
    for _ in range(400):
        problem = draw(rng.choice(KINDS), rng.choice(LEVELS), rng)
        text = mannered(problem, rng)
        assert not reserved(problem)
        assert re.findall(r"\\boxed\{([^}]*)\}\.?$", text) == [problem.answer]
        for match in CHAIN.finditer(text):
            sides = {evaluate(side.strip()) for side in match.group().split("=")}
            if len(sides) > 1:
                assert re.match(r"\W*(Wait|No|That is wrong|Hold on)", text[match.end() :]), text
            equations += 1
    assert equations > 800


def test_all_words_of_the_teachers_occur_in_changing_manners() -> None:
    rng = seeded("words")
    written = " ".join(mannered(draw(rng.choice(KINDS), 3, rng), rng) for _ in range(4000))
    teachers = {word for row in trajectories(60, 42) for word in WORD.findall(str(row["response"]))}
    assert teachers <= set(WORD.findall(written)) | {"boxed"}


def test_the_held_out_numbers_are_those_of_the_scoring_pass() -> None:
    """The corpus is in a lower layer than scoring and computes them itself, from all logits."""
    model = AutoModelForCausalLM.from_pretrained(DEMO)
    format_ = chat()
    rows = list(trajectories(HELD_OUT_QUESTIONS, HELD_OUT_SEED))
    student = LoadedStudent.of(model)
    encoded = format_.encode_many(rows, 512)
    scores = [summarise(statistics, 1000) for statistics in response_statistics(student, encoded)]
    ids = pd.DataFrame(rows)[["question_id", "candidate_id"]]
    table = ids.assign(n_tokens=[e.n_response for e in encoded]).join(pd.DataFrame(scores))
    regime = student_regime(table)
    assert regime is not None
    measured = held_out(model, format_)
    assert measured.pop("brier") == pytest.approx((table["brier"] / table["n_tokens"]).mean(), rel=1e-4)
    assert measured == pytest.approx(vars(regime), rel=1e-4)
