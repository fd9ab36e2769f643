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
from lark.generation.hf_sampling import next_token
from lark.models.cpu_linear import LARGE, pack_linears
from lark.models.load import load_model
from lark.work.devices import use_device

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REFILL_AT = 0.75
"""When at most this share of a batch is unfinished, waiting rows replace the finished ones."""
PROMPT_TOKENS = 8192
"""Prompt tokens in one forward pass."""


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
    logprobs: list[float] = field(default_factory=list)
    """Of each token, if they are asked for."""
    stopped: bool = False

    @property
    def text(self) -> tuple[int, ...]:
        """All tokens so far."""
        return (*self.prompt, *self.tokens)

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

    def part(self, indices: list[int]) -> "_Part":
        """Some of the rows, to be joined with others."""
        index = torch.tensor(indices, device=self.mask.device)
        seen = None if self.seen is None else self.seen[index]
        return _Part([self.rows[i] for i in indices], self.cache, index, self.mask[index], seen)


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
        if device == "cpu":
            pack_linears(self.model, smallest=LARGE)
        self.reads_blocks = read_in_blocks(self.model)
        self.tokenizer = tokenizer
        self.batch = engine.batch
        self.device = device

    def generate(
        self, requests: Sequence[Request], sampling: Sampling
    ) -> Iterator[tuple[int, list[Generation]]]:
        tree = self._tree(sampling.schema)
        order = sorted(range(len(requests)), key=lambda i: (len(requests[i].prompt), requests[i].prompt))
        waiting = deque((i, sample) for i in order for sample in range(sampling.samples))
        done: dict[int, list[_Row]] = {i: [] for i in order}
        batch: _Batch | None = None
        while waiting or batch is not None:
            alive = [] if batch is None else batch.alive
            if batch is not None and not self._is_due(batch, alive, bool(waiting)):
                changed = [batch.rows[i] for i in alive]
                self._step(batch, sampling)
            else:
                count = min(len(waiting), self.batch - len(alive))
                changed = [self._row(requests, *waiting.popleft(), tree) for _ in range(count)]
                parts = [batch.part(alive)] if batch is not None and alive else []
                parts += self._read(changed, sampling)
                batch = _join(parts) if parts else None
            for row in changed:
                if row.finished:
                    done[row.request].append(row)
                    if len(done[row.request]) == sampling.samples:
                        yield row.request, self._decoded(done.pop(row.request), sampling)

    def _is_due(self, batch: _Batch, alive: list[int], waiting: bool) -> bool:
        """True if waiting rows can start, or the finished rows are worth removing."""
        can_start = waiting and len(alive) <= REFILL_AT * self.batch
        return can_start or len(alive) < REFILL_AT * len(batch.rows)

    def close(self) -> None:
        del self.model

    def _row(self, requests: Sequence[Request], index: int, sample: int, tree: dict[int, Any] | None) -> _Row:
        request = requests[index]
        generator = np.random.default_rng([request.seed, sample])
        uniforms = generator.random(request.max_new_tokens, dtype=np.float32)
        row = _Row(index, sample, request.prompt, uniforms, tree)
        while row.node is not None and len(row.node) == 1 and not row.finished:
            row.append(next(iter(row.node)), ())  # the only allowed token: no forward pass is needed
        return row

    def _tree(self, schema: Mapping[str, Any] | None) -> dict[int, Any] | None:
        """The token sequences that a schema allows, as a tree of next tokens. An answer is complete at a
        leaf.
        """
        texts = None if schema is None else documents(schema)
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
        logprobs = [row.logprobs for row in rows] if sampling.logprobs else None
        return decode(self.tokenizer, [row.tokens for row in rows], reasons, sampling.stop_ids, logprobs)

    @torch.inference_mode()
    def _read(self, rows: list[_Row], sampling: Sampling) -> list[_Part]:
        """Read the prompts (and tokens that are already set), and sample each row's next token."""
        parts = []
        for chunk in _chunks(rows):
            texts = sorted({row.text for row in chunk})
            longest = max(map(len, texts))
            place = {text: i for i, text in enumerate(texts)}
            padded = [[0] * (longest - len(text)) + list(text) for text in texts]
            shown = [[0] * (longest - len(text)) + [1] * len(text) for text in texts]
            ids = torch.tensor(padded, device=self.device)
            mask = torch.tensor(shown, device=self.device)
            cache = new_cache()
            logits = self._forward(ids, mask, (mask.cumsum(-1) - 1).clamp_min(0), cache)
            index = torch.tensor([place[row.text] for row in chunk], device=self.device)
            seen = None
            if sampling.repetition_penalty != 1.0:
                seen = _seen(chunk, logits.shape[1], self.device)
            self._sample(chunk, logits[index], seen, sampling)
            parts.append(_Part(chunk, cache, index, mask[index], seen))
        return parts

    @torch.inference_mode()
    def _step(self, batch: _Batch, sampling: Sampling) -> None:
        """Read every row's last token, and sample the next token of unfinished rows."""
        token = torch.tensor([[row.tokens[-1]] for row in batch.rows], device=self.device)
        positions = batch.mask.sum(-1, keepdim=True)
        batch.mask = torch.cat([batch.mask, batch.mask.new_ones(len(batch.rows), 1)], dim=1)
        options = {}
        if self.reads_blocks:
            options["blocks"] = blocks_of([len(row.prompt) + len(row.tokens) for row in batch.rows])
        logits = self._forward(token, batch.mask, positions, batch.cache, **options)
        self._sample(batch.rows, logits, batch.seen, sampling)

    def _sample(self, rows: list[_Row], logits: Tensor, seen: Tensor | None, sampling: Sampling) -> None:
        """Append a token to each row that is not finished."""
        uniform = [0.0 if row.finished else float(row.uniforms[len(row.tokens)]) for row in rows]
        if rows[0].node is not None:
            logits = torch.where(_allowed(rows, logits), logits, -torch.inf)
        token = next_token(logits, torch.tensor(uniform, device=self.device), sampling, seen)
        if seen is not None:
            seen.scatter_(1, token[:, None], True)
        if sampling.logprobs:
            chosen = logits.gather(1, token[:, None])[:, 0] - logits.logsumexp(-1)
            for row, logprob in zip(rows, chosen.tolist(), strict=True):
                if not row.finished:
                    row.logprobs.append(logprob)
        for row, value in zip(rows, token.tolist(), strict=True):
            if not row.finished:
                row.append(value, sampling.stop_ids)

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Cache, **options: Any) -> Tensor:
        """[b, V] logits of the last position."""
        output = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache,
            use_cache=True, logits_to_keep=1, **options,
        )  # fmt: skip
        logits: Tensor = output.logits[:, -1].float()
        return logits


def _seen(rows: Sequence[_Row], vocabulary: int, device: str) -> Tensor:
    """[b, V] tokens that occur in the prompt (or are already set): the repetition penalty counts the
    prompt, as in vLLM.
    """
    seen = torch.zeros(len(rows), vocabulary, dtype=torch.bool)
    for index, row in enumerate(rows):
        seen[index, list(row.text)] = True
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
        more = texts | {row.text}
        is_wider = len(more) > len(texts) and len(more) * max(map(len, more)) > PROMPT_TOKENS
        if chunk and is_wider:
            yield chunk
            chunk = []
            more = {row.text}
        chunk.append(row)
        texts = more
    if chunk:
        yield chunk


def _join(parts: Sequence[_Part]) -> _Batch:
    """One batch of all rows, only as wide as the longest row needs."""
    columns = max(int(part.mask.sum(-1).max()) for part in parts)
    seen = [part.seen for part in parts if part.seen is not None]
    rows = [row for part in parts for row in part.rows]
    cache = join([(part.cache, part.index) for part in parts], columns)
    mask = torch.cat([right_aligned(part.mask, columns) for part in parts])
    return _Batch(rows, cache, mask, torch.cat(seen) if seen else None)
