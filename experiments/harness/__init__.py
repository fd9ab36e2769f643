"""Shared by all experiments: composing a sweep, planning it, reading its artifacts, writing its report."""
