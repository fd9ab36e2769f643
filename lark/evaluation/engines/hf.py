"""Generation with Hugging Face transformers alone: works everywhere, and is the reference for the fast engines.

Sequences are sorted by length, padded on the left and decoded together with a KV cache; one that ends leaves the batch.
Each sample draws its tokens with random numbers of its own, so its text does not depend on what it shares a batch with.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from lark.chat import ChatFormat
from lark.config import Config
from lark.evaluation.engines import Generation, Request, Sampling
from lark.models import load_model

log = logging.getLogger(__name__)

COMPACT_AT = 0.75
"""When fewer than this share of a batch is still going, the rest is dropped from it."""


@dataclass
class _Sequence:
    """One sample in the making."""

    index: int
    prompt: tuple[int, ...]
    uniforms: np.ndarray
    """A random number for each token it may get."""
    tokens: list[int] = field(default_factory=list)
    stopped: bool = False

    @property
    def finished(self) -> bool:
        return self.stopped or len(self.tokens) == len(self.uniforms)


class HFEngine:
    def __init__(self, config: Config, model: str, chat: ChatFormat, device: str) -> None:
        self.model = load_model(model, config.student, device)
        self.chat, self.batch, self.device = chat, config.engine.batch, device

    @torch.no_grad()
    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        sequences = [
            _Sequence(i * sampling.samples + sample, request.prompt, _uniforms(request.seed, sample, request.max_new_tokens))
            for i, request in enumerate(requests)
            for sample in range(sampling.samples)
        ]
        ordered = sorted(sequences, key=lambda s: (len(s.prompt), s.index))
        for start in range(0, len(ordered), self.batch):
            self._decode(ordered[start : start + self.batch], sampling)
        texts = self.chat.tokenizer.batch_decode(
            [s.tokens[:-1] if s.stopped else s.tokens for s in sequences], skip_special_tokens=True
        )
        done = [
            Generation(text, "stop" if s.stopped else "length", len(s.tokens)) for s, text in zip(sequences, texts, strict=True)
        ]
        return [done[i : i + sampling.samples] for i in range(0, len(done), sampling.samples)]

    def close(self) -> None:
        del self.model

    def _decode(self, batch: list[_Sequence], sampling: Sampling) -> None:
        """Run one batch to its end."""
        logits, cache, mask = self._read_prompts(batch)
        positions = mask.sum(-1, keepdim=True)
        seen = _seen(batch, self.model.config.vocab_size, self.device) if sampling.repetition_penalty != 1.0 else None
        stop = torch.tensor(sampling.stop_ids, device=self.device)
        while True:
            uniform = torch.tensor([0.0 if s.finished else s.uniforms[len(s.tokens)] for s in batch], device=self.device)
            token = next_token(logits, uniform, sampling, seen)
            ended = torch.isin(token, stop).tolist()
            for sequence, value, end in zip(batch, token.tolist(), ended, strict=True):
                if not sequence.finished:
                    sequence.tokens.append(value)
                    sequence.stopped = end
            alive = [i for i, s in enumerate(batch) if not s.finished]
            if not alive:
                return
            if seen is not None:
                seen.scatter_(1, token[:, None], True)
            if len(alive) < COMPACT_AT * len(batch):
                keep = torch.tensor(alive, device=self.device)
                batch, token, mask, positions = [batch[i] for i in alive], token[keep], mask[keep], positions[keep]
                seen = None if seen is None else seen[keep]
                cache.batch_select_indices(keep)
            mask = torch.cat([mask, mask.new_ones(len(batch), 1)], dim=1)
            logits = self._forward(token[:, None], mask, positions, cache)
            positions = positions + 1

    def _read_prompts(self, batch: list[_Sequence]) -> tuple[Tensor, DynamicCache, Tensor]:
        """Logits, cache and mask after the prompts. A prompt that several samples share is read once."""
        prompts = sorted({s.prompt for s in batch})
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=self.device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=self.device)
        cache = DynamicCache(config=self.model.config)
        logits = self._forward(ids, mask, (mask.cumsum(-1) - 1).clamp_min(0), cache)
        place = {prompt: row for row, prompt in enumerate(prompts)}
        rows = torch.tensor([place[s.prompt] for s in batch], device=self.device)
        cache.batch_select_indices(rows)
        return logits[rows], cache, mask[rows]

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        """[b, V] logits of the last position."""
        output = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits


def next_token(logits: Tensor, uniform: Tensor, sampling: Sampling, seen: Tensor | None = None) -> Tensor:
    """[b] the next token of each sequence from logits [b, V] and one random number each, by inversion of the CDF.

    Repetition penalty, temperature, top-k and top-p in the order and with the meaning that vLLM and transformers give them.
    """
    if seen is not None:
        penalised = torch.where(logits > 0, logits / sampling.repetition_penalty, logits * sampling.repetition_penalty)
        logits = torch.where(seen, penalised, logits)
    if sampling.temperature == 0:
        return logits.argmax(-1)
    ordered, order = (logits / sampling.temperature).sort(dim=-1, descending=True, stable=True)
    if sampling.top_k > 0:
        ordered[:, sampling.top_k :] = -torch.inf
    probability = ordered.softmax(-1)
    before = probability.cumsum(-1) - probability
    probability = torch.where(before < sampling.top_p, probability, 0.0)
    cumulative = probability.cumsum(-1)
    choice = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(-1)
    last = (probability > 0).sum(-1) - 1
    return order.gather(1, torch.minimum(choice, last)[:, None])[:, 0]


def _uniforms(seed: int, sample: int, count: int) -> np.ndarray:
    return np.random.default_rng([seed, sample]).random(count, dtype=np.float32)


def _seen(batch: Sequence[_Sequence], vocabulary: int, device: str) -> Tensor:
    """[b, V] which tokens stand in the prompt: the repetition penalty counts it, as vLLM's does."""
    seen = torch.zeros(len(batch), vocabulary, dtype=torch.bool)
    for row, sequence in enumerate(batch):
        seen[row, list(sequence.prompt)] = True
    return seen.to(device)
