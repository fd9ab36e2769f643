"""Carry out a plan: reuse what is finished, resume what was started, run the rest. Refers to no operation
by name and imports no model code.
"""

import contextlib
import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lark.cluster import slurm
from lark.cluster.nodes import address_of, machine_of, reach
from lark.config import Config
from lark.errors import DamagedError, LarkError, WorkerMemoryError
from lark.models.students import check_student
from lark.pipeline.plan import fetched_plan, wanted
from lark.planner.lengths import PoolLengths, lengths_of
from lark.planner.report import check_memory, relief
from lark.printing import text_table
from lark.store.integrity import verify
from lark.store.store import CARD, Artifact, Checksums, Store, write_text
from lark.work.launch import command, environment, run_worker
from lark.work.machine import Machine, resolve
from lark.work.operation import Counts, Job, Step
from lark.work.record import Record
from lark.work.tracking import Tracker
from lark.work.warm import WARMTH, Coming

log = logging.getLogger(__name__)


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
        self._report_idle_force()
        self.tracker = Tracker(config, folder)
        self.folder = folder
        self.record = Record(folder)
        self.outcomes: list[Outcome] = []
        self.rebuilt: set[Path] = set()
        """Folders of damaged artifacts that this run has made again."""

    def run(self, summarise: Callable[["Pipeline"], None] | None = None, typed: Sequence[str] = ()) -> None:
        """Run every step in order, then write the summary if the stage `report` is requested. `typed` is
        what the user typed.
        """
        self.record.start(typed, self.steps)
        try:
            WARMTH.prepare(self._coming(), self.machine.device)
            for step in self.steps:
                self._intact(lambda step=step: self._carry_out(step))  # type: ignore[misc]
                self._intact(lambda step=step: self._preview(step))  # type: ignore[misc]
            if not any(outcome.made for outcome in self.outcomes) and self.tracker.already_tracked:
                self.tracker.enabled = (
                    False  # nothing new to report: a repeated sweep leaves no empty runs behind
                )
            self._track_what_was_there()
            if summarise is not None and self.config.wants_report:
                self._intact(lambda: summarise(self))
        finally:
            self.record.end(sys.exception())
            self.tracker.finish()

    def _track_what_was_there(self) -> None:
        """Track counts and training curves of reused artifacts too: a trial is a run of its group even if
        others made them.
        """
        if not self.tracker.enabled:
            return
        for outcome in self.outcomes:
            for artifact in outcome.step.artifacts:
                counts = self.store.manifest(artifact).counts
                numbers = {
                    f"{artifact.kind.name}/{k}": v for k, v in counts.items() if isinstance(v, int | float)
                }
                self.tracker.log(numbers)
            operation = outcome.step.operation
            if operation.curve and not outcome.made:
                with self.tracker.follow(
                    self.store.path(outcome.step.artifacts[0]) / operation.curve, operation.name
                ):
                    pass

    def lengths(self) -> PoolLengths:
        """The pool's lengths as far as they are known, for the planner."""
        return lengths_of(self.config, self.plan, self.store)

    def finished(self) -> frozenset[tuple[str, ...]]:
        """Keys of the steps that need not run and cost nothing."""
        return frozenset(
            step.key
            for step in self.steps
            if not self._forced(step) and all(self.store.state(a) == "finished" for a in step.artifacts)
        )

    def describe(self) -> str:
        """The plan, for `dry_run=true`."""
        action = {"finished": "reuse", "started": "resume", "missing": "run"}
        rows, commands, finished = [], [], self.finished()
        for step in self.steps:
            for artifact in step.artifacts:
                what = "run again" if self._forced(step) else action[self.store.state(artifact)]
                rows.append([step.stage or "–", step.title, what, str(artifact.folder)])
            if isinstance(step.operation.run, str) and step.key not in finished:
                folder = self.store.path(step.artifacts[0])
                line = shlex.join(command(folder, self.machine, self._processes(step)))
                commands.append(f"{step.title}: {line}")
        table = text_table(["stage", "operation", "plan", "artifact"], rows, right=4)
        return "\n".join([table, *(["", "Workers:", *commands] if commands else [])])

    def _forced(self, step: Step) -> bool:
        return bool({step.stage, step.operation.name, step.purpose} & set(self.config.force))

    def _report_idle_force(self) -> None:
        """Warn about values of `force` that match no step of this run, such as those of another method or
        analysis.
        """
        for name in self.config.force:
            if not any(name in (step.stage, step.operation.name, step.purpose) for step in self.steps):
                there = ", ".join(dict.fromkeys(step.operation.name for step in self.steps))
                log.warning("force=[%s] has no effect: the operations of this run are %s", name, there)

    def _intact(self, work: Callable[[], None]) -> None:
        """Do some work. If it finds a damaged artifact, rebuild that and start the work again; each
        artifact once.
        """
        while True:
            try:
                return work()
            except DamagedError as error:
                step = next(
                    (s for s in self.steps if error.folder in map(self.store.path, s.artifacts)), None
                )
                if step is None or error.folder in self.rebuilt:
                    raise
                self.rebuilt.add(error.folder)
                log.warning("%s It is made again.", error.what)
                self._intact(lambda step=step: self._carry_out(step))  # type: ignore[misc]

    def _carry_out(self, step: Step) -> None:
        started = time.time()
        made = self.store.ensure(
            step.artifacts, lambda folders: self._build(step, folders), force=self._forced(step)
        )
        seconds = time.time() - started
        self.outcomes.append(Outcome(step, tuple(made), seconds))
        self.record.step(step, made, seconds)
        first, several = step.artifacts[0], len(step.artifacts)
        name = first.folder if several == 1 else f"{several} artifacts of {first.kind.name}"
        width = max(len(other.title) for other in self.steps)
        log.info("%-*s  %-9s %s", width, step.title, f"{seconds:.1f} s" if made else "reused", name)
        if step.operation.notice is not None:
            try:
                step.operation.notice(self.config, self.store.manifest(first).counts, bool(made))
            except (
                KeyError,
                TypeError,
                ValueError,
            ):  # counts of an older version, or edited: only a remark is lost
                log.debug("no remarks on %s", first.folder, exc_info=True)

    def _preview(self, step: Step) -> None:
        """Fail early on errors in later steps that their first input shows, and record the reason in the
        manifests of their artifacts.
        """
        for later in self.steps[self.steps.index(step) + 1 :]:
            needed = {source.folder for source in later.needs}
            first = next((s for s in self.steps if needed & {a.folder for a in s.artifacts}), None)
            if later.operation.preview is None or first is not step:
                continue
            missing = [a for a in later.artifacts if self.store.state(a) != "finished"]
            if not missing:
                continue
            there = {
                name: self.store.path(a)
                for name, a in later.inputs.items()
                if self.store.state(a) == "finished"
            }
            for folder in there.values():
                verify(folder)
            try:
                later.operation.preview(self.config, there)
            except LarkError as error:
                self.store.fail(missing, error)
                raise

    def _build(self, step: Step, folders: list[Path]) -> Sequence[Counts]:
        operation, job = step.operation, self._job(step, folders)
        for artifact in step.needs:
            verify(self.store.path(artifact))
        if self._forced(step) and operation.forget is not None:
            operation.forget(folders[0])
        if callable(operation.run):
            counts = operation.run(job)
        else:
            log.info("%s …", step.title)
            follow = (
                self.tracker.follow(folders[0] / operation.curve, operation.name) if operation.curve else None
            )
            try:
                with follow or contextlib.nullcontext():
                    counts = run_worker(job, operation.run, self._processes(step), WARMTH.start)
            except WorkerMemoryError as error:
                raise LarkError(
                    f"{error}\n{relief(self.config, self.machine, step, self.lengths())}"
                ) from error
        if operation.collect is not None:
            counts = operation.collect(job, counts)
        if operation.card is not None:
            for artifact in step.artifacts:
                self.store.restore_descriptions(artifact)
            write_text(folders[0] / CARD, operation.card(folders[0], counts))
        return [counts[label] for label in job.outputs] if step.labels else [counts]

    def _job(self, step: Step, folders: list[Path]) -> Job:
        labels = step.labels or tuple(artifact.kind.name for artifact in step.artifacts)
        by_folder = {
            self.store.path(artifact): label for artifact, label in zip(step.artifacts, labels, strict=True)
        }
        weights = str(self.store.path(step.weights)) if isinstance(step.weights, Artifact) else step.weights
        return Job(
            operation=step.operation.name,
            folder=folders[0],
            outputs={by_folder[folder]: folder for folder in folders},
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
        finished = self.finished()
        for step in self.steps:
            operation, processes = step.operation, self._processes(step)
            alone = (processes or self.machine.processes) == 1
            if (
                self.config.hardware.warm
                and isinstance(operation.run, str)
                and alone
                and step.key not in finished
            ):
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
        return None if gpus < 2 or self.machine.device == "cpu" else max(1, self.machine.processes // gpus)


def check_machine(config: Config) -> Machine:
    """Resolve the hardware settings; refuse what this machine does not have or the student's context does
    not allow.
    """
    hardware, cluster = config.hardware, None
    if hardware.cluster == "ray" and not config.dry_run:
        cluster = reach(address_of(hardware), config.outputs_path)
    elif hardware.cluster == "slurm" and not config.dry_run and slurm.several_nodes():
        cluster = slurm.lead(config.outputs_path)
    if cluster is None:
        machine = resolve(hardware, here=not config.dry_run)
    else:
        machine = machine_of(cluster, hardware.device, hardware.processes, hardware.threads, hardware.workers)
    if machine.elsewhere:
        log.warning(
            "This machine has no GPU: the plan is for hardware=%s on another machine.", config.hardware.name
        )
    check_student(config.student, machine)
    return machine


def check_steps(config: Config, machine: Machine, steps: Sequence[Step]) -> None:
    """Run the checks of each operation once, before anything runs."""
    for check in dict.fromkeys(step.operation.check for step in steps):
        if check is not None:
            check(config, machine)
