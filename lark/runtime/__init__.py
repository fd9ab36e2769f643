"""What runs, where, and what it leaves: operations, the plan, the pipeline, workers, the store."""
