"""Our objective in TRL: its SFTTrainer, with the weights of a training set.

    data = weighted_dataset("outputs/selection/<name>/train.jsonl", "my/student")
    WeightedSFTTrainer("my/student", SFTConfig(...), train_dataset=data).train()

A step's loss is Σ_i w_i ℓ_i / |batch| (decision 3), on any number of processes and accumulation steps, with
the weights of trajectories, turns and tokens. Prompts and responses are tokenised as they are scored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from trl import SFTConfig, SFTTrainer

from lark.config import Student
from lark.models.chat import EQUAL, Factors
from lark.models.load import load_chat
from lark.training.encoded_set import Example, read_examples, token_shares
from lark.training.loss import NO_TARGET
from lark.training.weight_checks import check_columns, check_unpacked

COLUMNS = ("input_ids", "labels", "shares")


def weighted_dataset(
    path: str | Path, student: str | Student, max_length: int | None = None, factors: Factors = EQUAL
) -> Dataset:
    """A selection's `train.jsonl` as tokens with their shares of the loss.

    student: a folder or a hub id; or the settings of a student, with its chat template and how it thinks.
    max_length: tokens of prompt and response together; None: that of the settings, 32,768 by default.
    factors: weights of thinking and answers (`training.thinking_weight`, `training.answer_weight`).
    """
    settings = Student("student", student) if isinstance(student, str) else student
    if max_length is not None:
        settings = replace(settings, max_length=max_length)
    chat = load_chat(settings.path, settings)
    examples = read_examples(Path(path).expanduser(), chat, settings.max_length, factors)
    return Dataset.from_list(list(_rows(examples)))


def _rows(examples: Sequence[Example]) -> Iterator[dict[str, Any]]:
    for example in examples:
        ids = list(example.encoded.ids)
        labels = [NO_TARGET] * len(ids)
        for start, stop in example.encoded.turns:
            labels[start:stop] = ids[start:stop]
        yield {"input_ids": ids, "labels": labels, "shares": token_shares(example)}


class WeightedSFTTrainer(SFTTrainer):
    """TRL's SFTTrainer, whose loss is Σ_i w_i ℓ_i / |batch|. Takes the rows of `weighted_dataset`."""

    def __init__(
        self, model: Any, args: SFTConfig | None = None, *, train_dataset: Dataset, **options: Any
    ) -> None:
        args = SFTConfig() if args is None else args
        check_columns(train_dataset.column_names, COLUMNS)
        check_unpacked(args.packing or args.padding_free)
        # The rows are tokens already, and the Trainer would remove the shares.
        given = args.dataset_kwargs if isinstance(args.dataset_kwargs, dict) else {}
        args.dataset_kwargs = {**given, "skip_prepare_dataset": True}
        args.remove_unused_columns = False
        super().__init__(model, args, data_collator=collate, train_dataset=train_dataset, **options)
        # The loss is divided by the whole step's trajectories here, and not by its accumulation steps again.
        self.model_accepts_loss_kwargs = True

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, Tensor]], device: torch.device) -> Tensor:
        """|batch|: the trajectories of a step, over all accumulation steps and processes."""
        trajectories = sum(len(batch["labels"]) for batch in batch_samples)
        count: Tensor = self.accelerator.gather(torch.tensor([trajectories], device=device))
        return count.sum()

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        labels = inputs["labels"][:, 1:]
        outputs = model(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False
        )
        logits = outputs.logits[:, :-1].float().transpose(1, 2)
        surprisals = cross_entropy(logits, labels, ignore_index=NO_TARGET, reduction="none")
        # Wrappers average gradients over processes; the objective is their sum.
        scale = self.accelerator.num_processes / num_items_in_batch
        loss = (inputs["shares"][:, 1:] * surprisals).sum() * scale
        return (loss, outputs) if return_outputs else loss


def collate(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """A padded batch. Nothing that is padded carries loss."""

    def padded(name: str, value: float) -> Tensor:
        return pad_sequence([torch.tensor(row[name]) for row in rows], batch_first=True, padding_value=value)

    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    input_ids = padded("input_ids", 0)
    return {
        "input_ids": input_ids,
        "attention_mask": (torch.arange(input_ids.shape[1]) < lengths.unsqueeze(1)).long(),
        "labels": padded("labels", NO_TARGET),
        "shares": padded("shares", 0),
    }
