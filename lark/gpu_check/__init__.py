"""The first check on a new machine: `make gpu-check` runs each GPU code path on a small example and prints
a table.
"""
