"""Tables, the style of figures, the summary of a run, and cards."""
