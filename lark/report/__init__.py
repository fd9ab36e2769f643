"""Tables, the style of figures, and the summary at the end of a run."""
