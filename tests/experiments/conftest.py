"""Sweeps that several tests look at: composing a trial takes a tenth of a second, and Table 1 has 48."""

import pytest

from experiments.harness.sweep import Sweep, compose_sweep


@pytest.fixture(scope="session")
def paper_table1(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Table 1 at the paper's scale, as it comes."""
    outputs = tmp_path_factory.mktemp("paper")
    return compose_sweep("table1", ["scale=paper", "hardware=a100x8", "tracking=none", f"outputs={outputs}"])
