"""Settings that the user typed and that have no effect in this run: they are mistakes, and would otherwise
go unnoticed.

The rule: a setting that only some operations read (`Operation.settings`) needs one of them in the plan.
`_switched_off` adds the settings that another setting makes pointless.

A single run refuses them. In a sweep they may be meant for other trials: `-m method=lark,random
method.seed=1` passes the seed to both methods, and only one of them uses it. A trial of a sweep therefore
only warns.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from lark.config import STAGES, Config
from lark.config.pool import TAUGHT
from lark.errors import LarkError
from lark.generation.engine import shared_gpus
from lark.names import override_key
from lark.pipeline.analysis_plan import ANALYSES
from lark.pipeline.operations.analyse import OPERATIONS as ANALYSIS_OPERATIONS
from lark.pipeline.operations.teach import OPERATIONS as TEACH_OPERATIONS
from lark.pipeline.registry import OPERATIONS
from lark.scoring.methods import METHODS
from lark.scoring.own_method import is_own
from lark.work.machine import Machine
from lark.work.operation import Step

log = logging.getLogger(__name__)

ANALYSE = ANALYSIS_OPERATIONS[0].stage
TEACH = TEACH_OPERATIONS[0].stage


def check_unused(
    config: Config, machine: Machine, plan: Sequence[Step], overrides: Sequence[str], sweep: bool
) -> None:
    """Refuse overrides without effect; warn about them in a trial of a sweep. `plan`: all steps, also of
    other stages.
    """
    sentences = [*_unused(config, machine, plan, overrides), *_idle_stages(config, plan, overrides)]
    if sentences and not sweep:
        raise LarkError(" ".join(sentences))
    for sentence in sentences:
        log.warning(sentence)


def _unused(
    config: Config, machine: Machine, plan: Sequence[Step], overrides: Sequence[str]
) -> Iterator[str]:
    """One sentence per reason, with all the settings that it explains."""
    switched_off = dict(_switched_off(config, machine))
    settings_by_reason = defaultdict(list)
    for override in overrides:
        reason = _reason(override_key(override), config, plan, switched_off)
        if reason is not None:
            settings_by_reason[reason].append(override.lstrip("+~"))
    for reason, settings in settings_by_reason.items():
        verb = "has" if len(settings) == 1 else "have"
        yield f"{', '.join(settings)} {verb} no effect: {reason}"


def _reason(key: str, config: Config, plan: Sequence[Step], switched_off: Mapping[str, str]) -> str | None:
    """Why a setting has no effect, and what to do; None if it has one."""
    some_operation_reads = any(operation.reads(key) for operation in OPERATIONS)
    if some_operation_reads and not any(step.operation.reads(key) for step in plan):
        return f"method={config.method.name} does not use it. Remove it, or choose another method."
    for prefix, reason in switched_off.items():
        if key == prefix or key.startswith(f"{prefix}."):
            return reason
    return None


def _switched_off(config: Config, machine: Machine) -> Iterator[tuple[str, str]]:
    """Prefixes of settings that another setting makes pointless, each with the reason and what to do."""
    method = config.method
    yield "compare", "it is for `python -m experiments run compare`, not for a single run."
    if "seed" not in method.options:
        yield "method.seed", f"method={method.name} takes no seed. Remove it."
    is_external = method.name in METHODS and "external" in METHODS[method.name].needs
    if not is_external:
        reason = "it belongs to method=external. Remove it, or add method=external."
        for name in ("path", "partial"):
            yield f"method.{name}", reason
    if not is_own(method):
        reason = "it belongs to method=own. Remove it, or add method=own."
        for name in ("function", "needs"):
            yield f"method.{name}", reason
        if not is_external:
            reason = "it belongs to method=external and method=own. Remove it, or choose one of them."
            yield "method.higher_is_better", reason
    yield from _of_teaching(config)
    if config.weighting_name == "uniform":
        reason = f"the weights of method={method.name} are uniform. Remove it, or add weighting=chi2."
        yield "whole_weights", reason
    # training.lora.bits is checked in every run (lark/config/training.py).
    if not config.training.lora.rank:
        reason = "training.lora.rank=0 trains every weight. Set training.lora.rank too, or remove it."
        for name in ("alpha", "dropout", "targets"):
            yield f"training.lora.{name}", reason
    gpus = method.judge.tensor_parallel
    if shared_gpus(config.engine.name, gpus, machine.device) != gpus:
        device = "a CPU" if machine.device == "cpu" else "GPUs"
        reason = f"engine={config.engine.name} on {device} keeps the judge in one piece."
        yield "method.judge.tensor_parallel", f"{reason} Remove it, or use engine=vllm on GPUs."
    if config.analysis.name is None:
        yield "analysis", f"no measurement is chosen. Add analysis.name={'|'.join(ANALYSES)}."
    elif ANALYSE not in config.stages:
        stages = ",".join(config.stages)
        yield "analysis", f"stages=[{stages}] does not contain {ANALYSE}. Add it, or remove the setting."


def _of_teaching(config: Config) -> Iterator[tuple[str, str]]:
    """Settings of the stage `teach`."""
    if config.pool.format != TAUGHT:
        reason = "only pool=taught asks teachers. Add it, or remove the setting."
        for name in ("questions", "teach"):
            yield name, reason
    for name in ("command", "judge"):
        if config.teach.verify != name:
            yield f"teach.{name}", f"it belongs to teach.verify={name}. Add that, or remove the setting."
    if config.teach.verify not in ("answer", "vote"):
        verify = config.teach.verify
        reason = f"teach.verify={verify} compares no answers. Remove it, or use teach.verify=answer."
        yield "teach.grader", reason


def _idle_stages(config: Config, plan: Sequence[Step], overrides: Sequence[str]) -> Iterator[str]:
    """Requested stages without a step. `report` has none in any run; it writes the summary."""
    # All stages are the default; a run without teachers may leave theirs out.
    all_stages = (list(STAGES), [stage for stage in STAGES if stage != TEACH])
    if "stages" not in map(override_key, overrides) or config.stages in all_stages:
        return
    planned = dict.fromkeys(step.stage for step in plan)
    with_operations = {operation.stage for operation in OPERATIONS}
    for stage in config.stages:
        if stage in planned or stage not in with_operations:
            continue
        if stage == ANALYSE:
            remedy = f"choose a measurement with analysis.name={'|'.join(ANALYSES)}."
        elif stage == TEACH:
            remedy = "add pool=taught and teacher=<name> (docs/teach.md)."
        else:
            remedy = (
                f"the stages of method={config.method.name} are {', '.join(planned)}. Choose one of them,"
                " or another method."
            )
        yield f"stages: {stage} has nothing to do: {remedy}"


def report_idle_force(config: Config, steps: Sequence[Step]) -> None:
    """Warn about values of `force` that match no step of this run, such as those of another method or
    analysis.
    """
    for name in config.force:
        if not any(name in force_names(step) for step in steps):
            operations = ", ".join(dict.fromkeys(step.operation.name for step in steps))
            log.warning("force=[%s] has no effect: the operations of this run are %s", name, operations)


def force_names(step: Step) -> set[str]:
    """The values of `force=` that repeat a step."""
    return {step.stage, step.operation.name, step.purpose}
