"""Pretrain the demo's student: a 1M-parameter Llama that knows arithmetic facts and usually answers without
reasoning.

Run as: python -m lark.demo.pretrain            (`make demo-student`; minutes on two cores)
        python -m lark.demo.pretrain --steps 20 --folder /tmp/student
        python -m lark.demo.pretrain --narrow --folder /tmp/narrow
                                                (the student that it starts from; half an hour on two cores)
        python -m lark.demo.pretrain --narrow --snapshots 280 840 --folder /tmp/weaker
                                                (the same, earlier; `make regime`)

The students in `lark/demo/` were made with these recipes and their defaults. The narrow student has seen few
manners of writing, and finds most text of the demo's teachers absurd. The demo's student continues it on a
broader corpus. Its recipe was chosen by how it finds the demo's pool (lark/scoring/student_regime.py: about
as the students of the paper find theirs) and by the headroom of the base model, before any selection method
was tried on it.

For now both folders hold the narrow student's weights: the demo's figures in the docs rest on them, and all
of them change with the weights.
"""

import argparse
import logging
import time
from collections.abc import Callable, Sequence
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
from lark.demo.document_batches import IGNORED, PaddedDocuments, batches, encode, padded
from lark.demo.manners import NARROW, Breadth
from lark.demo.muon import Muon
from lark.demo.phrasing import boxed
from lark.demo.problems import KINDS, LEVELS, draw, seeded
from lark.demo.tokenizer import CONTEXT, build
from lark.models.chat import ChatFormat
from lark.printing import log_to
from lark.work.entry import run_main

logger = logging.getLogger(__name__)

STUDENT = Path(__file__).parent / "student"
NARROW_STUDENT = Path(__file__).parent / "narrow_student"


@dataclass(frozen=True)
class Recipe:
    """How a student is pretrained. The defaults: the narrow student's."""

    steps: int = 2800
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
    breadth: Breadth = NARROW
    start: Path | None = None
    """The student to continue; None: from random weights."""
    probe_every: int = 600
    """Steps between probes, after which the student is saved."""
    patience: int | None = None
    """Probes without a better Brier score on held-out trajectories after which training stops. Only the best
    student is kept. None: the last one, without stopping.
    """


def broad_recipe() -> Recipe:
    """The recipe of the demo's student."""
    breadth = Breadth(mannered=0.7, without=excluded())
    return Recipe(
        steps=120, lr=1.5e-3, warmup=20, breadth=breadth, start=NARROW_STUDENT, probe_every=40, patience=2
    )


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


def pretrain(recipe: Recipe, folder: Path, snapshots: Sequence[int] = ()) -> None:
    """Train the student, probe it regularly, and save it to `folder`: after every probe, or with
    `recipe.patience` after those at which it is better calibrated than before.

    With `snapshots`, save it at these steps of the recipe instead, in `folder`/step-<n>, and stop at the
    last of them.
    """
    torch.manual_seed(recipe.seed)
    chat, model = _beginning(recipe)
    shown = asdict(replace(recipe, breadth=Breadth(recipe.breadth.mannered)))
    logger.info("%s, %.2f M parameters", shown, sum(p.numel() for p in model.parameters()) / 1e6)
    # On CPU, compilation makes the student about four times faster (tokens per second).
    backbone = torch.compile(model.model, dynamic=True)
    stepping = optimizers(model, recipe)
    source = documents(seeded("pretraining", recipe.seed), chat, recipe.breadth)
    stream = batches(source, chat, recipe.tokens_per_step, recipe.seed)
    losses: list[float] = []
    brier: list[float] = []
    tokens = 0
    start = time.monotonic()
    for step, batch in enumerate(islice(stream, max(snapshots, default=recipe.steps)), start=1):
        logits, labels = learned_logits(model, backbone, batch)
        loss = functional.cross_entropy(logits, labels)
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
        if not snapshots and (step % recipe.probe_every == 0 or step == recipe.steps):
            brier.append(_probed(model, chat))
            if recipe.patience is None or brier[-1] == min(brier):
                save(model, chat, folder)
            elif min(brier[-recipe.patience :]) > min(brier):
                logger.info("stopped: an earlier student was better calibrated")
                break


def _beginning(recipe: Recipe) -> tuple[ChatFormat, LlamaForCausalLM]:
    # The tokenizer of a student that is continued is the same: it depends on the seed alone.
    chat = ChatFormat(build(recipe.seed))
    if recipe.start is None:
        return chat, LlamaForCausalLM(model_config(recipe, chat))
    return chat, LlamaForCausalLM.from_pretrained(recipe.start)


def _probed(model: LlamaForCausalLM, chat: ChatFormat) -> float:
    """Log how good the student is. Return its Brier score on held-out trajectories."""
    logger.info("accuracy on held-out problems: %s", probe(model, chat))
    measures = held_out(model, chat)
    logger.info("held-out trajectories: %s", {name: round(value, 4) for name, value in measures.items()})
    return measures["brier"]


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
    for ids, labels in encode(sample, chat):
        batch = padded([(ids, labels)], 0)
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--narrow", action="store_true", help="the student that the demo's student continues")
    parser.add_argument("--folder", type=Path, help="where to save the student (default: in lark/demo)")
    parser.add_argument("--steps", type=int, help="fewer for a trial")
    parser.add_argument(
        "--snapshots", type=int, nargs="*", default=[], help="save it at these steps and stop at the last"
    )
    options = parser.parse_args()
    recipe = Recipe() if options.narrow else broad_recipe()
    recipe = replace(recipe, steps=options.steps or recipe.steps)
    if not all(0 < step <= recipe.steps for step in options.snapshots):
        parser.error(f"--snapshots: give steps from 1 to {recipe.steps}")
    log_to(form="%(asctime)s %(message)s")
    torch.set_num_threads(2)
    folder = options.folder or (NARROW_STUDENT if options.narrow else STUDENT)
    pretrain(recipe, folder, options.snapshots)


if __name__ == "__main__":
    run_main(main)
