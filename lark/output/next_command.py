"""The next sensible command, for the last lines of a run."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from lark.names import override_key
from lark.printing import near
from lark.secrets import redact

if TYPE_CHECKING:
    from lark.pipeline.pipeline import Pipeline

AFTER = {
    "teach": ("select", "score its trajectories and select"),
    "pool": ("select", "score its trajectories and select"),
    "score": ("select", "select and weight trajectories"),
    "select": ("evaluate", "train on it and evaluate the student"),
    "train": ("evaluate", "evaluate the student"),
}
"""The stage that usually follows a stage, and what it does."""
OF_THIS_RUN = ("stages", "force", "dry_run")
"""Settings that the next command does not repeat."""


def next_commands(run: "Pipeline", is_evaluated: bool) -> str:
    """What to run next; empty if nothing follows."""
    stage = run.steps[-1].stage if run.steps else ""
    if is_evaluated:
        return f"Next: {explorer_command(run.store.root)}  # the answers, and why each trajectory was chosen"
    if stage not in AFTER:
        return ""
    following, purpose = AFTER[stage]
    settings = [setting for setting in run.typed if override_key(setting) not in OF_THIS_RUN]
    command = shlex.join(["python", "run.py", *settings, f"stages=[{following}]"])
    return f"Next: {redact(command)}  # {purpose}"


def explorer_command(outputs: Path) -> str:
    return shlex.join(["python", "-m", "lark.explorer", near(outputs)])
