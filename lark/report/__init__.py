"""What people see: tables, the style of figures, the summary at the end of a run."""
