"""The stages in order: reuse what is finished, resume what was started, launch the rest. Imports no model code."""

import contextlib
import logging
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lark.analysis import contamination
from lark.analysis.shards import merge as merge_shards
from lark.config import Config, HeldOut
from lark.errors import LarkError
from lark.evaluation import benchmarks
from lark.evaluation.grade import merge_generations
from lark.planner.estimates import key_of
from lark.planner.lengths import PoolLengths, pool_lengths
from lark.planner.report import check_memory
from lark.pool import trajectories as pools
from lark.report.run_summary import Outcome, pool_summary, run_summary
from lark.report.tables import text_table
from lark.runtime.launch import command, run_worker
from lark.runtime.machine import Machine, check
from lark.runtime.nodes import Leader
from lark.runtime.plan import Step, make_plan, wanted
from lark.runtime.store import Artifact, Checksums, Store
from lark.runtime.tracking import Tracker
from lark.scoring import judge, shards
from lark.scoring.text import write_indicators
from lark.selection import stage as selecting
from lark.training.training_set import read_rows

log = logging.getLogger(__name__)

ONE_PROCESS = ("student", "lengths", "grade", "cost")
"""Tasks that need no more than one process whatever the hardware."""

MERGED = {"gradients": "gradients.parquet", "jacobians": "jacobians.parquet", "kappa": "kappa.parquet"}
"""Analyses whose processes leave shards, and the table that the shards become."""

DEMO = "demo"
DEMO_RECIPE = (
    "training=demo is the recipe of the demo's student, a million parameters and a learning rate of %g: for student.name=%s choose "
    "student=own, which brings the paper's, training=lora or settings of your own"
)

CUT = "%d of %d trajectories are cut at student.max_length=%d; %d of them have no response left and cannot be selected"


class Pipeline:
    """One run of run.py."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config = config
        self.machine: Machine = check(config)
        self.store = Store(config.outputs_path)
        self.plan = make_plan(config, Checksums(config.outputs_path))
        if not config.dry_run:
            check_memory(config, self.machine, self.reused())
        if any(step.task in ("generate", "contamination") for step in self._wanted()):
            benchmarks.check(config.benchmark)
        if any(step.task == "train" for step in self._wanted()):
            _check_held_out(config.training.held_out)
            if config.training.name == DEMO and config.student.path != DEMO:
                log.warning(DEMO_RECIPE, config.training.learning_rate, config.student.name)
        if any(step.task == "select" for step in self._wanted()):
            selecting.check_external(config)
        self.tracker = Tracker(config, folder)
        self.folder = folder
        self.outcomes: list[Outcome] = []
        self.leader: Leader | None = None

    def run(self) -> None:
        if self.machine.nodes > 1:
            self.leader = Leader(self.machine)
        finished = False
        try:
            for step in self._wanted():
                self._carry_out(step)
            if not any(outcome.made for outcome in self.outcomes) and self.tracker.is_told:
                self.tracker.enabled = False  # nothing new to tell: a repeated sweep leaves no empty runs behind
            self._track_what_was_there()
            if "report" in self.config.stages:
                run_summary(self.config, self.store, self.plan, self.outcomes, self.tracker, self.folder)
            finished = True
        finally:
            self.tracker.finish()
            if self.leader is not None:
                self.leader.close(failed=not finished)

    def _track_what_was_there(self) -> None:
        """A job of a sweep is a run of its group, whoever made its artifacts: their counts, and the curve of a training."""
        if not self.tracker.enabled:
            return
        for outcome in self.outcomes:
            for artifact in outcome.step.artifacts:
                counts = self.store.manifest(artifact)["counts"]
                numbers = {f"{artifact.stage}/{k}": v for k, v in counts.items() if isinstance(v, int | float)}
                self.tracker.log(numbers)
            if outcome.step.task == "train" and not outcome.made:
                with self.tracker.follow(self.store.path(outcome.step.artifacts[0]) / "metrics.jsonl", "train"):
                    pass

    def lengths(self) -> PoolLengths:
        """What is known of the pool's lengths, for the planner."""
        step = next((step for step in self.plan if step.task == "lengths"), None)
        known = step is not None and self.store.state(step.artifacts[0]) == "finished"
        return pool_lengths(self.config, self.store.path(step.artifacts[0]) if step is not None and known else None)

    def reused(self) -> frozenset[str]:
        """The planner's keys of the steps that are finished, and so cost nothing."""
        finished = [
            s for s in self._wanted() if not self._forced(s) and all(self.store.state(a) == "finished" for a in s.artifacts)
        ]
        return frozenset(key_of(step) for step in finished)

    def describe(self) -> str:
        """The plan, for `dry_run=true`."""
        action = {"finished": "reuse", "started": "resume", "missing": "run"}
        rows, commands = [], []
        for step in self._wanted():
            for artifact in step.artifacts:
                what = "run again" if self._forced(step) else action[self.store.state(artifact)]
                rows.append([step.stage, step.task, what, str(artifact.folder)])
            if step.task not in _INLINE:
                processes = self._processes(step)
                endpoint = None if step.task in ONE_PROCESS else self.machine.rendezvous
                line = shlex.join(command(self.store.path(step.artifacts[0]), self.machine, processes, endpoint))
                commands.append(f"{step.task}: {line}")
        return text_table(["stage", "task", "plan", "artifact"], rows, right=4) + "\n\nWorkers:\n" + "\n".join(commands)

    def _wanted(self) -> list[Step]:
        """The steps that were asked for, and those they depend on."""
        return wanted(self.plan, self.config.stages)

    def _forced(self, step: Step) -> bool:
        return bool({step.stage, step.task} & set(self.config.force))

    def _carry_out(self, step: Step) -> None:
        started = time.time()
        made = self.store.ensure(step.artifacts, lambda folders: self._build(step, folders), force=self._forced(step))
        seconds = time.time() - started
        self.outcomes.append(Outcome(step, tuple(made), seconds))
        name = (
            step.artifacts[0].folder
            if len(step.artifacts) == 1
            else f"{len(step.artifacts)} artifacts of {step.artifacts[0].stage}"
        )
        log.info("%-9s %-9s %s", step.task, f"{seconds:.1f} s" if made else "reused", name)
        counts = self.store.manifest(step.artifacts[0])["counts"]
        if step.task == "pool":
            if made or self.config.stages == ["pool"]:
                log.info(pool_summary(counts))
            self._check_choice(counts["teachers"], self.store.path(step.artifacts[0]))
        if step.task == "lengths" and counts["truncated"]:
            log.warning(
                CUT, counts["truncated"], counts["trajectories"], self.config.student.max_length, counts["without_response"]
            )

    def _check_choice(self, teachers: Iterable[str], pool: Path) -> None:
        """A method.teacher or a method.path that is wrong for this pool is an error now, not after hours of scoring; what it would
        have chosen says why it is missing."""
        choices = [a for step in self._wanted() if step.task == "select" for a in step.artifacts]
        try:
            if self.config.method.teacher is not None:
                selecting.find_teacher(self.config.method.teacher, teachers)
            if any(self.store.state(a) != "finished" for a in choices):
                selecting.check_external(self.config, pool)
        except LarkError as error:
            self.store.fail([a for a in choices if self.store.state(a) != "finished"], error)
            raise

    def _build(self, step: Step, folders: list[Path]) -> Sequence[Mapping[str, Any]]:
        if step.task in _INLINE:
            return [_INLINE[step.task](self, step, folders[0])]
        log.info("%s …", step.task)
        sources = {k: self.store.path(v) if isinstance(v, Artifact) else Path(v) for k, v in step.sources.items()}
        inputs = {**sources, **{name: self.store.path(artifact) for name, artifact in step.inputs.items()}}
        pending = {self.store.path(a): task for a, task in zip(step.artifacts, step.tasks, strict=False)}
        extra = {"tasks": {pending[folder]: str(folder) for folder in folders}} if step.tasks else {}
        processes = self._processes(step)
        if step.task == "judge" and {"score", "judge"} & set(self.config.force):
            judge.forget(folders[0])
        follow = (
            self.tracker.follow(folders[0] / "metrics.jsonl", "train") if step.task == "train" else contextlib.nullcontext()
        )
        with follow:
            leader = None if step.task in ONE_PROCESS else self.leader
            gpus = self._gpus(step)
            counts = run_worker(step.task, folders[0], inputs, self.config, self.machine, processes, leader, gpus, **extra)
        if step.task in ("score", "local"):
            cut = shards.Shards.of(step.task, inputs["lengths"], self.config.scoring)
            return [{**counts, **shards.finish(pending[folder], folder, cut)} for folder in folders]
        if step.task in MERGED:
            return [{**counts, **merge_shards(folders[0], MERGED[step.task])}]
        if step.task == "generate":
            return [{**counts[str(folder)], **merge_generations(folder)} for folder in folders]
        if step.task == "judge":
            return [{**counts, **judge.collect(inputs["pool"], folders[0])}]
        return [counts[str(folder)] for folder in folders] if step.tasks else [counts]

    def _processes(self, step: Step) -> int | None:
        """How many a worker's task takes: one a GPU, or one for each group of GPUs that share a model. None: all."""
        if step.task in ONE_PROCESS:
            return 1
        gpus = self._gpus(step)
        return None if gpus < 2 else max(1, self.machine.processes // gpus)

    def _gpus(self, step: Step) -> int:
        """GPUs of each process alone. Training's processes reach each other's; those of a shared model have several."""
        if step.task == "train":
            return 0
        if self.config.engine.name == "hf" or step.task not in ("generate", "judge"):
            return 1
        shared = self.config.engine if step.task == "generate" else self.config.method.judge
        return shared.tensor_parallel

    def _pool(self, step: Step, folder: Path) -> Mapping[str, Any]:
        dropped = pools.Dropped()
        return pools.write(pools.read(self.config.pool, dropped), folder / pools.FILE, self.config.pool, dropped)

    def _select(self, step: Step, folder: Path) -> Mapping[str, Any]:
        inputs = {name: self.store.path(artifact) for name, artifact in step.inputs.items()}
        return selecting.write_selection(self.config, inputs, folder)

    def _text(self, step: Step, folder: Path) -> Mapping[str, Any]:
        return write_indicators(self.store.path(step.inputs["pool"]), folder)

    def _contamination(self, step: Step, folder: Path) -> Mapping[str, Any]:
        return contamination.write_audit(self.config.benchmark, self.store.path(step.inputs["pool"]) / pools.FILE, folder)


def _check_held_out(held_out: HeldOut) -> None:
    """What is wrong with a file of one's own is said now, not by the worker after hours of scoring."""
    if held_out.path not in (None, "selection"):
        for _ in read_rows(Path(str(held_out.path)).expanduser()):
            pass


_INLINE = {
    "pool": Pipeline._pool, "text": Pipeline._text, "select": Pipeline._select, "contamination": Pipeline._contamination,
}  # fmt: skip
"""Steps without a model, done in this process."""
