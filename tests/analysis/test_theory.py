"""Constants and inequalities of App. A-B on a real tiny student (tests/analysis/test_jacobian.py checks the
power iteration).
"""

import numpy as np
import pytest
import torch

from experiments.theory import theory_figure
from lark.analysis import theory
from lark.analysis.gradients import Anchor
from lark.analysis.jacobian import head_norm, jacobian_norm2
from lark.analysis.questions import Question
from lark.analysis.worker import measure
from tests.analysis.test_gradients import PLENTY, tiny, trajectories


@pytest.fixture(scope="module")
def anchor() -> Anchor:
    return Anchor(tiny(tied=True, dtype=torch.float32))


@pytest.fixture(scope="module")
def question(anchor: Anchor) -> Question:
    rows = [({"candidate_id": f"c{k}", "teacher": "t"}, encoded) for k, encoded in enumerate(trajectories())]
    return measure(anchor, "q", rows, PLENTY, lambda: None)


@pytest.fixture(scope="module")
def known(anchor: Anchor, question: Question) -> theory.Constants:
    jacobians = np.array([jacobian_norm2(anchor, encoded, 60, 0).value for encoded in trajectories()])
    return theory.constants(question, jacobians, head_norm(anchor))


def test_the_ntk_is_conditioned_between_lambda_minus_and_lambda_plus(
    question: Question, known: theory.Constants
) -> None:
    q = np.random.default_rng(0).dirichlet(np.full(question.K, 0.3), size=4000)
    quotients = np.einsum("ni,ij,nj->n", q, question.gram.untied, q) / (q @ question.brier)
    assert known.lambda_minus <= quotients.min() * (1 + 1e-6)
    assert quotients.min() < 1.5 * known.lambda_minus, "the smallest, and not any bound below"
    assert quotients.max() <= known.lambda_plus * (1 + 1e-9)
    assert known.kappa_explicit == pytest.approx(known.lambda_minus / known.lambda_plus * known.kappa_factor)


def test_every_inequality_of_the_paper_holds(question: Question, known: theory.Constants) -> None:
    checks = theory.inequalities(question, known, count=70)
    assert checks["holds"].all(), checks[~checks["holds"]]
    assert len(checks) == 19
    assert (checks["margin"] >= 1 - 1e-5).all()
    both = theory_figure(checks)
    assert both.axes[0].get_xlabel()


def test_constants_are_what_the_paper_defines(
    question: Question, known: theory.Constants, anchor: Anchor
) -> None:
    norms = []
    for encoded in trajectories():
        with torch.no_grad():
            norms.append(anchor.hidden(encoded)[0].norm(dim=1))
    assert known.c_minus == pytest.approx(float(torch.cat(norms).min()))
    assert known.c_plus == pytest.approx(float(torch.cat(norms).max()))
    assert known.e_plus == pytest.approx(known.c_plus**2 * (1 + known.eps_head))
    assert known.alpha1 == pytest.approx((known.proxy_term + known.gram_term + known.aggregate_term) ** 2 / 4)
    assert 0 < known.zeta_minus <= 1
    rho = question.brier / question.losses
    mass, K = (rho * question.losses).sum(), question.K
    low, high = question.losses.min(), question.losses.max()
    assert known.hessian_bound == pytest.approx(
        2 * known.e_plus * mass / low * (1 + np.sqrt(K) * high / low) ** 2
    )
    assert known.nu_plus == pytest.approx(np.log(1 / known.p_minus) / known.one_minus_p_plus**2)


def test_a_bound_that_is_too_small_is_noticed(question: Question, known: theory.Constants) -> None:
    from dataclasses import replace

    wrong = replace(known, jacobian=1e-6, e_plus=1e-6, alpha1_rms=1e-9, alpha2=0.0, c_plus=1e-3)
    checks = theory.inequalities(question, wrong, count=70).set_index("inequality")["holds"]
    for name in ("backbone", "Gram entries", "RMS error of ĝ", "Lemma 2, R₂", "LM head, upper"):
        assert not checks[name], name
    assert checks["quasi-convexity"]


def test_tied_parameters_are_tried_too(question: Question, known: theory.Constants) -> None:
    tied = theory.inequalities(question, known, count=70, tied=True)
    untied = theory.inequalities(question, known, count=70)
    assert set(tied["parameters"]) == {"tied"}
    assert tied["left"].tolist() != untied["left"].tolist()
