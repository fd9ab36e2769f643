"""From a generation to an answer, and from an answer to a grade. Pure, or in processes that may die of it."""
