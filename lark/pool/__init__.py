"""Candidate pools: read in any format, checked, normalised into one Parquet file."""
