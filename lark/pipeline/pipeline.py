"""Carry out a plan: reuse what is finished, resume what was started, run the rest. Refers to no operation
by name and imports no model code.
"""

import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lark.config import Config
from lark.errors import DamagedError, LarkError, WorkerMemoryError
from lark.pipeline.machine_check import check_machine, check_steps
from lark.pipeline.plan import fetched_plan, wanted
from lark.pipeline.unused import force_names, report_idle_force
from lark.planner.lengths import PoolLengths, lengths_of
from lark.planner.report import check_memory, relief
from lark.printing import text_table
from lark.store.integrity import verify
from lark.store.store import CARD, Artifact, Checksums, Store, write_text
from lark.work.launch import command, environment, run_worker
from lark.work.operation import Counts, Job, Step
from lark.work.record import Record
from lark.work.tracking import Tracker
from lark.work.warm import WARMTH, Coming

log = logging.getLogger(__name__)

ACTIONS = {"finished": "reuse", "started": "resume", "missing": "run"}
"""The action of a run for an artifact, by its state."""


@dataclass(frozen=True)
class Outcome:
    """A step that was carried out: what it made (nothing if everything was finished) and how long it took."""

    step: Step
    made: tuple[Artifact, ...]
    seconds: float


class Pipeline:
    """One run of run.py."""

    def __init__(self, config: Config, folder: Path, only: tuple[str, ...] | None = None) -> None:
        """`only`: the key of the one step to carry out, whose inputs exist."""
        self.config = config
        self.machine = check_machine(config)
        self.store = Store(config.outputs_path)
        self.plan = fetched_plan(config, Checksums(config.outputs_path))
        self.steps = [step for step in wanted(self.plan, config.stages) if only is None or step.key == only]
        """The steps of the requested stages and those they depend on."""
        if not config.dry_run:
            check_memory(config, self.machine, self.steps, self.finished())
        check_steps(config, self.machine, self.steps)
        report_idle_force(config, self.steps)
        self.tracker = Tracker(config, folder)
        self.folder = folder
        self.record = Record(folder)
        self.outcomes: list[Outcome] = []
        self.rebuilt: set[Path] = set()
        """Folders of damaged artifacts that this run has made again."""

    def run(self, summarise: Callable[["Pipeline"], None] | None = None, typed: Sequence[str] = ()) -> None:
        """Run every step in order, then write the summary if the stage `report` is requested. `typed`: the
        user's overrides.
        """
        self.record.start(typed, self.steps)
        try:
            WARMTH.prepare(self._coming(), self.machine.device)
            for step in self.steps:
                self._intact(partial(self._carry_out, step))
                self._intact(partial(self._preview, step))
            if self.tracker.already_tracked and not any(outcome.made for outcome in self.outcomes):
                self.tracker.enabled = False  # a repeated sweep leaves no empty runs behind
            self._track_reused()
            if summarise is not None and self.config.wants_report:
                self._intact(lambda: summarise(self))
        finally:
            self.record.end(sys.exception())
            self.tracker.finish()

    def _track_reused(self) -> None:
        """Track counts and training curves of reused artifacts too: a trial is a run of its group even if
        others made them.
        """
        if not self.tracker.enabled:
            return
        for outcome in self.outcomes:
            for artifact in outcome.step.artifacts:
                counts = self.store.manifest(artifact).counts
                numbers = {name: value for name, value in counts.items() if isinstance(value, int | float)}
                self.tracker.log({f"{artifact.kind.name}/{name}": value for name, value in numbers.items()})
            if not outcome.made:
                with self._curve(outcome.step):
                    pass  # the tracker reads the finished curve to its end

    def _curve(self, step: Step) -> AbstractContextManager[None]:
        """Mirrors the step's training curve to the tracker, if it has one."""
        operation = step.operation
        if not operation.curve:
            return nullcontext()
        return self.tracker.follow(self.store.path(step.artifacts[0]) / operation.curve, operation.name)

    def lengths(self) -> PoolLengths:
        """The pool's lengths as far as they are known, for the planner."""
        return lengths_of(self.config, self.plan, self.store)

    def finished(self) -> frozenset[tuple[str, ...]]:
        """Keys of the steps that need not run and cost nothing."""
        steps = [step for step in self.steps if not self._forced(step)]
        return frozenset(step.key for step in steps if not self._missing(step))

    def _missing(self, step: Step) -> list[Artifact]:
        """The step's artifacts that are not finished."""
        return [artifact for artifact in step.artifacts if self.store.state(artifact) != "finished"]

    def describe(self) -> str:
        """The plan, for `dry_run=true`."""
        rows = []
        commands = []
        finished = self.finished()
        for step in self.steps:
            for artifact in step.artifacts:
                action = "run again" if self._forced(step) else ACTIONS[self.store.state(artifact)]
                rows.append([step.stage or "–", step.title, action, str(artifact.folder)])
            if isinstance(step.operation.run, str) and step.key not in finished:
                folder = self.store.path(step.artifacts[0])
                line = shlex.join(command(folder, self.machine, self._processes(step)))
                commands.append(f"{step.title}: {line}")
        table = text_table(["stage", "operation", "plan", "artifact"], rows, right=4)
        if not commands:
            return table
        return "\n".join([table, "", "Workers:", *commands])

    def _forced(self, step: Step) -> bool:
        return not force_names(step).isdisjoint(self.config.force)

    def _intact(self, work: Callable[[], None]) -> None:
        """Do some work. If it finds a damaged artifact, rebuild that and start the work again; each
        artifact once.
        """
        while True:
            try:
                return work()
            except DamagedError as error:
                step = self._maker(error.folder)
                if step is None or error.folder in self.rebuilt:
                    raise
                self.rebuilt.add(error.folder)
                log.warning("%s It is made again.", error.what)
                self._intact(partial(self._carry_out, step))

    def _maker(self, folder: Path) -> Step | None:
        """The step of this run that makes the artifact in a folder."""
        return next((step for step in self.steps if folder in map(self.store.path, step.artifacts)), None)

    def _carry_out(self, step: Step) -> None:
        started = time.time()
        build = partial(self._build, step)
        made = self.store.ensure(step.artifacts, build, force=self._forced(step))
        seconds = time.time() - started
        self.outcomes.append(Outcome(step, tuple(made), seconds))
        self.record.step(step, made, seconds)
        first = step.artifacts[0]
        several = len(step.artifacts)
        name = first.folder if several == 1 else f"{several} artifacts of {first.kind.name}"
        width = max(len(other.title) for other in self.steps)
        duration = f"{seconds:.1f} s" if made else "reused"
        log.info("%-*s  %-9s %s", width, step.title, duration, name)
        if step.operation.notice is not None:
            try:
                step.operation.notice(self.config, self.store.manifest(first).counts, bool(made))
            except (KeyError, TypeError, ValueError):
                # Counts of an older version, or edited: only a remark is lost.
                log.debug("no remarks on %s", first.folder, exc_info=True)

    def _preview(self, step: Step) -> None:
        """Fail early on errors in later steps that their first input shows, and record the reason in the
        manifests of their artifacts.
        """
        for later in self.steps[self.steps.index(step) + 1 :]:
            if later.operation.preview is None or self._first_source(later) is not step:
                continue
            missing = self._missing(later)
            if not missing:
                continue
            finished = {}
            for name, artifact in later.inputs.items():
                if self.store.state(artifact) == "finished":
                    finished[name] = self.store.path(artifact)
            for folder in finished.values():
                verify(folder)
            try:
                later.operation.preview(self.config, finished)
            except LarkError as error:
                self.store.fail(missing, error)
                raise

    def _first_source(self, step: Step) -> Step | None:
        """The first step of this run that makes something the step needs."""
        needed = {artifact.folder for artifact in step.needs}
        for source in self.steps:
            if needed & {artifact.folder for artifact in source.artifacts}:
                return source
        return None

    def _build(self, step: Step, folders: list[Path]) -> Sequence[Counts]:
        """Make the artifacts of a step that are missing, in these folders."""
        operation = step.operation
        job = self._job(step, folders)
        for artifact in step.needs:
            verify(self.store.path(artifact))
        forced = self._forced(step)
        if forced and operation.forget is not None:
            operation.forget(folders[0])
        if operation.carry is not None:
            operation.carry(job)
        if not forced and operation.prepare is not None:
            operation.prepare(job)
        if callable(operation.run):
            counts = operation.run(job)
        else:
            log.info("%s …", step.title)
            counts = self._run_worker(step, job, operation.run)
        if operation.collect is not None:
            counts = operation.collect(job, counts)
        if operation.card is not None:
            for artifact in step.artifacts:
                self.store.restore_descriptions(artifact)
            write_text(folders[0] / CARD, operation.card(folders[0], counts))
        return [counts[label] for label in job.outputs] if step.labels else [counts]

    def _run_worker(self, step: Step, job: Job, function: str) -> Counts:
        """Run a step in workers. If they run out of memory, the error names settings that need less."""
        try:
            with self._curve(step):
                return run_worker(job, function, self._processes(step), WARMTH.start)
        except WorkerMemoryError as error:
            advice = relief(self.config, self.machine, step, self.lengths())
            raise LarkError(f"{error}\n{advice}") from error

    def _job(self, step: Step, folders: list[Path]) -> Job:
        labels = step.labels or tuple(artifact.kind.name for artifact in step.artifacts)
        # Finished artifacts of the step have no folder in `folders`.
        outputs = {}
        for artifact, label in zip(step.artifacts, labels, strict=True):
            if self.store.path(artifact) in folders:
                outputs[label] = self.store.path(artifact)
        weights = step.weights
        if isinstance(weights, Artifact):
            weights = str(self.store.path(weights))
        return Job(
            operation=step.operation.name,
            folder=folders[0],
            outputs=outputs,
            inputs={name: self.store.path(artifact) for name, artifact in step.inputs.items()},
            weights=weights,
            config=self.config,
            machine=self.machine,
            gpus=step.operation.gpus(self.config),
            on_cpu=step.operation.on_cpu,
            allocator=step.operation.allocator,
        )

    def _coming(self) -> Iterator[Coming]:
        """The workers of this run that are single processes, in order, for warm processes."""
        if not self.config.hardware.warm:
            return
        finished = self.finished()
        for step in self.steps:
            operation = step.operation
            processes = self._processes(step)
            is_alone = (processes or self.machine.processes) == 1
            if isinstance(operation.run, str) and is_alone and step.key not in finished:
                env = environment(self.machine, processes, operation.gpus(self.config), operation.allocator)
                yield operation.run.split(":")[0], env

    def _processes(self, step: Step) -> int | None:
        """Processes of a step on this machine: one per GPU, or one per group of GPUs that share a model.
        None: all.

        On a cluster, one process that leads the others.
        """
        if step.operation.processes == "one" or self.machine.cluster:
            return 1
        gpus = step.operation.gpus(self.config)
        if gpus < 2 or self.machine.device == "cpu":
            return None
        return max(1, self.machine.processes // gpus)
