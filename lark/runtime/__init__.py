"""Carrying out runs: operations, the plan, the pipeline, workers and the artifact store."""
