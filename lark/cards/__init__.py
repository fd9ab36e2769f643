"""The README.md of a published artifact: a dataset card for a selection, a model card for a checkpoint."""
