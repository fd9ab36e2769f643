"""The kinds of artifacts that analyses write, and their files."""

from lark.store.store import Kind

GRADIENTS_TABLE = Kind("analysis", 1, "gradients.parquet")
ESTIMATES_TABLE = Kind("analysis", 1, "estimates.parquet")
TEACHERS_TABLE = Kind("analysis", 1, "teachers.parquet")
JACOBIANS_TABLE = Kind("analysis", 1, "jacobians.parquet")
KAPPA_TABLE = Kind("analysis", 2, "kappa.parquet")
CONTAMINATION_TABLE = Kind("analysis", 1)
TIMINGS = Kind("cost", 1, "cost.parquet")
CONVERTED_JUDGE = "converted_judge"
"""Input of the timings: the folder of a packaged judge."""
