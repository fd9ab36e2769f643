"""A large run of a teacher: planned, merged, verified and read as a pool, within limited memory.

Run as: python -m experiments.bench.teaching [--questions 100000] [--samples 4] [--characters 2000] [--quick]

The answers are synthetic: they are in a journal, as an interrupted run would have left them, so no model is
run. Everything after that is the real pipeline. Memory is the peak of the run, and of its largest worker.
"""

import json
import logging
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from experiments.bench._output import command_line, verdict
from lark import config
from lark.config.teacher import Price
from lark.generation.conversation import Ask, Reply
from lark.pipeline.pipeline import Pipeline
from lark.planner.report import report
from lark.printing import log_to
from lark.store.store import Artifact
from lark.teaching import answer_journals, question_files
from lark.teaching.answer_journals import answered
from lark.teaching.artifacts import ROLLOUTS
from lark.teaching.question_files import AskedQuestion
from lark.work.entry import run_main
from lark.work.process import ROOT

log = logging.getLogger(__name__)
MOST_GIB = 1.0


def write_questions(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as out:
        for number in range(count):
            text = f"A farmer has {number} sheep and buys {number % 97} more. How many does she have? " * 3
            row = {"question_id": f"q{number}", "question": text, "answer": str(number + number % 97)}
            out.write(json.dumps(row) + "\n")


def records(path: Path, samples: int, characters: int) -> Iterator[dict[str, Any]]:
    """The lines of a journal with all answers."""
    draw = random.Random(0)
    words = [f"{draw.choice('abcdefgh')}{draw.randrange(3000)}" for _ in range(4000)]
    for row in question_files.read(config.Questions(format="rows", path=str(path))):
        replies = [_reply(row, draw.choices(words, k=characters // 6)) for _ in range(samples)]
        yield answered(row.key, 0, Ask((), 1, samples), replies, Price())


def _reply(question: AskedQuestion, words: list[str]) -> Reply:
    text = f"{' '.join(words)} \\boxed{{{question.answer}}}"
    return Reply(text, "Add the two numbers.", "stop", len(words), 60, "synthetic")


def composed(folder: Path, samples: int) -> config.Config:
    config.register()
    overrides = [
        "pool=taught", "teacher=[demo]", f"questions.path={folder}/questions.jsonl",
        f"teach.samples={samples}",
        f"outputs={folder}/outputs", "stages=[pool]", "tracking=none", "hardware.warm=false",
    ]  # fmt: skip
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return config.load(compose("config", overrides=overrides))


def _peak() -> tuple[float, float]:
    """GiB of this process, and of its largest child."""
    usages = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own, child = (usage / 2**20 for usage in usages)
    return own, child


def _plant(run: Pipeline, folder: Path, samples: int, characters: int) -> None:
    """Write the journal into the folder of the rollouts, as an interrupted run leaves it."""
    made: list[Artifact] = [artifact for step in run.plan for artifact in step.artifacts]
    (rollouts,) = [artifact for artifact in made if artifact.kind == ROLLOUTS]
    place = run.store.path(rollouts)
    place.mkdir(parents=True)
    answer_journals.write(place, "00000", records(folder / "questions.jsonl", samples, characters))


def main() -> None:
    log_to()
    parser = command_line(__doc__, "2,000 questions")
    parser.add_argument("--questions", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--characters", type=int, default=2000)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.questions = 2000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_questions(folder / "questions.jsonl", arguments.questions)
        settings = composed(folder, arguments.samples)
        started = time.perf_counter()
        run = Pipeline(settings, folder / "run")
        report(settings, run.steps, run.lengths(), run.finished())
        log.info("planned in %.1f s, %.2f GiB", time.perf_counter() - started, _peak()[0])
        _plant(run, folder, arguments.samples, arguments.characters)
        run.run()
        for outcome in run.outcomes:
            log.info("%-12s %7.1f s", outcome.step.title, outcome.seconds)
    own, child = _peak()
    log.info("peak: %.2f GiB in the run, %.2f GiB in a worker", own, child)
    log.info("at most %g GiB: %s", MOST_GIB, verdict(max(own, child) <= MOST_GIB))


if __name__ == "__main__":
    run_main(main)
