"""Settings that the user typed and that have no effect in this run: they are mistakes, and would otherwise
go unnoticed.

A single run refuses them. In a sweep they may be meant for other trials: `-m method=lark,random
method.seed=1` passes the seed to both methods, and only one of them uses it. A trial of a sweep therefore
only warns.
"""

import logging
from collections.abc import Iterator, Sequence

from lark.analysis.kinds import TIMINGS
from lark.config import STAGES, Config
from lark.errors import LarkError
from lark.generation.engine import shared_gpus
from lark.pipeline.operations.analyse import OPERATIONS as ANALYSIS_OPERATIONS
from lark.pipeline.plan import ANALYSES
from lark.pipeline.registry import OPERATIONS
from lark.scoring.methods import METHODS
from lark.scoring.sources import INFLUENCE_TABLE, LOCAL_TABLE, SCORES_TABLE
from lark.work.machine import Machine
from lark.work.operation import Step

log = logging.getLogger(__name__)


def check_unused(
    config: Config, machine: Machine, plan: Sequence[Step], overrides: Sequence[str], sweep: bool
) -> None:
    """Refuse overrides without effect; warn about them in a trial of a sweep. `plan`: all steps, also of
    other stages.
    """
    typed = [override.lstrip("+~").split("=", 1)[0] for override in overrides]
    said = [
        *_method(config, typed),
        *_scoring(config, plan, typed),
        *_gradients(config, plan, typed),
        *_judge(config, machine, plan, typed),
        *_adapters(config, typed),
        *_analysis(config, typed),
        *_stages(config, plan, typed),
        *_compare(config, typed),
    ]
    if said and not sweep:
        raise LarkError(" ".join(said))
    for sentence in said:
        log.warning(sentence)


def _method(config: Config, typed: Sequence[str]) -> Iterator[str]:
    """Settings that belong to another method."""
    method = config.method
    needs = METHODS[method.name].needs if method.name in METHODS else frozenset()
    budget = [
        (key, getattr(config.budget, key.removeprefix("budget.")))
        for key in typed
        if key.startswith("budget.")
    ]
    for key, value in (
        ("weighting", config.weighting),
        ("method.teacher", method.teacher),
        ("method.reverse", str(method.reverse).lower()),
        ("share_weights", str(config.share_weights).lower()),
        ("whole_weights", config.whole_weights),
        *budget,
    ):
        if key in typed and config.weighting_name is None:
            yield (
                f"{key}={value} has no effect: method={method.name} selects nothing. Remove it, or choose"
                " another method."
            )
    if "whole_weights" in typed and config.weighting_name == "uniform":
        yield (
            f"whole_weights={config.whole_weights} has no effect: the weights of method={method.name} are"
            " uniform. Remove it, or add weighting=chi2."
        )
    if "method.seed" in typed and "seed" not in method.options:
        yield f"method.seed={method.seed} has no effect: method={method.name} takes no seed. Remove it."
    elif "method.seed" in typed and method.options["seed"] != method.seed:
        instead = f"method.options.seed={method.options['seed']}"
        yield f"method.seed={method.seed} has no effect: {instead} takes its place. Give only one of them."
    own = {"path": method.path, "higher_is_better": method.higher_is_better, "partial": method.partial}
    for key, given in own.items():
        value = str(given).lower() if isinstance(given, bool) else given
        if f"method.{key}" in typed and "external" not in needs:
            yield (
                f"method.{key}={value} has no effect: it belongs to method=external. Remove it, or add"
                " method=external."
            )


def _scoring(config: Config, plan: Sequence[Step], typed: Sequence[str]) -> Iterator[str]:
    """Settings of a pass over the pool that this run does not have."""
    for key, table in (
        ("rank_clip", SCORES_TABLE),
        ("local_context", LOCAL_TABLE),
        ("local_steps", LOCAL_TABLE),
    ):
        if f"scoring.{key}" in typed and not any(step.makes(table) or step.makes(TIMINGS) for step in plan):
            value, method = getattr(config.scoring, key), config.method.name
            yield (
                f"scoring.{key}={value} has no effect: method={method} does not use it. Remove it, or choose"
                " another method."
            )


def _gradients(config: Config, plan: Sequence[Step], typed: Sequence[str]) -> Iterator[str]:
    """Settings of sketched gradients that this run does not compute, and of a validation set that nothing
    is compared with.
    """
    for prefix, has in (
        ("sketch.", any(step.operation.sketches for step in plan)),
        ("method.validation.", any(step.makes(INFLUENCE_TABLE) for step in plan)),
    ):
        given = [key for key in typed if key.startswith(prefix)]
        if given and not has:
            what = f"{given[0]} has" if len(given) == 1 else f"{', '.join(given)} have"
            yield (
                f"{what} no effect: method={config.method.name} does not use it. Remove it, or choose another"
                " method."
            )


def _judge(config: Config, machine: Machine, plan: Sequence[Step], typed: Sequence[str]) -> Iterator[str]:
    """Settings of a judge that nobody asks, or that cannot be divided among GPUs."""
    key = "method.judge.tensor_parallel"
    given = [name for name in typed if name.startswith("method.judge.")]
    if given and not any(step.operation.asks_judge for step in plan):
        what = f"{given[0]} has" if len(given) == 1 else f"{', '.join(given)} have"
        yield (
            f"{what} no effect: method={config.method.name} asks no judge. Remove it, or choose"
            " method=llm_judge."
        )
    elif key in given:
        wanted = config.method.judge.tensor_parallel
        if shared_gpus(config.engine.name, wanted, machine.device) != wanted:
            where = f"engine={config.engine.name} on {'a CPU' if machine.device == 'cpu' else 'GPUs'}"
            yield (
                f"{key}={wanted} has no effect: {where} keeps the judge in one piece. Remove it, or use"
                " engine=vllm on GPUs."
            )


def _adapters(config: Config, typed: Sequence[str]) -> Iterator[str]:
    """Settings of adapters in a training without any. training.lora.bits is checked in every run
    (lark/config/training.py).
    """
    settings = ("training.lora.alpha", "training.lora.dropout", "training.lora.targets")
    given = [key for key in typed if key in settings]
    if given and not config.training.lora.rank:
        what = f"{given[0]} has" if len(given) == 1 else f"{', '.join(given)} have"
        yield (
            f"{what} no effect: training.lora.rank=0 trains every weight. Set training.lora.rank too, or"
            " remove it."
        )


def _analysis(config: Config, typed: Sequence[str]) -> Iterator[str]:
    """An analysis whose stage is not requested, and settings of one that is not chosen."""
    chosen, stage = config.analysis.name, ANALYSIS_OPERATIONS[0].stage
    given = [key for key in typed if key.startswith("analysis.")]
    if given and chosen is None:
        what = f"{given[0]} has" if len(given) == 1 else f"{', '.join(given)} have"
        yield f"{what} no effect: no measurement is chosen. Add analysis.name={'|'.join(ANALYSES)}."
    elif given and stage not in config.stages:
        what = f"analysis.name={chosen}"
        yield (
            f"{what} has no effect: stages=[{','.join(config.stages)}] does not contain {stage}. Add it, or"
            f" remove {what}."
        )


def _compare(config: Config, typed: Sequence[str]) -> Iterator[str]:
    """Settings of the comparison of methods, which is not a single run."""
    given = [key for key in typed if key.startswith("compare.")]
    if given:
        what = f"{given[0]} has" if len(given) == 1 else f"{', '.join(given)} have"
        yield f"{what} no effect in a run of its own: use `python -m experiments run compare {given[0]}=...`."


def _stages(config: Config, plan: Sequence[Step], typed: Sequence[str]) -> Iterator[str]:
    """Stages without a step. `report` has none in any run; it writes the summary."""
    if "stages" not in typed or config.stages == list(STAGES):
        return
    planned = [step.stage for step in plan]
    for stage in config.stages:
        if stage in planned or all(operation.stage != stage for operation in OPERATIONS):
            continue
        if stage in (operation.stage for operation in ANALYSIS_OPERATIONS):
            yield (
                f"stages: {stage} has nothing to do: choose a measurement with"
                f" analysis.name={'|'.join(ANALYSES)}."
            )
        else:
            there = ", ".join(dict.fromkeys(planned))
            yield (
                f"stages: {stage} has nothing to do: the stages of method={config.method.name} are {there}."
                " Choose one of them, or another method."
            )
