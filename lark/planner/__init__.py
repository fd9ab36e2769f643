"""What a run will take before anything runs: FLOPs, hours, memory, disk. `dry_run=true` prints it, and refuses what cannot fit,
naming a setting that makes it fit.

Operations and bytes are counted from the student's shape (costs.py) and the pool's lengths (lengths.py); how fast a machine does
them is assumed or, on CPU, measured (throughput.py). Imports no model code.
"""
