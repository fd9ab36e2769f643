"""Ask teachers with batch files, for batch APIs and `vllm run-batch`, instead of in the run itself.

Run as: python -m lark.teaching batch write FOLDER <the settings of run.py>
        python -m lark.teaching batch read FOLDER <the settings of run.py>

`write` writes what is missing as FOLDER/<teacher>/requests-1.jsonl, … `read` adds the results in the other
.jsonl files of FOLDER/<teacher>, whatever they are called. Then run.py with the same settings continues: it
asks only for what is still missing. The student (`self`) is left to run.py.
"""

import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from lark.config import Config
from lark.config.checks import user_path
from lark.config.cli import outputs_typed
from lark.config.composed import composed
from lark.config.teacher import SELF
from lark.generation.batch_files import REQUESTS
from lark.pipeline.machine_check import check_machine
from lark.pipeline.pipeline import Pipeline
from lark.pipeline.plan import fetched_plan, wanted
from lark.printing import log_to
from lark.store.store import Artifact, Checksums, Store
from lark.teaching import batch_run, checks
from lark.teaching.artifacts import ROLLOUTS
from lark.teaching.batch_run import BatchCounts
from lark.work.entry import run_main
from lark.work.operation import Job, Step

log = logging.getLogger("lark")


def main(arguments: Sequence[str]) -> None:
    if len(arguments) < 3 or arguments[0] != "batch" or arguments[1] not in ("write", "read"):
        log.info("%s", __doc__)
        return
    command = arguments[1]
    folder = user_path("FOLDER", arguments[2]).absolute()
    config = composed(_settings(arguments[3:]))
    checks.no_batches_between_heats(config.teach)
    plan = wanted(fetched_plan(config, Checksums(config.outputs_path)), ["teach"])
    store = Store(config.outputs_path)
    steps = [step for step in plan if step.makes(ROLLOUTS) and step.teacher != SELF]
    checks.any_teachers(len(steps))
    for step in steps:
        _prepare(config, plan, step, store, folder)
        with store.lock(step.artifacts[0]):
            job = _job(config, store, step)
            if command == "write":
                _write(job, step.teacher, folder)
            else:
                _read(job, step.teacher, folder)


def _settings(arguments: Sequence[str]) -> list[str]:
    """The settings of run.py. `--config-dir`, a flag of Hydra's own command line, becomes one too."""
    settings = []
    words = iter(arguments)
    for word in words:
        flag, _, value = word.partition("=")
        if flag != "--config-dir":
            settings.append(word)
            continue
        folder = user_path("--config-dir", value or next(words, "")).absolute()
        settings.append(f"hydra.searchpath=[file://{folder}]")
    return settings


def _prepare(config: Config, plan: Sequence[Step], step: Step, store: Store, folder: Path) -> None:
    """Make what a step depends on: the questions, and pass rates if they decide which are asked."""
    inputs = set(_inputs(step.artifacts[0]))
    for earlier in plan:
        if inputs.isdisjoint(artifact.folder for artifact in earlier.artifacts):
            continue
        if any(store.state(artifact) != "finished" for artifact in earlier.artifacts):
            Pipeline(config, folder / ".run", only=earlier.key).run()


def _inputs(artifact: Artifact) -> Iterator[Path]:
    """Folders of everything that an artifact is made from."""
    for source in artifact.inputs.values():
        yield source.folder
        yield from _inputs(source)


def _job(config: Config, store: Store, step: Step) -> Job:
    (artifact,) = step.artifacts
    folder = store.path(artifact)
    if store.state(artifact) != "finished":
        store.begin(artifact)
    inputs = {name: store.path(source) for name, source in artifact.inputs.items()}
    machine = check_machine(config)
    return Job(step.operation.name, folder, {step.teacher: folder}, inputs, "", config, machine)


def _write(job: Job, name: str, folder: Path) -> None:
    files = batch_run.write(job, folder / name)
    for file in files:
        log.info("%s: %s", name, file)
    if not files:
        log.info("%s: nothing is missing.", name)


def _read(job: Job, name: str, folder: Path) -> None:
    written = set((folder / name).glob(REQUESTS))
    files = sorted(set((folder / name).glob("*.jsonl")) - written)
    checks.any_results(folder / name, len(files))
    log.info("%s: %s", name, described(batch_run.read(job, files)))


def described(counts: BatchCounts) -> str:
    """The counts of a teacher's results, for the person."""
    parts = [f"{counts.answered:,} samples read"]
    if counts.known:
        parts.append(f"{counts.known:,} were there already")
    if counts.unknown:
        parts.append(f"{counts.unknown:,} belong to no question of this run")
    parts += [f"{count:,} questions unanswered ({reason})" for reason, count in counts.failures.items()]
    parts += [f"{count:,} to be asked again ({reason})" for reason, count in counts.again.items()]
    parts.append(f"{counts.missing:,} questions are missing")
    return ", ".join(parts)


if __name__ == "__main__":
    log_to()
    run_main(lambda: main(sys.argv[1:]), outputs_typed(sys.argv[1:]))
