"""Measurements that a run can take besides accuracy: steps of the plan, each made by a worker like any other artifact.

To add one: write `function(job) -> counts` that leaves its files in `job.folder`, name it in lark/worker.py's TASKS, and
add here a function that says what its artifact depends on. `diagnostics=[name]` then runs it, after what it needs.
"""

from collections.abc import Callable, Sequence

from lark.artifacts import Artifact, Checksums
from lark.config import Config
from lark.errors import LarkError
from lark.plan import Step

Diagnostic = Callable[[Config, Checksums, Sequence[Step]], Step]
"""The configuration, checksums of files, and the run's other steps -> the step, of stage `diagnose`."""


def find_artifact(steps: Sequence[Step], stage: str, diagnostic: str) -> Artifact:
    """What a diagnostic reads: the run's artifact of that stage (`pool`, `scores`, `selection`, `checkpoint`)."""
    for step in steps:
        if step.artifacts[0].stage == stage:
            return step.artifacts[0]
    raise LarkError(f"diagnostics=[{diagnostic}] needs {stage}, which this run does not make: choose another method.")


DIAGNOSTICS: dict[str, Diagnostic] = {}


def find_diagnostic(name: str) -> Diagnostic:
    if name not in DIAGNOSTICS:
        raise LarkError(f"diagnostics={name}: choose from {', '.join(DIAGNOSTICS) or 'none'}.")
    return DIAGNOSTICS[name]
