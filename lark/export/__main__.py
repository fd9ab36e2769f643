"""Export a finished selection for another trainer, or the results of an evaluation for another tool.

Run as: python -m lark.export outputs/selection/<name> --for fireworks --to data.jsonl
        python -m lark.export outputs/selection/<name> --for axolotl --to data.jsonl --weights repeat
        python -m lark.export outputs/selection/<name> --for swift --to data.jsonl --student my/student
        python -m lark.export outputs/metrics/<name> --for inspect --to log.json
        python -m lark.export outputs/metrics/<name> --for every_eval --to records
"""

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path

from lark.config import GRADERS
from lark.config.checks import user_path
from lark.errors import LarkError
from lark.export.checks import (
    check_copies,
    check_factors,
    check_file,
    check_size,
    refuse_scaled_turns,
    require_finished,
    require_lines,
    require_student,
    require_training_set,
)
from lark.export.examples import Contents, ExportExample, contents_of, read_examples
from lark.export.repetition import repetitions
from lark.export.results import FORMATS
from lark.export.targets import TARGETS, Target, thinking_as_text
from lark.models.dialogue import without_scale
from lark.output.evaluations import FinishedEvaluation
from lark.printing import log_to
from lark.selection.write import TRAINING_SET
from lark.store.disk import disk_errors
from lark.store.integrity import verify
from lark.store.manifest import readable_manifest
from lark.store.store import atomic
from lark.work.entry import run_main

log = logging.getLogger(__name__)

OWN_CODE = (
    "Train on its train.jsonl with WeightedSFTTrainer (lark/training/trl.py, docs/train-jsonl.md), which uses"
    " them. To export it anyway, add "
)
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
    if options.target in FORMATS:
        export_results(options)
        return
    source = training_set(Path(options.artifact))
    target = TARGETS[options.target]
    check_copies(options.copies)
    read = reader(source, target, options)
    contents = contents_of(read())
    target.check(contents)
    mode = weights_mode(options.weights, target, contents)
    to = user_path("--to", options.to)
    check_file(to)
    if mode == "repeat":
        # A first pass over the lines: a few large weights can fill the disk.
        size = 0
        for line, times in lines(read(), target, contents, mode, options):
            size += len(line.encode()) * times
        check_size(size, to, options.max_gb)
    written = 0
    with disk_errors(to.parent), atomic(to) as draft, draft.open("w", encoding="utf-8") as handle:
        for line, times in lines(read(), target, contents, mode, options):
            handle.writelines(repeat(line, times))
            written += times
        require_lines(source, written)  # before the draft becomes the file
    log.info(_report(to, written, contents, mode, target, options.copies))
    if contents.thinking and options.thinking == "keep" and target.template_thinks:
        log.info(THINKING, contents.thinking, contents.examples)


def reader(
    source: Path, target: Target, options: argparse.Namespace
) -> Callable[[], Iterator[ExportExample]]:
    """The function that reads the examples, with the student's tokens if the trainer needs them."""
    factors = (options.thinking_weight, options.answer_weight)
    require_student(target.label, options.student, factors, needed=target.tokens is not None)
    check_factors(target.label, factors, target.tokens != "counted")
    if target.tokens is None:
        return partial(read_examples, source)
    from lark.export.tokenised import WeightedTokens  # noqa: PLC0415  # --help must not load PyTorch

    tokens = WeightedTokens.of(options)
    return lambda: tokens.added(_read(source, options.weights))


def _read(source: Path, weights: str | None) -> Iterator[ExportExample]:
    """The examples as they are tokenised: without the weights of messages, if weights are dropped."""
    for example in read_examples(source):
        yield _without_scales(example) if weights == "drop" else example


def _without_scales(example: ExportExample) -> ExportExample:
    return replace(example, messages=[dict(without_scale(message)) for message in example.messages])


def export_results(options: argparse.Namespace) -> None:
    """Write the results of an evaluation, and report it."""
    evaluation = FinishedEvaluation.read(user_path("artifact", options.artifact))
    model = options.model or evaluation.model
    to = user_path("--to", options.to)
    with disk_errors(to.parent):
        log.info(FORMATS[options.target](evaluation, model, options.grader, to))


def lines(
    examples: Iterable[ExportExample],
    target: Target,
    contents: Contents,
    mode: str,
    options: argparse.Namespace,
) -> Iterator[tuple[str, int]]:
    """Each line of the exported file, and how often it is written."""
    for number, example in enumerate(examples):
        line = target.convert(_as_requested(example, mode, options.thinking), contents)
        if mode == "keep" and target.tokens is None:
            line = {**line, "weight": example.weight}
        if options.ids:
            line = {**line, **example.ids}
        times = repetitions(example, number, options.copies, options.seed) if mode == "repeat" else 1
        yield json.dumps(line, ensure_ascii=False) + "\n", times


def _as_requested(example: ExportExample, mode: str, thinking: str) -> ExportExample:
    """The example with the weights and the thinking that the user wants."""
    if thinking == "text":
        example = replace(example, messages=list(map(thinking_as_text, example.messages)))
    if mode == "drop":
        example = _without_scales(example)
    return example if mode == "keep" else replace(example, weight=1.0)


def training_set(selection: Path) -> Path:
    """The training set of a finished selection, or a file."""
    path = user_path("selection", str(selection))
    if path.is_file():
        return path
    require_training_set(path, TRAINING_SET)
    manifest = readable_manifest(path)
    require_finished(path, manifest is not None and manifest.finished)
    verify(path)
    return path / TRAINING_SET


def weights_mode(choice: str | None, target: Target, contents: Contents) -> str:
    """keep, repeat or drop the weights. Must be chosen by the user if the trainer would lose them."""
    if contents.scaled and not target.scales and choice != "drop":
        refuse_scaled_turns(target.label, contents.scaled, contents.examples)
    if target.weights == "used":
        return choice or "keep"
    refuse_lost_weights(choice, target, contents)
    return choice or "drop"


def refuse_lost_weights(choice: str | None, target: Target, contents: Contents) -> None:
    problem = None
    if choice == "keep" and target.weights == "ignored":
        problem = f"weights, so they cannot be kept. Add {CHOICES}."
    elif choice is None and contents.weighted:
        beginning = OWN_CODE if target.weights == "own code" else "Add "
        problem = f"the weights of this selection. {beginning}{CHOICES}."
    if problem:
        raise LarkError(f"{target.label} ignores {problem}")


def _report(to: Path, written: int, contents: Contents, mode: str, target: Target, copies: int) -> str:
    without = " without their weights" if contents.weighted else " (all weights are 1)"
    description = {
        "keep": f"{written} lines with their weights",
        "repeat": f"{written} lines from {contents.examples} trajectories, repeated instead of their weights",
        "drop": f"{written} lines{without}",
    }[mode]
    paragraphs = [f"{to}: {description}, for {target.label}."]
    if mode == "repeat" and copies > 1:
        paragraphs.append(
            f"An epoch has {copies} times as many lines as without repetition: divide the number of epochs by"
            f" {copies}."
        )
    paragraphs.append(target.settings(contents, to.name))
    return "\n".join(filter(None, paragraphs))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m lark.export",
        description="Export a finished selection for another trainer, or results for another tool.",
    )
    parser.add_argument(
        "artifact",
        help="a selection, outputs/selection/<name>, a train.jsonl, or an evaluation, outputs/metrics/<name>",
    )
    parser.add_argument(
        "--for",
        dest="target",
        required=True,
        choices=[*TARGETS, *FORMATS],
        help=f"the trainer; of an evaluation, {' or '.join(FORMATS)}",
    )
    parser.add_argument("--to", required=True, help="the file to write; for every_eval, a new folder")
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
    parser.add_argument(
        "--student",
        nargs="+",
        metavar=("PATH", "KEY=VALUE"),
        help="for swift and tinker: the student's folder or hub id, and other settings of it, such as"
        " chat_template=llama3 max_length=4096",
    )
    for name, noun in (("thinking", "thinking"), ("answer", "all other response tokens")):
        parser.add_argument(
            f"--{name}-weight",
            type=float,
            default=1.0,
            help=f"for tinker: factor of the tokens of {noun}; 0 leaves them out (default: 1)",
        )
    parser.add_argument(
        "--grader", choices=GRADERS, default="verify", help="of an evaluation: whose grades (default: verify)"
    )
    parser.add_argument("--model", help="of an evaluation: owner/name of the model in the results")
    parser.add_argument("--ids", action="store_true", help="also write question_id and candidate_id")
    return parser


if __name__ == "__main__":
    log_to(sys.stdout)
    run_main(main)
