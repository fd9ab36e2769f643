"""Make one step of a submitted sweep, in a process of its own that Ray or SLURM starts when its inputs are
finished.
"""

from dataclasses import replace
from pathlib import Path

from experiments.submission.checks import require_plan
from experiments.submission.graph import SweepStep
from experiments.submission.record import Submission
from lark.config import Config
from lark.errors import LarkError
from lark.pipeline.pipeline import Pipeline
from lark.work.entry import explain


def run_step(folder: Path, name: str) -> None:
    """Make a step's artifacts. Raises LarkError, and records it in the artifacts' manifests."""
    submission = Submission(folder)
    step = submission.steps[name]
    run_folder = folder / "steps" / name
    run_folder.mkdir(parents=True, exist_ok=True)
    try:
        require_plan(step, submission.has_inputs(step))
        pipeline = Pipeline(alone(submission, step), run_folder, only=step.key)
        require_plan(step, bool(pipeline.steps))
        pipeline.run()
    except Exception as error:
        reason = explain(error, submission.outputs)
        submission.fail(step, reason)
        raise LarkError(reason) from error


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
