"""The next sensible command, for the last lines of a run."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from lark.names import override_key
from lark.printing import near
from lark.secrets import redact

if TYPE_CHECKING:
    from lark.pipeline.pipeline import Pipeline

OF_THIS_RUN = ("stages", "force", "dry_run")
"""Settings that the next command does not repeat."""


def next_commands(run: "Pipeline", is_evaluated: bool) -> str:
    """What to run next: the next stage of the plan, or the explorer. Empty if nothing follows."""
    if is_evaluated:
        return f"Next: {explorer_command(run.store.root)}  # the answers, and why each trajectory was chosen"
    following = next((step for step in run.plan if step not in run.steps and step.stage), None)
    if following is None:
        return ""
    settings = [setting for setting in run.typed if override_key(setting) not in OF_THIS_RUN]
    command = shlex.join(["python", "run.py", *settings, f"stages=[{following.stage}]"])
    return f"Next: {redact(command)}  # the stage that follows"


def explorer_command(outputs: Path) -> str:
    return shlex.join(["python", "-m", "lark.explorer", near(outputs)])
