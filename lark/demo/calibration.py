"""How the demo's student finds its teachers' text while it is pretrained, on questions that are neither in
the demo's pool nor in its corpus. No selection is made and no accuracy is measured here.
"""

from functools import cache

import pandas as pd
import torch
from transformers import LlamaForCausalLM

from lark.demo.pool import distinct, trajectories
from lark.demo.tokenizer import CONTEXT
from lark.models.chat import ChatFormat
from lark.models.head import Head, last_hidden_state, predicting
from lark.scoring.statistics import token_statistics
from lark.scoring.worker import summarise

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
def held_out_scores(model: LlamaForCausalLM, chat: ChatFormat) -> pd.DataFrame:
    """The teachers' trajectories for the held-out questions, with the statistics that scoring computes."""
    rows = list(trajectories(HELD_OUT_QUESTIONS, HELD_OUT_SEED))
    head = Head.of(model)
    table = []
    for row, encoded in zip(rows, chat.encode_many(rows, CONTEXT), strict=True):
        hidden = last_hidden_state(model, torch.tensor([list(encoded.ids)]))[0]
        targets = torch.tensor(list(encoded.response))
        statistics = token_statistics(predicting(hidden, encoded), targets, head, "eager")
        ids = {name: row[name] for name in ("question_id", "candidate_id")}
        table.append({**ids, "n_tokens": len(targets), **summarise(statistics, rank_clip=len(head.weight))})
    return pd.DataFrame(table)


def brier_score(scores: pd.DataFrame) -> float:
    """Mean of ||π - e_y||² over all tokens: low for a student that is right, and certain only where it is."""
    return float(scores["brier"].sum() / scores["n_tokens"].sum())
