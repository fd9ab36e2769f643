"""Evaluate a student: benchmarks and their prompts, generating answers, grading them, metrics."""
