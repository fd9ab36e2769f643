"""The sampling of the hf engine: the next token from logits and one random number per sequence."""

import torch
from torch import Tensor

from lark.generation.engine import Sampling

SHORT_LIST = 64
"""Number of likeliest tokens that are tried first; top-p rarely needs more of the vocabulary."""


def next_token(logits: Tensor, uniform: Tensor, sampling: Sampling, seen: Tensor | None = None) -> Tensor:
    """[b] the next token of each sequence from logits [b, V] and one random number each, by inversion of
    the CDF.

    Repetition penalty, temperature, top-k and top-p have the same order and meaning as in vLLM and
    transformers. The vocabulary is sorted only for sequences whose SHORT_LIST likeliest tokens do not cover
    top-p of the probability.
    """
    if seen is not None:
        penalty = sampling.repetition_penalty
        penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits = torch.where(seen, penalised, logits)
    if sampling.temperature == 0:
        return logits.argmax(-1)
    logits = logits / sampling.temperature
    likeliest = None
    if 0 < sampling.top_k < logits.shape[-1]:
        logits, likeliest = logits.topk(sampling.top_k, dim=-1)
    ordered, order = logits.topk(min(SHORT_LIST, logits.shape[-1]), dim=-1)
    probability = (ordered - logits.logsumexp(-1, keepdim=True)).exp()
    token = _drawn(probability, order, uniform, sampling.top_p)
    uncovered = (probability.sum(-1) <= sampling.top_p).nonzero()[:, 0]
    if len(uncovered):
        ordered, order = logits[uncovered].sort(dim=-1, descending=True, stable=True)
        token[uncovered] = _drawn(ordered.softmax(-1), order, uniform[uncovered], sampling.top_p)
    if likeliest is not None:  # an index among the top-k tokens so far
        token = likeliest.gather(1, token)
    return token[:, 0]


def _drawn(probability: Tensor, order: Tensor, uniform: Tensor, top_p: float) -> Tensor:
    """[b, 1] one of the tokens `order` [b, k] with falling probabilities [b, k]: one of the first that
    cover `top_p`.
    """
    before = probability.cumsum(-1) - probability
    probability = torch.where(before < top_p, probability, 0.0)
    cumulative = probability.cumsum(-1)
    choice = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(-1)
    # A uniform number just below 1 may round to the whole sum.
    last = (probability > 0).sum(-1) - 1
    return order.gather(1, torch.minimum(choice, last)[:, None])
