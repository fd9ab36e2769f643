"""Tests of the notebooks in examples/."""
