"""The plan of a run, and the pipeline that carries it out."""
