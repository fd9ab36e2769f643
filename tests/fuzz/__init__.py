"""Random damage to everything that a run reads, with one rule: a sentence, or the same result as without
the damage.

`python -m tests.fuzz` runs all kinds of cases for some minutes; `test_fuzz.py` runs a few of each in `make
test`.
"""
