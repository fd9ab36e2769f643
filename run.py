"""The one entry point: check the configuration, run the stages.

Run as: python run.py                                          the demo
        python run.py method=lark budget=3 student=qwen7b      the paper's run
        python run.py -m method=random,grape,rsr,lark          a sweep
        python run.py dry_run=true ...                         the plan, without running it
"""

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

try:
    import hydra
except ModuleNotFoundError:
    sys.exit(
        "error: the packages that LARK needs are not installed in this Python. Run `make setup` to install"
        " them into .venv, then `source .venv/bin/activate`; for GPUs, see environment.yml."
    )
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from lark import config
from lark.config.cli import as_hydra_reads, outputs_typed, raised_by_hydra, sentence
from lark.errors import LarkError
from lark.work.entry import INTERRUPTED, explain, run_main
from lark.work.tracking import with_sweep_group

if TYPE_CHECKING:
    from lark.pipeline.pipeline import Pipeline

os.environ.setdefault(
    "HYDRA_FULL_ERROR", "1"
)  # errors reach `__main__` below, which reports each in one sentence
log = logging.getLogger("lark")
PROCESS = os.getpid()
failures: list[str] = []
"""One error message per failed trial. A trial of a sweep that fails does not stop the others."""


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(composed: DictConfig) -> None:
    hydra_config = HydraConfig.get()
    folder, outputs = Path(hydra_config.runtime.output_dir), Path(str(composed.outputs))
    try:
        settings = config.load(composed, folder)
        outputs = settings.outputs_path
        _run(settings, folder)
    except Exception as error:
        said = explain(error, outputs)
        if (
            os.getpid() != PROCESS
        ):  # a cluster job in another process: submitit returns the error to the parent
            raise LarkError(said) from error
        failures.append(f"error: {said}")
        if hydra_config.mode == RunMode.MULTIRUN:
            failures[-1] += f" (trial {hydra_config.job.num}: {' '.join(hydra_config.overrides.task)})"


def _run(settings: config.Config, folder: Path) -> None:
    from lark.cluster import slurm  # noqa: PLC0415
    from lark.output.run_summary import run_summary  # noqa: PLC0415  # not needed for --help and --cfg
    from lark.pipeline.fetch import fetch  # noqa: PLC0415
    from lark.pipeline.pipeline import Pipeline  # noqa: PLC0415

    if settings.only_fetches:
        fetch(settings)
    elif settings.dry_run:
        _plan(settings, folder)
    elif settings.hardware.cluster == "slurm" and slurm.is_follower():
        slurm.follow(settings.outputs_path)
    else:
        pipeline = Pipeline(settings, folder)
        _check_typed(pipeline)
        pipeline.run(run_summary, HydraConfig.get().overrides.task)


def _check_typed(pipeline: "Pipeline") -> None:
    """Refuse settings on the command line that have no effect. A sweep only warns about them."""
    from lark.pipeline.unused import check_unused  # noqa: PLC0415

    typed, sweep = HydraConfig.get().overrides.task, HydraConfig.get().mode == RunMode.MULTIRUN
    check_unused(pipeline.config, pipeline.machine, pipeline.plan, typed, sweep)


def _plan(settings: config.Config, folder: Path) -> None:
    """Handle `dry_run=true`: report what would run and its cost. The cost is reported even if the pool is
    missing.
    """
    from lark.pipeline.pipeline import Pipeline  # noqa: PLC0415
    from lark.pipeline.plan import make_plan, wanted  # noqa: PLC0415
    from lark.planner.report import report  # noqa: PLC0415
    from lark.store.store import Checksums  # noqa: PLC0415

    try:
        pipeline = Pipeline(settings, folder)
    except LarkError as error:
        steps = wanted(make_plan(settings, Checksums(settings.outputs_path), elsewhere=True), settings.stages)
        cost, refused = report(settings, steps)
        log.info(cost)
        raise LarkError(f"{refused} Also: {error}") if refused else error from None
    _check_typed(pipeline)
    cost, refused = report(settings, pipeline.steps, pipeline.lengths(), pipeline.finished())
    log.info("%s\n\n%s", pipeline.describe(), cost)
    if refused:
        raise LarkError(refused)


def command_line() -> str | None:
    """Run what was typed; return the errors of all trials, or None."""
    # Jobs started by Hydra's submitit launcher must import this `lark`, not the parser package of the same
    # name.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
    )
    config.register()
    try:
        sys.argv[1:] = with_sweep_group(as_hydra_reads(sys.argv[1:]))
        main()
    except (HydraException, OmegaConfBaseException, LarkError) as error:
        failures.append(f"error: {sentence(error)}")
    except (OSError, ValueError, AssertionError) as failure:
        # Of Hydra itself, which creates the run's folder and its log before it calls `main`.
        cause = failure if isinstance(failure, OSError) else failure.__cause__
        if raised_by_hydra(failure) and not isinstance(cause, OSError):
            failures.append(
                "error:"
                f" {sentence(failure) or 'Hydra cannot use the value of a setting that starts with hydra.'}"
            )
            return "\n".join(failures)
        if not isinstance(cause, OSError) or cause.filename is None:
            raise
        why = f"{cause.filename} cannot be written ({cause.strerror})"
        failures.append(f"error: {why}: choose another folder with outputs=<folder>.")
    except RuntimeError as error:
        if "srun" not in str(error):
            raise
        failures.append(
            "error: hardware=slurm with -m submits jobs, but there is no srun here: run it on the cluster's"
            " login node."
        )
    except KeyboardInterrupt:
        failures.append(INTERRUPTED)
    return "\n".join(failures) or None


if __name__ == "__main__":
    run_main(command_line, outputs_typed(sys.argv[1:]))
