"""Weighted fine-tuning: loss, packing, trainer, checkpoints, export."""
