"""How the demo's student finds its teachers' text while it is pretrained, on questions that are neither in
the demo's pool nor in its corpus. No selection is made and no accuracy is measured here.
"""

from functools import cache

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from lark.demo.pool import distinct, trajectories
from lark.demo.teachers import ROLLOUTS, TEACHERS
from lark.demo.tokenizer import CONTEXT
from lark.models.chat import ChatFormat
from lark.models.head import predicting

POOL_QUESTIONS = 150
POOL_SEED = 42
"""Of conf/pool/demo.yaml."""
HELD_OUT_QUESTIONS = 20
HELD_OUT_SEED = 1
"""The held-out questions are those of another pool."""


@cache
def excluded() -> frozenset[str]:
    """The arithmetic of all questions of the demo's pool and of the held-out ones."""
    asked = [*distinct(POOL_QUESTIONS, POOL_SEED), *distinct(HELD_OUT_QUESTIONS, HELD_OUT_SEED)]
    return frozenset(problem.core for problem in asked)


@torch.no_grad()
def held_out(model: LlamaForCausalLM, chat: ChatFormat) -> dict[str, float]:
    """Means over the teachers' trajectories for the held-out questions: the numbers of
    `lark.scoring.student_regime`, and the Brier score, which is low for a student that is right, and certain
    only where it is.
    """
    rows = list(trajectories(HELD_OUT_QUESTIONS, HELD_OUT_SEED))
    measures = []
    for encoded in chat.encode_many(rows, CONTEXT):
        logits = model(torch.tensor([list(encoded.ids)]), use_cache=False).logits[0]
        measures.append(_of_tokens(predicting(logits, encoded), torch.tensor(list(encoded.response))))
    table = torch.stack(measures)
    loss, p_gold, wrong_p2, brier = table.mean(0).tolist()
    # K x mean g-hat of a question is the residual of its candidates over their loss.
    losses, _, _, residuals = table.view(-1, len(TEACHERS) * ROLLOUTS, 4).sum(1).unbind(1)
    rho = float((residuals / losses).mean())
    return {"loss": loss, "p_gold": p_gold, "wrong_p2": wrong_p2, "rho": rho, "brier": brier}


def _of_tokens(logits: Tensor, targets: Tensor) -> Tensor:
    """[4] Means over a trajectory's tokens: surprisal, p(y), Σ_{v != y} p(v)² and ||π - e_y||²."""
    log_p = logits.log_softmax(-1)
    surprisal = -log_p.gather(1, targets[:, None])[:, 0]
    p_gold = (-surprisal).exp()
    wrong_p2 = log_p.exp().square().sum(1) - p_gold.square()
    residual = wrong_p2 + (1 - p_gold).square()
    return torch.stack([surprisal, p_gold, wrong_p2, residual], dim=1).mean(0)
