"""Convert a selection's training set to the files that other trainers read: `python -m lark.export`."""
