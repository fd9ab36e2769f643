"""The kinds of artifacts that teachers' answers become; QUESTIONS is in question_files.py."""

from lark.store.store import Kind

ROLLOUTS = Kind("rollouts", 1, "rollouts.jsonl")
VERDICTS = Kind("verdicts", 1, "verdicts.jsonl")
PASS_RATES = Kind("pass_rates", 1, "pass_rates.parquet")
STANDING = Kind("standing", 1, "standing.json")
"""Which teachers stopped after the heats so far, and why."""
