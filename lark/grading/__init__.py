"""Extract answers from generations and grade them. Code that may hang or crash runs in separate processes."""
