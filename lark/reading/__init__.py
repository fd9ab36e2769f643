"""Read files that other people wrote: JSON, JSON Lines, Parquet and CSV, one row at a time, each row with
its location.

Used for pools, benchmarks, training sets and configuration files of models. Errors name the file and the
line; limits protect against files that are too deeply nested or have lines too long for the memory.
"""
