"""Estimate the cost of a run before it starts: FLOPs, hours, memory, disk. `dry_run=true` prints the
estimate and refuses what cannot fit, naming a setting that makes it fit.

FLOPs and bytes are computed from the student's shape (costs.py) and the pool's lengths (lengths.py). The
machine's speed is assumed or, on CPU, measured (throughput.py). Imports no model code.
"""
