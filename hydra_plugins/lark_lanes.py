"""Hydra's launcher `lanes`: trials of a sweep side by side on one machine (experiments/harness/lanes.py).

Run as: python run.py -m hydra/launcher=lanes hydra.launcher.lanes=2 method=random,grape

Hydra looks for launchers in `hydra_plugins` whenever it starts, so this imports nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, configure_log


@dataclass
class LanesConf:
    _target_: str = "hydra_plugins.lark_lanes.LanesLauncher"
    lanes: int = 2


ConfigStore.instance().store(group="hydra/launcher", name="lanes", node=LanesConf, provider="lark")


class LanesLauncher(BasicLauncher):
    """Starts each trial in the next free lane."""

    def __init__(self, lanes: int) -> None:
        super().__init__()
        self.lanes = lanes

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from experiments.harness.lanes import fork  # noqa: PLC0415
        from lark.errors import LarkError  # noqa: PLC0415

        assert self.config is not None
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        trials = enumerate(job_overrides, initial_job_idx)
        jobs = [partial(self._run, overrides, number) for number, overrides in trials]
        if not fork(jobs, self.lanes):
            raise LarkError("Trials of the sweep have failed: see above.")
        return []

    def _run(self, overrides: Sequence[str], number: int) -> None:
        """Run one trial in a lane, as Hydra's own launcher does. Raises the trial's error."""
        (result,) = super().launch([overrides], number)
        _ = result.return_value
