"""Upload a selection or a checkpoint with its card to a model hub: `python -m lark.publish`."""
