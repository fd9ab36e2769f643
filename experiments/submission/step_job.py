"""Make one step of a submitted sweep: a process of its own, which Ray, SLURM or the conductor starts when
its inputs are there.

Run as: python -m experiments.submission.step_job <folder of the sweep> <step>
"""

import logging
import sys
from dataclasses import replace
from pathlib import Path

from experiments.submission.record import Planned, Submission, attempt
from lark.config import Config
from lark.errors import LarkError
from lark.pipeline.pipeline import Pipeline
from lark.printing import log_to
from lark.work.entry import explain, run_main


def run_step(folder: Path, name: str) -> None:
    """Make a step's artifacts. Raises LarkError."""
    submission = Submission(folder)
    step = submission.steps[name]
    with attempt(submission.event_file(name)):
        for needed in (submission.steps[other] for other in step.after):
            if not submission.finished(needed):
                raise LarkError(f"{name} needs {needed.name}, which is not finished. Submit the sweep again.")
        try:
            own = folder / "steps" / name
            own.mkdir(parents=True, exist_ok=True)
            pipeline = Pipeline(alone(submission, step), own, only=step.key)
            if not pipeline.steps:
                raise LarkError(
                    f"{name}: its inputs or the code have changed since it was submitted. Submit the sweep"
                    " again."
                )
            pipeline.run()
        except LarkError:
            raise
        except Exception as error:
            raise LarkError(explain(error, submission.outputs)) from error


def alone(submission: Submission, step: Planned) -> Config:
    """The configuration of a step that has its GPUs and cores of one machine to itself."""
    config, processes = submission.config(step), max(1, step.gpus)
    device = "cuda" if step.gpus else "cpu"
    hardware = replace(
        config.hardware,
        device=device,
        processes=processes,
        threads=max(1, step.cpus // processes),
        cluster="none",
        address=None,
        workers=0,
        elastic=False,
    )
    return replace(
        config,
        hardware=hardware,
        tracking=replace(config.tracking, mode="none"),
        outputs=str(submission.outputs),
    )


def main(folder: Path, name: str) -> str | None:
    try:
        run_step(folder, name)
    except LarkError as error:
        return str(error)
    return None


if __name__ == "__main__":
    log_to()
    logging.getLogger("lark").setLevel(logging.INFO)
    run_main(lambda: main(Path(sys.argv[1]), sys.argv[2]), Path(sys.argv[1]).parents[2])
