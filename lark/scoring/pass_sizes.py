"""Sizes of forward passes on CPU, for the scorer and the planner. Imports no model code."""

CPU_TOKENS = 2048
"""Tokens of one forward pass on CPU. With SmolLM2, 1,024 to 4,096 are equally fast. 512 is 5% slower,
because every pass has a fixed cost; 16,384 is 10% slower, because activations of this size leave the cache
and their memory is allocated in every layer.
"""
CPU_PADDING = 32
"""Tokens of padding that cost as much as one more forward pass on CPU: about 26 with SmolLM2."""
