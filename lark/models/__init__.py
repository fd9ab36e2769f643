"""Everything about a model that is not a method: tokens, weights, shapes, the head, attention."""
