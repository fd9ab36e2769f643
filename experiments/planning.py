"""What a sweep would do: its jobs, what is there already, and what the rest costs. Nothing runs."""

from collections import Counter
from dataclasses import dataclass

from experiments.sweep import Job, Sweep
from lark.artifacts import Artifact
from lark.plan import Step
from lark.report.tables import text_table

PAPER_HOURS = 1600
"""A100-hours of all the paper's training (App. C.3)."""
ACTION = {"finished": "reuse", "started": "resume", "missing": "run"}


@dataclass(frozen=True)
class Planned:
    """A step that the sweep needs; steps that jobs share are planned once."""

    step: Step
    job: Job
    """The first that needs it."""
    pending: tuple[Artifact, ...]
    """What of it is not finished."""


def planned(sweep: Sweep) -> list[Planned]:
    """Every distinct step of the sweep, in order."""
    seen: dict[tuple[str, ...], Planned] = {}
    for job in sweep.jobs:
        for step in job.steps:
            key = (step.task, *(artifact.fingerprint for artifact in step.artifacts))
            if key not in seen:
                pending = tuple(a for a in step.artifacts if sweep.store.state(a) != "finished")
                seen[key] = Planned(step, job, pending)
    return list(seen.values())


def kind(step: Step) -> str:
    """What a step is called in a plan; evaluating the base model is not evaluating a trained student."""
    if step.task not in ("generate", "grade"):
        return step.task
    generations = step.artifacts[0] if step.task == "generate" else step.artifacts[0].inputs["generations"]
    return step.task if "checkpoint" in generations.inputs else f"{step.task} (base model)"


def describe(sweep: Sweep) -> str:
    """The plan as text."""
    steps = planned(sweep)
    total, pending = Counter(kind(p.step) for p in steps), Counter(kind(p.step) for p in steps if p.pending)
    rows = [[name, str(count), str(count - pending[name]), str(pending[name])] for name, count in total.items()]
    jobs = [[str(number), " ".join(job.overrides), _state(sweep, job)] for number, job in enumerate(sweep.jobs)]
    parts = [
        f"{sweep.title} at scale {sweep.scale}: {len(sweep.jobs)} jobs, "
        f"{total['train']} trainings, {total['generate (base model)']} base evaluations",
        text_table(["job", "settings", "plan"], jobs, right=3),
        text_table(["step", "in all", "reused", "to do"], rows),
    ]
    return "\n\n".join(parts)


def _state(sweep: Sweep, job: Job) -> str:
    """What of a job is left to do, by task."""
    left = Counter(
        step.task for step in job.steps if any(sweep.store.state(artifact) != "finished" for artifact in step.artifacts)
    )
    return ", ".join(left) if left else "reuse"
