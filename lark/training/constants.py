"""Sizes of training that the planner also uses. Imports no model code."""

BUCKET = 500_000_000
"""Numbers that DeepSpeed reduces or gathers at once (paper, App. C.3: 5e8)."""
LOSS_CHUNK = {"cpu": 512, "cuda": 2048}
"""Response positions with logits in memory at a time. On a GPU each chunk reads and writes the head's
gradient, which takes longer than the products of 512 positions.
"""
