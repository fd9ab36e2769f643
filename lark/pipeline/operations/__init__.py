"""The operations of each stage, with their checks, costs and remedies."""
