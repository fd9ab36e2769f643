"""The one entry point: check the configuration, run the stages.

Run as: python run.py                                          the demo
        python run.py method=lark budget=3 student=qwen7b      the paper's run
        python run.py -m method=random,grape,rsr,lark          a sweep
        python run.py dry_run=true ...                         the plan, without running it
"""

import os
import sys
from pathlib import Path

try:
    import hydra
except ModuleNotFoundError:
    sys.exit(
        "error: the packages that LARK needs are not installed in this Python. Run `make setup` to install"
        " them into .venv, then `source .venv/bin/activate`; for GPUs, see environment.yml."
    )
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from lark import config
from lark.config.cli import as_hydra_reads, outputs_typed
from lark.config.completion import is_asked_for, offer
from lark.config.trained import with_trained_student
from lark.errors import LarkError
from lark.work.entry import INTERRUPTED, explain, run_main
from lark.work.sweep_record import in_sweep, record_failure, start_sweep
from lark.work.tracking import is_sweep, with_sweep_group

os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors reach `command_line`, which explains them
PROCESS = os.getpid()
failures: list[str] = []
"""One error message per failed trial. A trial of a sweep that fails does not stop the others."""


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(composed: DictConfig) -> None:
    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    is_trial = hydra_config.mode == RunMode.MULTIRUN
    outputs = Path(str(composed.outputs))
    try:
        from lark.pipeline.run import run  # noqa: PLC0415  # takes a second, which --help does not need

        settings = config.load(composed, folder)
        outputs = settings.outputs_path
        run(settings, folder, hydra_config.overrides.task, is_trial)
    except Exception as error:
        reason = explain(error, outputs)
        record_failure(hydra_config.overrides.task, reason)
        if os.getpid() != PROCESS:  # Hydra's launcher runs this trial in another process, and reports it
            raise LarkError(reason) from error
        if is_trial:
            reason += f" (trial {hydra_config.job.num}: {' '.join(hydra_config.overrides.task)})"
        failures.append(f"error: {reason}")


def command_line() -> str | None:
    """Run what was typed; return the errors of all trials, or None."""
    # Jobs of Hydra's launchers must import this `lark`, not the parser package of the same name.
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    config.register()
    if is_asked_for(sys.argv):
        from lark.selection.rules import WEIGHTINGS  # noqa: PLC0415  # only here

        offer("weighting", ["auto", *WEIGHTINGS])
    try:
        arguments = as_hydra_reads(with_trained_student(sys.argv[1:]))
        sys.argv[1:] = with_sweep_group(arguments)
        outputs = outputs_typed(arguments)
        if is_sweep(arguments):
            start_sweep(outputs)
        main()
        if in_sweep():
            from lark.output.sweep_table import end_sweep  # noqa: PLC0415  # takes a second

            end_sweep(Path(os.path.realpath(outputs)))
    except KeyboardInterrupt:
        failures.append(INTERRUPTED)
    except Exception as error:  # `explain` knows Hydra's, the disk's and ours; others leave a report
        failures.append(f"error: {explain(error, outputs_typed(sys.argv), is_running=False)}")
    return "\n".join(failures) or None


if __name__ == "__main__":
    run_main(command_line, outputs_typed(sys.argv[1:]))
