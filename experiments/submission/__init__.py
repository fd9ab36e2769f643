"""A sweep as one graph of steps, each made once: `python -m experiments submit` and `status`."""
