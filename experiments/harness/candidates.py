"""The candidates of a pool with what the forward pass found, for the figures that look inside the scores."""

import pandas as pd

from experiments.harness.sweep import Job, Sweep
from lark.pool import trajectories as pools
from lark.scoring.methods import METHODS, loss, rho


def candidates(sweep: Sweep, job: Job) -> pd.DataFrame | None:
    """A row for each trajectory: teacher, rollout, statistics, loss, rho and g_hat. None before the scores are there."""
    pool, scores = sweep.folder(job, "pool"), sweep.folder(job, "scores")
    if pool is None or scores is None:
        return None
    table = pd.read_parquet(pool / pools.FILE, columns=[*pools.KEY, "teacher", "rollout"])
    table = table.merge(pd.read_parquet(scores / "scores.parquet"), on=pools.KEY, validate="1:1")
    return table.assign(loss=loss(table), rho=rho(table), g_hat=METHODS["lark"].score(table))


def selection(sweep: Sweep, job: Job) -> pd.DataFrame | None:
    """What the job has chosen, best first within each question. None before it has."""
    folder = sweep.folder(job, "selection")
    return None if folder is None else pd.read_parquet(folder / "selection.parquet")
