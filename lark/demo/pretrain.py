"""Pretrain the demo's student: a 1M-parameter Llama that knows arithmetic facts and usually answers without
reasoning.

Run as: python -m lark.demo.pretrain            (`make demo-student`; about half an hour on two cores)
        python -m lark.demo.pretrain --steps 200 --folder /tmp/student
        python -m lark.demo.pretrain --snapshots 280 840 --folder /tmp/weaker
                                                (the same student, earlier; `make regime`)

The student in `lark/demo/student/` was made with this recipe and these defaults. They were chosen by how it
finds the demo's pool (lark/scoring/student_regime.py: as the students of the paper find theirs, neither
absurd nor known by heart) and by the headroom of the base model, before any selection method was tried on it.
"""

import argparse
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from lark.demo.calibration import excluded, held_out
from lark.demo.corpus import Document, documents, facts, options, prompted
from lark.demo.manners import Breadth
from lark.demo.muon import Muon
from lark.demo.phrasing import boxed
from lark.demo.problems import KINDS, LEVELS, draw, seeded
from lark.demo.tokenizer import CONTEXT, build
from lark.models.chat import ChatFormat
from lark.printing import log_to
from lark.work.entry import run_main

logger = logging.getLogger(__name__)

STUDENT = Path(__file__).parent / "student"
IGNORED = -100


@dataclass(frozen=True)
class Recipe:
    steps: int = 1400
    """Optimizer steps."""
    tokens_per_step: int = 6144
    """Token slots in a batch, including padding."""
    lr: float = 4e-3
    """Peak learning rate, reached after `warmup` steps; then linear decay to 0."""
    warmup: int = 100
    weight_decay: float = 0.05
    hidden_size: int = 128
    """Heads have size 32, because vLLM's attention on CPU refuses 16."""
    intermediate_size: int = 384
    layers: int = 4
    seed: int = 0
    mannered: float = 0.7
    """Share of the worked solutions whose manner changes with every line (manners.py)."""
    label_smoothing: float = 0.02
    """Share of the target that is spread over all tokens: the student stays uncertain."""
    patience: int = 2
    """Probes without a better Brier score on held-out trajectories after which training stops."""


@dataclass(frozen=True)
class PaddedDocuments:
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


def batches(
    source: Iterator[Document], chat: ChatFormat, tokens: int, seed: int
) -> Iterator[PaddedDocuments]:
    """Endless batches of about `tokens` slots. Documents of similar length are batched together, and none
    sees another.
    """
    rng = seeded("batches", seed)
    while True:
        # Sorting a chunk is enough for little padding, and the stream has no end.
        encoded = sorted(_encode(list(islice(source, 4096)), chat), key=lambda pair: len(pair[0]))
        groups = []
        start = 0
        for end in range(1, len(encoded) + 1):
            if end == len(encoded) or (end - start + 1) * len(encoded[end][0]) > tokens:
                groups.append(encoded[start:end])
                start = end
        # The last group is cut short by the end of the chunk and would make a batch of a few documents.
        groups = groups[:-1] or groups
        rng.shuffle(groups)
        for group in groups:
            yield _pad(group, chat.tokenizer.pad_token_id)


def _encode(chunk: list[Document], chat: ChatFormat) -> list[tuple[list[int], list[int]]]:
    """Ids and labels of each document, its pieces tokenised separately and joined (as `lark.models.chat`
    does).
    """
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


def _pad(group: list[tuple[list[int], list[int]]], pad: int) -> PaddedDocuments:
    length = max(len(ids) for ids, _ in group)
    inputs = torch.tensor([ids + [pad] * (length - len(ids)) for ids, _ in group])
    labels = torch.tensor([labels + [IGNORED] * (length - len(labels)) for _, labels in group])
    return PaddedDocuments(inputs[:, :-1].contiguous(), labels[:, 1:].contiguous())


def learned_logits(
    model: LlamaForCausalLM, backbone: Callable[..., Any], batch: PaddedDocuments
) -> tuple[Tensor, Tensor]:
    """Logits [n, V] and labels [n] of the n tokens that are learned. Padding is on the right, hidden by the
    causal mask.
    """
    hidden = backbone(input_ids=batch.inputs, use_cache=False).last_hidden_state
    learned = batch.labels != IGNORED
    return model.lm_head(hidden[learned]), batch.labels[learned]


def optimizers(model: LlamaForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW for the embeddings and the norms."""
    # An orthogonal update would move the rows of rare tokens as far as those of frequent ones.
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and "embed" not in name
        (matrices if is_matrix else others).append(parameter)
    return [
        Muon(matrices, lr=recipe.lr, weight_decay=recipe.weight_decay),
        torch.optim.AdamW(others, lr=recipe.lr, betas=(0.9, 0.98), weight_decay=0),
    ]


def pace(step: int, recipe: Recipe) -> float:
    """Learning rate at a step as a share of the peak: up to 1 during warm-up, then down to 0."""
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    return (recipe.steps - step) / (recipe.steps - recipe.warmup)


def pretrain(recipe: Recipe, folder: Path, probe_every: int, snapshots: Sequence[int] = ()) -> None:
    """Train the student, and save it to `folder` after every probe at which it is better calibrated than
    before, by the Brier score of held-out trajectories.

    With `snapshots`, save it at these steps of the recipe instead, in `folder`/step-<n>, and stop at the
    last of them.
    """
    torch.manual_seed(recipe.seed)
    chat = ChatFormat(build(recipe.seed))
    model = LlamaForCausalLM(model_config(recipe, chat))
    logger.info("%s, %.2f M parameters", asdict(recipe), sum(p.numel() for p in model.parameters()) / 1e6)
    # On CPU, compilation makes the student about four times faster (tokens per second).
    backbone = torch.compile(model.model, dynamic=True)
    stepping = optimizers(model, recipe)
    breadth = Breadth(recipe.mannered, excluded())
    source = documents(seeded("pretraining", recipe.seed), chat, breadth)
    stream = batches(source, chat, recipe.tokens_per_step, recipe.seed)
    losses: list[float] = []
    brier: list[float] = []
    tokens = 0
    start = time.monotonic()
    for step, batch in enumerate(islice(stream, max(snapshots, default=recipe.steps)), start=1):
        logits, labels = learned_logits(model, backbone, batch)
        loss = functional.cross_entropy(logits, labels, label_smoothing=recipe.label_smoothing)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in stepping:
            for group in optimizer.param_groups:
                group["lr"] = recipe.lr * pace(step - 1, recipe)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        tokens += batch.inputs.numel()
        if step % 50 == 0:
            loss_mean = sum(losses) / 50
            minutes = (time.monotonic() - start) / 60
            logger.info("step %d: loss %.4f, %.2f M tokens, %.1f min", step, loss_mean, tokens / 1e6, minutes)
            losses.clear()
        if step in snapshots:
            save(model, chat, folder / f"step-{step}")
        if not snapshots and (step % probe_every == 0 or step == recipe.steps):
            logger.info("accuracy on held-out problems: %s", probe(model, chat))
            measures = held_out(model, chat)
            logger.info("held-out trajectories: %s", {key: round(x, 4) for key, x in measures.items()})
            brier.append(measures["brier"])
            if brier[-1] == min(brier):
                save(model, chat, folder)
            elif min(brier[-recipe.patience :]) > min(brier):
                logger.info("stopped: the Brier score was best at an earlier probe")
                break


@torch.no_grad()
def probe(model: LlamaForCausalLM, chat: ChatFormat) -> dict[str, float]:
    """Greedy accuracy on facts, options, and direct answers to problems from the benchmarks' side of the
    split.
    """
    rng = seeded("probe")
    samples = {"facts": [facts(rng) for _ in range(20)]}
    samples["options"] = [options(rng) for _ in range(20)]
    for level in LEVELS:
        problems = [draw(kind, level, rng, benchmark=True) for kind in KINDS for _ in range(15)]
        answers = [prompted("direct", problem, boxed(problem), rng, chat) for problem in problems]
        samples[f"direct {level}"] = answers
    return {name: round(_share_right(model, chat, sample), 3) for name, sample in samples.items()}


def _share_right(model: LlamaForCausalLM, chat: ChatFormat, sample: list[Document]) -> float:
    """Share of the learned pieces that the student would write token for token."""
    right: list[bool] = []
    for ids, labels in _encode(sample, chat):
        batch = _pad([(ids, labels)], 0)
        hits = (model(batch.inputs, use_cache=False).logits.argmax(-1) == batch.labels)[0].tolist()
        for label, before, hit in zip(labels[1:], labels[:-1], hits, strict=True):
            if label == IGNORED:
                continue
            if before == IGNORED:  # the first token of a piece
                right.append(hit)
            else:
                right[-1] = right[-1] and hit
    return sum(right) / len(right)


def save(model: LlamaForCausalLM, chat: ChatFormat, folder: Path) -> None:
    """Save a Hugging Face model folder. Sampling settings are left to the caller; only stop and padding
    tokens are stored.
    """
    model.generation_config = GenerationConfig(
        eos_token_id=chat.stop_ids, pad_token_id=chat.tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    chat.tokenizer.save_pretrained(folder)


def main() -> None:
    default = Recipe()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=STUDENT, help="where to save the student (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=default.steps, help="fewer for a trial (default: %(default)s)"
    )
    parser.add_argument(
        "--probe-every", type=int, default=200, help="steps between probes (default: %(default)s)"
    )
    parser.add_argument(
        "--snapshots", type=int, nargs="*", default=[], help="save it at these steps and stop at the last"
    )
    options = parser.parse_args()
    if not all(0 < step <= options.steps for step in options.snapshots):
        parser.error(f"--snapshots: give steps from 1 to {options.steps}")
    log_to(form="%(asctime)s %(message)s")
    torch.set_num_threads(2)
    pretrain(replace(default, steps=options.steps), options.folder, options.probe_every, options.snapshots)


if __name__ == "__main__":
    run_main(main)
