"""Export a finished selection for another trainer.

Run as: python -m lark.export outputs/selection/<name> --for fireworks --to data.jsonl
        python -m lark.export outputs/selection/<name> --for axolotl --to data.jsonl --weights repeat
"""

import argparse
import json
import logging
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from math import ceil
from pathlib import Path

from lark.config.checks import user_path
from lark.errors import LarkError
from lark.export.examples import Overview, overview, read_examples
from lark.export.repetition import MOST, repetitions
from lark.export.targets import TARGETS, Target, thinking_as_text
from lark.printing import log_to
from lark.selection.write import TRAINING_SET
from lark.store.disk import disk_errors
from lark.store.integrity import verify
from lark.store.manifest import read_manifest
from lark.store.store import atomic
from lark.work.entry import run_main

log = logging.getLogger(__name__)

GB = 10**9
OWN_CODE = "--weights keep, and train with the trainer in docs/train-jsonl.md; "
CHOICES = (
    "--weights repeat, which writes each line as often as its weight says, on average; or --weights drop,"
    " which trains on the same selection without its weights"
)


THINKING = (
    "%d of %d examples have their thinking in `reasoning_content`. A chat template that does not know this"
    " field drops it silently: check yours, or use --thinking text."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, export, and report what was written."""
    options = _parser().parse_args(arguments)
    source, target = training_set(Path(options.selection)), TARGETS[options.target]
    check_numbers(options)
    found = overview(read_examples(source))
    target.check(found)
    mode = weights_mode(options.weights, target, found)
    to = user_path("--to", options.to)
    check_file(to)
    if mode == "repeat":
        size = sum(len(line.encode()) * times for line, times in lines(source, target, found, mode, options))
        check_size(size, to, options.max_gb)
    written = 0
    with disk_errors(to.parent), atomic(to) as draft, draft.open("w", encoding="utf-8") as handle:
        for line, times in lines(source, target, found, mode, options):
            handle.writelines(repeat(line, times))
            written += times
        if not written:
            raise LarkError(f"{source}: every weight rounds to 0 lines. Use a larger --copies.")
    log.info(_report(to, written, found, mode, target, options.copies))
    if found.thinking and options.thinking == "keep" and target.template_thinks:
        log.info(THINKING, found.thinking, found.examples)


def lines(
    source: Path, target: Target, found: Overview, mode: str, options: argparse.Namespace
) -> Iterator[tuple[str, int]]:
    """Each line of the exported file, and how often it is written."""
    for number, given in enumerate(read_examples(source)):
        as_text = options.thinking == "text"
        example = replace(given, messages=[thinking_as_text(m) for m in given.messages]) if as_text else given
        line = {
            **target.convert(example, found),
            **({"weight": example.weight} if mode == "keep" else {}),
            **(example.ids if options.ids else {}),
        }
        times = repetitions(example, number, options.copies, options.seed) if mode == "repeat" else 1
        yield json.dumps(line, ensure_ascii=False) + "\n", times


def check_numbers(options: argparse.Namespace) -> None:
    """Refuse numbers that cannot be meant."""
    if options.copies < 1:
        raise LarkError(f"--copies {options.copies}: write each line at least once per unit of weight.")
    if options.copies > MOST:
        raise LarkError(f"--copies: at most {MOST:g} lines per unit of weight can be written.")
    if not options.max_gb > 0:
        raise LarkError(f"--max-gb {options.max_gb:g}: the limit must be more than 0 GB.")


def check_file(to: Path) -> None:
    """Refuse to write over something, and to write where no file can be."""
    if to.is_dir():
        raise LarkError(
            f"--to {to}: this is a folder. Give the name of a file in it, such as {to / 'data.jsonl'}."
        )
    if to.is_symlink() and not to.exists():
        raise LarkError(
            f"--to {to}: this is a link to {to.readlink()}, which does not exist. Give the name of a new"
            " file."
        )
    if to.exists():
        raise LarkError(f"--to {to}: this file exists. Choose another name, or remove it.")
    if not to.parent.is_dir():
        raise LarkError(f"--to {to}: there is no folder {to.parent}.")


def check_size(size: int, to: Path, limit: float) -> None:
    """Refuse a file that does not fit on the disk, or that is larger than the user expects."""
    free = shutil.disk_usage(to.parent).free
    wanted = f"--to {to}: the file would have {size / GB:,.1f} GB"
    if size > free:
        raise LarkError(
            f"{wanted}, and {to.parent} has {free / GB:,.1f} GB free. Use a smaller --copies, or another"
            " disk."
        )
    if size > limit * GB:
        raise LarkError(
            f"{wanted}, more than the limit of {limit:g} GB. Use a smaller --copies, or raise the limit: "
            f"--max-gb {ceil(size / GB)}."
        )


def training_set(given: Path) -> Path:
    """The training set of a finished selection, or a file."""
    given = user_path("selection", str(given))
    if given.is_file():
        return given
    path = given / TRAINING_SET
    if not path.is_file():
        raise LarkError(
            f"{given}: there is no {TRAINING_SET} here. Give the folder of a selection,"
            " outputs/selection/<name>."
        )
    try:
        finished = read_manifest(given).finished
    except LarkError:
        finished = False
    if not finished:
        raise LarkError(f"{given}: this selection is not finished. Run its command again, then export it.")
    verify(given)
    return path


def weights_mode(asked: str | None, target: Target, found: Overview) -> str:
    """What happens with the weights. Must be chosen by the user if the trainer would lose them."""
    if target.weights == "used":
        return asked or "keep"
    if asked == "keep" and target.weights == "ignored":
        raise LarkError(f"{target.label} ignores weights, so they cannot be kept. Add {CHOICES}.")
    if asked is None and not found.uniform:
        own = OWN_CODE if target.weights == "own code" else ""
        raise LarkError(f"{target.label} ignores the weights of this selection. Add {own}{CHOICES}.")
    return asked or "drop"


def _report(to: Path, written: int, found: Overview, mode: str, target: Target, copies: int) -> str:
    said = {
        "keep": f"{written} lines with their weights",
        "repeat": f"{written} lines from {found.examples} trajectories, repeated in place of their weights",
        "drop": f"{written} lines" + (" (all weights are 1)" if found.uniform else " without their weights"),
    }[mode]
    lines = [f"{to}: {said}, for {target.label}."]
    if mode == "repeat" and copies > 1:
        lines.append(
            f"An epoch has {copies} times as many lines as without repetition: divide the number of epochs by"
            f" {copies}."
        )
    settings = target.settings(found, to.name)
    return "\n".join([*lines, *([settings] if settings else [])])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m lark.export", description="Export a finished selection for another trainer."
    )
    parser.add_argument(
        "selection", help="the folder of a selection, outputs/selection/<name>, or a train.jsonl"
    )
    parser.add_argument("--for", dest="target", required=True, choices=TARGETS, help="the trainer")
    parser.add_argument("--to", required=True, help="the file to write")
    parser.add_argument(
        "--weights", choices=("keep", "repeat", "drop"), help="required if the trainer ignores weights"
    )
    parser.add_argument(
        "--copies", type=int, default=1, help="with --weights repeat: lines per unit of weight (default: 1)"
    )
    parser.add_argument(
        "--max-gb",
        type=float,
        default=10.0,
        help="with --weights repeat: refuse to write a larger file (default: 10)",
    )
    parser.add_argument(
        "--seed", type=int, default=42, help="with --weights repeat: seed of the rounding (default: 42)"
    )
    parser.add_argument(
        "--thinking",
        choices=("keep", "text"),
        default="keep",
        help="text: write `reasoning_content` as <think>…</think> text",
    )
    parser.add_argument("--ids", action="store_true", help="also write question_id and candidate_id")
    return parser


if __name__ == "__main__":
    log_to(sys.stdout)
    run_main(main)
