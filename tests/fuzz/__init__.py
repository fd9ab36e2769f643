"""Random disturbances of the real program. Seeded and bounded; `python -m tests.fuzz.<module>` runs one kind."""
