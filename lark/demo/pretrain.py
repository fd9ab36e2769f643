"""Make the demo's student: a Llama of a million parameters that knows arithmetic facts and blurts out answers.

Run as: python -m lark.demo.pretrain            (`make demo-student`; about half an hour on two cores)
        python -m lark.demo.pretrain --steps 200 --folder /tmp/student

The student in `lark/demo/student/` was made by this recipe with these defaults. Nothing in it was chosen for the sake of
a selection method: only that the base leaves headroom, and that fine-tuning on trajectories moves it.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from lark.chat import ChatFormat
from lark.demo.corpus import Document, conversation, facts
from lark.demo.problems import KINDS, LEVELS, draw, seeded
from lark.demo.tokenizer import CONTEXT

logger = logging.getLogger(__name__)

STUDENT = Path(__file__).parent / "student"
IGNORED = -100


@dataclass(frozen=True)
class Recipe:
    steps: int = 3600
    """Optimizer steps."""
    tokens_per_step: int = 6144
    """Token slots in a batch, padding included."""
    lr: float = 4e-3
    """Peak of the learning rate: reached after `warmup` steps, then falling to 0 in a straight line."""
    warmup: int = 100
    weight_decay: float = 0.05
    hidden_size: int = 128
    """In heads of 32: vLLM's attention on CPU refuses 16."""
    intermediate_size: int = 384
    layers: int = 5
    seed: int = 0


@dataclass(frozen=True)
class Batch:
    """Right-padded documents. `labels` are the inputs shifted by one, `IGNORED` where nothing is learned."""

    inputs: Tensor
    labels: Tensor


def model_config(recipe: Recipe, chat: ChatFormat) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(chat.tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.hidden_size // 32,
        num_key_value_heads=recipe.hidden_size // 32,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.04,
        bos_token_id=None,
        eos_token_id=chat.end_of_turn,
        pad_token_id=chat.tokenizer.pad_token_id,
        dtype="float32",
    )


def batches(source: Iterator[Document], chat: ChatFormat, tokens: int, pad: int, seed: int) -> Iterator[Batch]:
    """Endless batches of about `tokens` slots. Documents of like length go together, and none sees another."""
    rng = seeded("batches", seed)
    while True:
        encoded = sorted(_encode(list(islice(source, 4096)), chat), key=lambda pair: len(pair[0]))
        groups, start = [], 0
        for end, (ids, _) in enumerate(encoded, start=1):
            if end == len(encoded) or (end - start + 1) * len(encoded[end][0]) > tokens:
                groups.append(encoded[start:end])
                start = end
        # The last group is cut short by the end of the chunk and would make a batch of a few documents.
        groups = groups[:-1] or groups
        rng.shuffle(groups)
        yield from (_pad(group, pad) for group in groups)


def _encode(chunk: list[Document], chat: ChatFormat) -> list[tuple[list[int], list[int]]]:
    """Ids and labels of each document, its pieces tokenised separately and joined (as `lark.chat` does)."""
    texts = [text for document in chunk for text, _ in document.pieces]
    pieces = iter(chat.tokenizer(texts, add_special_tokens=False)["input_ids"])
    encoded = []
    for document in chunk:
        ids: list[int] = []
        labels: list[int] = []
        for _, learned in document.pieces:
            piece = next(pieces)
            ids += piece
            labels += piece if learned else [IGNORED] * len(piece)
        encoded.append((ids[:CONTEXT], labels[:CONTEXT]))
    return encoded


def _pad(group: list[tuple[list[int], list[int]]], pad: int) -> Batch:
    length = max(len(ids) for ids, _ in group)
    inputs = torch.tensor([ids + [pad] * (length - len(ids)) for ids, _ in group])
    labels = torch.tensor([labels + [IGNORED] * (length - len(labels)) for _, labels in group])
    return Batch(inputs[:, :-1].contiguous(), labels[:, 1:].contiguous())


def learned_logits(model: LlamaForCausalLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits [n, V] and labels [n] of the n tokens that are learned. Padding stands behind, where causality hides it."""
    hidden = model.model(input_ids=batch.inputs, use_cache=False).last_hidden_state
    learned = batch.labels != IGNORED
    return model.lm_head(hidden[learned]), batch.labels[learned]


def optimizers(model: LlamaForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices (it needs about half the tokens of AdamW here), AdamW for embeddings and norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=recipe.lr, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=recipe.lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def pace(step: int, recipe: Recipe) -> float:
    """The share of the peak learning rate at a step."""
    return min((step + 1) / recipe.warmup, (recipe.steps - step) / (recipe.steps - recipe.warmup))


@torch.no_grad()
def probe(model: LlamaForCausalLM, chat: ChatFormat) -> dict[str, float]:
    """How many facts, and how many direct answers of each level to benchmark-side problems, are right when greedy."""
    rng = seeded("probe")
    tests = {"facts": [facts(rng) for _ in range(20)]}
    for level in LEVELS:
        problems = [draw(kind, level, rng, benchmark=True) for kind in KINDS for _ in range(15)]
        tests[f"direct{level}"] = [conversation("direct", p, "{}", rng, chat) for p in problems]
        tests[f"direct{level}"] = [
            replace(document, pieces=(document.pieces[0], (rf"\boxed{{{p.answer}}}", True)))
            for document, p in zip(tests[f"direct{level}"], problems, strict=True)
        ]
    return {name: _share_right(model, chat, sample) for name, sample in tests.items()}


def main() -> None:
    raise SystemExit


if __name__ == "__main__":
    main()
