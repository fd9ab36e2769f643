"""Sizes and times of training that the planner also uses. Imports no model code."""

from datetime import timedelta

BUCKET = 500_000_000
"""Numbers that DeepSpeed reduces or gathers at once (paper, App. C.3: 5e8)."""
LOSS_CHUNK = {"cpu": 512, "cuda": 2048}
"""Response positions with logits in memory at a time. On a GPU each chunk reads and writes the head's
gradient, which takes longer than the products of 512 positions.
"""
TIMEOUT = timedelta(hours=3)
"""How long a process waits for the others. The libraries' defaults (10 and 30 minutes) are shorter than a
7B student's checkpoint takes on a slow disk.
"""
