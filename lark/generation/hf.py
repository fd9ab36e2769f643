"""Generation with Hugging Face transformers only: works everywhere, and is the reference for the fast
engines.

Sequences are sorted by length, padded on the left and decoded together with a KV cache. Finished sequences
leave the batch, and waiting ones take their place. A prompt that several samples share is read once. Each
sample has its own random numbers, so its text does not depend on the other sequences in the batch.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from lark import config
from lark.generation.engine import Generation, Request, Sampling, decode, documents
from lark.generation.hf_attention import blocks_of, read_in_blocks
from lark.generation.hf_cache import join, new_cache, right_aligned
from lark.models.load import load_model
from lark.work.devices import use_device

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REFILL_AT = 0.75
"""When at most this share of a batch is unfinished, waiting rows replace the finished ones."""
PROMPT_TOKENS = 8192
"""Prompt tokens in one forward pass."""
SHORT_LIST = 64
"""Number of likeliest tokens that are tried first; top-p rarely needs more of the vocabulary."""


@dataclass
class _Row:
    """One sample during generation."""

    request: int
    sample: int
    prompt: tuple[int, ...]
    uniforms: np.ndarray
    """One random number per token, up to the maximum length."""
    node: dict[int, Any] | None
    """Position in the tree of allowed answers; None: anything is allowed."""
    tokens: list[int] = field(default_factory=list)
    stopped: bool = False

    @property
    def finished(self) -> bool:
        return self.stopped or len(self.tokens) == len(self.uniforms)

    def append(self, token: int, stop_ids: Sequence[int]) -> None:
        self.tokens.append(token)
        self.stopped = token in stop_ids
        if self.node is not None:
            self.node = self.node[token]
            self.stopped = not self.node


@dataclass
class _Batch:
    """Rows that are decoded together. The model has not read the last token of each row yet."""

    rows: list[_Row]
    cache: Cache
    mask: Tensor
    """[b, n] attention mask of the columns in the cache."""
    seen: Tensor | None
    """[b, V] tokens that occur in the prompt or answer; None without a repetition penalty."""

    @property
    def alive(self) -> list[int]:
        return [i for i, row in enumerate(self.rows) if not row.finished]

    def part(self, chosen: list[int]) -> "_Part":
        """Some of the rows, to be joined with others."""
        index = torch.tensor(chosen, device=self.mask.device)
        seen = None if self.seen is None else self.seen[index]
        return _Part([self.rows[i] for i in chosen], self.cache, index, self.mask[index], seen)


@dataclass
class _Part:
    """Rows to be copied into a batch, with the location of their caches. The rest is as in `_Batch`."""

    rows: list[_Row]
    cache: Cache
    index: Tensor
    """[b] rows of the cache; samples of one prompt share a row."""
    mask: Tensor
    seen: Tensor | None


class HFEngine:
    def __init__(
        self,
        engine: config.EngineSettings,
        student: config.Student,
        model: str,
        tokenizer: "PreTrainedTokenizerBase",
        device: str,
    ) -> None:
        use_device(device)
        self.model = load_model(model, student, device)
        self.reads_blocks = read_in_blocks(self.model)
        self.tokenizer, self.batch, self.device = tokenizer, engine.batch, device

    def generate(
        self, requests: Sequence[Request], sampling: Sampling
    ) -> Iterator[tuple[int, list[Generation]]]:
        tree = self._tree(sampling.schema)
        order = sorted(range(len(requests)), key=lambda i: (len(requests[i].prompt), requests[i].prompt))
        waiting = deque((i, sample) for i in order for sample in range(sampling.samples))
        done: dict[int, list[_Row]] = {i: [] for i in order}
        batch: _Batch | None = None
        while waiting or batch is not None:
            alive = batch.alive if batch is not None else []
            if (
                (waiting and len(alive) <= REFILL_AT * self.batch)
                or batch is None
                or len(alive) < REFILL_AT * len(batch.rows)
            ):
                count = min(len(waiting), self.batch - len(alive))
                fresh = [self._row(requests, *waiting.popleft(), tree) for _ in range(count)]
                parts = [batch.part(alive)] if batch is not None and alive else []
                parts += self._read(fresh, sampling)
                batch = _join(parts) if parts else None
                changed = fresh
            else:
                changed = [batch.rows[i] for i in alive]
                self._step(batch, sampling)
            for row in changed:
                if row.finished:
                    done[row.request].append(row)
                    if len(done[row.request]) == sampling.samples:
                        yield row.request, self._decoded(done.pop(row.request), sampling)

    def close(self) -> None:
        del self.model

    def _row(self, requests: Sequence[Request], index: int, sample: int, tree: dict[int, Any] | None) -> _Row:
        request = requests[index]
        row = _Row(
            index, sample, request.prompt, _uniforms(request.seed, sample, request.max_new_tokens), tree
        )
        while row.node is not None and len(row.node) == 1 and not row.finished:
            row.append(next(iter(row.node)), ())  # the only allowed token: no forward pass is needed
        return row

    def _tree(self, schema: Mapping[str, Any] | None) -> dict[int, Any] | None:
        """The token sequences that a schema allows, as a tree of next tokens. An answer is complete at a
        leaf.
        """
        texts = documents(schema) if schema is not None else None
        if texts is None:
            return None
        tree: dict[int, Any] = {}
        for text in texts:
            node = tree
            for token in self.tokenizer(text, add_special_tokens=False)["input_ids"]:
                node = node.setdefault(token, {})
        return tree

    def _decoded(self, rows: list[_Row], sampling: Sampling) -> list[Generation]:
        rows.sort(key=lambda row: row.sample)
        reasons = ["stop" if row.stopped else "length" for row in rows]
        return decode(self.tokenizer, [row.tokens for row in rows], reasons, sampling.stop_ids)

    @torch.inference_mode()
    def _read(self, rows: list[_Row], sampling: Sampling) -> list[_Part]:
        """Read the prompts (and tokens that are already set), and sample each row's next token."""
        parts = []
        for chunk in _chunks(rows):
            texts = sorted({(*row.prompt, *row.tokens) for row in chunk})
            place = {text: i for i, text in enumerate(texts)}
            longest = max(map(len, texts))
            ids = torch.tensor([[0] * (longest - len(t)) + list(t) for t in texts], device=self.device)
            mask = torch.tensor([[0] * (longest - len(t)) + [1] * len(t) for t in texts], device=self.device)
            cache = new_cache()
            logits = self._forward(ids, mask, (mask.cumsum(-1) - 1).clamp_min(0), cache)
            index = torch.tensor([place[(*row.prompt, *row.tokens)] for row in chunk], device=self.device)
            seen = _seen(chunk, logits.shape[1], self.device) if sampling.repetition_penalty != 1.0 else None
            self._sample(chunk, logits[index], seen, sampling)
            parts.append(_Part(chunk, cache, index, mask[index], seen))
        return parts

    @torch.inference_mode()
    def _step(self, batch: _Batch, sampling: Sampling) -> None:
        """Read every row's last token, and sample the next token of unfinished rows."""
        token = torch.tensor([[row.tokens[-1]] for row in batch.rows], device=self.device)
        positions = batch.mask.sum(-1, keepdim=True)
        batch.mask = torch.cat([batch.mask, batch.mask.new_ones(len(batch.rows), 1)], dim=1)
        more = (
            {"blocks": blocks_of([len(row.prompt) + len(row.tokens) for row in batch.rows])}
            if self.reads_blocks
            else {}
        )
        self._sample(
            batch.rows, self._forward(token, batch.mask, positions, batch.cache, **more), batch.seen, sampling
        )

    def _sample(self, rows: list[_Row], logits: Tensor, seen: Tensor | None, sampling: Sampling) -> None:
        """Append a token to each row that is not finished."""
        uniform = [0.0 if row.finished else float(row.uniforms[len(row.tokens)]) for row in rows]
        if rows[0].node is not None:
            logits = torch.where(_allowed(rows, logits), logits, -torch.inf)
        token = next_token(logits, torch.tensor(uniform, device=self.device), sampling, seen)
        if seen is not None:
            seen.scatter_(1, token[:, None], True)
        for row, value in zip(rows, token.tolist(), strict=True):
            if not row.finished:
                row.append(value, sampling.stop_ids)

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Cache, **more: Any) -> Tensor:
        """[b, V] logits of the last position."""
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": positions,
            "past_key_values": cache,
        }
        output = self.model(**inputs, use_cache=True, logits_to_keep=1, **more)
        logits: Tensor = output.logits[:, -1].float()
        return logits


def next_token(logits: Tensor, uniform: Tensor, sampling: Sampling, seen: Tensor | None = None) -> Tensor:
    """[b] the next token of each sequence from logits [b, V] and one random number each, by inversion of
    the CDF.

    Repetition penalty, temperature, top-k and top-p have the same order and meaning as in vLLM and
    transformers. The vocabulary is sorted only for sequences whose SHORT_LIST likeliest tokens do not cover
    top-p of the probability.
    """
    if seen is not None:
        penalised = torch.where(
            logits > 0, logits / sampling.repetition_penalty, logits * sampling.repetition_penalty
        )
        logits = torch.where(seen, penalised, logits)
    if sampling.temperature == 0:
        return logits.argmax(-1)
    logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        logits, short = logits.topk(sampling.top_k, dim=-1)
    else:
        short = None
    ordered, order = logits.topk(min(SHORT_LIST, logits.shape[-1]), dim=-1)
    probability = (ordered - logits.logsumexp(-1, keepdim=True)).exp()
    token = _drawn(probability, order, uniform, sampling.top_p)
    flat = (probability.sum(-1) <= sampling.top_p).nonzero()[:, 0]
    if len(flat):
        ordered, order = logits[flat].sort(dim=-1, descending=True, stable=True)
        token[flat] = _drawn(ordered.softmax(-1), order, uniform[flat], sampling.top_p)
    return (token if short is None else short.gather(1, token))[:, 0]


def _drawn(probability: Tensor, order: Tensor, uniform: Tensor, top_p: float) -> Tensor:
    """[b, 1] one of the tokens `order` [b, k] with falling probabilities [b, k]: one of the first that
    cover `top_p`.
    """
    before = probability.cumsum(-1) - probability
    probability = torch.where(before < top_p, probability, 0.0)
    cumulative = probability.cumsum(-1)
    choice = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(-1)
    last = (probability > 0).sum(-1) - 1
    return order.gather(1, torch.minimum(choice, last)[:, None])


def _uniforms(seed: int, sample: int, count: int) -> np.ndarray:
    return np.random.default_rng([seed, sample]).random(count, dtype=np.float32)


def _seen(rows: Sequence[_Row], vocabulary: int, device: str) -> Tensor:
    """[b, V] tokens that occur in the prompt (or are already set): the repetition penalty counts the
    prompt, as in vLLM.
    """
    seen = torch.zeros(len(rows), vocabulary, dtype=torch.bool)
    for index, row in enumerate(rows):
        seen[index, [*row.prompt, *row.tokens]] = True
    return seen.to(device)


def _allowed(rows: Sequence[_Row], logits: Tensor) -> Tensor:
    """[b, V] tokens that continue an allowed answer; all tokens for a finished row."""
    allowed = torch.zeros(logits.shape, dtype=torch.bool)
    for index, row in enumerate(rows):
        allowed[index, list(row.node) if row.node else slice(None)] = True
    return allowed.to(logits.device)


def _chunks(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    """Split rows, in order, into chunks of at most PROMPT_TOKENS. Samples of one prompt count it once."""
    chunk: list[_Row] = []
    texts: set[tuple[int, ...]] = set()
    for row in rows:
        text = (*row.prompt, *row.tokens)
        if (
            chunk
            and text not in texts
            and (len(texts) + 1) * max(len(text), *map(len, texts)) > PROMPT_TOKENS
        ):
            yield chunk
            chunk, texts = [], set()
        chunk.append(row)
        texts.add(text)
    if chunk:
        yield chunk


def _join(parts: Sequence[_Part]) -> _Batch:
    """One batch of all rows, only as wide as the longest row needs."""
    columns = max(int(part.mask.sum(-1).max()) for part in parts)
    seen = [part.seen for part in parts if part.seen is not None]
    return _Batch(
        [row for part in parts for row in part.rows],
        join([(part.cache, part.index) for part in parts], columns),
        torch.cat([right_aligned(part.mask, columns) for part in parts]),
        torch.cat(seen) if seen else None,
    )
