"""The content of each page as JSON values, computed from the artifacts that exist."""
