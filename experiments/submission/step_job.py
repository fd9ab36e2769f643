"""Make one step of a submitted sweep, in a process of its own that Ray or SLURM starts when its inputs are
finished.
"""

import os
from dataclasses import replace
from pathlib import Path

from experiments.harness.sweep import ROOT
from experiments.submission.record import Submission, SweepStep
from lark.config import Config
from lark.errors import LarkError
from lark.pipeline.pipeline import Pipeline
from lark.work.entry import explain


def python_path() -> str:
    """PYTHONPATH of processes that import this package."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def run_step(folder: Path, name: str) -> None:
    """Make a step's artifacts. Raises LarkError, and records it in the artifacts' manifests."""
    submission = Submission(folder)
    step = submission.steps[name]
    try:
        _check_inputs(submission, step)
        run_folder = folder / "steps" / name
        run_folder.mkdir(parents=True, exist_ok=True)
        pipeline = Pipeline(alone(submission, step), run_folder, only=step.key)
        _check_planned(pipeline, step)
        pipeline.run()
    except Exception as error:
        reason = explain(error, submission.outputs)
        submission.fail(step, reason)
        raise LarkError(reason) from error


def _check_inputs(submission: Submission, step: SweepStep) -> None:
    for name in step.after:
        if not submission.finished(submission.steps[name]):
            raise LarkError(f"{step.name} needs {name}, which is not finished. Submit the sweep again.")


def _check_planned(pipeline: Pipeline, step: SweepStep) -> None:
    """Refuse a step that is not in the plan of its own configuration."""
    if not pipeline.steps:
        raise LarkError(
            f"{step.name}: its inputs or the code have changed since it was submitted."
            " Submit the sweep again."
        )


def alone(submission: Submission, step: SweepStep) -> Config:
    """The configuration of a step that has its GPUs and cores of one machine to itself."""
    config = submission.config(step)
    processes = max(1, step.gpus)
    hardware = replace(
        config.hardware,
        device="cuda" if step.gpus else "cpu",
        processes=processes,
        threads=max(1, step.cpus // processes),
        cluster="none",
        address=None,
        workers=0,
        elastic=False,
    )
    tracking = replace(config.tracking, mode="none")
    return replace(config, hardware=hardware, tracking=tracking, outputs=str(submission.outputs))
