"""The candidates of a pool with the statistics of the forward pass, for the figures that look inside the
scores.
"""

import pandas as pd

from experiments.harness.sweep import Sweep, Trial
from lark.pool import trajectories as pools
from lark.scoring.methods import METHODS, loss, rho
from lark.scoring.sources import SCORES_TABLE
from lark.selection.write import SELECTION


def candidates(sweep: Sweep, trial: Trial) -> pd.DataFrame | None:
    """One row per trajectory: teacher, rollout, statistics, loss, rho and g_hat. None if the scores do not
    exist yet.
    """
    pool = sweep.folder(trial, pools.POOL_TABLE)
    scores = sweep.folder(trial, SCORES_TABLE)
    if pool is None or scores is None:
        return None
    table = pools.frame(pool / pools.FILE, [*pools.KEY, "teacher", "rollout"])
    table = table.merge(pd.read_parquet(scores / SCORES_TABLE.file), on=pools.KEY, validate="1:1")
    return table.assign(loss=loss(table), rho=rho(table), g_hat=METHODS["lark"].score(table))


def selection(sweep: Sweep, trial: Trial) -> pd.DataFrame | None:
    """The trial's selection, best first within each question. None if it does not exist yet."""
    folder = sweep.folder(trial, SELECTION)
    return None if folder is None else pd.read_parquet(folder / SELECTION.file)
